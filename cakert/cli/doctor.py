"""`cakert doctor`: the usual causes of trouble, each with its mend, and what works here."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cakert.cli.checks import Works
    from cakert.cli.results import Result

_EPILOG = """examples:
  cakert doctor              what is here, and how to mend what is wrong
  cakert doctor --trouble    warnings and troubles alone
  cakert doctor --json

A machine without GPU and driver is no trouble: the simulator works there. A driver that is
installed and cannot be used is.

exit status: 0 no trouble (notes and warnings at most), 1 trouble, 2 wrong usage"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the sub-command."""
    parser = commands.add_parser(
        "doctor",
        help="find what keeps kernels from running here, and how to mend it",
        description="Looks at interpreter, packages, cubins, frameworks, variables, driver and "
        "GPUs. Makes a context on each GPU for a moment, to see that it can be used and how much "
        "memory is free; runs nothing there and writes nothing.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print JSON (docs/doctor.md)")
    parser.add_argument(
        "--trouble", action="store_true", help="show warnings and troubles only, not what is well"
    )
    parser.set_defaults(run=run)


def as_json(results: list[Result], works: Works, status: int) -> dict[str, Any]:
    """The document that docs/doctor.md describes."""
    return {
        "schema": 1,
        "status": status,
        "works": {
            "gpu": list(works.gpu),
            "simulator": works.simulator,
            "inspect": works.inspect,
        },
        "checks": [
            {
                "check": each.check,
                "case": each.case,
                "level": each.level,
                "found": each.found,
                "why": each.why,
                "mend": each.mend,
            }
            for each in results
        ],
    }


def works_text(works: Works) -> str:
    """The last line: what works here."""
    gpus = f"yes ({', '.join(works.gpu)})" if works.gpu else "no"
    yes = {True: "yes", False: "no"}
    return (
        f"works here: GPU kernels: {gpus}, simulator: {yes[works.simulator]}, "
        f"inspect: {yes[works.inspect]}"
    )


def show(results: list[Result], works: Works, *, trouble_only: bool) -> None:
    """Print what was found, the mends below it, and what works here."""
    from cakert.cli.text import printable

    shown = [each for each in results if not trouble_only or each.level in ("warning", "trouble")]
    rows: list[list[object]] = [[each.check, each.level, printable(each.found)] for each in shown]
    lines = []
    for each in shown:
        if each.level != "ok" and (each.why or each.mend):
            # Not in the table: a command has to be copied in one piece.
            lines.append(f"{each.level}: {each.check}: {each.found}")
            lines += [f"  why: {each.why}"] * bool(each.why)
            lines += [f"  mend: {each.mend}"] * bool(each.mend)
    lines = [printable(line) for line in [*lines, works_text(works)]]
    try:
        from rich.text import Text

        from cakert.cli.console import make_console, make_table
    except ImportError:
        # That rich is missing is one of the things to report.
        lines = [f"{check}: {level}: {found}" for check, level, found in rows] + lines
        print("\n".join(lines))
        return
    console = make_console()
    if rows:
        console.print(make_table("checks", ["check", "level", "found"], rows))
    for line in lines:
        bold = not line.startswith("  ")
        console.print(Text(line, style="bold" if bold else ""), soft_wrap=True)


def run(args: argparse.Namespace) -> int:
    """Entry of the sub-command."""
    # Not above: where extension modules are broken, `cakert doctor` is what must still start.
    from cakert.cli.checks import run_checks, what_works, worst
    from cakert.cli.surroundings import look_around_fully

    here = look_around_fully()
    results = run_checks(here)
    works = what_works(here, results)
    status = 1 if worst(results) == "trouble" else 0
    if args.json:
        print(json.dumps(as_json(results, works, status), indent=2))
    else:
        show(results, works, trouble_only=args.trouble)
    return status
