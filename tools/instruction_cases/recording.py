"""The file of a recording: outputs of all cases, and what they were computed by."""

from __future__ import annotations

import json
import lzma
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from instruction_cases.model import Bytes, Case

__all__ = ["Entry", "Recording"]


@dataclass(frozen=True)
class Entry:
    """The output of one case and the hashes of what it was computed from.

    A case that the GPU refused as an illegal instruction has an empty output.
    """

    output: Bytes
    ptx_sha256: str
    checksum: int


@dataclass
class Recording:
    """Outputs by the name of the case.

    Attributes
    ----------
    environment
        GPU, driver, ptxas.
    """

    environment: dict[str, Any] = field(default_factory=dict)
    entries: dict[str, Entry] = field(default_factory=dict)

    def add(self, case: Case, output: Bytes) -> None:
        """Note the output of a case."""
        self.entries[case.name] = Entry(output, case.ptx_sha256, case.checksum)

    def save(self, path: Path, cases: dict[str, Case]) -> int:
        """Write the file; returns its size in bytes."""
        index, streams = [], []
        for name, entry in self.entries.items():
            lengths = [segment.end - segment.start for segment in cases[name].segments]
            skip = cases[name].segments[0].start
            lengths = [skip, *lengths, len(entry.output) - skip - sum(lengths)]
            if not len(entry.output):
                lengths = []
            index.append([name, entry.ptx_sha256, entry.checksum, lengths])
            streams.append(_differences(entry.output, lengths))
        data = lzma.compress(b"".join(streams), preset=9 | lzma.PRESET_EXTREME)
        head = lzma.compress(json.dumps([self.environment, index]).encode(), preset=9)
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, index=np.frombuffer(head, np.uint8), outputs=np.frombuffer(data, np.uint8))
        return path.stat().st_size

    @classmethod
    def load(cls, path: Path) -> Recording:
        """Read what `save` wrote."""
        with np.load(path) as file:
            environment, index = json.loads(lzma.decompress(file["index"].tobytes()))
            data = np.frombuffer(lzma.decompress(file["outputs"].tobytes()), np.uint8)
        found, start = cls(environment), 0
        for name, sha256, checksum, lengths in index:
            end = start + sum(lengths)
            output = np.frombuffer(_sums(data[start:end], lengths), np.uint8)
            found.entries[name] = Entry(output, sha256, checksum)
            start = end
        return found


def _differences(output: Bytes, lengths: list[int]) -> bytes:
    """Each part as its XOR with the part before, if that is as long, and in planes of bytes.

    Neighbours are often one instruction with two roundings, and so nearly equal; bytes of equal
    significance compress better together.
    """
    parts, start = [], 0
    before = np.empty(0, np.uint8)
    for length in lengths:
        part = output[start : start + length]
        coded = part ^ before if len(before) == length else part
        parts.append(_planes(coded).tobytes())
        before, start = part, start + length
    return b"".join(parts)


def _sums(data: Bytes, lengths: list[int]) -> bytes:
    """The inverse of `_differences`."""
    parts, start = [], 0
    before = np.empty(0, np.uint8)
    for length in lengths:
        coded = _planes(data[start : start + length], back=True)
        before = coded ^ before if len(before) == length else coded
        parts.append(before.tobytes())
        start += length
    return b"".join(parts)


def _planes(part: Bytes, back: bool = False) -> Bytes:
    if len(part) % 4:
        return part
    shape = (4, -1) if back else (-1, 4)
    return np.ascontiguousarray(part.reshape(shape).T).reshape(-1)
