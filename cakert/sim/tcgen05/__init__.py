"""tcgen05 and tensor memory: the fifth-generation tensor core of sm_100a and sm_103a.

`INSTRUCTIONS` is what the decoder takes from here. `TensorMemory` (`cta.tmem`) holds the cells of a
CTA, and puts `check_exit` among what the CTA calls at its end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cakert.sim.tcgen05.allocation import bind_alloc, bind_dealloc, bind_relinquish
from cakert.sim.tcgen05.copy import bind_cp, bind_shift
from cakert.sim.tcgen05.load_store import bind_ld, bind_ld_red, bind_st
from cakert.sim.tcgen05.memory import TensorMemory, check_exit, tensor_memory
from cakert.sim.tcgen05.mma import bind_mma, bind_mma_ws
from cakert.sim.tcgen05.sync import (
    bind_commit,
    bind_fence_after,
    bind_fence_before,
    bind_wait_ld,
    bind_wait_st,
)

if TYPE_CHECKING:
    from cakert.sim.decode.binder import Binder, Handler
    from cakert.sim.ptx.model import Instruction

__all__ = ["INSTRUCTIONS", "TensorMemory", "check_exit", "tensor_memory"]

INSTRUCTIONS: dict[str, Callable[[Instruction, Binder], Handler]] = {
    "tcgen05.alloc": bind_alloc,
    "tcgen05.commit": bind_commit,
    "tcgen05.cp": bind_cp,
    "tcgen05.dealloc": bind_dealloc,
    "tcgen05.fence::after_thread_sync": bind_fence_after,
    "tcgen05.fence::before_thread_sync": bind_fence_before,
    "tcgen05.ld": bind_ld,
    "tcgen05.ld.red": bind_ld_red,
    "tcgen05.mma": bind_mma,
    "tcgen05.mma.ws": bind_mma_ws,
    "tcgen05.relinquish_alloc_permit": bind_relinquish,
    "tcgen05.shift": bind_shift,
    "tcgen05.st": bind_st,
    "tcgen05.wait::ld": bind_wait_ld,
    "tcgen05.wait::st": bind_wait_st,
}
"""Mnemonic (longest dotted prefix) -> binder."""
