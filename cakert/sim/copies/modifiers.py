"""The modifiers of an instruction, taken one by one: what nobody took is an unsupported form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cakert.sim.decode.binder import Binder

__all__ = ["Modifiers"]


class Modifiers:
    """The dotted parts of a mnemonic that are not yet accounted for.

    ptxas takes them in several orders, so they are a bag rather than a sequence.

    Parameters
    ----------
    binder
        Its `fail` reports what is missing, doubled or unknown.
    names
        The parts after those that chose the handler.
    """

    def __init__(self, binder: Binder, names: Sequence[str]) -> None:
        self._binder = binder
        self._left = list(names)

    def find(self, *choices: str) -> str | None:
        """Take whichever of ``choices`` is present; None where none is."""
        present = [name for name in self._left if name in choices]
        if not present:
            return None
        if len(present) > 1:
            self._binder.fail(f"has .{present[0]} and .{present[1]}")
        self._left.remove(present[0])
        return present[0]

    def flag(self, name: str) -> bool:
        """Take ``name`` if it is present."""
        return self.find(name) is not None

    def one_of(self, what: str, *choices: str) -> str:
        """Take the one of ``choices`` that must be present."""
        name = self.find(*choices)
        if name is None:
            expected = ", ".join("." + choice for choice in choices)
            self._binder.fail(f"lacks {what}: expected one of {expected}")
        return name

    def finish(self) -> None:
        """Refuse what is left."""
        if self._left:
            self._binder.fail("modifiers not simulated: " + ", ".join("." + n for n in self._left))
