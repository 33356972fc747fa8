"""Cycles and shared-memory bytes of a tcgen05.mma, as measured on B200 and GB200.

A model of steady-state throughput: the longer of the array's time and of the time to fetch the
operands from shared memory. Latency, and anything else on the SM, is left out.
"""

from __future__ import annotations

__all__ = ["SHARED_BYTES_PER_CYCLE", "cycles", "shared_bytes"]

SHARED_BYTES_PER_CYCLE = 128
_K_BYTES = 32


def shared_bytes(m: int, n: int, *, a_shared: bool, a_reused: bool, b_reused: bool) -> int:
    """Operand bytes that an instruction fetches; a collector that holds one spares it."""
    a = m * _K_BYTES if a_shared and not a_reused else 0
    return a + (0 if b_reused else n * _K_BYTES)


def cycles(m: int, n: int, *, ws: bool, fetched: int, kept: bool, alternating: bool) -> int:
    """Issue interval of one instruction (K of 256 bits).

    Parameters
    ----------
    fetched
        From `shared_bytes`.
    kept
        .ws whose collector is filled, used or used last: the fill overlaps.
    alternating
        .ws on another collector buffer than the one before.
    """
    if not ws:
        math = n // 2
    elif kept:
        math = m * n // 256
    elif m == 128:
        math = n // 2 + (0 if alternating else 10)
    else:
        math = n // 4 + (0 if alternating else 12)
    return max(math, -(-fetched // SHARED_BYTES_PER_CYCLE))
