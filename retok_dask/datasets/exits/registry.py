"""The table of exits. A row names a class by import string, so that the table costs nothing to read."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from retok_dask.errors import OutputError, did_you_mean

if TYPE_CHECKING:
    from retok_dask.datasets.exits.base import Exit


@dataclass(frozen=True)
class ExitSpec:
    """One format.

    Attributes:
        name: as given to ``retok export --to``.
        consumer: who reads it.
        maker: ``module:Class`` below this package.
        settings: arguments of the class.
        packs: whether packed rows keep their document boundaries in it.
    """

    name: str
    consumer: str
    maker: str
    settings: dict[str, Any] = field(default_factory=dict)
    packs: bool = True

    def make(self) -> Exit:
        """The writer of this format."""
        module, _, name = self.maker.partition(":")
        maker = getattr(import_module(f"retok_dask.datasets.exits.{module}"), name)
        made: Exit = maker(**self.settings)
        return made


_ROWS = (
    ExitSpec("trl", "TRL and transformers (labels)", "tables:ParquetExit", {"layout": "labels"}),
    ExitSpec("trl-assistant", "TRL (assistant_masks)", "tables:ParquetExit", {"layout": "assistant_masks"}),
    ExitSpec("trl-completion", "TRL (completion_mask)", "tables:ParquetExit", {"layout": "completion_mask"}),
    ExitSpec("axolotl", "Axolotl, pre-tokenized", "tables:ParquetExit", {"layout": "axolotl"}),
    ExitSpec("modelopt", "NVIDIA Model-Optimizer", "tables:ParquetExit", {"layout": "modelopt"}, packs=False),
    ExitSpec("hf-arrow", "datasets.load_from_disk", "tables:SaveToDiskExit", {"layout": "loss_mask"}),
    ExitSpec("specforge", "SpecForge (EAGLE-3, DFlash)", "tables:SaveToDiskExit", {"layout": "specforge"}, packs=False),
    ExitSpec("specforge-prompts", "SpecForge, online (JSON lines)", "tables:JsonLinesExit", packs=False),
    ExitSpec(
        "speculators",
        "vLLM speculators",
        "tables:SaveToDiskExit",
        {"layout": "speculators", "format_type": "torch"},
        packs=False,
    ),
    ExitSpec("megatron", "Megatron .bin/.idx", "flat:MegatronExit"),
    ExitSpec("nanotron", "datatrove and nanotron .ds", "flat:DatatroveExit"),
    ExitSpec("npy", "numpy memory maps", "flat:NumpyExit"),
    ExitSpec("mds", "MosaicML streaming", "mosaic:MosaicExit"),
    ExitSpec("webdataset", "WebDataset", "tars:WebDatasetExit"),
)

EXITS: dict[str, ExitSpec] = {spec.name: spec for spec in _ROWS}
assert len(EXITS) == len(_ROWS)


def exit_named(name: str) -> ExitSpec:
    """The row of the table.

    Raises:
        OutputError: there is no such format.
    """
    if name not in EXITS:
        msg = f"there is no export format {name!r}.{did_you_mean(name, EXITS)}"
        raise OutputError(msg)
    return EXITS[name]
