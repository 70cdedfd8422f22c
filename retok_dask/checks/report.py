"""What a validation found: named checks, each with a verdict, numbers and a sentence."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from retok_dask.errors import ValidationFailed

Severity = Literal["error", "warning", "info"]
"""``error`` breaks the contract, ``warning`` asks for a look, ``info`` is a check that could not be made."""

SHOWN = 5
"""Problems of one check that are named one by one."""


@dataclass(frozen=True)
class Check:
    """One named check.

    Attributes:
        name: as listed in ``docs/outputs.md``.
        severity: what it means if it does not pass.
        passed: the verdict. A check that could not be made has severity
            ``info``, passes, and says why in `detail`.
        detail: one sentence; the first problems if there are any.
        numbers: what was counted.
    """

    name: str
    severity: Severity
    passed: bool
    detail: str
    numbers: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ValidationReport:
    """All checks of one run.

    Attributes:
        url: the run's folder.
        full: whether every file and row was looked at.
        checks: in the order they were made.
    """

    url: str
    full: bool
    checks: list[Check]

    @property
    def passed(self) -> bool:
        """Whether no check of severity ``error`` failed."""
        return all(check.passed for check in self.checks if check.severity == "error")

    @property
    def failed(self) -> list[Check]:
        """Checks that did not pass, errors first."""
        return sorted((check for check in self.checks if not check.passed), key=lambda check: check.severity != "error")

    def check(self, name: str) -> Check:
        """The check of that name.

        Raises:
            KeyError: it was not made.
        """
        return {check.name: check for check in self.checks}[name]

    def raise_if_failed(self) -> None:
        """Raise if the run breaks its contract.

        Raises:
            ValidationFailed: naming each failed check.
        """
        errors = [f"{check.name}: {check.detail}" for check in self.failed if check.severity == "error"]
        if errors:
            msg = f"{self.url} breaks its contract. {' '.join(errors)}"
            raise ValidationFailed(msg)

    def to_dict(self) -> dict[str, Any]:
        return {
            "url": self.url,
            "full": self.full,
            "passed": self.passed,
            "checks": [asdict(check) for check in self.checks],
        }

    def to_text(self) -> str:
        """One line a check, for a terminal or a log."""
        width = max((len(check.name) for check in self.checks), default=0)
        lines = [f"{self.url}: {'passed' if self.passed else 'FAILED'} ({'every row' if self.full else 'a sample'})"]
        lines += [f"  {_verdict(check):7} {check.name:{width}}  {check.detail}" for check in self.checks]
        return "\n".join(lines)

    __str__ = to_text
    __repr__ = to_text

    def _repr_html_(self) -> str:
        from retok_dask.views.objects import validation_html  # noqa: PLC0415  views draws; a notebook alone needs it

        return validation_html(self)


def _verdict(check: Check) -> str:
    if check.severity == "info":
        return "skipped"
    return "ok" if check.passed else check.severity


def verdict(name: str, problems: list[str], good: str, numbers: dict[str, Any], severity: Severity = "error") -> Check:
    """A check from its list of problems; passes if there are none."""
    if not problems:
        return Check(name, severity, True, good, numbers)
    more = f" and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
    detail = f"{'; '.join(problems[:SHOWN])}{more}"
    return Check(name, severity, False, detail, numbers | {"problems": len(problems)})


def skipped(name: str, why: str) -> Check:
    """A check that could not be made."""
    return Check(name, "info", True, f"not checked: {why}")
