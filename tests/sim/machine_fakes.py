"""Warps without a core: generators for the scheduler, register files for single instructions."""

import numpy as np

from cakert.sim.core.global_memory import GlobalMemory
from cakert.sim.decode.binder import Binder
from cakert.sim.decode.layout import RegisterLayout
from cakert.sim.faults import Where
from cakert.sim.machine import INSTRUCTIONS
from cakert.sim.machine import cta as cta_module
from cakert.sim.machine import launch as launch_module
from cakert.sim.machine.launch import Launch
from cakert.sim.ptx.reader import read

FULL = 0xFFFFFFFF
RUNNING, BLOCKED, EXITED = 0, 1, 2


class FakeCode:
    """A kernel whose warps run ``program(warp)``, a generator of None (one operation) or a Wait."""

    kernel = "fake"
    operations = (("first", 1, "first"), ("second", 2, "second"))

    def __init__(self, program=None, template=None, num_predicates=16, **directives):
        self.program = program
        self.template = np.zeros(128 * 64, np.uint8) if template is None else template
        self.num_predicates = num_predicates
        self.properties = {"directives": directives, "static_shared": 0}


class FakeWarp:
    """The interface of `cakert.sim.core.warp.Warp` that the machine uses."""

    def __init__(self, cta, index, code, num_threads):
        self.cta, self.index, self.code = cta, index, code
        self.file32 = code.template.copy().view(np.uint32).reshape(-1, 32)
        self.file64 = self.file32.reshape(-1).view(np.uint64).reshape(-1, 32)
        self.predicates = np.zeros(code.num_predicates, np.uint32)
        self.live = (1 << min(num_threads - 32 * index, 32)) - 1
        self.counts = np.zeros(len(code.operations) + 1, np.uint64)
        self.lanes = np.zeros(len(code.operations) + 1, np.uint64)
        self.wavefronts = np.zeros(len(code.operations) + 1, np.uint64)
        self.synchronised = 0
        self.pc = 0
        self.line, self.text = 1, "first"
        self.wait = None
        self.steps = code.program(self) if code.program else iter(())

    def run(self, budget):
        for _ in range(budget):
            try:
                self.wait = next(self.steps)
            except StopIteration:
                self.live = 0
                return EXITED
            self.counts[0] += 1
            if self.wait is not None:
                return BLOCKED
        return RUNNING

    def poll(self):
        if self.wait is not None and self.wait.ready():
            wait, self.wait = self.wait, None
            if wait.finish is not None:
                wait.finish()
        return self.wait is None

    def waits(self):
        return [] if self.wait is None else [(self.wait, 1, self.live)]

    def where(self):
        return Where("fake", self.line, self.text, self.cta.ctaid, self.index)


def make_launch(code, *, grid=(1, 1, 1), block=(32, 1, 1), cluster=(1, 1, 1), **options):
    values = {"schedule": "eager", "seed": 0, "sms": 4, "shared_bytes": 4096, "arch": "sm_100a"}
    return Launch(
        code, grid=grid, block=block, cluster=cluster, params=b"", memory=GlobalMemory(),
        **{**values, **options},
    )  # fmt: skip


def run_programs(monkeypatch, program, *, directives=None, **options):
    """Run a generator as a kernel; the report."""
    monkeypatch.setattr(cta_module, "Warp", FakeWarp)
    values = {
        "grid": (1, 1, 1), "block": (32, 1, 1), "sms": 4, "arch": "sm_100a", "shared_bytes": 4096
    }  # fmt: skip
    return launch_module.run_launch(
        FakeCode(program, **(directives or {})), memory=GlobalMemory(),
        **{**values, **options},
    )  # fmt: skip


class Bench:
    """Instructions bound one by one, executed by hand in the warps of one cluster.

    Registers: %r0-%r15, %rd0-%rd15, %q0-%q3 (b128) and %p0-%p7.
    """

    def __init__(self, monkeypatch, *lines, directives=None, **options):
        monkeypatch.setattr(cta_module, "Warp", FakeWarp)
        body = "\n".join(f"{line};" for line in lines)
        function = read(
            ".version 9.0\n.target sm_100a\n.address_size 64\n.visible .entry k() {\n"
            ".reg .b32 %r<16>; .reg .b64 %rd<16>; .reg .b128 %q<4>; .reg .pred %p<8>;\n"
            f"{body}\nret;\n}}\n"
        ).functions["k"]
        layout = RegisterLayout()
        self.rows = {f"%r{i}": layout.register(f"%r{i}", 32) for i in range(16)}
        self.rows |= {f"%rd{i}": layout.register(f"%rd{i}", 64) for i in range(16)}
        self.rows |= {f"%q{i}": layout.register(f"%q{i}", 128) for i in range(4)}
        self.rows |= {f"%p{i}": layout.predicate(f"%p{i}") for i in range(8)}
        self.instructions = function.body[:-1]
        self.handlers = [self._bind(instruction, layout) for instruction in self.instructions]
        code = FakeCode(None, layout.template(), layout.num_predicates, **(directives or {}))
        self.launch = make_launch(code, **options)
        assert self.launch.start_cluster()
        self.ctas = self.launch.resident

    def _bind(self, instruction, layout):
        parts = instruction.name.split(".")
        rule = next(
            INSTRUCTIONS[".".join(parts[:n])]
            for n in range(len(parts), 0, -1)
            if ".".join(parts[:n]) in INSTRUCTIONS
        )
        binder = Binder(instruction, kernel="k", arch="sm_100a", layout=layout, symbols={})
        return rule(instruction, binder)

    def warp(self, index=0, rank=0):
        return self.ctas[rank].warps[index]

    def step(self, number, warp=None, mask=FULL):
        """Execute instruction ``number`` of the text; the Wait, if it waits."""
        warp = self.warp() if warp is None else warp
        instruction = self.instructions[number]
        warp.line, warp.text = instruction.line, instruction.text
        return self.handlers[number](warp, mask)

    def set(self, name, values, warp=None):
        warp = self.warp() if warp is None else warp
        if name.startswith("%p"):
            warp.predicates[self.rows[name]] = values
        else:
            (warp.file64 if name.startswith("%rd") else warp.file32)[self.rows[name]] = values

    def get(self, name, warp=None):
        warp = self.warp() if warp is None else warp
        if name.startswith("%p"):
            return int(warp.predicates[self.rows[name]])
        return (warp.file64 if name.startswith("%rd") else warp.file32)[self.rows[name]].copy()


def finish(wait):
    """Go on after a wait that must be over."""
    assert wait.ready()
    if wait.finish is not None:
        wait.finish()
