"""Colours: contrast for everybody, and kinds that colour-blind people tell apart."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from retok_dask.types import KIND_NAMES
from retok_dask.views import palette

MAIN = ("user", "tool", "reasoning", "content", "tool_call", "stop")

# Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB
SIGHT = {
    "full": np.eye(3),
    "protanopia": np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]),
    "deuteranopia": np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]),
    "tritanopia": np.array([[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]),
}  # fmt: skip


def linear(colour: str) -> np.ndarray:
    values = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    matrix = np.array(
        [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
    )
    xyz = matrix @ np.clip(rgb, 0, 1) / np.array([0.95047, 1.0, 1.08883])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def contrast(one: str, other: str) -> float:
    weights = np.array([0.2126, 0.7152, 0.0722])
    light, dark = sorted((float(weights @ linear(one)), float(weights @ linear(other))), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_every_kind_has_a_shade_and_a_meaning() -> None:
    assert tuple(palette.SHADES) == KIND_NAMES == tuple(palette.MEANINGS)


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_text_is_readable_on_every_shade(kind: str) -> None:
    assert contrast("#1c1c1c", palette.SHADES[kind].light) >= 7
    assert contrast("#ececec", palette.SHADES[kind].dark) >= 4.5


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize(("theme", "apart"), [("light", 8), ("dark", 7.9), ("strong", 14)])
def test_main_kinds_differ_for_every_eye(sight: str, theme: str, apart: float) -> None:
    for one, other in itertools.combinations(MAIN, 2):
        first, second = (lab(SIGHT[sight] @ linear(getattr(palette.SHADES[kind], theme))) for kind in (one, other))
        assert np.linalg.norm(first - second) > apart, (one, other)
