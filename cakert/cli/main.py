"""Command line of `cakert`: sub-commands, error policy, exit status."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from cakert.cli.parsers import wrap_descriptions
from cakert.cli.text import one_line

_EPILOG = """examples:
  cakert doctor          what works here, and how to mend what does not
  cakert inspect FILE    what is in a cubin, a fatbin or a library
  cakert demo            block-sparse attention on a GPU, or on the simulator
  cakert demo --help     options and examples of one command

exit status: 0 well, 1 failed or found trouble, 2 wrong usage"""


def build_parser(*, broken: bool = False) -> argparse.ArgumentParser:
    """Describe the command line; of a `broken` installation `cakert doctor` alone."""
    from cakert import __version__
    from cakert.cli import doctor

    parser = argparse.ArgumentParser(
        prog="cakert",
        description="Precompiled CUDA kernels: what is in a file of any compiler, whether it loads "
        "here, what it does when it runs; why a mask of block-sparse attention is slow; and what "
        "is wrong with this machine.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"cakert {__version__}")
    commands = parser.add_subparsers(title="commands", dest="command", required=True)
    if broken:
        doctor.add_parser(commands)
        return parser
    from cakert.cli import completion, demo, explain, info, inspect, load, run, verify

    completion.add_parser(commands)
    demo.add_parser(commands)
    doctor.add_parser(commands)
    explain.add_parser(commands)
    info.add_parser(commands)
    inspect.add_parser(commands)
    load.add_parser(commands)
    run.add_parser(commands)
    verify.add_parser(commands)
    return parser


def _reason(problem: BaseException) -> str:
    """The message as one line; where a requirement is missing with who mends that."""
    text = one_line(problem)
    # Optional packages are named with their command, requirements are not.
    if isinstance(problem, ImportError) and "pip install" not in text:
        text += " (`cakert doctor` says how to mend it)"
    return text


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Parameters
    ----------
    argv
        Arguments without the program's name; ``sys.argv`` where None.

    Returns
    -------
    int
        Exit status: 0 well, 1 failed, 2 wrong usage (raised as SystemExit by argparse).
    """
    # A closed standard stream (`cakert info >&-`) is None in Python: what goes there is lost.
    sys.stdout = sys.stdout or Path(os.devnull).open("w")  # noqa: SIM115
    sys.stderr = sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A name that the encoding does not have is shown escaped, as stderr does.
        sys.stdout.reconfigure(errors="backslashreplace")
    arguments = sys.argv[1:] if argv is None else list(argv)
    try:
        parser = build_parser()
    except ImportError as problem:
        # Requirements of the package are missing: the doctor needs none of them.
        if arguments[:1] != ["doctor"]:
            print(f"cakert: error: {_reason(problem)}", file=sys.stderr)
            return 1
        parser = build_parser(broken=True)
    wrap_descriptions(parser)
    args = parser.parse_args(arguments)
    try:
        status: int = args.run(args)
        sys.stdout.flush()
    except BrokenPipeError:
        # `cakert info | head`: the reader has enough. Point stdout elsewhere, else the
        # interpreter complains when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130
    # What the package raises for wrong input, missing files, a failing driver or little memory.
    # Anything else is a bug, and its traceback is wanted.
    except (ImportError, MemoryError, OSError, RuntimeError, TypeError, ValueError) as problem:
        print(f"cakert: error: {_reason(problem)}", file=sys.stderr)
        return 1
    return status


if __name__ == "__main__":
    sys.exit(main())
