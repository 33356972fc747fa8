"""Mbarriers used against their rules."""

from __future__ import annotations

from planted.record import Planted
from planted.snippets import init, leader, wait

COPY_WORD = """
    ld.global.u32 %r0, [from];
    st.global.u32 [to], %r0;
"""
COPY_OF_CTA = """
    mad.lo.u32 %r8, cta, 32, thread;
    mul.wide.u32 %rd8, %r8, 4;
    add.s64 %rd9, in, %rd8;
    add.s64 %rd10, out, %rd8;
    ld.global.u32 %r0, [%rd9];
    st.global.u32 [%rd10], %r0;
"""

FAULTS = [
    Planted(
        "mbarrier_not_initialised",
        "mbarrier-uninitialised",
        init(32).replace("[bar+0], 32;", "[bar+0], 32; //+")
        + """
    mbarrier.arrive.shared::cta.b64 _, [bar]; //!
"""
        + wait(0, 0)
        + COPY_WORD,
    ),
    Planted(
        "mbarrier_used_before_init",
        "mbarrier-uninitialised",
        """
    setp.ne.u32 %p0, thread, 0;
    @%p0 bra READY;
    mbarrier.init.shared::cta.b64 [bar], 64;
    fence.mbarrier_init.release.cluster;
READY:
    bar.sync 0; //+
    mbarrier.arrive.shared::cta.b64 _, [bar]; //!
"""
        + wait(0, 0)
        + COPY_WORD,
        ("random",),
        threads=64,
        expected=lambda source: source[:64],
    ),
    Planted(
        "mbarrier_underflow",
        "mbarrier-underflow",
        init(1)
        + leader(
            """
    mbarrier.arrive.shared::cta.b64 _, [bar], 2; //-!
    mbarrier.arrive.shared::cta.b64 _, [bar], 1; //+
""",
            "ARRIVED",
        )
        + wait(0, 0)
        + COPY_WORD,
        says=("only misses 1 of 1",),
    ),
    Planted(
        "mbarrier_overwritten_by_data",
        "mbarrier-overwritten",
        init(1, 1)
        + """
    mov.u32 %r8, bar; //-
    mov.u32 %r8, ring; //+
    shl.b32 %r9, thread, 2;
    add.u32 %r8, %r8, %r9;
    ld.global.u32 %r0, [from];
    st.shared.u32 [%r8], %r0; //!
    ld.shared.u32 %r1, [%r8];
    st.global.u32 [to], %r1;
""",
        says=("the mbarrier initialised at line",),
    ),
    Planted(
        "mbarrier_overwritten_by_a_copy",
        "mbarrier-overwritten",
        """
    .shared .align 16 .b8 near[144];     // 128 bytes of data, then a barrier
    mov.u32 %r8, near;
"""
        + init(1)
        + leader(
            """
    mbarrier.init.shared::cta.b64 [%r8+128], 1;
    fence.mbarrier_init.release.cluster;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 144; //-
    cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes //-!
        [%r8], [in], 144, [bar]; //-
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 128; //+
    cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes //+
        [%r8], [in], 128, [bar]; //+
""",
            "ISSUED",
        )
        + wait(0, 0)
        + """
    shl.b32 %r9, thread, 2;
    add.u32 %r9, %r8, %r9;
    ld.shared.u32 %r0, [%r9];
    st.global.u32 [to], %r0;
""",
    ),
    Planted(
        "mbarrier_transactions_overflow",
        "mbarrier-tx-overflow",
        init(1)
        + leader(
            """
    mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [bar], 1048575;
    mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [bar], 16; //-!
    mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [bar], 1048575;
    mbarrier.arrive.shared::cta.b64 _, [bar];
""",
            "ARRIVED",
        )
        + wait(0, 0)
        + COPY_WORD,
        says=("1048591",),
    ),
    Planted(
        "mbarrier_misaligned",
        "mbarrier-misaligned",
        init(1)
        + """
    mbarrier.try_wait.parity.shared::cta.b64 %p1, [bar+4], 1; //-!
    mbarrier.try_wait.parity.shared::cta.b64 %p1, [bar], 1; //+
"""
        + COPY_WORD,
    ),
    Planted(
        "mbarrier_that_laps_its_waiter",
        "mbarrier-lapped",
        init(32, 32)
        + """
    setp.ne.u32 %p2, warp, 0;
    @%p2 bra WAITER;
    mbarrier.arrive.shared::cta.b64 _, [bar];
"""
        + wait(1, 0, "//+")
        + """
    mbarrier.arrive.shared::cta.b64 _, [bar];
    bra MET;
WAITER:
"""
        + wait(0, 0, "//!")
        + """
    mbarrier.arrive.shared::cta.b64 _, [bar+8];
"""
        + wait(0, 1)
        + """
MET:
"""
        + COPY_WORD,
        threads=64,
        expected=lambda source: source[:64],
        says=("phase 2 is current",),
    ),
    Planted(
        "mbarrier_of_a_cta_that_has_not_started",
        "mbarrier-uninitialised",
        init(32)
        + """
    .reg .b32 rank;
    mov.u32 rank, %cluster_ctarank;
    barrier.cluster.arrive.release.aligned; //+
    barrier.cluster.wait.acquire.aligned; //+
    xor.b32 rank, rank, 1;
    mapa.shared::cluster.u32 %r8, bar, rank;
    mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r8]; //!
"""
        + wait(0, 0)
        + COPY_OF_CTA
        + """
    barrier.cluster.arrive.release.aligned;
    barrier.cluster.wait.acquire.aligned;
""",
        grid=2,
        cluster=2,
        expected=lambda source: source[:64],
    ),
    Planted(
        "mbarrier_of_a_cta_that_has_exited",
        "cluster-exit",
        init(32)
        + """
    .reg .b32 rank;
    mov.u32 rank, %cluster_ctarank;
    barrier.cluster.arrive.release.aligned;
    barrier.cluster.wait.acquire.aligned;
    setp.eq.u32 %p2, rank, 0;
    @%p2 bra FIRST;
    mapa.shared::cluster.u32 %r8, bar, 0;
    mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r8]; //!
    bra MET;
FIRST:
"""
        + wait(0, 0, "//+")
        + """
MET:
"""
        + COPY_OF_CTA,
        ("random",),
        grid=2,
        cluster=2,
        expected=lambda source: source[:64],
    ),
    Planted(
        "mbarrier_past_the_end",
        "shared-out-of-bounds",
        """
    mbarrier.init.shared::cta.b64 [ring+65536], 32; //-!
    setp.ne.u32 %p0, lane, 0;
    @!%p0 mbarrier.init.shared::cta.b64 [bar], 32; //+
"""
        + COPY_WORD,
    ),
    Planted(
        "warps_that_wait_for_each_other",
        "deadlock",
        init(32, 32)
        + """
    setp.ne.u32 %p2, warp, 0;
    @%p2 bra SECOND;
"""
        + wait(0, 0, "//!")
        + """
    mbarrier.arrive.shared::cta.b64 _, [bar+8];
    bra MET;
SECOND:
    mbarrier.arrive.shared::cta.b64 _, [bar]; //+
"""
        + wait(1, 0, "//!")
        + """
    mbarrier.arrive.shared::cta.b64 _, [bar]; //-
MET:
"""
        + COPY_WORD,
        threads=64,
        expected=lambda source: source[:64],
        says=("warp 0", "warp 1", "nobody has arrived in it"),
    ),
]
