from typing import Any

import numpy as np
import numpy.typing as npt

class Code:
    kernel: str
    operations: list[tuple[str, int, str]]
    handlers: list[Any]
    specials: list[tuple[str, int]]
    template: npt.NDArray[np.uint8]
    num_predicates: int
    local_bytes: int
    properties: dict[str, Any]
    def __init__(
        self,
        kernel: str,
        operations: list[dict[str, Any]],
        template: npt.NDArray[np.uint8],
        specials: list[tuple[str, int]],
        *,
        num_predicates: int,
        local_bytes: int,
        properties: dict[str, Any],
    ) -> None: ...
