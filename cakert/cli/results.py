"""What a check of `cakert doctor` returns."""

from __future__ import annotations

from dataclasses import dataclass, field

from cakert.cli.cases import CASES


@dataclass(frozen=True)
class Result:
    """A case that was met, what was found, and the values that its texts name in braces."""

    case: str
    found: str
    values: dict[str, object] = field(default_factory=dict)

    @property
    def check(self) -> str:
        """The check that it belongs to."""
        return CASES[self.case].check

    @property
    def level(self) -> str:
        """One of `LEVELS`."""
        return CASES[self.case].level

    @property
    def why(self) -> str:
        """Why it matters; empty where all is well."""
        return CASES[self.case].why.format(**self.values)

    @property
    def mend(self) -> str:
        """What to do; empty where nothing is to be done."""
        return CASES[self.case].mend.format(**self.values)
