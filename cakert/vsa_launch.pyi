from typing import Any, Protocol, final

from cakert.runtime.library import Kernel

class HostKernel(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def place(self) -> str: ...
    @property
    def layout(self) -> tuple[tuple[int, int], ...]: ...
    def launch_packed(
        self,
        params: bytes,
        regions: tuple[tuple[str, int, int, bool], ...],
        maps: tuple[dict[str, Any], ...],
        grid: int,
        threads: int,
        shared_bytes: int,
        cluster: int,
    ) -> None: ...

@final
class VsaCall:
    def __init__(
        self,
        kernel: Kernel | HostKernel,
        *,
        device: int,
        M: int,
        N: int,
        block: int,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: str,
        sm_scale: float,
        index_bytes: int,
        grid: int,
        threads: int,
        shared_bytes: int,
        tensor_maps: bool,
        keep_alive: tuple[Any, ...],
        cluster: int = 1,
        row_blocks: int = 0,
        row_counts: int = 0,
        tile_order: int = 0,
        kv_block_lens: int = 0,
        group_rows: int = 0,
        group_blocks: int = 0,
        group_members: int = 0,
        group_counts: int = 0,
        row_stride: int = 0,
        group_stride: int = 0,
        num_groups: int = 0,
    ) -> None: ...
    @property
    def kernel(self) -> Kernel | HostKernel: ...
    @property
    def device(self) -> int: ...
    @property
    def maps(self) -> tuple[dict[str, Any], ...]: ...
    def run(
        self, q: Any, k: Any, v: Any, out: Any, lse: Any, return_lse: bool, stream: Any = None
    ) -> Any: ...
    def pack(self, q: Any, k: Any, v: Any, out: Any, lse: Any) -> bytes: ...
