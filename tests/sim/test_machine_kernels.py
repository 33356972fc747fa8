"""Kernels by hand through reader, decoder, core and machine, under every schedule."""

import numpy as np
import pytest

from cakert.sim.core.global_memory import GlobalMemory
from cakert.sim.decode.decoder import decode
from cakert.sim.faults import Fault
from cakert.sim.machine.launch import run_launch
from cakert.sim.ptx.reader import read

SCHEDULES = [("eager", 0), ("lazy", 0), *(("random", seed) for seed in range(4))]
schedules = pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)

PROLOGUE = """
    .reg .b32 %r<32>;  .reg .b64 %rd<32>;  .reg .b128 %q<4>;  .reg .pred %p<16>;
    .shared .align 128 .b8 smem[4096];
    .shared .align 8 .b64 bars[8];
    ld.param.u64 %rd0, [out];
    ld.param.u64 %rd1, [in];
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, smem;
    mov.u32 %r3, bars;
    shr.u32 %r4, %r0, 5;
"""


def launch(body, out, data=None, *, directives="", block=32, grid=1, **options):
    """Run ``body`` as the kernel k(out, in); the report."""
    data = np.zeros(1, np.uint32) if data is None else data
    module = read(
        ".version 9.0\n.target sm_100a\n.address_size 64\n"
        f".visible .entry k(.param .u64 out, .param .u64 in) {directives} {{\n{PROLOGUE}{body}\n"
        "ret;\n}\n"
    )
    memory = GlobalMemory()
    memory.register(out.ctypes.data, out.nbytes, True, "out", out)
    memory.register(data.ctypes.data, data.nbytes, False, "in", data)
    code = decode(module, module.functions["k"], arch="sm_100a", global_symbols={})
    params = np.array([out.ctypes.data, data.ctypes.data], np.uint64).tobytes()
    return run_launch(
        code, grid=(grid, 1, 1), block=(block, 1, 1), params=params, memory=memory,
        **{"arch": "sm_100a", "sms": 4, **options},
    )  # fmt: skip


@pytest.fixture
def rng():
    return np.random.default_rng()


# Warp 0 fills a ring of two stages, warp 1 drains it: full barriers at bars, empty ones at bars+16.
RING = """
    setp.ne.u32 %p1, %r0, 0;
    @%p1 bra READY;
    mbarrier.init.shared::cta.b64 [bars], 32;
    mbarrier.init.shared::cta.b64 [bars+8], 32;
    mbarrier.init.shared::cta.b64 [bars+16], 32;
    mbarrier.init.shared::cta.b64 [bars+24], 32;
    fence.mbarrier_init.release.cluster;
READY:
    bar.sync 0;
    and.b32 %r5, %r0, 31;
    mov.u32 %r6, 0;               // the step
    setp.ne.u32 %p2, %r4, 0;
LOOP:
    and.b32 %r7, %r6, 1;          // stage
    shr.u32 %r8, %r6, 1;
    and.b32 %r8, %r8, 1;          // parity of full
    xor.b32 %r9, %r8, PRODUCER_PARITY;
    shl.b32 %r10, %r7, 3;
    add.u32 %r10, %r10, %r3;      // full barrier
    shl.b32 %r11, %r7, 7;
    add.u32 %r11, %r11, %r2;
    shl.b32 %r12, %r5, 2;
    add.u32 %r11, %r11, %r12;     // this lane's word of the stage
    shl.b32 %r13, %r6, 5;
    add.u32 %r13, %r13, %r5;
    mul.wide.u32 %rd2, %r13, 4;
    @%p2 bra CONSUME;
EMPTY:
    mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r10+16], %r9;
    @!%p3 bra EMPTY;
    add.u64 %rd3, %rd1, %rd2;
    ld.global.u32 %r14, [%rd3];
    st.shared.u32 [%r11], %r14;
    mbarrier.arrive.shared::cta.b64 _, [%r10];
    bra NEXT;
CONSUME:
    WAIT_FULL
    ld.shared.u32 %r14, [%r11];
    RELEASE
    mul.lo.u32 %r14, %r14, 3;
    add.u64 %rd3, %rd0, %rd2;
    st.global.u32 [%rd3], %r14;
NEXT:
    add.u32 %r6, %r6, 1;
    setp.lt.u32 %p4, %r6, 9;
    @%p4 bra LOOP;
"""
WAIT_FULL = """
FULL:
    mbarrier.WAIT.parity.acquire.cta.shared::cta.b64 %p3, [%r10], %r8;
    @!%p3 bra FULL;
"""
RELEASE = "mbarrier.arrive.shared::cta.b64 _, [%r10+16];"


def ring(*, parity=1, wait=WAIT_FULL, release=RELEASE, kind="try_wait"):
    text = RING.replace("PRODUCER_PARITY", str(parity)).replace("RELEASE", release)
    return text.replace("WAIT_FULL", wait).replace("WAIT.", f"{kind}.")


@schedules
@pytest.mark.parametrize("kind", ["try_wait", "test_wait"])
def test_ring(rng, schedule, seed, kind):
    data = rng.integers(1, 1 << 30, 32 * 9, np.uint32)
    out = np.zeros_like(data)
    report = launch(ring(kind=kind), out, data, block=64, schedule=schedule, seed=seed)
    assert np.array_equal(out, data * np.uint32(3))
    assert report.notes == []


@schedules
def test_ring_whose_producer_starts_with_the_wrong_parity(rng, schedule, seed):
    out = np.zeros(32 * 9, np.uint32)
    with pytest.raises(Fault) as info:
        launch(ring(parity=0), out, out + np.uint32(5), block=64, schedule=schedule, seed=seed)
    text = str(info.value)
    assert info.value.name == "deadlock"
    assert "warp 0" in text and "phase 0 is current and misses 32 of 32 arrivals" in text


def test_ring_whose_consumer_does_not_wait(rng):
    """Without the wait, some schedule reads what nobody has written yet."""
    data = rng.integers(1, 1 << 30, 32 * 9, np.uint32)
    found = set()
    for seed in range(10):
        out = np.zeros_like(data)
        try:
            launch(ring(wait=""), out, data, block=64, schedule="random", seed=seed)
        except Fault as fault:
            found.add(fault.name)
        else:
            found.add("wrong" if (out != data * np.uint32(3)).any() else "right")
    assert "uninitialised-shared" in found


@schedules
def test_ring_that_is_never_released(rng, schedule, seed):
    data = rng.integers(1, 1 << 30, 32 * 9, np.uint32)
    with pytest.raises(Fault, match=r"phase 0 \(parity 0\) of mbarrier") as info:
        launch(ring(release=""), np.zeros_like(data), data, block=64, schedule=schedule, seed=seed)
    assert info.value.name == "deadlock" and "nobody has arrived in it" in str(info.value)


REVERSE = """
    shl.b32 %r5, %r0, 2;
    add.u32 %r6, %r2, %r5;
    mul.wide.u32 %rd2, %r0, 4;
    add.u64 %rd3, %rd1, %rd2;
    ld.global.u32 %r7, [%rd3];
    st.shared.u32 [%r6], %r7;
    {barrier}
    sub.u32 %r8, 127, %r0;
    shl.b32 %r8, %r8, 2;
    add.u32 %r8, %r8, %r2;
    ld.shared.u32 %r9, [%r8];
    add.u64 %rd4, %rd0, %rd2;
    st.global.u32 [%rd4], %r9;
"""


@schedules
@pytest.mark.parametrize("barrier", ["bar.sync 0;", "bar.sync 7, 128;", "barrier.cta.sync 3;"])
def test_exchange_over_a_barrier(rng, schedule, seed, barrier):
    data = rng.integers(1, 1 << 32, 128, np.uint32)
    out = np.zeros_like(data)
    launch(REVERSE.format(barrier=barrier), out, data, block=128, schedule=schedule, seed=seed)
    assert np.array_equal(out, data[::-1])


@schedules
def test_exchange_without_a_barrier(rng, schedule, seed):
    data = rng.integers(1, 1 << 32, 128, np.uint32)
    with pytest.raises(Fault, match="uninitialised-shared"):
        launch(
            REVERSE.format(barrier=""), np.zeros_like(data), data, block=128, schedule=schedule,
            seed=seed,
        )  # fmt: skip


@schedules
def test_divergent_bar_sync_of_unequal_ids_is_a_deadlock(schedule, seed):
    body = "setp.eq.u32 %p1, %r4, 0;\n@%p1 bra A;\nbar.sync 1, 64;\nbra B;\nA: bar.sync 2, 64;\nB:"
    with pytest.raises(Fault) as info:
        launch(body, np.zeros(1, np.uint32), block=64, schedule=schedule, seed=seed)
    assert info.value.name == "deadlock"
    assert "barrier 1 of 64 threads; arrived: warp 1" in str(info.value)


def test_a_producer_that_runs_ahead_arrives_twice():
    body = """
    setp.eq.u32 %p1, %r4, 0;
    @%p1 bra A;
    bar.sync 2, 64;
    bar.sync 1, 64;
    bar.sync 1, 64;
    bra B;
A:  bar.arrive 1, 64;
    bar.arrive 1, 64;
    bar.sync 2, 64;
B:"""
    with pytest.raises(Fault) as info:
        launch(body, np.zeros(1, np.uint32), block=64)
    assert info.value.name == "barrier-double-arrival"


CLUSTER = """
    mov.u32 %r5, %cluster_ctarank;
    setp.ne.u32 %p1, %r0, 0;
    @%p1 bra READY;
    mbarrier.init.shared::cta.b64 [bars], 64;
    fence.mbarrier_init.release.cluster;
READY:
    barrier.cluster.arrive.release.aligned;
    barrier.cluster.wait.acquire.aligned;
    xor.b32 %r6, %r5, 1;
    shl.b32 %r7, %r0, 2;
    add.u32 %r8, %r2, %r7;
    mapa.shared::cluster.u32 %r9, %r8, %r6;
    mad.lo.u32 %r10, %r5, 1000, %r0;
    st.shared::cluster.u32 [%r9], %r10;
    mapa.shared::cluster.u32 %r11, %r3, %r6;
    mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r11];
WAIT:
    mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r3], 0;
    @!%p2 bra WAIT;
    ld.shared.u32 %r12, [%r8];
    mad.lo.u32 %r13, %r1, 64, %r0;
    mul.wide.u32 %rd2, %r13, 4;
    add.u64 %rd3, %rd0, %rd2;
    st.global.u32 [%rd3], %r12;
    LEAVE
"""
LEAVE = "barrier.cluster.arrive;\nbarrier.cluster.wait;"


@schedules
def test_cluster_exchange(schedule, seed):
    out = np.zeros((6, 64), np.uint32)
    launch(
        CLUSTER.replace("LEAVE", LEAVE), out, block=64, grid=6, cluster=(2, 1, 1),
        schedule=schedule, seed=seed,
    )  # fmt: skip
    expected = (1 - np.arange(6) % 2)[:, None] * 1000 + np.arange(64)
    assert np.array_equal(out, expected)


@schedules
def test_setmaxnreg_between_roles(schedule, seed):
    body = """
    setp.ge.u32 %p1, %r4, 8;
    @%p1 bra PRODUCER;
    setmaxnreg.inc.sync.aligned.u32 {inc};
    bra END;
PRODUCER:
    setmaxnreg.dec.sync.aligned.u32 40;
END:"""
    options = {
        "block": 384,
        "directives": ".maxntid 384, 1, 1 .minnctapersm 1",
        "schedule": schedule,
        "seed": seed,
    }
    out = np.zeros(1, np.uint32)
    assert launch(body.format(inc=232), out, **options).notes == []
    with pytest.raises(Fault, match="more registers a thread") as info:
        launch(body.format(inc=240), out, **options)
    assert info.value.name == "deadlock"


STEAL = """
    mov.u32 %r5, 0;               // phase
    setp.ne.u32 %p1, %r0, 0;
    @%p1 bra READY;
    mbarrier.init.shared::cta.b64 [bars], 1;
    fence.mbarrier_init.release.cluster;
READY:
    bar.sync 0;
WORK:
    @%p1 bra ASKED;
    mul.wide.u32 %rd2, %r1, 4;
    add.u64 %rd3, %rd0, %rd2;
    atom.global.add.u32 %r6, [%rd3], 1;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 16;
    clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128
        [%r2], [%r3];
ASKED:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r3], %r5;
    @!%p2 bra ASKED;
    xor.b32 %r5, %r5, 1;
    ld.shared.v2.b64 {%rd6, %rd7}, [%r2];
    mov.b128 %q1, {%rd6, %rd7};
    clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p3, %q1;
    @!%p3 bra END;
    clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r1, %q1;
    fence.proxy.async;
    bar.sync 0;
    bra WORK;
END:
"""


@schedules
def test_ctas_that_steal_do_every_item_once(schedule, seed):
    out = np.zeros(23, np.uint32)
    launch(STEAL, out, block=64, grid=23, sms=3, schedule=schedule, seed=seed)
    assert out.tolist() == [1] * 23


GRID_BARRIER = """
    setp.ne.u32 %p1, %r0, 0;
    @%p1 bra END;
    mul.wide.u32 %rd2, %r1, 4;
    add.u64 %rd3, %rd0, %rd2;
    add.u32 %r5, %r1, 7;
    st.global.u32 [%rd3+4], %r5;
    fence.acq_rel.gpu;
    atom.global.add.u32 %r6, [%rd0], 1;
SPIN:
    ld.acquire.gpu.global.u32 %r7, [%rd0];
    setp.lt.u32 %p2, %r7, 5;
    @%p2 bra SPIN;
    sub.u32 %r8, 4, %r1;
    mul.wide.u32 %rd4, %r8, 4;
    add.u64 %rd5, %rd0, %rd4;
    ld.global.u32 %r9, [%rd5+4];
    st.global.u32 [%rd3+64], %r9;
END:
"""


@schedules
def test_ctas_that_poll_for_each_other(schedule, seed):
    out = np.zeros(32, np.uint32)
    launch(GRID_BARRIER, out, grid=5, sms=5, schedule=schedule, seed=seed)
    assert out[16:21].tolist() == [11, 10, 9, 8, 7]


@schedules
def test_a_clock_passes(schedule, seed):
    body = """
    mov.u64 %rd2, %globaltimer;
AGAIN:
    nanosleep.u32 100;
    mov.u64 %rd3, %globaltimer;
    sub.u64 %rd4, %rd3, %rd2;
    setp.lt.u64 %p1, %rd4, 100000;
    @%p1 bra AGAIN;
"""
    launch(body, np.zeros(1, np.uint32), schedule=schedule, seed=seed)


def test_report_of_a_kernel(rng):
    data = rng.integers(1, 1 << 30, 32 * 9, np.uint32)
    report = launch(ring(), np.zeros_like(data), data, block=64)
    assert list(report.roles()) == ["warp 0", "warp 1"]
    by_line = {
        line: int(n) for (_, line), n in zip(report.operations, report.counts.sum(0), strict=True)
    }
    stores = next(line for name, line in report.operations if name == "st.shared.u32")
    assert by_line[stores] == 9


# One bulk copy of 512 bytes into shared memory, which every thread reads a word of.
BULK = """
    setp.ne.u32 %p1, %r0, 0;
    @%p1 bra READY;
    mbarrier.init.shared::cta.b64 [bars], 1;
    fence.mbarrier_init.release.cluster;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 512;
    cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r2], [%rd1], 512, [%r3];
READY:
    bar.sync 0;
    WAIT
    READ
"""
BULK_WAIT = """
AGAIN:
    mbarrier.{kind}.parity.shared::cta.b64 %p2, [%r3], 0;
    @!%p2 bra AGAIN;
"""
BULK_READ = """
    shl.b32 %r5, %r0, 2;
    add.u32 %r6, %r2, %r5;
    ld.shared.u32 %r7, [%r6];
    mul.wide.u32 %rd2, %r0, 4;
    add.u64 %rd3, %rd0, %rd2;
    st.global.u32 [%rd3], %r7;
"""


def bulk(*, kind="try_wait", wait=BULK_WAIT, read=BULK_READ):
    return BULK.replace("WAIT", wait.format(kind=kind)).replace("READ\n", read)


@pytest.fixture
def aligned(rng):
    buffer = rng.integers(1, 1 << 32, 128 + 32, np.uint32)
    start = -buffer.ctypes.data % 128 // 4
    return buffer[start : start + 128]


@schedules
@pytest.mark.parametrize("kind", ["try_wait", "test_wait"])
def test_bulk_copy_is_waited_for(aligned, schedule, seed, kind):
    out = np.zeros(128, np.uint32)
    report = launch(bulk(kind=kind), out, aligned, block=128, schedule=schedule, seed=seed)
    assert np.array_equal(out, aligned)
    assert report.counters["bulk-bytes"] == 512 and report.notes == []


def test_bulk_copy_that_is_not_waited_for(aligned):
    out = np.zeros(128, np.uint32)
    with pytest.raises(Fault, match=r"cp\.async\.bulk") as info:
        launch(bulk(wait=""), out, aligned, block=128, schedule="lazy")
    assert info.value.name == "shared-in-flight"


def test_bulk_copy_that_outlives_its_cta(aligned):
    with pytest.raises(Fault, match=r"cp\.async\.bulk") as info:
        launch(bulk(wait="", read=""), np.zeros(1, np.uint32), aligned, block=128, schedule="lazy")
    assert info.value.name == "async-write-after-exit"


@schedules
def test_bulk_copy_of_fewer_bytes_than_announced(aligned, schedule, seed):
    body = bulk().replace("[%rd1], 512", "[%rd1], 496")
    with pytest.raises(Fault, match="misses 0 of 1 arrivals and 16 bytes") as info:
        launch(body, np.zeros(128, np.uint32), aligned, block=128, schedule=schedule, seed=seed)
    assert info.value.name == "deadlock"


@schedules
@pytest.mark.parametrize("kind", ["try_wait", "test_wait"])
def test_lanes_of_one_warp_wait_for_each_other(rng, schedule, seed, kind):
    """The consumers come first in the text: waiting lanes must not hold up the others."""
    body = f"""
    setp.ne.u32 %p1, %r0, 0;
    @%p1 bra READY;
    mbarrier.init.shared::cta.b64 [bars], 16;
READY:
    bar.warp.sync 0xffffffff;
    xor.b32 %r5, %r0, 16;
    shl.b32 %r6, %r5, 2;
    add.u32 %r6, %r6, %r2;
    mul.wide.u32 %rd2, %r0, 4;
    setp.lt.u32 %p2, %r0, 16;
    @%p2 bra PRODUCE;
CONSUME:
    mbarrier.{kind}.parity.shared::cta.b64 %p3, [%r3], 0;
    @!%p3 bra CONSUME;
    shl.b32 %r8, %r0, 2;
    add.u32 %r8, %r8, %r2;
    ld.shared.u32 %r7, [%r8];
    add.u64 %rd3, %rd0, %rd2;
    st.global.u32 [%rd3], %r7;
    bra END;
PRODUCE:
    add.u64 %rd3, %rd1, %rd2;
    ld.global.u32 %r7, [%rd3];
    st.shared.u32 [%r6], %r7;
    mbarrier.arrive.shared::cta.b64 _, [%r3];
END:
    bar.warp.sync 0xffffffff;
"""
    data = rng.integers(1, 1 << 32, 32, np.uint32)
    out = np.zeros_like(data)
    launch(body, out, data, schedule=schedule, seed=seed)
    assert np.array_equal(out[16:], data[:16]) and not out[:16].any()
