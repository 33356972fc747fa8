"""Bytes and bank conflicts of the report, counted on kernels small enough to count by hand."""

import numpy as np
import pytest

from cakert import sim
from cakert.sim.report_bytes import traffic
from cakert.sim.report_pipes import Access, access_of

KERNEL = """
.version 9.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 p)
{{
  .shared .align 128 .b8 tile[8192];
  .reg .b32 %r<16>;
  .reg .b64 %d<8>;
  .reg .f32 %f<4>;
  .reg .pred %p, %never;
  ld.param.u64 %d1, [p];
  mov.u32 %r1, %tid.x;
  mov.u32 %r2, tile;
  setp.lt.u32 %p, %r1, 5;
  setp.gt.u32 %never, %r1, 99;
  shl.b32 %r3, %r1, 4;
  add.u32 %r4, %r2, %r3;
  cvt.u64.u32 %d2, %r3;
  add.u64 %d3, %d1, %d2;
{body}
  ret;
}}
"""


def run(body, *, lanes=32):
    gpu = sim.Gpu("sm_90a")
    array = gpu.array(np.arange(1, 1025, dtype=np.uint32))
    return gpu.load_ptx(KERNEL.format(body=body)).launch("k", grid=2, block=lanes, args=(array,))


def test_loads_and_stores_count_their_lanes():
    report = run(
        """
  ld.global.nc.L1::no_allocate.v4.b32 {%r5, %r6, %r7, %r8}, [%d3];
  st.shared.v4.b32 [%r4], {%r5, %r6, %r7, %r8};
  @%p ld.shared.b16 %r9, [%r4];
  @%p st.global.b64 [%d3], %d2;
  @%never st.global.b64 [%d3], %d2;
  @%never ex2.approx.f32 %f1, %f1;
  ld.b32 %r10, [%d3];
  atom.global.add.u32 %r11, [%d3], %r1;
  red.shared.max.u32 [%r4], %r1;
  """
    )
    assert report.bytes_by_memory() == {
        "l2": {
            "ld": 2 * 32 * 16,
            "st": 2 * 5 * 8,
            "generic ld": 2 * 32 * 4,
            "atom": 2 * 32 * 4,
        },
        "shared": {"st": 2 * 32 * 16, "ld": 2 * 5 * 2, "atom": 2 * 32 * 4},
        "fills": {},
        "local": {},
    }
    # Four passes for the vectors; one for the rest.
    assert report.cycles(parts=2)["shared"] == 4 + 1 + 1 + report.bank_conflicts / 2
    assert report.exp2 == 0
    assert report.cycles()["xu"] == 0
    assert any("generic" in remark for remark in report.remarks())


def test_a_part_of_a_warp_needs_fewer_passes():
    text = """
  mov.b32 %r5, 0;
  st.shared.v4.b32 [%r4], {%r5, %r5, %r5, %r5};
  """
    # Two CTAs: 3 passes for 288 bytes in all, the least.
    assert run(text, lanes=9).cycles(parts=1)["shared"] == 3
    assert run(text, lanes=8).cycles(parts=2)["shared"] == 1


@pytest.mark.parametrize(
    ("shift", "conflicts"),
    [
        (4, 0),  # rows side by side
        (5, 2),  # every other: eight rows in four places, two each for both matrices
        (7, 14),  # a column of a 128-byte pitch: all eight in the same banks
        (31, 0),  # one row for all
    ],
)
def test_bank_conflicts_of_matrices(shift, conflicts):
    report = run(
        f"""
  mov.b32 %r5, 0;
  shl.b32 %r6, %r1, 4;
  add.u32 %r7, %r2, %r6;
  st.shared.v4.b32 [%r7], {{%r5, %r5, %r5, %r5}};
  st.shared.v4.b32 [%r7+512], {{%r5, %r5, %r5, %r5}};
  st.shared.v4.b32 [%r7+1024], {{%r5, %r5, %r5, %r5}};
  st.shared.v4.b32 [%r7+1536], {{%r5, %r5, %r5, %r5}};
  bar.warp.sync 0xffffffff;
  and.b32 %r8, %r1, 15;
  shl.b32 %r9, %r8, {shift};
  add.u32 %r10, %r2, %r9;
  ldmatrix.sync.aligned.m8n8.x2.shared.b16 {{%r11, %r12}}, [%r10];
  stmatrix.sync.aligned.m8n8.x2.shared.b16 [%r10], {{%r11, %r12}};
  """
        if shift < 31
        else """
  mov.b32 %r5, 0;
  st.shared.v4.b32 [%r4], {%r5, %r5, %r5, %r5};
  bar.warp.sync 0xffffffff;
  ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r11, %r12}, [tile];
  """
    )
    both = 2 if shift < 31 else 1
    assert report.bank_conflicts == 2 * both * conflicts
    assert report.counters.get("matrix-bank-conflicts", 0) == report.bank_conflicts
    moved = report.bytes_by_memory()["shared"]
    assert moved["ldmatrix"] == 2 * 256
    stores = 16 if shift < 31 else 4
    assert report.cycles(parts=2)["shared"] == stores + both * (2 + conflicts)


@pytest.mark.parametrize(
    ("mnemonic", "access"),
    [
        ("ld.global.nc.L2::128B.v2.u64", Access("ld", "global", 16)),
        ("ld.shared::cluster.b128", Access("ld", "shared", 16)),
        ("st.local.u8", Access("st", "local", 1)),
        ("st.v8.f32", Access("st", "generic", 32)),
        ("ld.param.u64", Access("ld", "param", 8)),
        ("ld.const.f64", Access("ld", "const", 8)),
        ("atom.global.add.noftz.bf16x2", Access("atom", "global", 4)),
        ("red.release.gpu.global.add.v4.f32", Access("atom", "global", 16)),
        ("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16", Access("stmatrix", "shared", 16)),
        ("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32", None),
        ("st.bulk.weak.shared::cta", None),
        ("mov.b64", None),
    ],
)
def test_accesses(mnemonic, access):
    assert access_of(mnemonic) == access


def test_copies_are_told_apart_by_the_way_they_go():
    counters = {
        "cp-async-bytes": 1,
        "tma-load-bytes": 70,
        "tma-multicast-bytes": 30,
        "tma-store-bytes": 200,
        "bulk-bytes": 9000,
        "bulk-cluster-bytes": 2000,
        "bulk-multicast-bytes": 3000,
        "wgmma-shared-bytes": 5,
        "mma-shared-bytes": 6,
    }
    operations = [("tcgen05.cp.cta_group::1.32x128b.warpx4", 1)]
    assert traffic(operations, np.array([3], np.uint64), counters) == {
        "l2": {"cp.async": 1, "TMA loads": 40, "TMA stores": 200, "bulk copies": 4000},
        "shared": {"operands": 11, "tcgen05.cp": 3 * 512},
        "fills": {"cp.async": 1, "TMA loads": 70, "TMA stores": 200, "bulk copies": 11000},
        "local": {},
    }


CLUSTER = """
.version 9.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 p)
.reqnctapercluster 2, 1, 1
{
  .shared .align 128 .b8 tile[256];
  .shared .align 8 .b64 barrier;
  .reg .b32 %r<8>;
  .reg .b64 %d<4>;
  .reg .b16 %h;
  .reg .pred %p;
  ld.param.u64 %d1, [p];
  mov.u32 %r1, tile;
  mov.u32 %r2, barrier;
  mov.u32 %r3, %cluster_ctarank;
  mbarrier.init.shared::cta.b64 [%r2], 1;
  fence.mbarrier_init.release.cluster;
  mbarrier.arrive.expect_tx.shared::cta.b64 %d2, [%r2], 256;
  barrier.cluster.arrive;
  barrier.cluster.wait;
  setp.ne.u32 %p, %r3, 0;
  @%p bra WAIT;
  mov.b16 %h, 3;
  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster
    [%r1], [%d1], 256, [%r2], %h;
WAIT:
  mbarrier.try_wait.parity.shared::cta.b64 %p, [%r2], 0;
  @!%p bra WAIT;
  ret;
}
"""


def test_a_multicast_is_read_from_l2_once():
    gpu = sim.Gpu("sm_90a")
    array = gpu.array(np.arange(1, 65, dtype=np.uint32))
    report = gpu.load_ptx(CLUSTER).launch("k", grid=4, block=1, args=(array,))
    moved = report.bytes_by_memory()
    assert moved["l2"] == {"bulk copies": 2 * 256}
    assert moved["fills"] == {"bulk copies": 4 * 256}
