"""What holds for the parsers of all commands, so that no command has to think of it."""

from __future__ import annotations

import argparse
import shutil
import textwrap
from collections.abc import Iterator

_WIDEST = 100


def all_parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """A parser and those of its sub-commands."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                yield from all_parsers(child)


def wrap_descriptions(parser: argparse.ArgumentParser) -> None:
    """Break descriptions to the terminal's width.

    The formatter that keeps the lines of the examples keeps those of the description too.
    """
    width = min(shutil.get_terminal_size().columns, _WIDEST) - 2
    for each in all_parsers(parser):
        if each.description and "\n" not in each.description:
            each.description = textwrap.fill(each.description, max(width, 20))
