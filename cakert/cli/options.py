"""Values on the command line that several commands take: text to value, or a sentence."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable

_MOST = 2**31 - 1


def _integer(text: str, what: str, low: int) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be {what}, got {text!r}") from None
    if value < low:
        raise argparse.ArgumentTypeError(f"must be at least {low}, got {value}")
    return value


def positive(text: str) -> int:
    """An integer of at least 1."""
    return _integer(text, "a positive integer", 1)


def seed(text: str) -> int:
    """An integer of at least 0."""
    return _integer(text, "an integer", 0)


def up_to(limit: int) -> Callable[[str], int]:
    """The type of an integer in [1, limit]."""

    def parse(text: str) -> int:
        value = positive(text)
        if value > limit:
            raise argparse.ArgumentTypeError(f"must be in [1, {limit}], got {value}")
        return value

    return parse


def size(text: str) -> int:
    """Bytes: ``4096``, or ``48K`` for 48 x 1024."""
    match = re.fullmatch(r"(\d{1,10})([kK]?)", text, re.ASCII)
    value = int(match[1]) * (1024 if match[2] else 1) if match else _MOST + 1
    if value > _MOST:
        raise argparse.ArgumentTypeError(
            f"must be bytes in [0, {_MOST}], as 4096 or 4K, got {text!r}"
        )
    return value


def extents(text: str) -> tuple[int, ...]:
    """One to three extents along x, y, z: ``4``, ``4x2``, ``4,2,1``."""
    if not re.fullmatch(r"\d{1,10}([x,]\d{1,10}){0,2}", text, re.ASCII):
        raise argparse.ArgumentTypeError(
            f"must be one to three integers, as 4, 4x2 or 4,2,1, got {text!r}"
        )
    values = tuple(int(part) for part in re.split("[x,]", text))
    for value in values:
        if not 1 <= value <= _MOST:
            raise argparse.ArgumentTypeError(f"extents must be in [1, {_MOST}], got {value}")
    return values


def tolerance(text: str) -> float:
    """A finite number of at least 0."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, got {text!r}") from None
    if not (math.isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"must be finite and at least 0, got {text}")
    return value


def _device(text: str, others: str, cpu: bool) -> int | str:
    if (cpu and text == "cpu") or re.fullmatch(r"sim:sm_(90|100|103)a", text):
        return text
    try:
        return gpu(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"must be cuda:0, cuda:1, ..., {others}, got {text!r}"
        ) from None


def device_or_cpu(text: str) -> int | str:
    """``cuda:1`` or ``1`` as an index; ``cpu`` and ``sim:sm_100a`` as they are."""
    return _device(text, "sim:sm_90a, sim:sm_100a, sim:sm_103a or cpu", cpu=True)


def gpu(text: str) -> int:
    """``cuda:1`` or ``1`` as an index."""
    match = re.fullmatch(r"(?:cuda:)?(\d{1,4})", text, re.ASCII)
    if not match:
        raise argparse.ArgumentTypeError(f"must be cuda:0, cuda:1, ..., got {text!r}")
    return int(match[1])


def device(text: str) -> int | str:
    """``cuda:1`` or ``1`` as an index; ``sim:sm_100a`` as it is."""
    return _device(text, "sim:sm_90a, sim:sm_100a or sim:sm_103a", cpu=False)
