# Types of the compiled module `cakert.runtime.library`; docstrings stand in the .pyx.

import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, final

class KernelAttributes(NamedTuple):
    registers: int
    shared_bytes: int
    local_bytes: int
    constant_bytes: int
    max_threads: int
    binary_version: tuple[int, int]
    cluster: tuple[int, int, int] | None

class Occupancy(NamedTuple):
    blocks_per_sm: int
    clusters: int | None

@final
class Library:
    @property
    def source(self) -> str | None: ...
    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def detail(self) -> str: ...
    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes | bytearray | memoryview,
        *,
        sha256: str | None = None,
        detail: str = "",
    ) -> None: ...
    def __getitem__(self, name: str, /) -> Kernel: ...
    def __contains__(self, name: object, /) -> bool: ...
    def __iter__(self) -> Iterator[str]: ...
    def __len__(self) -> int: ...

@final
class Kernel:
    @property
    def library(self) -> Library: ...
    @property
    def name(self) -> str: ...
    @property
    def param_layout(self) -> tuple[tuple[int, int], ...]: ...
    def attributes(self, device: int = 0) -> KernelAttributes: ...
    def occupancy(
        self,
        block: int | Sequence[int],
        shared_bytes: int = 0,
        cluster: int | Sequence[int] | None = None,
        device: int = 0,
    ) -> Occupancy: ...
    def load_on(self, device: int, shared_bytes: int = 0) -> None: ...
    def prepare(
        self,
        *example_args: Any,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        shared_bytes: int = 0,
        cluster: int | Sequence[int] | None = None,
        pdl: bool = False,
        cooperative: bool = False,
        stream: Any = None,
    ) -> Launcher: ...
    def launch(
        self,
        *args: Any,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        shared_bytes: int = 0,
        cluster: int | Sequence[int] | None = None,
        pdl: bool = False,
        cooperative: bool = False,
        stream: Any = None,
    ) -> None: ...

@final
class Launcher:
    @property
    def kernel(self) -> Kernel: ...
    @property
    def device(self) -> int: ...
    @property
    def grid(self) -> tuple[int, int, int]: ...
    @property
    def block(self) -> tuple[int, int, int]: ...
    @property
    def num_tensors(self) -> int: ...
    def run(self, *tensors: Any, stream: Any = None) -> None: ...
