from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from cakert.sim.faults import Where

RESERVED_BYTES: int

class ProxyClock: ...

class SharedMemory:
    data: npt.NDArray[np.uint8]
    size: int
    rank: int
    def __init__(
        self, nbytes: int, faults: Any = None, *, rank: int = 0, clock: ProxyClock | None = None
    ) -> None: ...
    def now(self) -> int: ...
    def generic_read(
        self, addresses: Any, threads: Any, where: Where | None
    ) -> npt.NDArray[np.uint8]: ...
    def generic_write(
        self,
        addresses: Any,
        values: Any,
        threads: Any,
        where: Where | None,
        copied: bool = False,
        rank: int | None = None,
    ) -> None: ...
    def proxy_fence(self, warp: Any, mask: int) -> None: ...
    def async_read(self, addresses: Any, where: Where | None) -> npt.NDArray[np.uint8]: ...
    def async_write(self, addresses: Any, values: Any, where: Where | None) -> None: ...
    def begin_async(
        self,
        operation: Any,
        reads: Iterable[tuple[int, int]],
        writes: Iterable[tuple[int, int]],
    ) -> None: ...
    def end_async(self, operation: Any) -> None: ...
    def reserve(self, address: int, nbytes: int, owner: str) -> None: ...
    def release(self, address: int, nbytes: int) -> None: ...
