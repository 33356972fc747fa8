"""Accesses past the end, off their alignment, or of memory that nobody wrote."""

from __future__ import annotations

import numpy as np

from planted.record import Planted


def _second_pair(source):
    return source[2:4].sum(keepdims=True, dtype="u4").repeat(32)


FAULTS = [
    Planted(
        "global_past_the_end",
        "global-out-of-bounds",
        """
    ld.global.u32 %r0, [from+928]; //-!
    ld.global.u32 %r0, [from+896]; //+
    st.global.u32 [to], %r0;
""",
        expected=lambda source: source[224:],
        says=("lane 24", "past the end of in (1024 bytes)"),
    ),
    Planted(
        "global_before_the_start",
        "global-out-of-bounds",
        """
    ld.global.u32 %r0, [from];
    st.global.u32 [to+-4], %r0; //-!
    st.global.u32 [to], %r0; //+
""",
        says=("lane 0", "of global memory", "out"),
    ),
    Planted(
        "shared_past_the_end",
        "shared-out-of-bounds",
        """
    ld.global.u32 %r0, [from];
    st.shared.u32 [mine+8192], %r0; //-!
    st.shared.u32 [mine+64], %r0; //+
    ld.shared.u32 %r0, [mine+64];
    st.global.u32 [to], %r0;
""",
    ),
    Planted(
        "shared_null_pointer",
        "shared-out-of-bounds",
        """
    mov.u32 %r8, 0; //-
    mov.u32 %r8, mine; //+
    ld.global.u32 %r0, [from];
    st.shared.u32 [%r8], %r0; //!
    ld.shared.u32 %r0, [%r8];
    st.global.u32 [to], %r0;
""",
    ),
    Planted(
        "bulk_copy_past_the_end",
        "shared-out-of-bounds",
        """
    st.shared.u32 [mine], lane;
    fence.proxy.async.shared::cta;
    bar.sync 0;
    setp.ne.u32 %p0, thread, 0;
    @%p0 bra STORED;
    cp.async.bulk.global.shared::cta.bulk_group [out], [ring+8192], 128; //-!
    cp.async.bulk.global.shared::cta.bulk_group [out], [ring], 128; //+
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
STORED:
""",
        expected=lambda source: np.arange(32, dtype=source.dtype),
    ),
    Planted(
        "parameters_past_the_end",
        "param-out-of-bounds",
        """
    mov.b64 %rd8, p_in;
    cvta.param.u64 %rd8, %rd8;
    ld.u64 %rd9, [%rd8+256]; //-!
    ld.u64 %rd9, [%rd8]; //+
    mul.wide.u32 %rd10, thread, 4;
    add.s64 %rd9, %rd9, %rd10;
    ld.global.u32 %r0, [%rd9];
    st.global.u32 [to], %r0;
""",
    ),
    Planted(
        "local_array_past_the_end",
        "local-out-of-bounds",
        """
    .local .align 4 .b8 stack[64];
    mov.u32 %r8, stack;
    and.b32 %r9, lane, 15; //+
    mov.u32 %r9, lane; //-
    shl.b32 %r9, %r9, 2;
    add.u32 %r8, %r8, %r9;
    ld.global.u32 %r0, [from];
    st.local.u32 [%r8], %r0; //!
    ld.local.u32 %r0, [%r8];
    st.global.u32 [to], %r0;
""",
        says=("lane 16",),
    ),
    Planted(
        "vector_access_misaligned",
        "misaligned-address",
        """
    ld.global.v2.u32 {%r0, %r1}, [in+12]; //-!
    ld.global.v2.u32 {%r0, %r1}, [in+8]; //+
    add.u32 %r0, %r0, %r1;
    st.global.u32 [to], %r0;
""",
        expected=_second_pair,
    ),
    Planted(
        "shared_read_that_nobody_wrote",
        "uninitialised-shared",
        """
    ld.global.u32 %r0, [from];
    setp.ne.u32 %p0, lane, 31; //-
    setp.le.u32 %p0, lane, 31; //+
    @%p0 st.shared.u32 [mine], %r0;
    bar.warp.sync 0xffffffff;
    ld.shared.u32 %r1, [mine]; //!
    st.global.u32 [to], %r1;
""",
    ),
]
