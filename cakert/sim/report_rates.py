"""What an SM of each target does a clock: the rates that the report judges a launch with.

Sources are NVIDIA's data sheets and tuning guides where nothing else is said. A rate that nobody
published or measured is None, and what depends on it is left out of the estimate.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["FAMILIES", "Rates", "family_of", "rates_of"]


@dataclass(frozen=True)
class Rates:
    """Rates of one SM a clock.

    Attributes
    ----------
    family
        "sm_90", "sm_100" or "sm_103".
    exp2
        f32 ex2 of the MUFU.
    mma_sync
        FLOP of mma.sync with 16-bit operands.
    l2
        Bytes between L2 and an SM with all SMs at it; None where unknown.
    remarks
        By unit of `Report.cycles`: where its rate comes from if not from a data sheet.
    xu
        The MUFU's other functions, and conversions between floats and integers.
    fma
        Lanes of the f32 FMA pipe; an f32x2 operation takes two: the f32 peak of the parts, 75
        TFLOP/s for a B200, is that of 128.
    issue
        Warp instructions issued by the four schedulers.
    shared
        Bytes through the port of shared memory.
    """

    family: str
    exp2: int
    mma_sync: float
    l2: float | None
    remarks: dict[str, str]
    xu: int = 16
    fma: int = 128
    issue: int = 4
    shared: int = 128


# mma.sync reaches 62 % of the 4,096 FLOP of wgmma on an H200 (docs/kernels.md).
_MMA_SYNC = 0.62 * 4096
# 8.5 TB/s for 16 KiB tiles of a footprint of 16 to 24 MiB, over 132 SMs at the highest clock.
_H200_L2 = 8.5e12 / (132 * 1.98e9)

_MEASURED = "mma.sync at 62 % of the wgmma rate, as measured on an H200"
_ASSUMED = "mma.sync at the rate measured on an H200: assumed, there is no published figure"
_NO_L2 = "the bandwidth of L2 is unknown: bytes only"

_RATES = (
    Rates(
        "sm_90",
        exp2=16,
        mma_sync=_MMA_SYNC,
        l2=_H200_L2,
        remarks={
            "tensor": _MEASURED,
            "l2": f"{_H200_L2:.1f} bytes a clock: 8.5 TB/s, as measured on an H200, at 1.98 GHz",
        },
    ),
    Rates("sm_100", 16, _MMA_SYNC, None, {"tensor": _ASSUMED, "l2": _NO_L2}),
    Rates("sm_103", 32, _MMA_SYNC, None, {"tensor": _ASSUMED, "l2": _NO_L2}),
)
_BY_FAMILY = {rates.family: rates for rates in _RATES}
FAMILIES = tuple(_BY_FAMILY)


def family_of(target: str) -> str:
    """The target without its suffix: "sm_100" of "sm_100a" and "sm_100f".

    Raises
    ------
    ValueError
        Not one of `FAMILIES`.
    """
    match = re.fullmatch(r"(sm_\d+)[af]?", target)
    if match is None or match[1] not in _BY_FAMILY:
        raise ValueError(f"target must be one of {', '.join(FAMILIES)}, got {target!r}")
    return match[1]


def rates_of(target: str) -> Rates:
    """The rates of a target.

    Raises
    ------
    ValueError
        As of `family_of`.
    """
    return _BY_FAMILY[family_of(target)]
