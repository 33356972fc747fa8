"""The `x` of README.md's kernel example under the stub: a tensor "on the GPU" with `numel`."""

from __future__ import annotations

import numpy as np

import cakert


class _Tensor:
    def __init__(self, values: np.ndarray) -> None:
        self._array = cakert.DeviceArray.from_numpy(values)

    def __dlpack__(self, **options: object) -> object:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()

    def numel(self) -> int:
        return int(np.prod(self._array.shape))


x = _Tensor(np.arange(1000, dtype=np.float32))
