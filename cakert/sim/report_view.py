"""A report as tables for a terminal; `rich` is needed for this only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from cakert.sim.report_pipes import PIPES
from cakert.sim.report_rates import family_of

if TYPE_CHECKING:
    from cakert.sim.report import Note, Report

__all__ = ["table"]

_MEMORIES = {
    "l2": "L2",
    "shared": "shared memory",
    "fills": "shared memory, by copies",
    "local": "local memory",
}


def table(report: Report, tiles: int | None) -> Group:
    """Roles and pipes, bytes and counts, cycles by unit, remarks and findings."""
    remarks = [Text(f"* {line}", style="dim") for line in _remarks(report)]
    notes = [Text(line) for line in _findings(report)]
    return Group(_pipes(report), _numbers(report), _cycles(report, tiles), *remarks, *notes)


def _pipes(report: Report) -> Table:
    whole = report.by_pipe()
    used = [pipe for pipe in PIPES if whole[pipe]]
    jobs = report.jobs()
    pipes = Table(title=f"{report.kernel} on {report.arch}: warp instructions")
    pipes.add_column("role", no_wrap=True)
    pipes.add_column("for")
    for pipe in used:
        pipes.add_column(pipe, justify="right", no_wrap=True)
    for role, row in report.by_role().items():
        pipes.add_row(role, ", ".join(jobs[role]), *(_number(row[pipe]) for pipe in used))
    pipes.add_section()
    pipes.add_row("all", "", *(_number(whole[pipe]) for pipe in used))
    return pipes


def _numbers(report: Report) -> Table:
    ctas = report.ctas
    numbers = Table(title="bytes and counts")
    numbers.add_column("")
    numbers.add_column("in all", justify="right")
    numbers.add_column("a CTA", justify="right")
    for memory, moved in report.bytes_by_memory().items():
        for what, nbytes in moved.items():
            numbers.add_row(f"{_MEMORIES[memory]}: {what}", f"{nbytes:,}", f"{nbytes / ctas:,.0f}")
        if len(moved) > 1:
            total = sum(moved.values())
            numbers.add_row(f"{_MEMORIES[memory]}", f"{total:,}", f"{total / ctas:,.0f}")
        if moved:
            numbers.add_section()
    conflicts = report.bank_conflicts
    numbers.add_row("exp2", f"{report.exp2:,}", f"{report.exp2 / ctas:,.0f}")
    numbers.add_row("bank conflicts (passes)", f"{conflicts:,}", f"{conflicts / ctas:,.0f}")
    return numbers


def _cycles(report: Report, tiles: int | None) -> Table:
    """Units by column: the launch's own target first, then a CTA on the others."""
    own = family_of(report.arch)
    columns = {f"an SM\n{own}": (own, report.cycles(own))}
    for target in (own, *(name for name in report.targets() if name != own)):
        columns[f"a CTA\n{target}"] = (target, report.cycles(target, parts=report.ctas))
        if tiles is not None:
            columns[f"a tile\n{target}"] = (target, report.cycles(target, parts=tiles))
    cycles = Table(title="least cycles by unit (* bound)")
    cycles.add_column("unit", no_wrap=True)
    for name in columns:
        cycles.add_column(name, justify="right")
    bounds = {target: report.bound_on(target) for target, _ in columns.values()}
    units = list(dict.fromkeys(unit for _, row in columns.values() for unit in row))
    if "l2" not in units:
        units.append("l2")
    for unit in units:
        cells = []
        for target, row in columns.values():
            mark = "*" if bounds[target] == unit else " "
            cells.append(f"{row[unit]:,.0f}{mark}" if unit in row else "unknown ")
        bold = "bold" if any(cell.endswith("*") for cell in cells) else ""
        cycles.add_row(unit, *cells, style=bold)
    return cycles


def _remarks(report: Report) -> Iterator[str]:
    """Each remark once, with the targets that it holds for if those are not all."""
    targets = report.targets()
    by_text: dict[str, list[str]] = {}
    for target in targets:
        for text in report.remarks(target):
            by_text.setdefault(text, []).append(target)
    for text, holds in by_text.items():
        yield text if len(holds) == len(targets) else f"{', '.join(holds)}: {text}"


def _findings(report: Report) -> Iterator[str]:
    """A line for each name: the first finding, and how many there are."""
    by_name: dict[str, list[Note]] = {}
    for note in report.notes:
        by_name.setdefault(note.name, []).append(note)
    for name, found in by_name.items():
        where = found[0].where
        place = f"line {where.line}, CTA {where.cta}, warp {where.warp}: " if where else ""
        times = sum(note.count for note in found)
        places = f" at {len(found)} places" if len(found) > 1 else ""
        more = f" ({times} times{places})" if times > 1 else ""
        yield f"[{name}] {place}{found[0].message}{more}"


def _number(value: int) -> str:
    return f"{value:,}" if value else ""
