"""Where the command prints: rich tables, without colours or wrapping surprises in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

# Without a terminal there is no width to respect, and a wrapped cell is hard to grep.
_PIPE_WIDTH = 1000


def make_console() -> Console:
    """Console on standard output; plain text unless that is a terminal."""
    if sys.stdout.isatty():
        return Console(highlight=False)
    return Console(highlight=False, no_color=True, width=_PIPE_WIDTH)


def make_table(title: str, columns: list[str], rows: list[list[object]]) -> Table:
    """Build a table from plain values; cells are text, never markup."""
    table = Table(title=Text(title, style="bold"), title_justify="left")
    for column in columns:
        table.add_column(Text(column), overflow="fold")
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    return table


@contextmanager
def counting_progress(
    console: Console, doing: str, things: str, *, disable: bool = False
) -> Iterator[Callable[[int, int], None]]:
    """A bar of the things that are done, on a terminal only; `disable` where JSON is printed.

    Yields
    ------
    What the work calls with things done and things in all.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(things),
        TimeElapsedColumn(),
    )
    disable = disable or not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=disable) as bar:
        task = bar.add_task(doing, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def cta_progress(
    console: Console, *, disable: bool = False
) -> AbstractContextManager[Callable[[int, int], None]]:
    """The bar of a simulated run, which is called with thread blocks done and in all."""
    return counting_progress(console, "simulating", "thread blocks", disable=disable)


def capability_text(capabilities: tuple[tuple[int, int], ...]) -> str:
    """``((9, 0), (10, 3))`` as "9.0, 10.3"."""
    return ", ".join(f"{major}.{minor}" for major, minor in capabilities) or "none"
