"""CakeVsaParams and the stub's tensor maps as numpy structured types.

The first is read from cuda/vsa_params.h itself.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

HEADER = Path(__file__).resolve().parents[2] / "cuda" / "vsa_params.h"
_SCALARS = {"uint32_t": "<u4", "int32_t": "<i4", "float": "<f4"}


def read_header(text: str) -> np.dtype[Any]:
    """The struct's fields at their C offsets; pointers are uint64."""
    body = re.search(r"typedef struct CakeVsaParams \{(.*?)\} CakeVsaParams;", text, re.DOTALL)
    assert body is not None
    code = re.sub(r"/\*.*?\*/", "", body[1], flags=re.DOTALL)
    fields = []
    for declaration in filter(None, map(str.strip, code.split(";"))):
        found = re.fullmatch(r"(?:const )?(\w+) (\*?)(\w+)", declaration)
        assert found is not None, declaration
        kind, pointer, name = found.groups()
        fields.append((name, "<u8" if pointer else _SCALARS[kind]))
    return np.dtype(fields, align=True)


PARAMS = read_header(HEADER.read_text())


def launch_params(call: dict[str, Any]) -> Any:
    """The first parameter of a traced cuLaunchKernelEx as a structured scalar."""
    return np.frombuffer(bytes.fromhex(call["params"][0]), PARAMS)[0]


# struct map of stub_tensormap.c
MAP = np.dtype(
    [
        ("magic", "<u8"),
        ("address", "<u8"),
        ("dims", "<u8", 5),
        ("strides", "<u8", 4),
        ("box", "<u4", 5),
        ("rank", "<u4"),
        ("type", "u1"),
        ("interleave", "u1"),
        ("swizzle", "u1"),
        ("promotion", "u1"),
        ("fill", "u1"),
        ("unused", "u1", 11),
    ]
)


def launch_maps(call: dict[str, Any]) -> list[Any]:
    """The tensor maps behind it, as structured scalars."""
    return [np.frombuffer(bytes.fromhex(text), MAP)[0] for text in call["params"][1:]]
