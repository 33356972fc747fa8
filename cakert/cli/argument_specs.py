"""``--arg``: the text of one kernel argument <-> its type, shape and initial value.

    [NAME:]DTYPE[SHAPE]=INIT    an array in device memory; the kernel gets its address
    [NAME:]DTYPE=NUMBER         a scalar
    [NAME:]bytes=HEX|@FILE      a struct by value

docs/run.md describes the grammar; `parse` and ``str`` of what it returns are inverses.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

DTYPES: dict[str, np.dtype[Any]] = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "i8": np.dtype(np.int8),
    "u8": np.dtype(np.uint8),
    "i16": np.dtype(np.int16),
    "u16": np.dtype(np.uint16),
    "i32": np.dtype(np.int32),
    "u32": np.dtype(np.uint32),
    "i64": np.dtype(np.int64),
    "u64": np.dtype(np.uint64),
    "bool": np.dtype(np.bool_),
}
FLOATS = ("f16", "bf16", "f32", "f64")

Number: TypeAlias = int | float

MAX_STRUCT_BYTES = 32764
"""Of a kernel's parameters in all (CUDA Programming Guide, "Kernel Function Parameters")."""
_MAX_ARRAY_BYTES = 2**47
_LONGEST_NUMBER = 2000  # digits of a double are at most 1075, and Python prints 4300 of an integer
_WORDS = ("zeros", "ones", "iota", "rand", "randn", "nan")
_FORM = "NAME:DTYPE[SHAPE]=INIT, NAME:DTYPE=NUMBER or NAME:bytes=HEX (NAME: may be left out)"


@dataclass(frozen=True)
class FileRef:
    """``@path``, or ``@path.npz:member``; `member` is "" without one."""

    path: str
    member: str = ""

    def __str__(self) -> str:
        return f"@{self.path}:{self.member}" if self.member else f"@{self.path}"


@dataclass(frozen=True)
class ArraySpec:
    """An array.

    Attributes
    ----------
    name
        As given; "" where it was not.
    dtype
        A key of `DTYPES`.
    shape
        Extents, each at least 1.
    initial
        A word of the grammar, a number for all elements, a file, or (low, high) of ``rand``.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    initial: str | Number | FileRef | tuple[Number, Number]

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize

    @property
    def type_text(self) -> str:
        """``f32[64x128]``."""
        return f"{self.dtype}[{'x'.join(map(str, self.shape))}]"

    @property
    def initial_text(self) -> str:
        """What stands behind the ``=``."""
        if isinstance(self.initial, tuple):
            return "rand:" + ":".join(map(_number_text, self.initial))
        if isinstance(self.initial, (int, float)):
            return _number_text(self.initial)
        return str(self.initial)

    def __str__(self) -> str:
        return _prefix(self.name) + f"{self.type_text}={self.initial_text}"


@dataclass(frozen=True)
class ScalarSpec:
    """A number by value; a bool as 0 or 1."""

    name: str
    dtype: str
    value: Number

    @property
    def nbytes(self) -> int:
        """Bytes of its type."""
        return DTYPES[self.dtype].itemsize

    @property
    def type_text(self) -> str:
        """``f32``."""
        return self.dtype

    @property
    def initial_text(self) -> str:
        """The number."""
        return _number_text(self.value)

    def __str__(self) -> str:
        return _prefix(self.name) + f"{self.dtype}={self.initial_text}"


@dataclass(frozen=True)
class BytesSpec:
    """A struct by value: its bytes, or the file that holds them."""

    name: str
    source: bytes | FileRef

    @property
    def type_text(self) -> str:
        """``bytes``."""
        return "bytes"

    @property
    def initial_text(self) -> str:
        """The bytes in hex, or the file."""
        return self.source.hex() if isinstance(self.source, bytes) else str(self.source)

    def __str__(self) -> str:
        return _prefix(self.name) + f"bytes={self.initial_text}"


Spec: TypeAlias = ArraySpec | ScalarSpec | BytesSpec


def _prefix(name: str) -> str:
    return f"{name}:" if name else ""


def _cut(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."


def _shown(text: str) -> str:
    """Text of the command line in a message."""
    return repr(_cut(text))


def _number_text(number: Number) -> str:
    return repr(number)


def parse(text: str) -> Spec:
    """Read one argument.

    Raises
    ------
    ValueError
        A sentence that says what was expected and what was given.
    """
    head, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"must be {_FORM}, got {_shown(text)} without a '='")
    name, colon, kind = head.rpartition(":")
    if colon and not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        raise ValueError(f"a name must be letters, digits and underscores, got {_shown(name)}")
    if name.startswith("__"):
        raise ValueError(f"a name must not begin with two underscores, got {_shown(name)}")
    match = re.fullmatch(r"(\w+)(?:\[([^\]]*)\])?", kind, re.ASCII)
    if match is None:
        raise ValueError(f"must be {_FORM}, got {_shown(text)}")
    dtype, shape = match[1], match[2]
    if dtype == "bytes":
        if shape is not None:
            raise ValueError(
                f"bytes have no shape: write bytes=HEX or u8[SHAPE]=INIT, got {_shown(text)}"
            )
        return BytesSpec(name, _bytes(value))
    if dtype not in DTYPES:
        raise ValueError(f"a type must be bytes or one of {', '.join(DTYPES)}, got {_shown(dtype)}")
    if shape is None:
        return ScalarSpec(name, dtype, _scalar(dtype, value))
    return ArraySpec(name, dtype, _shape(dtype, shape), _initial(dtype, value))


def _shape(dtype: str, text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"[0-9]{1,18}(x[0-9]{1,18}){0,15}", text):
        raise ValueError(f"a shape must be integers as 1024 or 64x128, got {_shown(text)}")
    shape = tuple(int(extent) for extent in text.split("x"))
    if min(shape) < 1:
        raise ValueError(f"extents of a shape must be at least 1, got {_shown(text)}")
    nbytes = math.prod(shape) * DTYPES[dtype].itemsize
    if nbytes > _MAX_ARRAY_BYTES:
        raise ValueError(
            f"an array must have at most {_MAX_ARRAY_BYTES} bytes, {dtype}[{text}] has {nbytes}"
        )
    return shape


def _bytes(text: str) -> bytes | FileRef:
    if text.startswith("@"):
        return FileRef(_path(text))
    if not re.fullmatch(r"([0-9a-fA-F]{2})+", text):
        raise ValueError(f"bytes must be pairs of hexadecimal digits, or @FILE, got {_shown(text)}")
    if len(text) // 2 > MAX_STRUCT_BYTES:
        raise ValueError(
            f"bytes must be at most {MAX_STRUCT_BYTES}, the parameters of a kernel in all, got "
            f"{len(text) // 2}"
        )
    return bytes.fromhex(text)


def _path(text: str) -> str:
    if len(text) < 2 or "\0" in text:
        raise ValueError(f"@ must be followed by the name of a file, got {_shown(text)}")
    return text[1:]


def _initial(dtype: str, text: str) -> str | Number | FileRef | tuple[Number, Number]:
    if text.startswith("@"):
        path, npz, member = _path(text).rpartition(".npz:")
        if npz and member:
            return FileRef(path + ".npz", member)
        return FileRef(_path(text))
    word, colon, bounds = text.partition(":")
    if word == "rand" and colon:
        return _bounds(dtype, bounds)
    if text in _WORDS:
        if text in ("randn", "nan") and dtype not in FLOATS:
            other = "rand:LOW:HIGH" if text == "randn" else "a number"
            raise ValueError(f"{text} is for {', '.join(FLOATS)}; for {dtype} write {other}")
        return text
    if not re.match(r"[+-]?(\.?[0-9]|inf|nan)|true$|false$", text, re.IGNORECASE):
        raise ValueError(
            f"an initial value must be one of {', '.join(_WORDS)}, rand:LOW:HIGH, a number, "
            f"@FILE.npy or @FILE.npz:NAME, got {_shown(text)}"
        )
    number = _scalar(dtype, text)
    return "nan" if number != number else number


def _bounds(dtype: str, text: str) -> tuple[Number, Number]:
    low_text, colon, high_text = text.partition(":")
    if not colon:
        raise ValueError(f"must be rand:LOW:HIGH, got {_shown(text)}")
    low = _number(dtype, low_text)
    high = _number(dtype, high_text)
    # The upper bound of integers is not drawn, so it may stand one above the largest.
    for bound in (low, high if dtype in FLOATS else high - 1):
        _check_range(dtype, bound)
    if not low < high or not math.isfinite(high - low):
        raise ValueError(f"rand:LOW:HIGH must be finite with LOW below HIGH, got {_shown(text)}")
    return low, high


def _scalar(dtype: str, text: str) -> Number:
    if dtype == "bool" and text in ("true", "false"):
        return int(text == "true")
    return _check_range(dtype, _number(dtype, text))


def _number(dtype: str, text: str) -> Number:
    try:
        if not text.isascii() or len(text) > _LONGEST_NUMBER:
            raise ValueError
        if dtype not in FLOATS:
            if re.fullmatch(r"[+-]?[0-9]+", text):
                return int(text)  # "007" is no literal of Python
            return int(text, 0)
        value = float.fromhex(text) if re.match(r"[+-]?0[xX]", text) else float(text)
        if math.isinf(value) and "inf" not in text.lower():
            raise OverflowError
        return value
    except (OverflowError, ValueError):
        what = "a number" if dtype in FLOATS else "an integer"
        raise ValueError(f"a value of {dtype} must be {what}, got {_shown(text)}") from None


def _check_range(dtype: str, value: Number) -> Number:
    """Return `value`, which the type can hold; rounding to it is no error, an overflow is one."""
    if dtype in FLOATS:
        if math.isfinite(value) and not math.isfinite(rounded(dtype, value)):
            largest = float(ml_dtypes.finfo(DTYPES[dtype]).max)
            raise ValueError(
                f"a value of {dtype} must be in [{-largest:.5g}, {largest:.5g}], inf or nan, got "
                f"{value!r}"
            )
        return value
    if dtype == "bool":
        low, high = 0, 1
    else:
        low, high = int(np.iinfo(DTYPES[dtype]).min), int(np.iinfo(DTYPES[dtype]).max)
    if not low <= value <= high:
        raise ValueError(f"a value of {dtype} must be in [{low}, {high}], got {_cut(str(value))}")
    return value


def rounded(dtype: str, value: Number) -> float:
    """A number as a float type holds it."""
    with np.errstate(over="ignore"):
        return float(np.array(value, np.float64).astype(DTYPES[dtype]))


def name_all(specs: list[Spec]) -> list[str]:
    """The name of each argument: its own, else ``arg`` and its number from 0.

    Raises
    ------
    ValueError
        Two of the same name.
    """
    names: list[str] = []
    for number, spec in enumerate(specs):
        name = spec.name or f"arg{number}"
        if name in names:
            raise ValueError(f"arguments {names.index(name)} and {number} are both named {name!r}")
        names.append(name)
    return names
