"""Control flow and memory of a warp, through the whole stack: PTX text to arrays."""

import numpy as np
import pytest

from cakert import sim

HEADER = ".version 9.0\n.target sm_90\n.address_size 64\n"

PROLOGUE = """
    .reg .b64 %out, %in, %rd<10>;
    .reg .b32 %r<40>, %t;
    .reg .f32 %f<10>;
    .reg .b16 %h<10>;
    .reg .pred %p<10>;
    ld.param.u64 %out, [out];
    ld.param.u64 %in, [in];
    mov.u32 %t, %tid.x;
    mul.wide.u32 %rd1, %t, 4;
    add.s64 %rd2, %in, %rd1;
    add.s64 %rd3, %out, %rd1;
"""


def kernel(body, variables="", directives=".maxntid 1024, 1, 1"):
    return (
        f"{HEADER}{variables}\n.visible .entry k(.param .u64 out, .param .u64 in)\n{directives}\n"
        f"{{{PROLOGUE}{body}\n    ret;\n}}\n"
    )


def run(body, data, *, block=32, grid=1, out=None, shared_bytes=0, variables="", seed=None, **more):
    """Run a kernel on `data` (one uint32 a thread); what it wrote to `out`."""
    schedule = "eager" if seed is None else "random"
    gpu = sim.Gpu("sm_100a", schedule=schedule, seed=seed or 0, **more)
    module = gpu.load_ptx(kernel(body, variables))
    target = gpu.array(np.full(len(data) if out is None else out, 0xABABABAB, np.uint32))
    module.launch(
        "k", grid=(grid, 1, 1), block=(block, 1, 1), args=[target, gpu.array(data)],
        shared_bytes=shared_bytes,
    )  # fmt: skip
    return target.numpy()


@pytest.fixture
def rng():
    return np.random.default_rng()


@pytest.fixture
def data(rng):
    return rng.integers(1, 1000, 32, np.uint32)


@pytest.mark.parametrize("seed", [None, 3, 4])
def test_lanes_that_branch_apart_meet_again(data, seed):
    body = """
    ld.global.u32 %r1, [%rd2];
    and.b32 %r2, %r1, 3;
    setp.eq.s32 %p1, %r2, 0;
    @%p1 bra ZERO;
    setp.eq.s32 %p2, %r2, 1;
    @%p2 bra ONE;
    mul.lo.s32 %r3, %r1, 5;
    bra.uni MEET;
ZERO:
    add.s32 %r3, %r1, 100;
    bra.uni MEET;
ONE:
    sub.s32 %r3, %r1, 7;
MEET:
    shfl.sync.bfly.b32 %r5, %r3, 16, 0x1f, 0xffffffff;
    activemask.b32 %r4;
    st.global.u32 [%rd3], %r5;
    st.global.u32 [%rd3+128], %r4;
"""
    rest = data & 3
    value = np.where(rest == 0, data + 100, np.where(rest == 1, data - 7, data * 5))
    got = run(body, data, out=64, seed=seed)
    np.testing.assert_array_equal(got[:32], value[np.arange(32) ^ 16])
    np.testing.assert_array_equal(got[32:], 0xFFFFFFFF)


@pytest.mark.parametrize("seed", [None, 5])
def test_loops_with_a_trip_count_of_their_own(rng, seed):
    counts = rng.integers(0, 40, 32, np.uint32)
    body = """
    ld.global.u32 %r1, [%rd2];
    mov.b32 %r2, 0;
    mov.b32 %r3, 1;
    setp.eq.u32 %p1, %r1, 0;
    @%p1 bra DONE;
LOOP:
    mad.lo.s32 %r3, %r3, 3, %r2;
    add.s32 %r2, %r2, 1;
    setp.lt.u32 %p2, %r2, %r1;
    @%p2 bra LOOP;
DONE:
    st.global.u32 [%rd3], %r3;
"""
    expected = np.ones(32, np.uint32)
    with np.errstate(over="ignore"):
        for lane in range(32):
            for i in range(counts[lane]):
                expected[lane] = expected[lane] * np.uint32(3) + np.uint32(i)
    np.testing.assert_array_equal(run(body, counts, seed=seed), expected)


def test_lanes_of_a_warp_wait_for_each_other(data):
    """Lane 31 polls a flag that lane 0, at a later line, sets: both must make progress."""
    body = """
    mov.u32 %r9, flag;
    setp.eq.s32 %p1, %t, 0;
    @%p1 st.shared.u32 [%r9], 1;
    bar.warp.sync 0xffffffff;
    setp.ne.s32 %p2, %t, 31;
    @%p2 bra REST;
POLL:
    ld.volatile.shared.u32 %r2, [%r9];
    setp.ne.s32 %p3, %r2, 77;
    @%p3 bra POLL;
    bra.uni MEET;
REST:
    setp.ne.s32 %p4, %t, 5;
    @%p4 bra MEET;
    st.volatile.shared.u32 [%r9], 77;
MEET:
    ld.global.u32 %r1, [%rd2];
    st.global.u32 [%rd3], %r1;
"""
    variables = ".shared .align 4 .u32 flag;"
    np.testing.assert_array_equal(run(body, data, variables=variables), data)


def test_guarded_exit_ends_single_lanes(data):
    body = """
    and.b32 %r2, %t, 1;
    setp.eq.s32 %p1, %r2, 1;
    @%p1 exit;
    ld.global.u32 %r1, [%rd2];
    st.global.u32 [%rd3], %r1;
"""
    got = run(body, data)
    np.testing.assert_array_equal(got[::2], data[::2])
    np.testing.assert_array_equal(got[1::2], 0xABABABAB)


def test_indexed_branches(data):
    body = """
    ld.global.u32 %r1, [%rd2];
    rem.u32 %r2, %r1, 3;
TABLE: .branchtargets A, B, C;
    brx.idx %r2, TABLE;
A:
    add.s32 %r3, %r1, 11;
    bra.uni END;
B:
    add.s32 %r3, %r1, 22;
    bra.uni END;
C:
    add.s32 %r3, %r1, 33;
END:
    st.global.u32 [%rd3], %r3;
"""
    expected = data + np.array([11, 22, 33], np.uint32)[data % 3]
    np.testing.assert_array_equal(run(body, data), expected)
    with pytest.raises(sim.Fault, match="branch-out-of-range"):
        run(body.replace("rem.u32 %r2, %r1, 3", "add.u32 %r2, %r1, 3"), data)


def test_a_partial_warp_at_the_end_of_a_block(rng):
    data = rng.integers(1, 1000, 45, np.uint32)
    body = """
    ld.global.u32 %r1, [%rd2];
    bar.sync 0;
    vote.sync.ballot.b32 %r2, 1, 0xffffffff;
    add.s32 %r1, %r1, %r2;
    st.global.u32 [%rd3], %r1;
"""
    mask = np.where(np.arange(45) < 32, 0xFFFFFFFF, (1 << 13) - 1).astype(np.uint32)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(run(body, data, block=45), data + mask)


@pytest.mark.parametrize(
    ("store", "load", "size"),
    [("u8", "u8", 1), ("u8", "s8", 1), ("u16", "u16", 2), ("u16", "s16", 2), ("b32", "b32", 4)],
)
def test_narrow_accesses_extend_as_their_type_says(rng, store, load, size):
    data = rng.integers(0, 1 << 32, 32, np.uint32)
    body = f"""
    ld.global.u32 %r1, [%rd2];
    mov.u32 %r9, buffer;
    mad.lo.s32 %r9, %t, {size}, %r9;
    st.shared.{store} [%r9], %r1;
    bar.warp.sync 0xffffffff;
    ld.shared.{load} %r2, [%r9];
    st.global.u32 [%rd3], %r2;
"""
    kind = np.dtype(f"{'i' if load[0] == 's' else 'u'}{size}")
    expected = data.astype(f"u{size}").view(kind).astype(np.int64).astype(np.uint32)
    got = run(body, data, variables=".shared .align 16 .b8 buffer[256];")
    np.testing.assert_array_equal(got, expected)


def test_vectors_generic_addresses_and_local_memory(data):
    body = """
    ld.global.u32 %r1, [%rd2];
    mov.u64 %rd4, depot;
    cvta.local.u64 %rd5, %rd4;
    st.local.v2.u32 [%rd4], {%r1, %t};
    ld.u32 %r2, [%rd5+4];
    ld.u32 %r3, [%rd5];
    mov.u64 %rd6, buffer;
    cvta.shared.u64 %rd6, %rd6;
    mul.wide.u32 %rd7, %t, 16;
    add.s64 %rd6, %rd6, %rd7;
    add.s32 %r4, %r3, %r2;
    st.v4.b32 [%rd6], {%r1, %r2, %r3, %r4};
    isspacep.shared %p1, %rd6;
    isspacep.global %p2, %rd3;
    cvta.to.shared.u64 %rd8, %rd6;
    ld.shared.b128 %q1, [%rd8];
    mov.b128 {%rd9, %rd7}, %q1;
    mov.b64 {_, %r5}, %rd9;
    st.shared.b128 [%rd8], %q1;
    ld.shared.v4.b32 {_, %r5, _, %r6}, [%rd8];
    selp.u32 %r7, 1, 0, %p1;
    selp.u32 %r8, 2, 0, %p2;
    add.s32 %r6, %r6, %r7;
    add.s32 %r6, %r6, %r8;
    add.s32 %r6, %r6, %r5;
    st.global.u32 [%rd3], %r6;
"""
    body = "    .reg .b128 %q1;\n    .local .align 8 .b8 depot[8];\n" + body
    expected = data + 2 * np.arange(32, dtype=np.uint32) + 3
    got = run(body, data, variables=".shared .align 16 .b8 buffer[512];")
    np.testing.assert_array_equal(got, expected)


def test_blocks_share_nothing_but_global_memory(rng):
    data = rng.integers(1, 1000, 256, np.uint32)
    body = """
    mov.u32 %r10, %ctaid.x;
    mov.u32 %r11, %ntid.x;
    mad.lo.s32 %r12, %r10, %r11, %t;
    mul.wide.u32 %rd4, %r12, 4;
    add.s64 %rd5, %in, %rd4;
    ld.global.u32 %r1, [%rd5];
    mov.u32 %r9, buffer;
    shl.b32 %r8, %t, 2;
    add.s32 %r9, %r9, %r8;
    st.shared.u32 [%r9], %r1;
    bar.sync 0;
    mov.u32 %r7, buffer;
    sub.s32 %r6, %r11, 1;
    sub.s32 %r6, %r6, %t;
    shl.b32 %r6, %r6, 2;
    add.s32 %r7, %r7, %r6;
    ld.shared.u32 %r2, [%r7];
    add.s64 %rd6, %out, %rd4;
    st.global.u32 [%rd6], %r2;
"""
    variables = ".extern .shared .align 16 .b8 buffer[];"
    for seed in (None, 1, 2):
        got = run(body, data, block=64, grid=4, variables=variables, shared_bytes=256, seed=seed)
        np.testing.assert_array_equal(got, data.reshape(4, 64)[:, ::-1].reshape(-1))


def test_a_missing_barrier_is_found(rng):
    """The same kernel without its barrier reads what another warp has not written yet."""
    data = rng.integers(1, 1000, 64, np.uint32)
    body = """
    ld.global.u32 %r1, [%rd2];
    mov.u32 %r9, buffer;
    shl.b32 %r8, %t, 2;
    add.s32 %r7, %r9, %r8;
    st.shared.u32 [%r7], %r1;
    sub.s32 %r6, 63, %t;
    shl.b32 %r6, %r6, 2;
    add.s32 %r7, %r9, %r6;
    ld.shared.u32 %r2, [%r7];
    st.global.u32 [%rd3], %r2;
"""
    with pytest.raises(sim.Fault, match=r"uninitialised-shared.*line .*ld.shared.u32"):
        run(body, data, block=64, variables=".shared .align 16 .b8 buffer[256];")


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ("ld.global.u32 %r1, [%rd2+4096];", "global-out-of-bounds"),
        ("st.global.u32 [%in+-4], %t;", "global-out-of-bounds"),
        ("ld.global.v2.u32 {%r1, %r2}, [%rd2];", "misaligned-address"),
        ("ld.shared.u32 %r1, [0];", "shared-out-of-bounds"),
        ("ld.shared.u32 %r1, [1024];", "uninitialised-shared"),
        ("mov.u32 %r1, 2048;\n    st.shared.u32 [%r1], %t;", "shared-out-of-bounds"),
        ("mov.u64 %rd4, 5;\n    ld.u32 %r1, [%rd4+3];", "global-out-of-bounds"),
        ("trap;", "trap"),
    ],
)
def test_faults_say_where(data, body, name):
    with pytest.raises(sim.Fault, match=rf"\[{name}\] k line \d+ `") as caught:
        run(body, data, shared_bytes=512)
    assert caught.value.name == name
    assert caught.value.where.cta == (0, 0, 0)
    assert caught.value.where.warp == 0


def test_an_unknown_instruction_names_its_line(data):
    with pytest.raises(sim.UnsupportedInstruction, match=r"line 19: `frobnicate.b32 %r1, %t`"):
        run("    frobnicate.b32 %r1, %t;", data)
    with pytest.raises(sim.UnsupportedInstruction, match=r"unknown modifier \.sideways"):
        run("ld.sideways.global.u32 %r1, [%rd2];", data)


@pytest.mark.parametrize("seed", [None, 1])
def test_atomics(rng, seed):
    data = rng.integers(1, 1000, 128, np.uint32)
    body = """
    ld.global.u32 %r1, [%rd2];
    red.global.add.u32 [%out], %r1;
    atom.global.max.u32 %r2, [%out+4], %r1;
    atom.global.inc.u32 %r3, [%out+8], 49;
    mov.u32 %r9, counter;
    setp.ne.s32 %p1, %t, 0;
    @%p1 bra SKIP;
    st.shared.u32 [%r9], 0;
SKIP:
    bar.sync 0;
    atom.shared.add.u32 %r4, [%r9], 1;
    bar.sync 0;
    mul.wide.u32 %rd4, %r4, 4;
    add.s64 %rd5, %out, %rd4;
    st.global.u32 [%rd5+64], %t;
"""
    gpu = sim.Gpu("sm_90a", schedule="eager" if seed is None else "random", seed=seed or 0)
    module = gpu.load_ptx(kernel(body, ".shared .align 4 .u32 counter;"))
    start = np.zeros(16 + 128, np.uint32)
    start[:3] = 5, 500, 3
    out = gpu.array(start)
    module.launch("k", grid=(1, 1, 1), block=(128, 1, 1), args=[out, gpu.array(data)])
    got = out.numpy()
    assert got[0] == 5 + data.sum()
    assert got[1] == max(500, data.max())
    assert got[2] == (3 + 128) % 50
    np.testing.assert_array_equal(np.sort(got[16:]), np.arange(128))


def test_the_report_counts_instructions_and_bank_conflicts(data):
    body = """
    mov.u32 %r9, buffer;
    shl.b32 %r8, %t, 7;
    add.s32 %r9, %r9, %r8;
    st.shared.u32 [%r9], %t;
    shl.b32 %r8, %t, 2;
    mov.u32 %r9, buffer;
    add.s32 %r9, %r9, %r8;
    st.shared.u32 [%r9], %t;
"""
    gpu = sim.Gpu("sm_100a")
    module = gpu.load_ptx(kernel(body, ".shared .align 16 .b8 buffer[4096];"))
    arrays = [gpu.array(data), gpu.array(data)]
    report = module.launch("k", grid=(2, 1, 1), block=(32, 1, 1), args=arrays)
    stores = [i for i, (name, _) in enumerate(report.operations) if name == "st.shared.u32"]
    assert [int(report.counts[0, i]) for i in stores] == [2, 2]
    assert [int(report.wavefronts[0, i]) for i in stores] == [2 * 31, 0]
