from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cakert.sim.faults import Where

class WarpMma:
    def __init__(
        self,
        inputs: str,
        output: str,
        d: Sequence[int],
        a: Sequence[int],
        b: Sequence[int],
        c: Sequence[int],
        table_a: NDArray[np.float64] | None = None,
        table_b: NDArray[np.float64] | None = None,
    ) -> None: ...
    def run(self, file: NDArray[np.uint32]) -> None: ...

def load_matrices(
    shared: Any,
    file: NDArray[np.uint32],
    rows: NDArray[np.int64],
    addresses: NDArray[np.uint64],
    trans: bool,
    where: Callable[[], Where],
) -> bool: ...
def store_matrices(
    shared: Any,
    file: NDArray[np.uint32],
    rows: NDArray[np.int64],
    addresses: NDArray[np.uint64],
    trans: bool,
    first_thread: int,
    where: Callable[[], Where],
) -> bool: ...
def move_matrix(file: NDArray[np.uint32], destination: int, source: int) -> None: ...
