"""What a planted fault is, and its two kernels.

A fault is written as one text. A line that ends in ``//+`` is in the mended twin only, one in
``//-`` in the broken kernel only; the report must point to a line with ``//!`` and name those with
``//&``. Marks combine (``//-!``). Lines keep their numbers in both kernels.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cakert.sim import Array, Gpu, Report, TensorMap

ALL = ("eager", "lazy", "random")
SEEDS = range(12)
"""Seeds of the random schedule, of which one at least must catch a fault said to be caught."""

_MARKS = re.compile(r"//([-+!&]+)\s*$")
_PARAMETERS = ".param .u64 p_out, .param .u64 p_in"
_PROLOGUE = """
    .reg .pred %p<16>;
    .reg .b32 %r<64>;
    .reg .b64 %rd<64>;
    .reg .b128 %q<4>;
    .reg .f32 %f<64>;
    .reg .b32 thread, warp, lane, cta, ring, bar, mine;
    .reg .b64 out, in, to, from, map0, map1;
    .shared .align 1024 .b8 buffer[SHARED];
    .shared .align 8 .b64 barriers[8];
    .shared .align 4 .b32 slot;
    ld.param.u64 out, [p_out];
    ld.param.u64 in, [p_in];
    mov.u32 thread, %tid.x;
    mov.u32 cta, %ctaid.x;
    shr.u32 warp, thread, 5;
    and.b32 lane, thread, 31;
    mov.u32 ring, buffer;
    mov.u32 bar, barriers;
    shl.b32 mine, thread, 2;
    add.u32 mine, mine, ring;            // this thread's word of the buffer
    mul.wide.u32 %rd0, thread, 4;
    add.s64 to, out, %rd0;               // and of the arrays
    add.s64 from, in, %rd0;
"""
_MAP = """    mov.b64 %rd0, p_map{0};
    cvta.param.u64 map{0}, %rd0;
"""


def words(rng: np.random.Generator) -> NDArray[np.uint32]:
    """256 random words, none zero."""
    return rng.integers(1, 1 << 30, 256, np.uint32)


def first_words(count: int, factor: int = 1) -> Callable[[NDArray[np.uint32]], NDArray[np.uint32]]:
    """What a kernel writes that copies ``count`` words, times ``factor``."""
    return lambda source: source.reshape(-1)[:count] * np.uint32(factor)


_one_warp = first_words(32)


@dataclass(frozen=True)
class Planted:
    """A broken kernel and its mended twin.

    Attributes
    ----------
    name
        Of the kernel.
    fault
        Name of the fault that is expected; "" for a race, which only shows by unequal results.
    body
        PTX with marks, after the common prologue.
    caught_by
        Schedules that must catch it: "random" by at least one of `SEEDS`.
    threads, grid, sms, cluster, target, directives, shared
        The launch; ``shared`` is the size of the buffer in bytes.
    source, expected
        Makes the input from a generator; gives what the twin writes for it.
    maps
        Make tensor maps map0, map1 from the GPU, the input and the output.
    is_note
        The finding does not end the launch: hardware copes with it, or may.
    says
        What the message must contain besides.
    """

    name: str
    fault: str
    body: str
    caught_by: tuple[str, ...] = ALL
    threads: int = 32
    grid: int = 1
    sms: int = 4
    cluster: int = 1
    target: str = "sm_100a"
    directives: str = ""
    shared: int = 4096
    source: Callable[[np.random.Generator], NDArray[np.uint32]] = words
    expected: Callable[[NDArray[np.uint32]], NDArray] = _one_warp
    maps: tuple[Callable[[Gpu, Array, Array], TensorMap], ...] = ()
    is_note: bool = False
    says: tuple[str, ...] = ()

    def text(self, *, mended: bool) -> str:
        """PTX of one of the two kernels."""
        lines = []
        for line in self._marked().splitlines():
            marks = _marks(line)
            left_out = ("-" if mended else "+") in marks
            lines.append("" if left_out else _MARKS.sub("", line).rstrip())
        return "\n".join(lines) + "\n"

    def lines(self, mark: str) -> list[int]:
        """Lines of the broken kernel that carry a mark, from 1."""
        numbered = enumerate(self._marked().splitlines(), 1)
        return [number for number, line in numbered if mark in _marks(line)]

    def run(
        self, source: NDArray[np.uint32], *, mended: bool, schedule: str, seed: int = 0
    ) -> tuple[NDArray, Report]:
        """Launch one of the two kernels; what it wrote, and the report."""
        gpu = Gpu(self.target, sms=self.sms, schedule=schedule, seed=seed)
        given = gpu.array(source, name="in")
        written = gpu.array(np.zeros_like(self.expected(source)), name="out")
        maps = [make(gpu, given, written) for make in self.maps]
        report = gpu.load_ptx(self.text(mended=mended)).launch(
            self.name,
            grid=self.grid,
            block=self.threads,
            cluster=self.cluster,
            args=[written, given, *maps],
        )
        return written.numpy(), report

    def _marked(self) -> str:
        count = range(len(self.maps))
        parameters = [_PARAMETERS, *(f".param .align 64 .b8 p_map{i}[128]" for i in count)]
        return (
            f".version 9.0\n.target {self.target}\n.address_size 64\n"
            f".visible .entry {self.name}({', '.join(parameters)})\n{self.directives}\n{{"
            f"{_PROLOGUE.replace('SHARED', str(self.shared))}{''.join(map(_MAP.format, count))}"
            f"{self.body}\n    ret;\n}}\n"
        )


def _marks(line: str) -> str:
    found = _MARKS.search(line)
    return found[1] if found else ""
