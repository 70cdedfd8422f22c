"""Do the client, the scheduler and all workers run the same libraries?"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from retok_dask.cluster.patience import answer_of
from retok_dask.datasets import library_versions
from retok_dask.errors import ClusterError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from distributed import Client

MATTER = (
    "retok-dask",
    "python",
    "unicode",
    "dask",
    "distributed",
    "transformers",
    "tokenizers",
    "fastokens",
    "jinja2",
    "minijinja",
    "pyarrow",
    "orjson",
    "pydantic",
)
"""Libraries in which a difference can change ids, or break what is sent."""

SHOWN = 8


@dataclass(frozen=True)
class Versions:
    """Versions on the client, and where a worker differs.

    Attributes:
        client: versions here, by name.
        workers: how many workers were asked.
        differences: by library, then version, the addresses that have it.
    """

    client: dict[str, str]
    workers: int
    differences: dict[str, dict[str, list[str]]] = field(default_factory=dict)

    def table(self) -> str:
        """The differences as a small table of text."""
        lines = [f"{'library':<14}{'here':<14}{'there':<14}workers"]
        for name, found in self.differences.items():
            for version, addresses in found.items():
                more = f" and {len(addresses) - SHOWN} more" if len(addresses) > SHOWN else ""
                where = ", ".join(addresses[:SHOWN]) + more
                lines.append(f"{name:<14}{self.client.get(name, 'none'):<14}{version:<14}{where}")
        return "\n".join(lines)


def compare_versions(client: Client) -> Versions:
    """Ask every worker for its versions."""
    here = library_versions()
    there = answer_of(lambda: client.run(worker_versions, on_error="return"), "the question for its versions")
    return _compare(here, there)


def _compare(here: dict[str, str], there: Mapping[str, Any]) -> Versions:
    differences: dict[str, dict[str, list[str]]] = {}
    for address, found in there.items():
        if not isinstance(found, dict):
            differences.setdefault("retok-dask", {}).setdefault(f"fails: {found!r:.200} ", []).append(address)
            continue
        for name in MATTER:
            if found.get(name) != here.get(name):
                differences.setdefault(name, {}).setdefault(str(found.get(name)), []).append(address)
    return Versions(here, len(there), differences)


def worker_versions() -> dict[str, str]:
    """Runs on a worker."""
    return library_versions()


def check_versions(client: Client) -> Versions:
    """Refuse a cluster whose workers run other versions than the client.

    Raises:
        ClusterError: with a table of what differs where.
    """
    versions = compare_versions(client)
    _refuse(versions)
    return versions


def check_worker(here: dict[str, str], address: str) -> None:
    """Refuse, on a worker, the job of a client that runs other versions: it may have joined after the check.

    Args:
        here: versions on the client.
        address: the worker's.

    Raises:
        ClusterError: with a table of what differs.
    """
    _refuse(_compare(here, {address: worker_versions()}))


def _refuse(versions: Versions) -> None:
    if versions.differences:
        msg = (
            "workers run other versions than the client, so that ids could differ or tasks break; "
            f"install the same environment everywhere:\n{versions.table()}"
        )
        raise ClusterError(msg)
