"""A ring of two stages between a producer thread and a consumer warp, broken in turn.

Barriers: full 0 and 1 (one arrival and the bytes), empty 2 and 3 (the 32 consumers).
"""

from __future__ import annotations

from planted.record import ALL, Planted, first_words
from planted.snippets import init

STEPS = 6

_STAGE = """
    and.b32 %r9, %r8, 1;                 // stage
    shr.u32 %r10, %r8, 1;
    and.b32 %r10, %r10, 1;               // parity of the consumer's phase
    shl.b32 %r11, %r9, 3;
    add.u32 %r11, bar, %r11;             // full barrier
    shl.b32 %r12, %r9, 7;
    add.u32 %r12, ring, %r12;            // slot
"""


def ring(
    *,
    empty_count=32,
    consumer_steps=f"setp.lt.u32 %p3, %r8, {STEPS};",
    full="FULL: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r11], %r10; @!%p1 bra FULL;",
    release="mbarrier.arrive.shared::cta.b64 _, [%r11+16];",
    empty_parity="xor.b32 %r13, %r10, 1;",
    empty="EMPTY: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r11+16], %r13; @!%p1 bra EMPTY;",
    expect="mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r11], 128;",
    copy_mark="",
    initialised=None,
):
    """The kernel; each argument replaces the line, or lines, of that purpose."""
    return (
        (initialised or init(1, 1, empty_count, empty_count))
        + f"""
    mov.u32 %r8, 0;                      // step
    setp.ne.u32 %p2, warp, 0;
    @%p2 bra PRODUCER;
CONSUME:
{_STAGE}
{full}
    shl.b32 %r13, lane, 2;
    add.u32 %r13, %r12, %r13;
    ld.shared.u32 %r14, [%r13];
{release}
    mul.lo.u32 %r14, %r14, 3;
    shl.b32 %r15, %r8, 5;
    add.u32 %r15, %r15, lane;
    mul.wide.u32 %rd8, %r15, 4;
    add.s64 %rd8, out, %rd8;
    st.global.u32 [%rd8], %r14;
    add.u32 %r8, %r8, 1;
{consumer_steps}
    @%p3 bra CONSUME;
    bra DONE;
PRODUCER:
    setp.ne.u32 %p4, lane, 0;
    @%p4 bra DONE;
PRODUCE:
{_STAGE}
{empty_parity}
{empty}
{expect}
    mul.wide.u32 %rd8, %r8, 128;
    add.s64 %rd8, in, %rd8;
    cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes {copy_mark}
        [%r12], [%rd8], 128, [%r11];
    add.u32 %r8, %r8, 1;
    setp.lt.u32 %p3, %r8, {STEPS};
    @%p3 bra PRODUCE;
DONE:
"""
    )


_FULL = "FULL: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r11], %r10; @!%p1 bra FULL; {0}"
_EMPTY = (
    "EMPTY: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r11+16], %r13; @!%p1 bra EMPTY; {0}"
)


def _planted(name, fault, body, caught_by=ALL, **more):
    return Planted(
        name, fault, body, caught_by, threads=64, expected=first_words(32 * STEPS, 3), **more
    )


FAULTS = [
    _planted(
        "ring_without_full_wait",
        "shared-in-flight",
        ring(full=_FULL.format("//+"), copy_mark="//&").replace(
            "ld.shared.u32 %r14, [%r13];", "ld.shared.u32 %r14, [%r13]; //!"
        ),
        ("lazy", "random"),
    ),
    _planted(
        "ring_without_empty_wait",
        "mbarrier-underflow",
        ring(
            empty=_EMPTY.format("//+"),
            expect="mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r11], 128; //!&",
        ),
        ("lazy", "random"),
        says=("only misses 0 of 1", "arrived in it: warp 1"),
    ),
    _planted(
        "ring_with_the_wrong_empty_parity",
        "deadlock",
        ring(
            empty_parity="mov.u32 %r13, %r10; //-\nxor.b32 %r13, %r10, 1; //+",
            empty=_EMPTY.format("//!"),
            full=_FULL.format("//!"),
        ),
        says=("warp 1", "phase 0 (parity 0)", "misses 32 of 32 arrivals"),
    ),
    _planted(
        "ring_that_expects_too_many_bytes",
        "deadlock",
        ring(
            expect="mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r11], 144; //-\n"
            "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r11], 128; //+",
            full=_FULL.format("//!"),
        ),
        says=("warp 0", "phase 0 (parity 0)", "misses 0 of 1 arrivals and 16 bytes"),
    ),
    _planted(
        "ring_with_an_arrival_too_few",
        "deadlock",
        ring(
            release="setp.ne.u32 %p5, lane, 31; //-\nsetp.le.u32 %p5, lane, 31; //+\n"
            "@%p5 mbarrier.arrive.shared::cta.b64 _, [%r11+16];",
            empty=_EMPTY.format("//!"),
        ),
        says=("warp 1 lanes 0", "phase 0 (parity 0)", "misses 1 of 32 arrivals", "warp 0 (line"),
    ),
    _planted(
        "ring_whose_roles_disagree_on_the_trip_count",
        "deadlock",
        ring(
            consumer_steps=f"setp.lt.u32 %p3, %r8, {STEPS + 1}; //-\n"
            f"setp.lt.u32 %p3, %r8, {STEPS}; //+",
            full=_FULL.format("//!"),
        ),
        says=("warp 0", "phase 3 (parity 1)", "nobody has arrived in it", "in earlier phases"),
    ),
]
