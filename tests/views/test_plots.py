"""Plots draw what the table behind them says, without a display and without pyplot's state."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from retok_dask.views import plots, timeline


def stats(scale: int) -> dict[str, Any]:
    return {
        "records_in": 100 * scale + 5,
        "tokens": 1000 * scale,
        "loss_tokens": 400 * scale,
        "text_bytes": 4000 * scale,
        "lengths": {"5": 60 * scale, "9": 40 * scale},
        "shares": {"0": 1, "8": 99 * scale},
        "position_tokens": {str(k): 100 * scale for k in range(10)},
        "position_loss_tokens": {str(k): 10 * k * scale for k in range(10)},
        "kind_tokens": {"user": 600 * scale, "content": 390 * scale, "stop": 10 * scale},
        "rejected": {"bad_json": 3},
        "filtered": {"too_long": 2},
    }


DATA = {"a": stats(1), "b": stats(2)}
EVENTS = [
    {"at": 100.0, "kind": "start", "session": "s"},
    {"at": 104.0, "kind": "unit", "session": "s", "unit": "u1", "dataset": "a", "worker": "tcp://w:1", "tokens": 500, "loss_tokens": 200, "records": 5, "worker_seconds": 3.0, "rss": 2**28},
    {"at": 105.0, "kind": "worker_died", "session": "s", "worker": "tcp://w:2", "why": "killed by signal 9"},
    {"at": 109.0, "kind": "unit", "session": "s", "unit": "u2", "dataset": "b", "worker": "tcp://w:1", "tokens": 300, "loss_tokens": 100, "records": 4, "worker_seconds": 2.0, "rss": 2**29},
]  # fmt: skip


@pytest.mark.parametrize(
    ("plot", "expected"),
    [
        (lambda: plots.lengths(DATA, limits={"max_length": 512}), ("32-63", "60", "120")),
        (lambda: plots.trained_share(DATA), ("a", "1,000", "400", "40.0 %", "39.0 %", "1.0 %")),
        (lambda: plots.trained_by_position(DATA), ("90-100 %", "90.0 %", "90.0 %")),
        (lambda: plots.trained_share_of_rows(DATA), ("40-45 %", "99", "198")),
        (lambda: plots.rejects(DATA), ("rejected", "bad_json", "6", "1.9 %")),
        (lambda: plots.tokens_per_byte({"run": {"a": (1000, 4000)}}), ("a", "0.25")),
        (lambda: timeline.workers(EVENTS), ("w:2", "0", "0", "0", "1", "killed by signal 9")),
        (lambda: timeline.memory(EVENTS), ("w:1", "2", "512", "512")),
    ],
)
def test_the_table_holds_what_is_drawn(plot: Any, expected: tuple[str, ...]) -> None:
    drawn = plot()
    assert expected in [row[: len(expected)] for row in drawn.table.rows]
    assert drawn.png().startswith(b"\x89PNG")
    assert all(part in str(drawn) for part in expected)
    html = drawn._repr_html_()
    assert "data:image/png;base64," in html
    assert all(part in html for part in expected)
    assert drawn.figure.get_figwidth() == pytest.approx(7.2), "fits a printed page"


def test_throughput_adds_up_to_the_tokens() -> None:
    drawn = timeline.throughput(EVENTS)
    assert sum(float(row[1].replace(",", "")) for row in drawn.table.rows) == pytest.approx(800, rel=0.02)


@pytest.mark.parametrize(
    "make", [plots.lengths, plots.trained_share, plots.trained_by_position, plots.trained_share_of_rows, plots.rejects]
)
def test_nothing_and_empty_data_sets_are_drawn(make: Any) -> None:
    for data in ({}, {"empty": {"tokens": 0}}, {f"set-{n}": stats(1) for n in range(40)}):
        assert make(data).png()


def test_many_long_names_leave_room_for_what_they_name_and_are_told_apart() -> None:
    """Ten names beside a plot once left a fifth of it, and the eighth looked as the first."""
    names = [f"a-data-set-of-trajectories-of-agents-{n:02}-of-the-year-2026-filtered" for n in range(12)]
    data = {name: stats(n + 1) for n, name in enumerate(names)}
    for make in (plots.lengths, plots.trained_by_position, plots.trained_share_of_rows, plots.trained_share):
        drawn = make(data)
        drawn.png()
        (axes,) = drawn.figure.axes
        assert axes.get_position().width > 0.5
        assert axes.get_title(loc="left").endswith("(the 10 largest of 12)")
        looks = {(line.get_color(), str(line.get_linestyle())) for line in axes.get_lines()}
        assert make is plots.trained_share or len(looks) == 10
        words = [text.get_text() for text in axes.get_legend().get_texts()]
        assert len(set(words)) == len(words)


@pytest.mark.parametrize("make", [timeline.throughput, timeline.memory, timeline.workers])
def test_a_run_without_events_is_drawn(make: Any) -> None:
    assert make([]).png()
    assert make(EVENTS[:1]).png()


def test_text_is_never_read_as_mathematics() -> None:
    assert plots.tokens_per_byte({"$x_{1": {"a$\\frac": (1, 2)}}).png()


def test_views_load_what_they_draw_only() -> None:
    code = "import sys, retok_dask.views; print([m for m in ('matplotlib', 'pandas', 'distributed', 'transformers', 'papermill') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
