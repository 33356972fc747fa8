# Types of the compiled module `cakert.runtime.tensor`; docstrings stand in the .pyx.

from typing import Any, NamedTuple

class TensorInfo(NamedTuple):
    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    device_type: int
    device_id: int
    readonly: bool
    framework: str

def describe(obj: Any) -> TensorInfo: ...
def current_stream(obj: Any, device: int) -> int: ...
def stream_of(stream: Any) -> int: ...
