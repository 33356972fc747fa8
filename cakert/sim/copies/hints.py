"""What copies take and the simulator has no use for: cache policies; and what only sm_100 has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cakert.sim.decode.binder import Binder
    from cakert.sim.ptx.model import Operand

__all__ = ["bind_cache_policy", "require_blackwell"]


def bind_cache_policy(operands: Sequence[Operand], present: bool, binder: Binder) -> None:
    """Check the last operand of a ``.L2::cache_hint`` form: 64 bits, a hint without effect."""
    if present:
        binder.row(operands[-1], 64)


def require_blackwell(binder: Binder, what: str) -> None:
    """Refuse what ptxas refuses below sm_100 (ptxas 13.0)."""
    number = "".join(c for c in binder.arch if c.isdigit())
    if int(number) < 100:
        binder.fail(f"{what} needs sm_100 or later, not {binder.arch}")
