"""Matrix instructions of a warp and of a warpgroup, and the layouts that they share.

``fragments`` and ``formats`` say where elements live and what their bits mean, ``descriptors``
reads shared-memory matrix descriptors (wgmma and tcgen05), ``warp_matrices``, ``mma_sync`` and
``wgmma`` bind the instructions; ``mma_core`` is the compiled part of the hot ones.
"""

from __future__ import annotations

from cakert.sim.matrix import mma_sync, warp_matrices, wgmma

__all__ = ["INSTRUCTIONS"]

INSTRUCTIONS = {
    **warp_matrices.INSTRUCTIONS,
    **mma_sync.INSTRUCTIONS,
    **wgmma.INSTRUCTIONS,
}
