"""One instruction at a time on memory, engine and mbarriers that are real, without a scheduler."""

from __future__ import annotations

import numpy as np

from cakert.sim.copies import INSTRUCTIONS
from cakert.sim.core.global_memory import GlobalMemory
from cakert.sim.core.shared_memory import SharedMemory
from cakert.sim.decode.binder import Binder
from cakert.sim.decode.layout import RegisterLayout
from cakert.sim.faults import Fault
from cakert.sim.machine.asynchronous import AsyncEngine
from cakert.sim.machine.mbarrier import MbarrierTable
from cakert.sim.ptx.reader import read

ALL = 0xFFFFFFFF
PARAM_BASE = 3 << 48

_TEXT = """.version 9.0
.target {arch}
.address_size 64
.visible .entry kernel(.param .align 64 .b8 map[128])
{{
  .reg .b16 %rs<4>;
  .reg .b32 %r<12>;
  .reg .b64 %rd<12>;
  .reg .f32 %f<8>;
  .reg .pred %p<4>;
  {instruction}
  ret;
}}
"""


# GPUs refuse these; where the bytes would lie is plain all the same, so geometry is tested there.
REFUSED_BY_GPUS = ("tma-coordinate-misaligned", "tma-negative-store", "bulk-without-cluster")


class Launch:
    def __init__(self, arch, schedule, params, ignore):
        self.arch = arch
        self.kernel = "kernel"
        self.param_bytes = params
        self.memory = GlobalMemory()
        self.engine = AsyncEngine(self, schedule, seed=0)
        self.counters = {}
        self.progress = 0
        self.ignore = set(ignore)
        self.notes = []

    def fault(self, name, message, *, where=None, advice=""):
        if name not in self.ignore:
            raise Fault(name, message, where=where, advice=advice)
        self.note(name, where, message)

    def note(self, name, where, message):
        self.notes.append((name, message))

    def count(self, name, amount):
        self.counters[name] = self.counters.get(name, 0) + amount


class Cta:
    def __init__(self, launch, rank, shared_bytes, num_threads):
        self.launch = launch
        self.ctaid = (rank, 0, 0)
        self.rank = rank
        self.cluster = [self]
        self.shared = SharedMemory(shared_bytes, launch.fault)
        self.state = {}
        self.sync_epoch = 0
        self.exited = False
        self.mbarriers = MbarrierTable(self)


class Warp:
    def __init__(self, cta, index, template, num_predicates):
        self.cta = cta
        self.index = index
        self.file = np.array(template, np.uint8)
        self.file32 = self.file.view(np.uint32).reshape(-1, 32)
        self.file64 = self.file.view(np.uint64).reshape(-1, 32)
        self.predicates = np.zeros(num_predicates, np.uint32)
        self.live = ALL


class Bench:
    """A cluster of CTAs, and `issue` to execute an instruction in one warp of them."""

    def __init__(
        self,
        *,
        arch="sm_100a",
        schedule="eager",
        ctas=1,
        shared_bytes=1 << 17,
        params=bytes(128),
        num_threads=128,
        ignore=REFUSED_BY_GPUS,
    ):
        self.launch = Launch(arch, schedule, params, ignore)
        self.ctas = [Cta(self.launch, r, shared_bytes, num_threads) for r in range(ctas)]
        for cta in self.ctas:
            cta.cluster = self.ctas
        self.kept = []

    @property
    def cta(self):
        return self.ctas[0]

    @property
    def shared(self):
        return self.cta.shared

    def lend(self, array, writable=True):
        """Register an array as global memory; its address."""
        self.kept.append(array)
        address = array.__array_interface__["data"][0]
        self.launch.memory.register(address, array.nbytes, writable, "an array", array)
        return address

    def barrier(self, address=1024, nbytes=None, rank=0, count=1):
        """An mbarrier in phase 0 that waits for ``count`` arrivals, all but the bytes done."""
        barrier = self.ctas[rank].mbarriers.init(address, count)
        if nbytes is not None:
            barrier.expect_tx(nbytes)
            barrier.arrive(count)
        return barrier

    def bind(self, text, arch=None):
        """(handler, layout) of an instruction."""
        arch = arch or self.launch.arch
        module = read(_TEXT.format(arch=arch, instruction=text))
        instruction = module.functions["kernel"].body[0]
        layout = RegisterLayout()
        binder = Binder(instruction, kernel="kernel", arch=arch, layout=layout, symbols={"map": 0})
        parts = instruction.name.split(".")
        prefixes = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
        rule = next(INSTRUCTIONS[prefix] for prefix in prefixes if prefix in INSTRUCTIONS)
        return rule(instruction, binder), layout

    def issue(self, text, *, rank=0, warp=0, mask=1, **values):
        """Execute; ``values`` are registers by name: numbers, or arrays of 32."""
        handler, layout = self.bind(text)
        registers = {}
        for name in values:
            if name.startswith("p"):
                registers[name] = layout.predicate("%" + name)
            else:
                bits = 64 if name.startswith("rd") else 16 if name.startswith("rs") else 32
                registers[name] = layout.register("%" + name, bits)
        fake = Warp(self.ctas[rank], warp, layout.template(), layout.num_predicates)
        for name, value in values.items():
            if name.startswith("p"):
                fake.predicates[registers[name]] = value
                continue
            file = fake.file64 if name.startswith("rd") else fake.file32
            value = np.asarray(value)
            if value.dtype.kind == "f":
                value = value.astype(np.float32).view(np.uint32)
            file[registers[name]] = value.astype(np.int64).astype(file.dtype)
        return handler(fake, mask)

    def write_shared(self, address, data, rank=0):
        """Put bytes into shared memory as the asynchronous proxy does."""
        data = np.ascontiguousarray(data).view(np.uint8).reshape(-1)
        self.ctas[rank].shared.async_write((address, data.size), data, None)

    def read_shared(self, address, nbytes, rank=0):
        return self.ctas[rank].shared.data[address : address + nbytes].copy()
