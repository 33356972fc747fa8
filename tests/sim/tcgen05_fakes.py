"""A bench for tcgen05 instructions: real reader, binder, engine and mbarriers; plain warps.

`Bench.run` executes PTX statements one by one on a chosen warp. Registers of the statements are
numpy rows that tests set and read by name.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from cakert.sim.decode.binder import Binder
from cakert.sim.decode.layout import RegisterLayout
from cakert.sim.faults import Fault
from cakert.sim.machine.asynchronous import AsyncEngine
from cakert.sim.machine.mbarrier import MbarrierTable
from cakert.sim.ptx import read
from cakert.sim.tcgen05 import INSTRUCTIONS

FULL = 0xFFFFFFFF
BASE = 1024


class FakeShared:
    """Shared memory without a shadow, save for what nobody wrote."""

    def __init__(self, size: int = 228 << 10) -> None:
        self.size = size
        self.data = np.full(size, 0xFF, np.uint8)
        self.reads: list[tuple[int, int]] = []

    def put(self, address: int, values: np.ndarray) -> None:
        raw = np.ascontiguousarray(values).view(np.uint8).reshape(-1)
        self.data[address : address + raw.size] = raw

    def generic_write(self, addresses, values, threads, where) -> None:
        self.data[addresses] = values

    def async_read(self, addresses, where) -> np.ndarray:
        return self.data[addresses]

    def begin_async(self, operation, reads, writes) -> None:
        self.reads.extend(reads)

    def end_async(self, operation) -> None:
        pass

    def reserve(self, address, nbytes, owner) -> None:
        pass

    def release(self, address, nbytes) -> None:
        pass


class FakeLaunch:
    def __init__(self, arch: str, schedule: str) -> None:
        self.arch = arch
        self.kernel = "kernel"
        self.progress = 0
        self.ignore: set[str] = set()
        self.counters: dict[str, int] = {}
        self.notes: list[str] = []
        self.engine = AsyncEngine(self, schedule, 0)

    def fault(self, name, message, *, where=None, advice="") -> None:
        if name not in self.ignore:
            raise Fault(name, message, where=where, advice=advice)

    def count(self, name, amount) -> None:
        self.counters[name] = self.counters.get(name, 0) + amount

    def note(self, name, where, message) -> None:
        self.notes.append(name)


class FakeWarp:
    def __init__(self, cta, index: int) -> None:
        self.cta = cta
        self.index = index
        self.live = FULL
        self.busy: set[int] = set()
        self.file32 = np.full((2048, 32), 0x7FF0DEAD, np.uint32)
        self.file64 = self.file32.reshape(-1).view(np.uint64).reshape(-1, 32)
        self.predicates = np.zeros(64, np.uint32)

    def mark_busy(self, rows, line) -> None:
        self.busy.update(int(row) for row in rows)

    def clear_busy(self, rows) -> None:
        self.busy.difference_update(int(row) for row in rows)


class Bench:
    """One CTA of eight warps."""

    def __init__(self, schedule: str = "eager", arch: str = "sm_100a") -> None:
        self.arch = arch
        self.launch = FakeLaunch(arch, schedule)
        self.cta = SimpleNamespace(
            launch=self.launch,
            ctaid=(0, 0, 0),
            rank=0,
            exited=False,
            state={},
            at_exit=[],
            sync_epoch=0,
            tmem=None,
        )
        self.cta.cluster = [self.cta]
        self.cta.shared = FakeShared()
        self.cta.mbarriers = MbarrierTable(self.cta)
        # Hashable by identity, as the engine needs it.
        self.cta = _freeze(self.cta)
        self.layout = RegisterLayout()
        self.warps = [FakeWarp(self.cta, index) for index in range(8)]
        self.line = 0

    @property
    def memory(self):
        return self.cta.tmem

    def row(self, name: str) -> int:
        return self.layout.register(name, 64 if name.startswith("%rd") else 32)

    def set(self, name: str, value, warp: int | None = None) -> None:
        """Set a register (%r, %rd, %p) in all lanes, of one warp or of all."""
        for one in self.warps if warp is None else [self.warps[warp]]:
            if name.startswith("%p"):
                one.predicates[self.layout.predicate(name)] = FULL if value else 0
            elif name.startswith("%rd"):
                one.file64[self.row(name)] = value
            else:
                one.file32[self.row(name)] = value

    def get(self, name: str, warp: int = 0) -> np.ndarray:
        return self.warps[warp].file32[self.row(name)].copy()

    def bind(self, statement: str):
        """Bind one statement; returns its handler."""
        self.line += 1
        text = (
            f".version 9.0\n.target {self.arch}\n.address_size 64\n.visible .entry k()\n{{\n"
            ".reg .b32 %r<600>;\n.reg .b64 %rd<20>;\n.reg .pred %p<8>;\n.reg .b16 %rs<8>;\n"
            f"{statement}\nret;\n}}\n"
        )
        instruction = read(text).functions["k"].body[0]
        parts = instruction.name.split(".")
        key = next(
            name
            for name in (".".join(parts[:length]) for length in range(len(parts), 0, -1))
            if name in INSTRUCTIONS
        )
        binder = Binder(instruction, kernel="k", arch=self.arch, layout=self.layout, symbols={})
        binder.line = self.line
        handler = INSTRUCTIONS[key](instruction, binder)
        constants = self.layout.template().view(np.uint32).reshape(-1, 32)
        for value_bits, row in self.layout._constants.items():
            for warp in self.warps:
                if value_bits[1] == 64:
                    wide = constants.reshape(-1).view(np.uint64).reshape(-1, 32)
                    warp.file64[row] = wide[row]
                else:
                    warp.file32[row] = constants[row]
        return handler

    def run(self, statement: str, warp: int = 0, mask: int = FULL):
        """Execute one statement; a Wait that is returned was not waited for."""
        return self.bind(statement)(self.warps[warp], mask)

    def one(self, statement: str, warp: int = 0, lane: int = 0):
        """Execute one statement in one lane."""
        return self.run(statement, warp, 1 << lane)

    def finish(self, wait) -> None:
        """Let the engine work until a Wait is ready, then finish it."""
        while wait is not None and not wait.ready():
            assert self.launch.engine.perform_one(), wait.describe()
        if wait is not None and wait.finish is not None:
            wait.finish()

    def drain(self) -> None:
        self.launch.engine.drain()

    def alloc(self, columns: int = 512, warp: int = 0) -> int:
        self.set("%r599", BASE)
        wait = self.run(
            f"tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r599], {columns};", warp
        )
        assert wait is None
        return int(self.cta.shared.data[BASE : BASE + 4].view("<u4")[0])

    def fill(self, seed: int = 0) -> np.ndarray:
        """Random written cells everywhere."""
        random = np.random.default_rng(seed)
        self.memory.cells[:] = random.integers(1, 1 << 32, (128, 512), np.uint32)
        self.memory.written[:] = True
        return self.memory.cells.copy()

    def barrier(self, address: int = BASE + 64, count: int = 1):
        return self.cta.mbarriers.init(address, count)

    def commit(self, warp: int = 0, lane: int = 0, address: int = BASE + 64) -> None:
        self.set("%r598", address)
        self.one(
            "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r598];",
            warp,
            lane,
        )


class _Cta(SimpleNamespace):
    __hash__ = object.__hash__  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return self is other


def _freeze(cta: SimpleNamespace) -> _Cta:
    frozen = _Cta(**vars(cta))
    frozen.cluster = [frozen]
    frozen.mbarriers = MbarrierTable(frozen)
    return frozen


def registers(start: int, count: int) -> str:
    """``{%r0, %r1, ...}``."""
    return "{" + ", ".join(f"%r{start + index}" for index in range(count)) + "}"


def idesc(m: int, n: int, *, a: int = 1, b: int | None = None, d: int = 1, **fields: int) -> int:
    """Instruction descriptor by the table of PTX ISA 9.7.16.4.2 (a = 1: bf16, d = 1: f32)."""
    word = d << 4 | a << 7 | (a if b is None else b) << 10 | n >> 3 << 17 | m >> 4 << 24
    word |= fields.get("saturate", 0) << 3
    word |= fields.get("negate_a", 0) << 13 | fields.get("negate_b", 0) << 14
    return word | fields.get("a_mn", 0) << 15 | fields.get("b_mn", 0) << 16


def sdesc(start: int, *, lbo: int, sbo: int, swizzle: int = 0) -> int:
    """Shared-memory descriptor by the table of PTX ISA 9.7.16.4.1."""
    return start >> 4 | lbo >> 4 << 16 | sbo >> 4 << 32 | 1 << 46 | swizzle << 61


def put_k_major(shared, start: int, rows: np.ndarray) -> int:
    """Write (rows, bytes) without a swizzle, 16-byte strips one after another; its descriptor.

    Each 8 rows x 16 bytes are 128 adjacent bytes (PTX ISA 9.7.16.3: core matrices); row groups
    follow one another, then the next strip.
    """
    count, nbytes = rows.shape
    strip = max(count, 8) * 16
    for row in range(count):
        for byte in range(nbytes):
            place = byte // 16 * strip + row // 8 * 128 + row % 8 * 16 + byte % 16
            shared.data[start + place] = rows[row, byte]
    return sdesc(start, lbo=strip, sbo=128)
