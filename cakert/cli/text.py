"""Text for people that comes from files: nothing here needs a library."""

from __future__ import annotations


def printable(text: str) -> str:
    """Text of a file as one line that cannot steer a terminal."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def one_line(problem: BaseException) -> str:
    """The message of an error, which may quote a file, without line breaks: one line in a log."""
    return printable(" ".join(str(problem).split())) or type(problem).__name__
