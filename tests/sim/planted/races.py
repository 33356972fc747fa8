"""Races that no single run can tell from a right program: only schedules that disagree."""

from __future__ import annotations

import numpy as np

from planted.record import Planted

ROUNDS = 40


def _total(source):
    return np.array([64 * ROUNDS // 32 + source[0]], np.uint32)


def _neighbours(source):
    return (source[:128] + np.roll(source[:128], -64)).astype(np.uint32)


RACES = [
    Planted(
        "two_warps_add_to_one_word",
        "",
        f"""
    setp.ne.u32 %p0, thread, 0;
    ld.global.u32 %r0, [in];
    @!%p0 st.shared.u32 [ring], %r0;
    bar.sync 0;
    mov.u32 %r8, 0;
    setp.ne.u32 %p1, lane, 0;
    @%p1 bra DONE;
AGAIN:
    ld.shared.u32 %r0, [ring]; //-
    add.u32 %r0, %r0, 1; //-
    st.shared.u32 [ring], %r0; //-
    atom.shared.add.u32 %r0, [ring], 1; //+
    add.u32 %r8, %r8, 1;
    setp.lt.u32 %p2, %r8, {ROUNDS};
    @%p2 bra AGAIN;
DONE:
    bar.sync 0;
    @%p0 bra END;
    ld.shared.u32 %r0, [ring];
    st.global.u32 [out], %r0;
END:
""",
        threads=64,
        expected=_total,
    ),
    Planted(
        "words_updated_without_a_second_barrier",
        "",
        """
    ld.global.u32 %r0, [from];
    st.shared.u32 [mine], %r0;
    bar.sync 0;
    add.u32 %r8, thread, 64;
    and.b32 %r8, %r8, 127;
    shl.b32 %r8, %r8, 2;
    add.u32 %r8, ring, %r8;
    ld.shared.u32 %r1, [%r8];
    bar.sync 0; //+
    add.u32 %r0, %r0, %r1;
    st.shared.u32 [mine], %r0;
    ld.shared.u32 %r0, [mine];
    st.global.u32 [to], %r0;
""",
        threads=128,
        expected=_neighbours,
    ),
]
