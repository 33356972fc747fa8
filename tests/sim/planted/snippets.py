"""Pieces of PTX that several kernels share; a ``mark`` ends their line, see `planted.record`."""

from __future__ import annotations

READ_BACK = """
    ld.shared.u32 %r0, [mine];
    st.global.u32 [to], %r0;
"""


def init(*counts: int) -> str:
    """Thread 0 initialises barrier i at ``bar + 8i`` to ``counts[i]``, and all see it."""
    lines = [
        f"    mbarrier.init.shared::cta.b64 [bar+{8 * i}], {n};\n" for i, n in enumerate(counts)
    ]
    return f"""
    setp.ne.u32 %p0, thread, 0;
    @%p0 bra READY;
{"".join(lines)}    fence.mbarrier_init.release.cluster;
READY:
    bar.sync 0;
"""


def wait(number: int, parity: int | str, mark: str = "") -> str:
    """Wait for a phase of barrier ``number``; one line, with labels that the place makes unique."""
    label = f"WAIT_{number}_{str(parity).strip('%')}{len(mark)}"
    return (
        f"{label}: mbarrier.try_wait.parity.shared::cta.b64 %p1, [bar+{8 * number}], {parity}; "
        f"@!%p1 bra {label}; {mark}\n"
    )


def bulk_load(nbytes: int, number: int = 0, *, offset: int = 0, to: int = 0, mark: str = "") -> str:
    """The executing thread announces and starts a copy of ``in + offset`` to ``ring + to``."""
    return f"""
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar+{8 * number}], {nbytes};
    cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes {mark}
        [ring+{to}], [in+{offset}], {nbytes}, [bar+{8 * number}];
"""


def leader(text: str, label: str) -> str:
    """Text that only thread 0 executes."""
    return f"""
    setp.ne.u32 %p0, thread, 0;
    @%p0 bra {label};
{text}
{label}:
"""


def fill(nbytes: int, threads: int) -> str:
    """All threads copy ``in`` to the buffer by generic stores."""
    return f"""
    mov.u32 %r8, thread;
FILL:
    shl.b32 %r9, %r8, 2;
    cvt.u64.u32 %rd8, %r9;
    add.s64 %rd8, in, %rd8;
    add.u32 %r9, ring, %r9;
    ld.global.u32 %r10, [%rd8];
    st.shared.u32 [%r9], %r10;
    add.u32 %r8, %r8, {threads};
    setp.lt.u32 %p2, %r8, {nbytes // 4};
    @%p2 bra FILL;
"""
