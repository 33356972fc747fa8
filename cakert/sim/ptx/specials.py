"""The special registers of PTX ISA 10, by the names that an operand may have."""

from __future__ import annotations

__all__ = ["SPECIAL_REGISTERS"]

_VECTORS = (
    "tid",
    "ntid",
    "ctaid",
    "nctaid",
    "clusterid",
    "nclusterid",
    "cluster_ctaid",
    "cluster_nctaid",
)
_SCALARS = (
    "laneid",
    "warpid",
    "nwarpid",
    "smid",
    "nsmid",
    "gridid",
    "is_explicit_cluster",
    "cluster_ctarank",
    "cluster_nctarank",
    "lanemask_eq",
    "lanemask_le",
    "lanemask_lt",
    "lanemask_ge",
    "lanemask_gt",
    "clock",
    "clock_hi",
    "clock64",
    "globaltimer",
    "globaltimer_lo",
    "globaltimer_hi",
    "reserved_smem_offset_begin",
    "reserved_smem_offset_end",
    "reserved_smem_offset_cap",
    "reserved_smem_offset_0",
    "reserved_smem_offset_1",
    "total_smem_size",
    "aggr_smem_size",
    "dynamic_smem_size",
    "current_graph_exec",
)

#: With the percent sign; a vector both whole (``%tid``) and by component (``%tid.x``).
SPECIAL_REGISTERS: frozenset[str] = frozenset(
    [f"%{name}" for name in _VECTORS]
    + [f"%{name}.{component}" for name in _VECTORS for component in "xyzw"]
    + [f"%{name}" for name in _SCALARS]
    + [f"%envreg{number}" for number in range(32)]
    + [f"%pm{number}" for number in range(8)]
    + [f"%pm{number}_64" for number in range(8)]
)
