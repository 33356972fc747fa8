# Types of the compiled module `cakert.runtime.arguments`; docstrings stand in the .pyx.

from collections.abc import Iterable
from typing import Any

def pack(layout: Iterable[tuple[int, int]], args: Iterable[Any]) -> bytes: ...
