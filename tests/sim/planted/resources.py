"""Registers that warpgroups exchange, and clusters that a running CTA takes over."""

from __future__ import annotations

import numpy as np

from planted.record import Planted, first_words
from planted.snippets import init, wait

ROLES = """
    setp.lt.u32 %p0, warp, 4;
    @%p0 bra PRODUCER;
{inc}
    bra WORK;
PRODUCER:
    setmaxnreg.dec.sync.aligned.u32 40;
WORK:
    ld.global.u32 %r0, [from];
    st.global.u32 [to], %r0;
"""
DIRECTIVES = ".maxntid 256, 1, 1 .minnctapersm 1 .maxnreg 168"

ASK = """
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 16;
    clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 {mark}
        [ring], [bar];
"""
ANSWER = """
    ld.shared.v2.b64 {{%rd8, %rd9}}, [ring];
    mov.b128 %q0, {{%rd8, %rd9}};
    clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p3, %q0; {mark}
"""


def _every_item(source):
    return np.asarray(source[:16] * np.uint32(5))


def _steal(*, leave: str, first: str = "", asks: str = "", answers: str = "") -> str:
    """Thread 0 of a CTA works on its item, then on those of CTAs that it takes over."""
    return (
        init(1)
        + """
    @%p0 bra END;
    mov.u32 %r8, 0;                      // parity
WORK:
    mul.wide.u32 %rd10, cta, 4;
    add.s64 %rd11, in, %rd10;
    ld.global.u32 %r9, [%rd11];
    mul.lo.u32 %r9, %r9, 5;
    add.s64 %rd11, out, %rd10;
    st.global.u32 [%rd11], %r9;
MORE:
"""
        + ASK.format(mark=asks)
        + wait(0, "%r8")
        + """
    xor.b32 %r8, %r8, 1;
"""
        + ANSWER.format(mark=answers)
        + leave
        + f"""
    clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 cta, %q0; {first}
    fence.proxy.async;
    bra WORK;
END:
"""
    )


FAULTS = [
    Planted(
        "setmaxnreg_that_nobody_can_give",
        "deadlock",
        ROLES.format(
            inc="    setmaxnreg.inc.sync.aligned.u32 256; //-!\n"
            "    setmaxnreg.inc.sync.aligned.u32 232; //+"
        ).replace("u32 40;", "u32 104;"),
        threads=256,
        directives=DIRECTIVES,
        expected=first_words(256),
        says=("88 more registers a thread (to 256)", "setmaxnreg.dec"),
    ),
    Planted(
        "setmaxnreg_of_a_divided_warpgroup",
        "setmaxnreg-divergent",
        """
    setp.lt.u32 %p0, warp, 3; //-
    setp.lt.u32 %p0, warp, 4; //+
    @%p0 bra PRODUCER;
    setmaxnreg.inc.sync.aligned.u32 200; //!
    bra WORK;
PRODUCER:
    setmaxnreg.dec.sync.aligned.u32 40; //!
WORK:
    ld.global.u32 %r0, [from];
    st.global.u32 [to], %r0;
""",
        threads=256,
        directives=DIRECTIVES,
        expected=first_words(256),
    ),
    Planted(
        "cancel_after_a_failure",
        "clc-after-failure",
        _steal(
            leave="    @!%p3 bra MORE; //-\n    @!%p3 bra END; //+\n", asks="//!", answers="//&"
        ),
        grid=16,
        sms=3,
        expected=_every_item,
    ),
    Planted(
        "ctaid_of_a_failed_cancel",
        "clc-not-canceled",
        _steal(leave="    @!%p3 bra END; //+\n", first="//!"),
        grid=16,
        sms=3,
        expected=_every_item,
    ),
]
