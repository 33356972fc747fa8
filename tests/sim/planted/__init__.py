"""Small kernels with one planted fault each, and their mended twins, by what went wrong."""

from planted import (
    barriers,
    bounds,
    copies,
    descriptors,
    mbarriers,
    races,
    resources,
    rings,
    tensor_memory,
    warpgroups,
)

FAULTS = (
    *copies.FAULTS,
    *rings.FAULTS,
    *mbarriers.FAULTS,
    *barriers.FAULTS,
    *bounds.FAULTS,
    *warpgroups.FAULTS,
    *tensor_memory.FAULTS,
    *descriptors.FAULTS,
    *resources.FAULTS,
)
RACES = races.RACES
