# Types of lane_ops.pyx, which has the documentation.

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

HAS_WIDE: bool
LANE_FUNCTIONS: dict[str, int]
LANE_SIGNATURES: dict[str, str]

def apply(
    name: str,
    file: npt.NDArray[np.uint8],
    predicates: npt.NDArray[np.uint32],
    rows: Sequence[int],
    mask: int,
    *,
    extra: int = 0,
    flags: int = 0,
    immediate: int = 0,
    wide: bool | None = None,
) -> None: ...
