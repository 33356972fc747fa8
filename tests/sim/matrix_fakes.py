"""A machine reduced to what matrix instructions touch: real memory, register layout and engine."""

from __future__ import annotations

import numpy as np

from cakert.sim.core.shared_memory import SharedMemory
from cakert.sim.decode.binder import Binder
from cakert.sim.decode.layout import RegisterLayout
from cakert.sim.faults import Fault, Where
from cakert.sim.machine.asynchronous import AsyncEngine
from cakert.sim.matrix import INSTRUCTIONS
from cakert.sim.ptx.model import Address, Immediate, Instruction, Register, Vector

FULL = 0xFFFFFFFF


class FakeLaunch:
    def __init__(self, schedule="eager"):
        self.kernel = "kernel"
        self.counters = {}
        self.progress = 0
        self.notes = []
        self.ignore = set()
        self.engine = AsyncEngine(self, schedule, seed=1)

    def fault(self, name, message, *, where=None, advice=""):
        if name not in self.ignore:
            raise Fault(name, message, where=where, advice=advice)
        self.note(name, where, message)

    def note(self, name, where, message):
        self.notes.append((name, message))


class FakeCta:
    def __init__(self, launch, shared_bytes, num_warps):
        self.launch = launch
        self.ctaid = (0, 0, 0)
        self.rank = 0
        self.exited = False
        self.cluster = [self]
        self.state = {}
        self.warps = []
        self.at_exit = []
        self.shared = SharedMemory(shared_bytes, launch.fault)


class FakeWarp:
    def __init__(self, cta, index, layout):
        self.cta = cta
        self.index = index
        self.synchronised = 0
        self.layout = layout
        self.live = FULL
        # Room for registers that only a test names.
        buffer = np.concatenate([layout.template(), np.zeros(64 * 128, np.uint8)])
        self.file32 = buffer.view(np.uint32).reshape(-1, 32)
        self.file64 = buffer.view(np.uint64).reshape(-1, 32)
        self.predicates = np.zeros(layout.num_predicates + 8, np.uint32)
        self.busy = set()

    def where(self):
        return Where("kernel", 1, "text", self.cta.ctaid, self.index)

    def mark_busy(self, rows32, line):
        self.busy |= {int(row) for row in rows32}

    def clear_busy(self, rows32):
        self.busy -= {int(row) for row in rows32}

    def row(self, register):
        return self.layout.register(register.name, 64 if register.type.endswith("64") else 32)

    def set(self, register, lanes):
        if register.type.endswith("64"):
            self.file64[self.row(register)] = lanes
        else:
            self.file32[self.row(register)] = lanes

    def get(self, registers):
        """(len, 32) uint32"""
        return self.file32[[self.row(register) for register in registers]]


class Machine:
    """Bind instructions first, then `start`."""

    def __init__(self, arch="sm_90a"):
        self.arch = arch
        self.layout = RegisterLayout()

    def bind(self, name, *operands):
        opcode, *modifiers = name.split(".")
        instruction = Instruction(opcode, tuple(modifiers), operands, line=7, text=name)
        binder = Binder(
            instruction, kernel="kernel", arch=self.arch, layout=self.layout, symbols={}
        )
        prefixes = [key for key in INSTRUCTIONS if f"{name}.".startswith(f"{key}.")]
        return INSTRUCTIONS[max(prefixes, key=len)](instruction, binder)

    def start(self, *, warps=1, shared_bytes=0, schedule="eager"):
        self.launch = FakeLaunch(schedule)
        self.cta = FakeCta(self.launch, shared_bytes, warps)
        self.cta.warps = [FakeWarp(self.cta, index, self.layout) for index in range(warps)]
        return self.cta.warps


def registers(stem, count, type_="b32"):
    return [Register(f"%{stem}{i}", type_) for i in range(count)]


def vec(items):
    return Vector(tuple(items))


def imm(value):
    return Immediate(value & 0xFFFFFFFFFFFFFFFF)


def at(register, offset=0):
    return Address(register, offset)


# --- where elements of a tile lie, from the figures of the ISA ---------------------------------


def tile_place(mn, k, element_bytes, *, swizzle, major, lbo, sbo):
    """Byte offset of element (mn, k) in a tile whose start is a multiple of 1024.

    Written from the swizzle tables of the ISA (5.5.7: in 8 rows of 128 bytes, 16-byte chunk j of
    row r goes to chunk j ^ r; with 64-byte and 32-byte spans the two lowest bits, and the lowest
    bit, of the row number), in units of 16-byte chunks.
    """
    if swizzle == 0:
        chunk_elements = 16 // element_bytes
        if major == "k":
            line, along, chunk = mn % 8, k % chunk_elements, k // chunk_elements
            base = (mn // 8) * sbo + chunk * lbo
        else:
            line, along, chunk = k % 8, mn % chunk_elements, mn // chunk_elements
            base = (k // 8) * lbo + chunk * sbo
        return base + 16 * line + along * element_bytes
    span = swizzle
    if major == "k":
        line, along = mn % 8, k * element_bytes
        base = (mn // 8) * sbo
        assert along < span
    else:
        group = span // element_bytes
        line, along = k % 8, (mn % group) * element_bytes
        base = (k // 8) * sbo + (mn // group) * lbo
    # Lines of `span` bytes are packed into rows of 128 bytes.
    linear = line * span + along
    row, within = divmod(linear, 128)
    chunk = within // 16
    period = {128: 8, 64: 4, 32: 2}[span]
    return base + row * 128 + (chunk ^ (row % period)) * 16 + within % 16


def hopper_descriptor(start, lbo, sbo, swizzle):
    code = {0: 0, 128: 1, 64: 2, 32: 3}[swizzle]
    return start >> 4 | (lbo >> 4) << 16 | (sbo >> 4) << 32 | code << 62


def blackwell_descriptor(start, lbo, sbo, swizzle):
    code = {0: 0, "128-32": 1, 128: 2, 64: 4, 32: 6}[swizzle]
    return start >> 4 | (lbo >> 4) << 16 | (sbo >> 4) << 32 | 1 << 46 | code << 61
