"""Named barriers: ``bar.sync`` and ``bar.arrive``."""

from __future__ import annotations

from planted.record import ALL, Planted

COPY_WORD = """
    ld.global.u32 %r0, [from];
    st.global.u32 [to], %r0;
"""


def _reversed(source):
    return source[:128][::-1]


FAULTS = [
    Planted(
        "divergent_bar_sync",
        "deadlock",
        """
    setp.lt.u32 %p0, lane, 16;
    @!%p0 bra OTHERS; //-
    bar.sync 0; //!
    bra MET;
OTHERS:
    bar.sync 0; //-!
MET:
"""
        + COPY_WORD,
        threads=64,
        expected=lambda source: source[:64],
        says=("warp 0", "lanes 0-15", "lanes 16-31", "other lanes of the warp"),
    ),
    Planted(
        "bar_sync_that_one_warp_skips",
        "deadlock",
        """
    setp.eq.u32 %p0, warp, 2;
    @%p0 bra PAST; //-
    bar.sync 1, 96; //!
PAST:
    bar.sync 0; //!
"""
        + COPY_WORD,
        threads=96,
        expected=lambda source: source[:96],
        says=("barrier 1 of 96 threads", "not arrived: warps 2"),
    ),
    Planted(
        "bar_sync_count_mismatch",
        "barrier-count",
        """
    setp.eq.u32 %p0, warp, 0;
    @%p0 bra FIRST;
    bar.sync 1, 96; //!
    bra MET;
FIRST:
    bar.sync 1, 64; //-!
    bar.sync 1, 96; //+
MET:
"""
        + COPY_WORD,
        threads=96,
        expected=lambda source: source[:96],
        says=("with 96 threads", "with 64 threads"),
    ),
    Planted(
        "barrier_completed_by_the_wrong_warps",
        "deadlock",
        """
    setp.eq.u32 %p0, warp, 0;
    @%p0 bra CONSUMER;
    bar.arrive 1, 64; //-
    bar.arrive 1, 96; //+
    bra MET;
CONSUMER:
    bar.sync 1, 64; //-!
    bar.sync 1, 96; //+
MET:
"""
        + COPY_WORD,
        ("random",),
        threads=96,
        expected=lambda source: source[:96],
        says=("barrier 1 of 64 threads; arrived: warp 0",),
    ),
    Planted(
        "producer_arrives_twice",
        "barrier-double-arrival",
        """
    setp.eq.u32 %p0, warp, 0;
    @%p0 bra PRODUCER;
    bar.sync 2, 64; //-
    bar.sync 1, 64;
    bar.sync 2, 64; //+
    bar.sync 1, 64;
    bra MET;
PRODUCER:
    bar.arrive 1, 64; //&
    bar.sync 2, 64; //+
    bar.arrive 1, 64; //!
    bar.sync 2, 64; //-
MET:
"""
        + COPY_WORD,
        threads=64,
        expected=lambda source: source[:64],
    ),
    Planted(
        "exchange_without_syncthreads",
        "uninitialised-shared",
        """
    ld.global.u32 %r0, [from];
    st.shared.u32 [mine], %r0;
    bar.sync 0; //+
    sub.u32 %r8, 127, thread;
    shl.b32 %r8, %r8, 2;
    add.u32 %r8, ring, %r8;
    ld.shared.u32 %r1, [%r8]; //!
    st.global.u32 [to], %r1;
""",
        ALL,
        threads=128,
        expected=_reversed,
    ),
]
