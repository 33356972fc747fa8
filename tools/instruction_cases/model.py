"""What one case is, and when a recording and a simulation agree."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

__all__ = ["BITS", "STORED", "Case", "MapSpec", "Rule", "Segment", "disagreements", "segments_of"]

Bytes = npt.NDArray[np.uint8]

FLOATS = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
}


@dataclass(frozen=True)
class Rule:
    """When two results agree.

    Attributes
    ----------
    kind
        "bits": equal bits. "nan": equal bits, or both NaN (the ISA leaves the payload open).
        "near": within ``relative * |simulated| + absolute``; NaN, infinities and nothing else
        agree with themselves. "sum": within ``relative * scale``, where the next segment holds the
        scale, the same sum over absolute values. "stored": never compared.
    element
        Format of the results, a name in `FLOATS`; not needed for "bits" and "stored".
    """

    kind: str
    element: str = ""
    relative: float = 0.0
    absolute: float = 0.0


BITS = Rule("bits")
STORED = Rule("stored")


@dataclass(frozen=True)
class Segment:
    """Neighbouring results of one kind in the output of a case.

    Attributes
    ----------
    name
        For the table of mismatches; the instruction, as a rule.
    start, count, size
        First byte, number of results, bytes of each.
    """

    name: str
    start: int
    count: int
    size: int
    rule: Rule = BITS

    @property
    def end(self) -> int:
        """First byte after it."""
        return self.start + self.count * self.size


def segments_of(parts: Iterable[tuple[str, int, int, Rule]]) -> tuple[Segment, ...]:
    """Segments one after the other, of (name, count, size, rule)."""
    found, start = [], 0
    for name, count, size, rule in parts:
        found.append(Segment(name, start, count, size, rule))
        start += count * size
    return tuple(found)


@dataclass(frozen=True)
class MapSpec:
    """A tensor map of the input or the output of a case; sequences innermost first.

    Attributes
    ----------
    buffer
        "in" or "out"; the tensor starts at its first byte.
    data_type, swizzle, fill
        Names as `cakert.sim.TensorMap` has them.
    strides
        Bytes, from dimension 1 on.
    """

    buffer: str
    data_type: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    steps: tuple[int, ...]
    swizzle: str = "none"
    fill: str = "zero"


@dataclass(frozen=True)
class Case:
    """One launch of the kernel ``k`` with the arguments (output, input, [map], *scalars).

    Attributes
    ----------
    ptx
        The module; cases share texts.
    source, before
        Bytes of the input, and of the output before the launch.
    segments
        What of the output is compared, and how.
    """

    name: str
    ptx: str
    source: Bytes
    before: Bytes
    segments: tuple[Segment, ...]
    scalars: tuple[np.generic, ...] = ()
    map: MapSpec | None = None
    block: int = 128
    shared_bytes: int = 0
    tags: dict[str, Any] = field(default_factory=dict)

    @property
    def ptx_sha256(self) -> str:
        """Which text was recorded."""
        return hashlib.sha256(self.ptx.encode()).hexdigest()

    @property
    def checksum(self) -> int:
        """CRC-32 of the inputs: numpy does not promise the same random numbers for ever."""
        seen = repr((self.scalars, self.map, self.block, self.shared_bytes)).encode()
        return zlib.crc32(
            self.before.tobytes(), zlib.crc32(self.source.tobytes(), zlib.crc32(seen))
        )


def disagreements(
    case: Case, segment: Segment, recorded: Bytes, simulated: Bytes
) -> npt.NDArray[np.int64]:
    """Indices of the results of a segment that do not agree; both outputs are whole."""
    rule = segment.rule
    part = slice(segment.start, segment.end)
    theirs, ours = recorded[part], simulated[part]
    if rule.kind == "stored":
        return np.empty(0, np.int64)
    differ = (theirs != ours).reshape(segment.count, segment.size).any(axis=1)
    if rule.kind == "bits":
        return np.flatnonzero(differ)
    dtype = FLOATS[rule.element]
    with np.errstate(all="ignore"):
        a = theirs.view(dtype).astype(np.float64).reshape(segment.count, -1)
        b = ours.view(dtype).astype(np.float64).reshape(segment.count, -1)
        agree = np.isnan(a) & np.isnan(b)
        agree |= (theirs == ours).reshape(*a.shape, dtype.itemsize).all(axis=2)
        if rule.kind == "near":
            near = np.abs(a - b) <= rule.relative * np.abs(b) + rule.absolute
            near &= np.isfinite(a) & np.isfinite(b)
            # Without an absolute error, the sign of a zero is part of the answer.
            agree |= near & ((rule.absolute > 0) | (a != 0))
        elif rule.kind == "sum":
            following = case.segments[case.segments.index(segment) + 1]
            scale = simulated[following.start : following.end].view(dtype).astype(np.float64)
            agree |= np.abs(a - b) <= rule.relative * scale.reshape(a.shape)
    return np.flatnonzero(~agree.all(axis=1))
