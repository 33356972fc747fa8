from typing import Any

import numpy as np
import numpy.typing as npt

from cakert.sim.faults import Where

class GlobalMemory:
    def __len__(self) -> int: ...
    def register(
        self, address: int, nbytes: int, writable: bool, name: str, owner: Any = None
    ) -> None: ...
    def unregister(self, address: int) -> None: ...
    def view(
        self, address: int, nbytes: int, where: Where | None = None, write: bool = False
    ) -> npt.NDArray[np.uint8]: ...
    def explain(self, address: int, nbytes: int, write: bool) -> str: ...
