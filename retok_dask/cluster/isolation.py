"""From a unit that kills its worker to the one record that does it.

Pure book-keeping, without Dask: the driver asks what to try next and says
what came of it. Trials write nothing. When all bad records are known, the
whole unit is encoded once more with those set aside, so that it ends as one
file set, with the same names as if nothing had happened.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, log2
from typing import TYPE_CHECKING, Any, Literal

from retok_dask.types import RejectReason

if TYPE_CHECKING:
    from retok_dask.completions import Unit

STRIKES = 2
"""Times that a single record must fail alone before it is set aside: one death may be chance."""

ROUNDS = 3
"""Times that a unit is searched; one whose parts all survive and whose whole does not is given up."""

MAX_BAD_RECORDS = 64
"""A unit with more bad records than this is given up as a whole."""

Step = Literal["count", "probe", "encode", "failed"]


@dataclass(frozen=True)
class SetAside:
    """One record that is not processed, by its ordinal in the unit."""

    ordinal: int
    reason: RejectReason
    detail: str

    def to_list(self) -> list[Any]:
        return [self.ordinal, str(self.reason), self.detail]

    @classmethod
    def from_list(cls, data: list[Any]) -> SetAside:
        return cls(int(data[0]), RejectReason(data[1]), str(data[2]))


@dataclass
class Isolation:
    """The search in one unit.

    Attributes:
        unit: the suspicious unit.
        cause: why it is suspected.
        records: how many records it holds, once counted.
        found: records to set aside.
        deaths: workers spent on it.
        waiting: parts still to be tried.
        running: parts being tried, by id.
    """

    unit: Unit
    cause: str
    records: int | None = None
    found: dict[int, SetAside] = field(default_factory=dict)
    deaths: int = 0
    rounds: int = 0
    count_failures: int = 0
    given_up: str = ""
    waiting: list[Unit] = field(default_factory=list)
    running: dict[str, Unit] = field(default_factory=dict)
    _strikes: dict[str, int] = field(default_factory=dict)

    def next_step(self) -> tuple[Step, Unit] | None:
        """What to do now; None while trials run."""
        if self.given_up:
            return "failed", self.unit
        if self.records is None:
            return None if self.running else self._take("count", self.unit)
        if self.waiting:
            return self._take("probe", self.waiting.pop())
        return None if self.running else self._take("encode", self.unit)

    def _take(self, step: Step, part: Unit) -> tuple[Step, Unit]:
        if step != "encode":
            self.running[part.id] = part
        return step, part

    def counted(self, records: int) -> None:
        """The unit holds so many records."""
        self.running.clear()
        self.records = records
        self._search()

    def _search(self) -> None:
        self.rounds += 1
        if self.rounds > ROUNDS:
            self.given_up = f"its parts survive and the whole does not ({self.cause})"
        elif self.records == 0:
            self.given_up = f"it holds no record, and fails all the same ({self.cause})"
        else:
            self.waiting = [part for part in self.unit.halves(self.records or 1) if part.first != part.last]

    def survived(self, part: Unit) -> None:
        """A trial went well."""
        self.running.pop(part.id, None)

    def failed(self, part: Unit, reason: RejectReason, detail: str) -> None:
        """A trial ended its worker, or raised: halve the part, or set its one record aside."""
        self.running.pop(part.id, None)
        if self.records is None:
            self.count_failures += 1
            if self.count_failures >= STRIKES:
                self.given_up = f"its records cannot be counted: {detail}"
            return
        first, last = part.first or 0, part.last if part.last is not None else self.records
        if last - first > 1:
            self.waiting += [half for half in part.halves(self.records) if half.first != half.last]
            return
        strikes = self._strikes[part.id] = self._strikes.get(part.id, 0) + 1
        if strikes < STRIKES:
            self.waiting.append(part)
            return
        self.found[first] = SetAside(first, reason, detail)
        if len(self.found) > MAX_BAD_RECORDS:
            self.given_up = f"more than {MAX_BAD_RECORDS} of its records fail, the last one: {detail}"

    def encode_failed(self, cause: str) -> None:
        """The whole unit failed again, with the known records set aside: search once more."""
        self.cause = cause
        self._search()

    def expected_deaths(self) -> int:
        """Most workers that one bad record may cost from here on."""
        return ceil(log2(max(2, self.records or 2))) + STRIKES
