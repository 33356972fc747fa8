import ml_dtypes
import numpy as np
import pytest
from matrix_fakes import (
    FULL,
    Machine,
    hopper_descriptor,
    imm,
    registers,
    tile_place,
    vec,
)

from cakert.sim.faults import Fault, UnsupportedInstruction
from cakert.sim.ptx.model import NotPredicate, Register

DTYPES = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "tf32": np.float32,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
}
BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1}
A_START, B_START, SHARED = 1024, 1024 + 32768, 1024 * 96
DESC_A, DESC_B = Register("%da", "b64"), Register("%db", "b64")
SCALE_D = Register("%p", "pred")
ADD = imm(1)


def strides(rows, element_bytes, swizzle, major):
    """LBO, SBO of a dense tile of one instruction."""
    if major == "k":
        return (16 * rows, 128) if swizzle == 0 else (16, 8 * swizzle)
    depth = 32 // element_bytes
    if swizzle == 0:
        return 128 * (rows * element_bytes // 16), 128
    return depth * swizzle, 8 * swizzle


def write_tile(machine, start, matrix, element, swizzle, major):
    """Store (mn, k) as the tile; returns the descriptor."""
    size = BYTES[element]
    lbo, sbo = strides(matrix.shape[0], size, swizzle, major)
    raw = np.ascontiguousarray(matrix.astype(DTYPES[element])).view(np.uint8)
    raw = raw.reshape(*matrix.shape, size)
    for mn, k in np.ndindex(matrix.shape):
        place = start + tile_place(mn, k, size, swizzle=swizzle, major=major, lbo=lbo, sbo=sbo)
        machine.cta.shared.async_write((place, size), raw[mn, k], None)
    return hopper_descriptor(start, lbo, sbo, swizzle)


def d_place(thread, i):
    """PTX ISA 9.7.15.5.1, the figure of D."""
    row = 16 * (thread // 32) + (thread % 32) // 4 + 8 * ((i // 2) % 2)
    return row, 8 * (i // 4) + 2 * (thread % 4) + (i % 2)


class Case:
    """A warpgroup with one wgmma.mma_async, its fence, commit and wait."""

    def __init__(
        self,
        columns,
        types="f32.bf16.bf16",
        *,
        trans=(0, 0),
        scales=(1, 1),
        from_registers=False,
        scale_d=ADD,
        schedule="eager",
        warps=4,
    ):
        self.dtype, self.atype, self.btype = types.split(".")
        self.columns = columns
        self.depth = 32 // BYTES[self.atype]
        self.trans = trans
        self.machine = machine = Machine()
        self.d = registers("d", columns // (2 if self.dtype == "f32" else 4))
        self.a = registers("a", 4)
        transposable = BYTES[self.atype] == 2
        flags = trans[1:] if from_registers else trans
        self.issue = machine.bind(
            f"wgmma.mma_async.sync.aligned.m64n{columns}k{self.depth}.{types}",
            vec(self.d),
            vec(self.a) if from_registers else DESC_A,
            DESC_B,
            scale_d,
            *(imm(s) for s in scales),
            *(imm(t) for t in flags if transposable),
        )
        self.fence = machine.bind("wgmma.fence.sync.aligned")
        self.commit = machine.bind("wgmma.commit_group.sync.aligned")
        self.waits = [machine.bind("wgmma.wait_group.sync.aligned", imm(n)) for n in range(3)]
        self.warps = machine.start(warps=warps, shared_bytes=SHARED, schedule=schedule)
        self.cta, self.launch = machine.cta, machine.launch
        self.engine = self.launch.engine

    def random(self, rng, rows, element):
        values = rng.standard_normal((rows, self.depth)) * 2.0 ** rng.integers(
            -6, 3, (rows, self.depth)
        )
        if element == "tf32":
            bits = values.astype(np.float32).view(np.uint32) & np.uint32(0xFFFFE000)
            return bits.view(np.float32).astype(np.float64)
        return values.astype(DTYPES[element]).astype(np.float64)

    def place_operands(self, a, b, swizzle=128):
        majors = ["mn" if t else "k" for t in self.trans]
        desc_a = write_tile(self.machine, A_START, a, self.atype, swizzle, majors[0])
        desc_b = write_tile(self.machine, B_START, b, self.btype, swizzle, majors[1])
        for warp in self.warps:
            warp.set(DESC_A, np.uint64(desc_a))
            warp.set(DESC_B, np.uint64(desc_b))

    def place_a_registers(self, a):
        """PTX ISA figures of A for m64nNk8, k16, k32: per register 1, 2, 4 elements."""
        per = 4 // BYTES[self.atype]
        raw = np.ascontiguousarray(a.astype(DTYPES[self.atype])).view(np.uint8)
        raw = raw.reshape(64, self.depth, BYTES[self.atype])
        for thread in range(128):
            for i in range(4):
                row = 16 * (thread // 32) + (thread % 32) // 4 + 8 * (i % 2)
                k = per * (thread % 4) + (4 * per if i >= 2 else 0)
                word = raw[row, k : k + per].reshape(-1).view(np.uint32)[0]
                warp = self.warps[thread // 32]
                warp.file32[warp.row(self.a[i]), thread % 32] = word

    def each(self, *handlers):
        for warp in self.warps:
            for handler in handlers:
                wait = handler(warp, FULL)
                if wait is not None:
                    while not wait.ready():
                        assert self.engine.perform_one()
                    wait.finish()

    def together(self, *handlers):
        """Every warp executes the first before any executes the second."""
        for handler in handlers:
            self.each(handler)

    def run(self):
        self.each(self.fence, self.issue, self.commit)
        self.each(self.waits[0])
        return self.result()

    def set_d(self, matrix):
        for thread in range(128):
            warp = self.warps[thread // 32]
            for i in range(self.columns // 2):
                row, column = d_place(thread, i)
                if self.dtype == "f32":
                    word = np.float32(matrix[row, column]).view(np.uint32)
                    warp.file32[warp.row(self.d[i]), thread % 32] = word
                else:
                    halves = warp.file32[warp.row(self.d[i // 2])].view(np.uint16)
                    halves[2 * (thread % 32) + i % 2] = np.float16(matrix[row, column]).view(
                        np.uint16
                    )

    def result(self):
        out = np.empty((64, self.columns), np.float32 if self.dtype == "f32" else np.float16)
        for thread in range(128):
            warp = self.warps[thread // 32]
            for i in range(self.columns // 2):
                if self.dtype == "f32":
                    value = warp.file32[warp.row(self.d[i])].view(np.float32)[thread % 32]
                else:
                    halves = warp.file32[warp.row(self.d[i // 2])].view(np.float16)
                    value = halves[2 * (thread % 32) + i % 2]
                out[d_place(thread, i)] = value
        return out


def close(got, exact, a, b, c=0.0):
    unit = 2.0**-24 if got.dtype == np.float32 else 2.0**-11
    slack = 2.0**-45 * (np.abs(a) @ np.abs(b).T + np.abs(c)) + (2.0**-25 if unit > 1e-5 else 0)
    return (np.abs(got.astype(np.float64) - exact) <= unit * np.abs(exact) + slack).all()


@pytest.mark.parametrize("swizzle", [128, 64, 32, 0])
@pytest.mark.parametrize("trans", [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("types", ["f32.bf16.bf16", "f32.f16.f16"])
def test_16_bit_operands_in_shared_memory(swizzle, trans, types):
    rng = np.random.default_rng(swizzle + 2 * trans[0] + trans[1])
    case = Case(64, types, trans=trans)
    a, b = case.random(rng, 64, case.atype), case.random(rng, 64, case.btype)
    c = rng.standard_normal((64, 64)).astype(np.float32)
    case.place_operands(a, b, swizzle)
    case.set_d(c)
    assert close(case.run(), a @ b.T + c, a, b, c)


@pytest.mark.parametrize("columns", [8, 16, 24, 96, 136, 256])
@pytest.mark.parametrize("trans", [(0, 0), (0, 1)])
def test_every_width(columns, trans):
    rng = np.random.default_rng(columns)
    case = Case(columns, trans=trans)
    swizzle = 128 if trans[1] == 0 or columns % 64 == 0 else 0
    a, b = case.random(rng, 64, "bf16"), case.random(rng, columns, "bf16")
    case.place_operands(a, b, swizzle)
    case.set_d(np.ones((64, columns)))
    assert close(case.run(), a @ b.T + 1, a, b, 1)


@pytest.mark.parametrize(
    "types",
    [
        "f32.tf32.tf32",
        "f32.e4m3.e4m3",
        "f32.e4m3.e5m2",
        "f32.e5m2.e4m3",
        "f16.e5m2.e5m2",
        "f16.f16.f16",
        "f32.bf16.bf16",
    ],
)
@pytest.mark.parametrize("from_registers", [False, True])
def test_types_and_a_from_registers(types, from_registers):
    rng = np.random.default_rng(len(types) + from_registers)
    case = Case(40, types, from_registers=from_registers)
    a, b = case.random(rng, 64, case.atype), case.random(rng, 40, case.btype)
    c = rng.standard_normal((64, 40)).astype(np.float16).astype(np.float32)
    case.place_operands(a, b, 64)
    case.place_a_registers(a)
    case.set_d(c)
    assert close(case.run(), a @ b.T + c, a, b, c)


@pytest.mark.parametrize(("scales", "sign"), [((-1, 1), -1), ((1, -1), -1), ((-1, -1), 1)])
def test_negated_operands(scales, sign):
    rng = np.random.default_rng(1)
    case = Case(16, scales=scales)
    a, b = case.random(rng, 64, "bf16"), case.random(rng, 16, "bf16")
    case.place_operands(a, b)
    case.set_d(np.full((64, 16), 3.0))
    assert close(case.run(), sign * (a @ b.T) + 3, a, b, 3)


@pytest.mark.parametrize("kind", ["immediate", "predicate", "negated"])
def test_scale_d_false_ignores_d(kind):
    rng = np.random.default_rng(2)
    scale = {"immediate": imm(0), "predicate": SCALE_D, "negated": NotPredicate(SCALE_D)}[kind]
    case = Case(16, scale_d=scale)
    a, b = case.random(rng, 64, "bf16"), case.random(rng, 16, "bf16")
    case.place_operands(a, b)
    case.set_d(np.full((64, 16), np.nan))
    for warp in case.warps:
        warp.predicates[case.machine.layout.predicate("%p")] = FULL if kind == "negated" else 0
    assert close(case.run(), a @ b.T, a, b)


def test_subnormals_infinities_and_nan():
    case = Case(8, scale_d=imm(0))
    a, b = np.zeros((64, 16)), np.zeros((8, 16))
    a[0, 0], b[0, 0] = 2.0**-133, 2.0**7  # a subnormal bf16
    a[17, 1], b[1, 1] = np.inf, 2.0
    a[33, 2], b[2, 2] = np.nan, 1.0
    a[40, 3], b[3, 3] = 2.0**127, 2.0**127
    case.place_operands(a, b)
    got = case.run()
    assert got[0, 0] == np.float32(2.0**-126)
    assert got[17, 1] == np.inf
    assert np.isnan(got[17, 0])  # infinity times zero
    assert np.isnan(got[33]).all()
    assert got[40, 3] == np.inf
    assert got[40, 0] == 0
    bits = got.view(np.uint32)
    assert (bits[np.isnan(got)] == 0x7FFFFFFF).all()


@pytest.mark.parametrize("schedule", ["eager", "lazy", "random"])
def test_groups_and_busy_registers(schedule):
    rng = np.random.default_rng(3)
    case = Case(32, schedule=schedule)
    a, b = case.random(rng, 64, "bf16"), case.random(rng, 32, "bf16")
    case.place_operands(a, b)
    case.set_d(np.zeros((64, 32)))
    warp = case.warps[0]
    rows = {warp.row(r) for r in case.d}
    before = warp.get(case.d)
    case.together(case.fence, case.issue, case.issue)
    assert warp.busy == rows
    assert (warp.get(case.d) == before).all() == (schedule != "eager")
    case.together(case.commit, case.issue, case.commit)
    # The newest two groups may stay pending: nothing is covered.
    assert case.waits[2](warp, FULL) is None
    assert warp.busy == rows
    wait = case.waits[1](warp, FULL)
    assert (wait is None) == (schedule == "eager")
    if wait is not None:
        assert "warp 0" in wait.describe()
        while not wait.ready():
            assert case.engine.perform_one()
        wait.finish()
    # The second group accumulates into the same registers.
    assert warp.busy == rows
    wait = case.waits[0](warp, FULL)
    if wait is not None:
        while not wait.ready():
            assert case.engine.perform_one()
        wait.finish()
    assert warp.busy == set()
    held = warp.get(case.d).view(np.float32)
    exact = 3 * (a @ b.T)
    for lane in range(32):
        for i in range(16):
            assert abs(held[i, lane] - exact[d_place(lane, i)]) < 1e-3
    assert case.waits[0](warp, FULL) is None


def test_uncommitted_operations_are_not_covered():
    case = Case(8, schedule="lazy")
    case.place_operands(np.ones((64, 16)), np.ones((8, 16)))
    warp = case.warps[1]
    case.fence(warp, FULL)
    case.issue(warp, FULL)
    assert case.waits[0](warp, FULL) is None
    assert warp.busy
    case.fence(case.warps[0], FULL)
    (check,) = case.cta.at_exit
    check()
    ((name, message),) = case.launch.notes
    assert name == "wgmma-exit-in-flight"
    assert "warp 1 exits with 1 " in message


@pytest.mark.parametrize("schedule", ["eager", "lazy"])
def test_a_registers_may_not_change_in_flight(schedule):
    case = Case(8, from_registers=True, scale_d=imm(0), schedule=schedule)
    case.place_operands(np.ones((64, 16)), np.ones((8, 16)))
    case.place_a_registers(np.ones((64, 16)))
    case.each(case.fence, case.issue, case.commit)
    case.warps[2].file32[case.warps[2].row(case.a[3]), 17] += 1
    if schedule == "eager":
        case.each(case.waits[0])
        return
    with pytest.raises(Fault, match=r"register 3 of A .*line \d+\) .*in lane 17") as caught:
        case.each(case.waits[0])
    assert caught.value.name == "wgmma-operand-overwritten"
    assert caught.value.where.warp == 2
    assert "wait_group" in caught.value.advice


def test_a_wait_names_what_the_lazy_schedule_must_complete():
    case = Case(8, scale_d=imm(0), schedule="lazy")
    other = second_form(case, 8, registers("z", 4))
    case.place_operands(np.ones((64, 16)), np.ones((8, 16)))
    case.together(case.fence, case.issue, case.commit, other, case.commit)
    wait = case.waits[1](case.warps[0], FULL)
    (first,) = wait.needs()
    assert case.engine.perform_one(set(wait.needs()))
    assert first.done and wait.ready() and len(case.engine) == 1


def test_a_registers_are_read_when_it_is_performed():
    case = Case(8, from_registers=True, scale_d=imm(0), schedule="lazy")
    case.place_operands(np.ones((64, 16)), np.ones((8, 16)))
    case.place_a_registers(np.ones((64, 16)))
    case.each(case.fence, case.issue, case.commit)
    case.place_a_registers(np.full((64, 16), 2.0))
    case.launch.ignore.add("wgmma-operand-overwritten")
    case.each(case.waits[0])
    assert (case.result() == 32).all()


def test_shared_memory_is_held_until_it_is_performed():
    case = Case(8, scale_d=imm(0), schedule="lazy")
    case.place_operands(np.ones((64, 16)), np.ones((8, 16)))
    warp = case.warps[0]
    case.each(case.fence, case.issue, case.commit)
    with pytest.raises(Fault, match=r"shared-in-flight.*wgmma\.mma_async"):
        case.cta.shared.generic_write(np.array([B_START]), np.zeros(1, np.uint8), 0, warp.where())
    case.each(case.waits[0])
    case.cta.shared.generic_write(np.array([B_START]), np.zeros(1, np.uint8), 0, warp.where())
    with pytest.raises(Fault, match="missing-proxy-fence"):
        case.together(case.issue, case.commit, case.waits[0])


@pytest.mark.parametrize("row", [0, 15, 16, 40, 63])
def test_every_row_of_a_is_held(row):
    case = Case(8, scale_d=imm(0), schedule="lazy")
    case.place_operands(np.ones((64, 16)), np.ones((8, 16)))
    lbo, sbo = strides(64, 2, 128, "k")
    place = A_START + tile_place(row, 9, 2, swizzle=128, major="k", lbo=lbo, sbo=sbo)
    warp = case.warps[0]
    case.each(case.fence, case.issue, case.commit)
    with pytest.raises(Fault, match=r"shared-in-flight.*wgmma\.mma_async"):
        case.cta.shared.generic_write(np.array([place]), np.zeros(1, np.uint8), 0, warp.where())
    case.each(case.waits[0])
    case.cta.shared.generic_write(np.array([place]), np.zeros(1, np.uint8), 0, warp.where())


def second_form(case, columns, names):
    """Another mma_async of the same case with its own accumulator registers."""
    return case.machine.bind(
        f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.bf16.bf16",
        vec(names),
        DESC_A,
        DESC_B,
        imm(0),
        *(imm(x) for x in (1, 1, 0, 0)),
    )


def test_other_shape_on_registers_in_flight():
    case = Case(16)
    other = second_form(case, 8, case.d[4:8])
    permuted = second_form(case, 16, case.d[::-1])
    case.place_operands(np.ones((64, 16)), np.ones((16, 16)))
    warp = case.warps[0]
    case.together(case.fence, case.issue)
    for handler in (other, permuted):
        with pytest.raises(Fault, match="wgmma-accumulator-shape"):
            handler(warp, FULL)
    case.together(case.commit, case.waits[0])
    other(warp, FULL)


def test_registers_that_a_later_accumulator_shares_stay_busy():
    case = Case(16)
    other = second_form(case, 8, case.d[4:8])
    case.place_operands(np.ones((64, 16)), np.ones((16, 16)))
    case.launch.ignore.add("wgmma-accumulator-shape")
    warp = case.warps[0]
    case.together(case.fence, case.issue, case.commit, other, case.commit)
    assert warp.busy == {warp.row(r) for r in case.d}
    case.together(case.waits[1])
    assert warp.busy == {warp.row(r) for r in case.d[4:8]}
    case.together(case.waits[0])
    assert warp.busy == set()


@pytest.mark.parametrize("schedule", ["eager", "lazy", "random"])
def test_a_warpgroup_multiplies_together(schedule):
    case = Case(8, scale_d=imm(0), schedule=schedule)
    case.place_operands(np.ones((64, 16)), np.ones((8, 16)))
    case.together(case.fence)
    *early, late = case.warps
    for warp in early:
        case.issue(warp, FULL)
        case.commit(warp, FULL)
    wait = case.waits[0](early[0], FULL)
    assert not wait.ready() and not case.engine.perform_one()
    assert "all four warps" in wait.describe()
    case.issue(late, FULL)
    while not wait.ready():
        assert case.engine.perform_one()
    wait.finish()
    # One warp has waited: the operands are free, and every warp's rows are there.
    case.cta.shared.generic_write(np.array([B_START]), np.zeros(1, np.uint8), 0, late.where())
    assert (late.get(case.d).view(np.float32) == 16).all()


def test_the_warps_of_a_warpgroup_issue_the_same_instructions():
    case = Case(8)
    other = second_form(case, 16, registers("z", 8))
    case.place_operands(np.ones((64, 16)), np.ones((8, 16)))
    case.together(case.fence)
    case.issue(case.warps[0], FULL)
    with pytest.raises(Fault, match=r"wgmma-diverged.*m64n8k16"):
        other(case.warps[1], FULL)


def test_a_from_an_accumulator_in_flight():
    case = Case(8, from_registers=True)
    names = [*case.a, *registers("z", 4)]
    other = second_form(case, 16, names)
    case.place_operands(np.ones((64, 16)), np.ones((16, 16)))
    case.place_a_registers(np.ones((64, 16)))
    warp = case.warps[0]
    case.fence(warp, FULL)
    other(warp, FULL)
    with pytest.raises(Fault, match="register-in-flight"):
        case.issue(warp, FULL)


def test_a_from_its_own_accumulator():
    case = Case(8)
    own = case.machine.bind(
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16",
        vec(case.d),
        vec([*case.a[:3], case.d[2]]),
        DESC_B,
        imm(0),
        *(imm(x) for x in (1, 1, 0)),
    )
    case.place_operands(np.ones((64, 16)), np.ones((8, 16)))
    case.fence(case.warps[0], FULL)
    with pytest.raises(Fault, match="register-in-flight"):
        own(case.warps[0], FULL)


def test_faults_at_issue():
    case = Case(8, scale_d=SCALE_D)
    case.place_operands(np.ones((64, 16)), np.ones((8, 16)))
    warp = case.warps[0]
    with pytest.raises(Fault, match="wgmma-no-fence"):
        case.issue(warp, FULL)
    case.fence(warp, FULL)
    with pytest.raises(Fault, match="partial-warp"):
        case.issue(warp, 1)
    warp.predicates[case.machine.layout.predicate("%p")] = 0xFF
    with pytest.raises(Fault, match=r"wgmma-not-uniform.*scale-d"):
        case.issue(warp, FULL)
    warp.predicates[:] = 0
    good = int(warp.file64[warp.row(DESC_B)][0])
    warp.file64[warp.row(DESC_B), 9] += np.uint64(2)
    with pytest.raises(Fault, match=r"wgmma-not-uniform.*b-desc"):
        case.issue(warp, FULL)
    warp.set(DESC_B, np.uint64(good | 1 << 14))
    with pytest.raises(Fault, match="descriptor-invalid"):
        case.issue(warp, FULL)
    warp.set(DESC_B, np.uint64(good - (B_START >> 4) + (case.cta.shared.size >> 4)))
    with pytest.raises(Fault, match=r"descriptor-invalid.*beyond the end"):
        case.issue(warp, FULL)


def test_incomplete_warpgroup():
    case = Case(8, warps=2)
    case.place_operands(np.ones((64, 16)), np.ones((8, 16)))
    case.fence(case.warps[0], FULL)
    with pytest.raises(Fault, match="wgmma-partial-warpgroup"):
        case.issue(case.warps[0], FULL)


def test_counters():
    case = Case(64)
    case.place_operands(np.ones((64, 16)), np.ones((64, 16)))
    case.set_d(np.zeros((64, 64)))
    case.run()
    # 2 * 64 * 64 * 16 FLOP at 4096 a clock; A and B once for the warpgroup.
    assert case.launch.counters["tensor-cycles-sm90"] == 32
    assert case.launch.counters["wgmma-shared-bytes"] == (64 + 64) * 16 * 2


@pytest.mark.parametrize(
    ("shape_types", "reason"),
    [
        ("m64n260k16.f32.bf16.bf16", "shape"),
        ("m64n12k16.f32.bf16.bf16", "shape"),
        ("m64n8k8.f32.bf16.bf16", "shape"),
        ("m64n8k16.f16.bf16.bf16", "accumulator"),
        ("m64n8k16.f32.f16.bf16", "types"),
        ("m64n8k32.s32.s8.s8", "types"),
    ],
)
def test_unknown_forms_are_named(shape_types, reason):
    operands = [vec(registers("d", 4)), DESC_A, DESC_B, imm(1), *map(imm, (1, 1, 0, 0))]
    with pytest.raises(UnsupportedInstruction, match=f"line 7.*{reason}"):
        Machine().bind(f"wgmma.mma_async.sync.aligned.{shape_types}", *operands)


def test_operands_are_checked():
    name = "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16"
    d = vec(registers("d", 4))
    good = [d, DESC_A, DESC_B, imm(1), *map(imm, (1, 1, 0, 0))]
    Machine().bind(name, *good)
    for index, wrong in ((0, vec(registers("d", 8))), (4, imm(0)), (6, imm(2))):
        with pytest.raises(UnsupportedInstruction):
            Machine().bind(name, *good[:index], wrong, *good[index + 1 :])
    with pytest.raises(UnsupportedInstruction, match="operands"):
        Machine().bind(name, *good[:7])
    with pytest.raises(UnsupportedInstruction, match="sm_90a"):
        Machine("sm_100a").bind(name, *good)
    with pytest.raises(UnsupportedInstruction):
        Machine().bind("wgmma.wait_group.sync.aligned", imm(-1))
