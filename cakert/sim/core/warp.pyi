from typing import Any

import numpy as np
import numpy.typing as npt

from cakert.sim.core.code import Code
from cakert.sim.faults import Where

RUNNING: int
BLOCKED: int
EXITED: int

class Warp:
    cta: Any
    index: int
    code: Code
    file32: npt.NDArray[np.uint32]
    file64: npt.NDArray[np.uint64]
    predicates: npt.NDArray[np.uint32]
    counts: npt.NDArray[np.uint64]
    lanes: npt.NDArray[np.uint64]
    wavefronts: npt.NDArray[np.uint64]
    live: int
    synchronised: int
    pc: int
    def __init__(self, cta: Any, index: int, code: Code, num_threads: int) -> None: ...
    def run(self, budget: int) -> int: ...
    def poll(self) -> bool: ...
    def waits(self) -> list[tuple[Any, int, int]]: ...
    def where(self) -> Where: ...
    def mark_busy(self, rows32: Any, line: int) -> None: ...
    def clear_busy(self, rows32: Any) -> None: ...
