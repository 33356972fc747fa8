"""Copies that run beside the warps: tensor maps and TMA, bulk copies, cp.async, st.async."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cakert.sim.copies import (
    bulk,
    bulk_groups,
    copy_groups,
    cp_async,
    prefetches,
    store_async,
    tma_instructions,
)
from cakert.sim.copies.tensor_map import TensorMap

if TYPE_CHECKING:
    from cakert.sim.decode.binder import Binder, Handler
    from cakert.sim.ptx.model import Instruction

__all__ = ["INSTRUCTIONS", "TensorMap"]

INSTRUCTIONS: dict[str, Callable[[Instruction, Binder], Handler]] = {
    **tma_instructions.INSTRUCTIONS,
    **bulk.INSTRUCTIONS,
    **bulk_groups.INSTRUCTIONS,
    **cp_async.INSTRUCTIONS,
    **copy_groups.INSTRUCTIONS,
    **store_async.INSTRUCTIONS,
    **prefetches.INSTRUCTIONS,
}
"""Prefix of a mnemonic -> what binds it."""
