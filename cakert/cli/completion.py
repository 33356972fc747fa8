"""`cakert completion`: a script that completes the command line, made from the parser itself."""

from __future__ import annotations

import argparse
from pathlib import Path

from cakert.cli.parsers import all_parsers

_EPILOG = """examples:
  cakert completion bash > ~/.local/share/bash-completion/completions/cakert
  cakert completion zsh > ~/.zsh/completions/_cakert      (a folder of $fpath)
  cakert completion tcsh > ~/.cakert.csh                  (then: source ~/.cakert.csh)

exit status: 0 printed, 1 without the extra completion, 2 wrong usage"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the sub-command."""
    parser = commands.add_parser(
        "completion",
        help="print a script that completes this command in a shell",
        description="Prints a completion script for a shell: sub-commands, options, their values, "
        "and files. Needs pip install 'cakert[completion]', to print it and not to use it.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"), help="shell to complete in")
    parser.set_defaults(run=run)


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """The script of one shell.

    Parameters
    ----------
    parser
        Of the whole command. Arguments of type `Path` are completed with files, or with folders
        where they are called DIR.
    shell
        "bash", "zsh" or "tcsh".

    Raises
    ------
    ImportError
        shtab is not installed.
    """
    try:
        import shtab
    except ImportError:
        raise ImportError(
            "shell completion needs shtab: pip install 'cakert[completion]'"
        ) from None
    for each in all_parsers(parser):
        for action in each._actions:
            if action.type is Path and not hasattr(action, "complete"):
                kind = shtab.DIRECTORY if action.metavar == "DIR" else shtab.FILE
                action.complete = kind  # type: ignore[attr-defined]
    text: str = shtab.complete(parser, shell=shell)
    return text


def run(args: argparse.Namespace) -> int:
    """Entry of the sub-command."""
    from cakert.cli.main import build_parser

    print(script(build_parser(), args.shell))
    return 0
