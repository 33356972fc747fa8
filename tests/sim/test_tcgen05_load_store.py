from __future__ import annotations

import itertools

import numpy as np
import pytest
from tcgen05_fakes import Bench, registers

from cakert.sim.faults import Fault, UnsupportedInstruction

COUNTS = {"32x32b": 128, "16x64b": 128, "16x128b": 64, "16x256b": 32, "16x32bx2": 128}
PER_COUNT = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4, "16x32bx2": 1}
FORMS = [
    (shape, 1 << power)
    for shape, largest in COUNTS.items()
    for power in range(8)
    if 1 << power <= largest
]


def cell(shape: str, thread: int, register: int) -> tuple[int, int]:
    """Lane and 32-bit column of a register, after figures 183 to 187 of the PTX ISA.

    .16x32bx2 is given without its half offset.
    """
    if shape == "32x32b":
        return thread, register
    if shape == "16x64b":
        # Threads 0..3 hold the row pair (0, 8): thread 4i is row i column 0, 4i+1 row i+8 ...
        row = thread // 4 + (8 if thread % 2 else 0)
        return row, 2 * register + (1 if thread % 4 >= 2 else 0)
    if shape == "16x128b":
        row = thread // 4 + (8 if register % 2 else 0)
        return row, 4 * (register // 2) + thread % 4
    if shape == "16x256b":
        row = thread // 4 + (8 if register % 4 >= 2 else 0)
        return row, 8 * (register // 4) + 2 * (thread % 4) + register % 2
    return thread % 16, register


def statement(op: str, shape: str, count: int, packing: str, half: int) -> str:
    names = registers(0, PER_COUNT[shape] * count)
    extra = f"{half}" if shape == "16x32bx2" else ""
    mnemonic = f"tcgen05.{op}.sync.aligned.{shape}.x{count}{packing}.b32"
    if op == "ld":
        return f"{mnemonic} {names}, [%r500]{', ' + extra if extra else ''};"
    return f"{mnemonic} [%r500], {extra + ', ' if extra else ''}{names};"


def columns_of(shape: str, count: int, packed: bool) -> int:
    width = {"32x32b": 1, "16x64b": 2, "16x128b": 4, "16x256b": 8, "16x32bx2": 1}[shape]
    return width * count * (2 if packed else 1)


@pytest.mark.parametrize(("shape", "count"), FORMS)
@pytest.mark.parametrize("packed", [False, True])
def test_load_and_store_move_the_cells_of_the_figures(shape, count, packed):
    extent = columns_of(shape, count, packed)
    room = 512 - extent * (2 if shape == "16x32bx2" else 1)
    column = min(5, room)
    half = extent + min(3, room - column) if shape == "16x32bx2" else 0
    bench = Bench()
    bench.alloc(512)
    before = bench.fill(seed=count)
    warp = 6  # quarter 2
    first = 64 + (16 if shape != "32x32b" and count % 2 == 0 else 0)
    bench.set("%r500", first << 16 | column)
    values = {}
    for thread, register in itertools.product(range(32), range(PER_COUNT[shape] * count)):
        lane, at = cell(shape, thread, register)
        at = (2 * at if packed else at) + column + (half * (thread // 16) if half else 0)
        values[thread, register] = (first + lane, at)

    load = statement("ld", shape, count, ".pack::16b" if packed else "", half)
    bench.run(load, warp)
    for (thread, register), (lane, at) in values.items():
        expected = int(before[lane, at])
        if packed:
            expected = (expected & 0xFFFF) | (int(before[lane, at + 1]) & 0xFFFF) << 16
        assert bench.warps[warp].file32[bench.row(f"%r{register}"), thread] == expected
    bench.run("tcgen05.wait::ld.sync.aligned;", warp)

    random = np.random.default_rng(1)
    for register in range(PER_COUNT[shape] * count):
        bench.set(f"%r{register}", random.integers(0, 1 << 32, 32, np.uint32), warp)
    bench.run(statement("st", shape, count, ".unpack::16b" if packed else "", half), warp)
    after = before.copy()
    for (thread, register), (lane, at) in values.items():
        value = int(bench.warps[warp].file32[bench.row(f"%r{register}"), thread])
        if packed:
            after[lane, at] = value & 0xFFFF
            after[lane, at + 1] = value >> 16
        else:
            after[lane, at] = value
    assert (bench.memory.cells == after).all()


def test_counts_shapes_and_registers_that_do_not_exist():
    bench = Bench()
    for text in (
        "tcgen05.ld.sync.aligned.16x256b.x64.b32 {%r0}, [%r1];",
        "tcgen05.ld.sync.aligned.32x32b.x3.b32 {%r0}, [%r1];",
        "tcgen05.ld.sync.aligned.32x32b.x4.b32 {%r0, %r1}, [%r1];",
        "tcgen05.ld.sync.aligned.16x32bx2.x1.b32 {%r0}, [%r1];",
        "tcgen05.ld.sync.aligned.16x32bx2.x1.b32 {%r0}, [%r1], %r2;",
        "tcgen05.ld.aligned.32x32b.x1.b32 {%r0}, [%r1];",
        "tcgen05.ld.sync.aligned.32x32b.x1.unpack::16b.b32 {%r0}, [%r1];",
        "tcgen05.st.sync.aligned.32x32b.x1.pack::16b.b32 [%r1], {%r0};",
    ):
        with pytest.raises(UnsupportedInstruction, match=r"^line"):
            bench.bind(text)


def prepared(schedule: str = "eager", columns: int = 64) -> Bench:
    bench = Bench(schedule)
    bench.alloc(columns)
    bench.fill()
    return bench


LOAD = "tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r0, %r1}, [%r500];"
STORE = "tcgen05.st.sync.aligned.32x32b.x2.b32 [%r500], {%r0, %r1};"


def test_only_its_own_quarter_and_aligned():
    bench = prepared()
    for warp, lane, name in (
        (1, 0, "tmem-wrong-warp"),
        (4, 32, "tmem-wrong-warp"),
        (0, 16, "tmem-misaligned"),
        (1, 33, "tmem-misaligned"),
    ):
        bench.set("%r500", lane << 16)
        with pytest.raises(Fault) as caught:
            bench.run(LOAD, warp)
        assert caught.value.name == name
        assert caught.value.advice.endswith(".")
    bench.set("%r500", 16 << 16)
    bench.run("tcgen05.ld.sync.aligned.16x64b.x1.b32 {%r0}, [%r500];")


def test_ignored_the_address_counts_as_it_is():
    bench = prepared()
    bench.launch.ignore |= {"tmem-wrong-warp", "tmem-misaligned", "tmem-out-of-bounds"}
    bench.set("%r500", 16 << 16)
    bench.run(LOAD, warp=3)
    assert (bench.get("%r1", warp=3) == bench.memory.cells[16:48, 1]).all()
    bench.set("%r500", 112 << 16)  # sixteen lanes too many
    bench.set("%r1", 7)
    bench.run(LOAD)
    assert (bench.get("%r1") == 7).all()


def test_divergent_address_and_guard():
    bench = prepared()
    bench.set("%r500", np.arange(32, dtype=np.uint32) << 16)
    with pytest.raises(Fault) as caught:
        bench.run(LOAD)
    assert caught.value.name == "tcgen05-divergent-address"
    bench.set("%r500", 0)
    with pytest.raises(Fault) as caught:
        bench.run(LOAD, mask=0xFFFF)
    assert caught.value.name == "tcgen05-divergent-warp"


def test_out_of_bounds_and_uninitialised():
    bench = prepared()
    bench.set("%r500", 63)
    with pytest.raises(Fault) as caught:
        bench.run(LOAD)
    assert caught.value.name == "tmem-out-of-bounds"
    bench.memory.written[5, 9] = False
    bench.set("%r500", 8)
    bench.run(LOAD)  # a part of it
    assert bench.launch.notes == ["tmem-uninitialised"]
    bench.memory.written[5, :] = False
    bench.run(LOAD)
    bench.memory.written[:32, 8:10] = False
    with pytest.raises(Fault, match="lane 0, column 8") as caught:
        bench.run(LOAD)
    assert caught.value.name == "tmem-uninitialised"


@pytest.mark.parametrize("schedule", ["eager", "lazy"])
def test_registers_are_there_without_the_wait(schedule):
    bench = prepared(schedule)  # a true dependency on them is honoured (PTX ISA 9.7.16.6.4.5)
    bench.set("%r500", 4)
    bench.run(LOAD)
    assert (bench.get("%r1") == bench.memory.cells[:32, 5]).all()


def test_loads_that_nobody_waits_for_do_not_pile_up():
    bench = prepared()
    bench.set("%r500", 0)
    for _ in range(10):
        bench.run(LOAD)
    assert len(bench.memory.pending) == 1
    bench.run(STORE)
    assert [access.kind for access in bench.memory.pending] == ["st"]


def test_partly_exited_warp_keeps_the_registers_of_dead_lanes():
    bench = prepared()
    bench.set("%r500", 0)
    bench.set("%r0", 42)
    bench.warps[0].live = 0xFF
    bench.run(LOAD, mask=0xFF)
    assert (bench.get("%r0")[:8] == bench.memory.cells[:8, 0]).all()
    assert (bench.get("%r0")[8:] == 42).all()


@pytest.mark.parametrize("schedule", ["eager", "lazy"])
def test_store_needs_its_wait_before_anything_else(schedule):
    bench = prepared(schedule)
    bench.set("%r500", 0)
    bench.set("%r0", 1)
    bench.set("%r1", 2)
    bench.run(STORE)
    with pytest.raises(Fault, match="wait::st") as caught:
        bench.run(LOAD)
    assert caught.value.name == "tmem-store-in-flight"
    bench.finish(bench.run("tcgen05.wait::st.sync.aligned;"))
    bench.run(LOAD)
    bench.finish(bench.run("tcgen05.wait::ld.sync.aligned;"))
    assert (bench.get("%r1") == 2).all()


@pytest.mark.parametrize("schedule", ["eager", "lazy"])
def test_cells_that_are_overwritten_before_the_wait_are_noted(schedule):
    bench = prepared(schedule)
    bench.set("%r500", 0)
    bench.run(LOAD)
    bench.run("tcgen05.wait::ld.sync.aligned;")
    bench.run(STORE)
    bench.finish(bench.run("tcgen05.wait::st.sync.aligned;"))
    assert bench.launch.notes == []
    bench.run(LOAD)
    bench.run(STORE)
    assert bench.launch.notes == ["tcgen05-missing-wait-ld"]


def test_stores_take_the_registers_as_they_were_at_issue():
    bench = prepared("lazy")
    bench.set("%r500", 0)
    bench.set("%r0", 11)
    bench.set("%r1", 12)
    bench.run(STORE)
    bench.set("%r0", 99)
    bench.finish(bench.run("tcgen05.wait::st.sync.aligned;"))
    assert (bench.memory.cells[:32, 0] == 11).all()


def reduce_row(values: np.ndarray, op: str, absolute: bool, nan: bool) -> float:
    """One row by the definitions of max and min (PTX ISA 9.7.3): NaN loses unless .NaN."""
    best = None
    for value in values:
        value = abs(value) if absolute else value
        if np.isnan(value):
            if nan:
                return np.nan
            continue
        if best is None or (value > best if op == "max" else value < best):
            best = value
    return np.nan if best is None else best


@pytest.mark.parametrize("op", ["max", "min"])
@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize("nan", [False, True])
@pytest.mark.parametrize("type_first", [False, True])
def test_load_with_reduction_f32(op, absolute, nan, type_first):
    bench = Bench(arch="sm_103a")
    bench.alloc(64)
    values = np.random.default_rng(0).standard_normal((128, 512)).astype(np.float32)
    values[3, 4] = np.nan
    values[7, :8] = np.nan
    bench.memory.cells[:] = values.view(np.uint32)
    bench.memory.written[:] = True
    bench.set("%r500", 0)
    flags = (".abs" if absolute else "") + (".NaN" if nan else "")
    tail = f".f32.{op}{flags}" if type_first else f".{op}{flags}.f32"
    bench.run(f"tcgen05.ld.red.sync.aligned.32x32b.x8{tail} {registers(0, 8)}, %r300, [%r500];")
    got = bench.get("%r300").view(np.float32)
    want = [reduce_row(values[lane, :8], op, absolute, nan) for lane in range(32)]
    np.testing.assert_array_equal(got, np.array(want, np.float32))
    assert (bench.get("%r5") == values[:32, 5].view(np.uint32)).all()


def test_load_with_reduction_integers_and_halves():
    bench = Bench(arch="sm_103a")
    bench.alloc(64)
    cells = bench.fill()
    bench.set("%r500", 2)
    names = registers(0, 4)
    bench.run(f"tcgen05.ld.red.sync.aligned.16x32bx2.x4.max.u32 {names}, %r300, [%r500], 16;")
    for thread in range(32):
        start = 2 + (16 if thread >= 16 else 0)
        expected = max(int(value) for value in cells[thread % 16, start : start + 4])
        assert bench.get("%r300")[thread] == expected
    bench.run(f"tcgen05.ld.red.sync.aligned.32x32b.x4.min.s32 {names}, %r300, [%r500];")
    signed = cells[:32, 2:6].view(np.int32).min(axis=1)
    assert (bench.get("%r300").view(np.int32) == signed).all()


def test_minus_zero_is_below_zero():
    bench = Bench(arch="sm_103a")
    bench.alloc(64)
    bench.fill()
    bench.memory.cells[:, 0] = 0x80000000
    bench.memory.cells[:, 1] = 0
    bench.set("%r500", 0)
    for op, expected in (("max", 0), ("min", 0x80000000)):
        bench.run(f"tcgen05.ld.red.sync.aligned.32x32b.x2.{op}.f32 {{%r0, %r1}}, %r300, [%r500];")
        assert (bench.get("%r300") == expected).all()


def test_load_with_reduction_targets_and_forms():
    text = "tcgen05.ld.red.sync.aligned.32x32b.x2.max.f32 {%r0, %r1}, %r2, [%r3];"
    with pytest.raises(UnsupportedInstruction, match="sm_100a"):
        Bench().bind(text)
    bench = Bench(arch="sm_103a")
    bench.bind(text)
    for wrong in (
        text.replace("x2", "x1").replace("{%r0, %r1}", "{%r0}"),
        text.replace("32x32b", "16x64b"),
        text.replace("max.f32", "max.abs.u32"),
    ):
        with pytest.raises(UnsupportedInstruction):
            bench.bind(wrong)
