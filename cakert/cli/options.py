"""Types of options that several commands have: text in, a checked value out."""

from __future__ import annotations

import argparse


def size(text: str) -> int:
    """A number of bytes, of a device, ...: an integer from 0 on."""
    try:
        value = int(text, 0)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be an integer, got {text!r}") from None
    if value < 0:
        raise argparse.ArgumentTypeError(f"must be at least 0, got {value}")
    return value


def extents(text: str) -> tuple[int, ...]:
    """Blocks or threads along x, y and z: "128", "32,4" or "32x4x1"."""
    parts = text.replace("x", ",").split(",")
    try:
        values = tuple(int(part) for part in parts)
    except ValueError:
        values = ()
    if not 1 <= len(values) <= 3 or any(value < 1 for value in values):
        raise argparse.ArgumentTypeError(
            f"must be one to three positive integers (128 or 32,4 or 32x4x1), got {text!r}"
        )
    return values
