"""What is in a cubin, a fatbin or a host file that embeds them: no toolkit, no driver, no GPU.

`inspect_file` and `inspect_bytes` return frozen records; `as_json` gives them the stable form that
docs/inspect.md describes, and `compare` says what changed between two builds.
"""

from __future__ import annotations

from cakert.inspect.comparison import Comparison, KernelChange, compare
from cakert.inspect.files import cubin_images, inspect_bytes, inspect_file
from cakert.inspect.json_form import as_json, comparison_as_json
from cakert.inspect.records import (
    ConstantBank,
    CubinRecord,
    Fatbin,
    FatbinEntry,
    Inspection,
    KernelRecord,
    Parameter,
    PtxRecord,
)
from cakert.inspect.sass import Disassembly, disassemble

__all__ = [
    "Comparison",
    "ConstantBank",
    "CubinRecord",
    "Disassembly",
    "Fatbin",
    "FatbinEntry",
    "Inspection",
    "KernelChange",
    "KernelRecord",
    "Parameter",
    "PtxRecord",
    "as_json",
    "compare",
    "comparison_as_json",
    "cubin_images",
    "disassemble",
    "inspect_bytes",
    "inspect_file",
]
