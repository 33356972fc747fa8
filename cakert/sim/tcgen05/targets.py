"""Which targets have which tcgen05 form (PTX ISA and ptxas 13.0), and how modifiers are read."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cakert.sim.decode.binder import Binder

__all__ = ["Modifiers", "require"]

_EVERY = frozenset({"sm_100a", "sm_100f", "sm_103a", "sm_103f", "sm_110a", "sm_110f"})

_TARGETS: dict[str, frozenset[str]] = {
    "tcgen05": _EVERY,
    "scale-input-d": frozenset({"sm_100a", "sm_100f", "sm_103a", "sm_103f"}),
    "tcgen05.shift": frozenset({"sm_100a", "sm_103a", "sm_110a"}),
    "tcgen05.ld.red": frozenset({"sm_103a", "sm_103f", "sm_110a", "sm_110f"}),
    "kind::i8": frozenset({"sm_100a", "sm_110a"}),
}


def require(binder: Binder, feature: str) -> None:
    """Refuse the instruction where the module's target lacks a feature.

    Parameters
    ----------
    feature
        "tcgen05", "scale-input-d", "tcgen05.shift", "tcgen05.ld.red" or "kind::i8".

    Raises
    ------
    UnsupportedInstruction
        The target has no such form; ptxas refuses it too.
    """
    if binder.arch not in _TARGETS[feature]:
        binder.fail(f"{feature} does not exist on {binder.arch}")


class Modifiers:
    """The modifiers of an instruction, taken one by one; what is left over is refused.

    Parameters
    ----------
    binder
        Binder of the instruction.
    skip
        Modifiers at the front that belong to the mnemonic: 1 for ``tcgen05.mma``.
    """

    def __init__(self, binder: Binder, skip: int = 1) -> None:
        self._binder = binder
        self._left = list(binder.instruction.modifiers[skip:])

    def has(self, modifier: str) -> bool:
        """Take a modifier that may be there."""
        if modifier in self._left:
            self._left.remove(modifier)
            return True
        return False

    def need(self, modifier: str) -> None:
        """Take a modifier that must be there."""
        if not self.has(modifier):
            self._binder.fail(f"needs .{modifier}")

    def one_of(self, *modifiers: str) -> str:
        """Take the one of ``modifiers`` that is there."""
        found = [modifier for modifier in modifiers if self.has(modifier)]
        if len(found) != 1:
            self._binder.fail("needs one of " + ", ".join(f".{name}" for name in modifiers))
        return found[0]

    def starting(self, prefix: str) -> str | None:
        """Take the modifier that begins with ``prefix``; None where there is none."""
        for modifier in self._left:
            if modifier.startswith(prefix):
                self._left.remove(modifier)
                return modifier
        return None

    def cta_group(self) -> None:
        """Take ``.cta_group::1``; CTA pairs are refused."""
        group = self.starting("cta_group::")
        if group == "cta_group::2":
            self._binder.fail(
                "cta_group::2 (one operation over the tensor memory of two CTAs) is not simulated"
            )
        if group != "cta_group::1":
            self._binder.fail("needs .cta_group::1")

    def end(self) -> None:
        """Refuse what was not taken."""
        if self._left:
            self._binder.fail("unknown modifier " + ", ".join(f".{name}" for name in self._left))
