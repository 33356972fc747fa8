"""Text for people that comes from files: nothing here needs a library."""

from __future__ import annotations


def printable(text: str) -> str:
    """Text of a file as one line that cannot steer a terminal."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
