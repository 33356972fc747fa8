"""Copies in whole kernels: read, decoded and run by warps, under every schedule."""

import struct

import numpy as np
import pytest
from copies_reference import loaded, swizzled
from test_copies_tma_load import map_of, random_array

from cakert.sim.core.global_memory import GlobalMemory
from cakert.sim.decode.decoder import decode
from cakert.sim.faults import Fault
from cakert.sim.machine.launch import run_launch
from cakert.sim.ptx.reader import read

SCHEDULES = ["eager", "lazy", "random"]

HEADER = """.version 9.0
.target sm_90a
.address_size 64
"""


def run(text, params, arrays, *, schedule, grid=(1, 1, 1), block=32, cluster=(1, 1, 1), seed=0):
    module = read(HEADER + text)
    (function,) = module.functions.values()
    code = decode(module, function, arch="sm_90a", global_symbols={})
    memory = GlobalMemory()
    for array in arrays:
        address = array.__array_interface__["data"][0]
        memory.register(address, array.nbytes, True, "an array", array)
    return run_launch(
        code,
        arch="sm_90a",
        grid=grid,
        block=(block, 1, 1),
        cluster=cluster,
        params=params,
        memory=memory,
        sms=4,
        schedule=schedule,
        seed=seed,
        shared_bytes=code.properties["static_shared"],
    )


def address(array):
    return array.__array_interface__["data"][0]


# One CTA a tile of 16 x 32 floats: load, read back through the generic proxy, store, add.
ROUND_TRIP = """
.visible .entry round_trip(.param .align 64 .b8 source[128], .param .align 64 .b8 target[128],
                           .param .u64 raw)
{
  .reg .pred %p<3>;
  .reg .b32 %r<16>;
  .reg .b64 %rd<16>;
  .shared .align 1024 .b8 tile[2048];
  .shared .align 8 .b64 bar;
  mov.b64 %rd1, source;
  cvta.param.u64 %rd2, %rd1;
  mov.b64 %rd3, target;
  cvta.param.u64 %rd4, %rd3;
  ld.param.u64 %rd5, [raw];
  mov.u32 %r1, %tid.x;
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, tile;
  mov.u32 %r4, bar;
  shl.b32 %r5, %r2, 4;
  setp.ne.s32 %p1, %r1, 0;
  @%p1 bra WAIT;
  prefetch.tensormap [%rd2];
  mbarrier.init.shared::cta.b64 [%r4], 1;
  fence.mbarrier_init.release.cluster;
  mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], 2048;
  cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes
      [%r3], [%rd2, {24, %r5}], [%r4];
WAIT:
  bar.sync 0;
SPIN:
  mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r4], 0;
  @!%p2 bra SPIN;
  shl.b32 %r6, %r1, 2;
  add.u32 %r7, %r3, %r6;
  shl.b32 %r8, %r2, 7;
  add.u32 %r9, %r8, %r6;
  cvt.u64.u32 %rd6, %r9;
  add.u64 %rd7, %rd5, %rd6;
  ld.shared.u32 %r10, [%r7+128];
  st.global.u32 [%rd7], %r10;
  @%p1 bra DONE;
  cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group
      [%rd4, {24, %r5}], [%r3];
  cp.async.bulk.commit_group;
  cp.async.bulk.wait_group 0;
DONE:
  ret;
}
"""


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_tensor_loads_and_reductions(schedule):
    source, target = random_array((40, 48), np.float32, 1), random_array((40, 48), np.float32, 2)
    raw = np.zeros((3, 32), np.float32)
    expected = target.copy()
    expected[:, 24:] += source[:, 24:]
    maps = [map_of(address(a), a, (32, 16), swizzle="128B") for a in (source, target)]
    params = b"".join(m.to_bytes() for m in maps) + struct.pack("<Q", address(raw))
    report = run(ROUND_TRIP, params, [source, target, raw], schedule=schedule, grid=(3, 1, 1))
    np.testing.assert_array_equal(target, expected)
    for tile in range(3):
        image = loaded(source, (32, 16), (24, 16 * tile), (1, 1), "128B", 1024, 0)
        row = bytes(image[1024 + 128 + i] for i in range(128))
        np.testing.assert_array_equal(raw[tile], np.frombuffer(row, np.float32))
    assert report.counters["tma-load-bytes"] == 40 * 24 * 4
    assert report.counters["tma-store-bytes"] == 40 * 24 * 4
    assert swizzled(1024 + 128, "128B") == 1024 + 128 + 16


def test_a_map_that_is_none_names_its_line():
    source = random_array((40, 48), np.float32)
    params = bytes(256) + struct.pack("<Q", address(source))
    with pytest.raises(Fault, match=r"tensor-map-invalid.*round_trip line 25 `prefetch.tensormap"):
        run(ROUND_TRIP, params, [source], schedule="eager")


# 128 threads move 16 bytes each, and each reads what the thread 37 further on brought.
CP_ASYNC = """
.visible .entry rotate(.param .u64 source, .param .u64 target)
{{
  .reg .b32 %r<16>;
  .reg .b64 %rd<16>;
  .shared .align 16 .b8 buffer[2048];
  ld.param.u64 %rd1, [source];
  ld.param.u64 %rd2, [target];
  mov.u32 %r1, %tid.x;
  shl.b32 %r2, %r1, 4;
  mov.u32 %r3, buffer;
  add.u32 %r4, %r3, %r2;
  cvt.u64.u32 %rd3, %r2;
  add.u64 %rd4, %rd1, %rd3;
  add.u64 %rd5, %rd2, %rd3;
  cp.async.cg.shared.global [%r4], [%rd4], 16;
  cp.async.commit_group;
  {wait}
  bar.sync 0;
  add.u32 %r5, %r1, 37;
  and.b32 %r6, %r5, 127;
  shl.b32 %r7, %r6, 4;
  add.u32 %r8, %r3, %r7;
  ld.shared.v4.u32 {{%r9, %r10, %r11, %r12}}, [%r8];
  st.global.v4.u32 [%rd5], {{%r9, %r10, %r11, %r12}};
  ret;
}}
"""


def run_rotate(wait, schedule):
    source, target = random_array((128, 4), np.uint32, 3), random_array((128, 4), np.uint32, 4)
    params = struct.pack("<QQ", address(source), address(target))
    text = CP_ASYNC.format(wait=wait)
    report = run(text, params, [source, target], schedule=schedule, block=128)
    np.testing.assert_array_equal(target, np.roll(source, -37, axis=0))
    return report


@pytest.mark.parametrize("wait", ["cp.async.wait_group 0;", "cp.async.wait_all;"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_cp_async(wait, schedule):
    assert run_rotate(wait, schedule).counters["cp-async-bytes"] == 2048


def test_a_missing_wait_shows_when_copies_are_late():
    run_rotate("", "eager")
    with pytest.raises(Fault, match=r"cp\.async\.cg\.shared\.global") as raised:
        run_rotate("cp.async.wait_group 1;", "lazy")
    assert raised.value.name == "shared-in-flight"


# A cluster of two: each CTA multicasts its half; then CTA 0 gets the other's sums by st.async.
CLUSTER = """
.visible .entry exchange(.param .u64 source, .param .u64 target)
{
  .reg .pred %p<3>;
  .reg .b16 %rs<2>;
  .reg .b32 %r<24>;
  .reg .b64 %rd<12>;
  .shared .align 128 .b8 halves[256];
  .shared .align 16 .b8 sums[128];
  .shared .align 8 .b64 bars[2];
  ld.param.u64 %rd1, [source];
  ld.param.u64 %rd2, [target];
  mov.u32 %r1, %tid.x;
  mov.u32 %r2, %cluster_ctarank;
  mov.u32 %r3, halves;
  mov.u32 %r4, bars;
  setp.ne.s32 %p1, %r1, 0;
  @%p1 bra READY;
  mbarrier.init.shared::cta.b64 [%r4], 1;
  mbarrier.init.shared::cta.b64 [%r4+8], 1;
  fence.mbarrier_init.release.cluster;
  mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], 256;
  mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4+8], 128;
READY:
  barrier.cluster.arrive.release.aligned;
  barrier.cluster.wait.acquire.aligned;
  shl.b32 %r5, %r2, 7;
  add.u32 %r6, %r3, %r5;
  cvt.u64.u32 %rd3, %r5;
  add.u64 %rd4, %rd1, %rd3;
  mov.b16 %rs1, 3;
  @%p1 bra SPIN;
  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster
      [%r6], [%rd4], 128, [%r4], %rs1;
SPIN:
  mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r4], 0;
  @!%p2 bra SPIN;
  shl.b32 %r7, %r1, 2;
  add.u32 %r8, %r3, %r7;
  ld.shared.u32 %r9, [%r8];
  ld.shared.u32 %r10, [%r8+128];
  shl.b32 %r11, %r10, %r2;
  add.u32 %r12, %r9, %r11;
  xor.b32 %r13, %r2, 1;
  mov.u32 %r14, sums;
  add.u32 %r15, %r14, %r7;
  mapa.shared::cluster.u32 %r16, %r15, %r13;
  add.u32 %r17, %r4, 8;
  mapa.shared::cluster.u32 %r18, %r17, %r13;
  st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r16], %r12, [%r18];
AGAIN:
  mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r4+8], 0;
  @!%p2 bra AGAIN;
  ld.shared.u32 %r19, [%r15];
  add.u32 %r20, %r5, %r7;
  cvt.u64.u32 %rd5, %r20;
  add.u64 %rd6, %rd2, %rd5;
  st.global.u32 [%rd6], %r19;
  barrier.cluster.arrive.release.aligned;
  barrier.cluster.wait.acquire.aligned;
  ret;
}
"""


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_multicast_and_st_async_between_two_ctas(schedule, seed):
    source, target = random_array((2, 32), np.uint32, 5), random_array((2, 32), np.uint32, 6)
    run(
        CLUSTER,
        struct.pack("<QQ", address(source), address(target)),
        [source, target],
        schedule=schedule,
        grid=(2, 1, 1),
        cluster=(2, 1, 1),
        seed=seed,
    )
    np.testing.assert_array_equal(target[0], source[0] + 2 * source[1])
    np.testing.assert_array_equal(target[1], source[0] + source[1])


# Written by all threads, stored in bulk by one.
STORE = """
.visible .entry store(.param .u64 target)
{{
  .reg .pred %p<2>;
  .reg .b32 %r<8>;
  .reg .b64 %rd<4>;
  .shared .align 16 .b8 buffer[256];
  ld.param.u64 %rd1, [target];
  mov.u32 %r1, %tid.x;
  mov.u32 %r2, buffer;
  shl.b32 %r3, %r1, 2;
  add.u32 %r4, %r2, %r3;
  add.u32 %r5, %r1, 5;
  st.shared.u32 [%r4], %r5;
  {fence}
  bar.sync 0;
  setp.ne.s32 %p1, %r1, 0;
  @%p1 bra DONE;
  cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r2], 256;
  cp.async.bulk.commit_group;
  {wait}
  st.shared.u32 [%r2], 0;
  cp.async.bulk.wait_group 0;
DONE:
  ret;
}}
"""
FENCE = "fence.proxy.async.shared::cta;"
WAIT_READ = "cp.async.bulk.wait_group.read 0;"


def run_store(fence, wait, schedule):
    target = random_array((64,), np.uint32, 7)
    text = STORE.format(fence=fence, wait=wait)
    run(text, struct.pack("<Q", address(target)), [target], schedule=schedule, block=64)
    np.testing.assert_array_equal(target, np.arange(5, 69))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_bulk_store(schedule):
    run_store(FENCE, WAIT_READ, schedule)


def test_a_missing_fence_and_an_early_reuse_are_found():
    with pytest.raises(Fault) as raised:
        run_store("", WAIT_READ, "eager")
    assert raised.value.name == "missing-proxy-fence"
    with pytest.raises(Fault) as raised:
        run_store(FENCE, "", "lazy")
    assert raised.value.name == "shared-in-flight"
    assert raised.value.where.kernel == "store"
