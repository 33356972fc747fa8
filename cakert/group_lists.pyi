from typing import Any

import numpy as np
import numpy.typing as npt

def count_shared(
    lists: npt.NDArray[Any],
    counts: npt.NDArray[np.int32],
    pairs: npt.NDArray[np.uint32],
    kv_blocks: int,
) -> npt.NDArray[np.int32]: ...
def fill_stages(
    lists: npt.NDArray[Any],
    counts: npt.NDArray[np.int32],
    pairs: npt.NDArray[np.uint32],
    kv_blocks: int,
    width: int,
) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint8]]: ...
