# Types of the compiled module `cakert.runtime.tensormap`; docstrings stand in the .pyx.
from collections.abc import Sequence

def encode(
    data_type: str,
    global_address: int,
    dims: Sequence[int],
    strides: Sequence[int],
    box: Sequence[int],
    *,
    swizzle: str = "none",
    l2_promotion: str = "none",
    device: int = 0,
) -> bytes: ...
def readdress(tensor_map: bytes, global_address: int, *, device: int = 0) -> bytes: ...
