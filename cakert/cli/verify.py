"""`cakert verify`: the cubins of a folder against its manifest, and against their PTX."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cakert.cli.console import counting_progress, make_console, make_table
from cakert.cli.options import up_to
from cakert.cli.text import printable

if TYPE_CHECKING:
    from rich.console import Console

    from cakert.cubins.assembler import Assembler
    from cakert.verification import Verification

_EPILOG = """examples:
  cakert verify                     the cubins of this installation
  cakert verify build/cubins        those of another folder with a manifest.json
  cakert verify --all               with target, compiler and assembler of each cubin
  cakert verify --rebuild --jobs 4  also assemble each PTX again and compare the bytes

exit status: 0 all as the manifest says, 1 findings, or no ptxas of its version, 2 wrong usage"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the sub-command."""
    parser = commands.add_parser(
        "verify",
        help="hold cubins against their manifest, and assemble them again",
        description="Reads every cubin and every PTX that manifest.json of a folder names, and "
        "reports all that is not as it says: hashes, target, kernels, resources, toolkit, files "
        "that are missing or that no entry names. Writes nothing.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "folder",
        nargs="?",
        type=Path,
        metavar="DIR",
        help="folder with manifest.json (default: the cubins of this installation)",
    )
    add("--all", action="store_true", help="also list the cubins that have no finding")
    add("--json", action="store_true", help="print JSON (docs/doctor.md)")
    add(
        "--rebuild",
        action="store_true",
        help="assemble each PTX with ptxas of the manifest's version and compare the bytes",
    )
    add(
        "--toolkit",
        type=Path,
        metavar="DIR",
        help="with --rebuild: take bin/ptxas from this toolkit (default: PATH, CUDA_HOME, "
        "CUDA_PATH, the wheels of the extra cubins)",
    )
    add(
        "--jobs",
        type=up_to(1024),
        default=os.cpu_count() or 1,
        metavar="N",
        help="with --rebuild: how many at once (default: the CPU's threads)",
    )
    parser.set_defaults(run=run, usage_error=parser.error)


def as_json(verification: Verification, assembler: Assembler | None) -> dict[str, Any]:
    """The document that docs/doctor.md describes."""
    manifest = verification.manifest
    return {
        "schema": 1,
        "folder": str(verification.folder),
        "passed": verification.passed,
        "toolkit": None if manifest is None else manifest.toolkit,
        "rebuilt_with": None
        if assembler is None
        else {**assembler.version.identity, "ptxas": str(assembler.ptxas)},
        "cubins": [
            {
                "file": cubin.file,
                "target": cubin.target,
                "compiler": cubin.compiler,
                "assembler": cubin.assembler,
                "kernels": list(cubin.kernels),
                "rebuilt": cubin.rebuilt,
            }
            for cubin in verification.cubins
        ],
        "findings": [
            {"file": finding.file, "kind": finding.kind, "text": finding.text}
            for finding in verification.findings
        ],
    }


def _show_cubins(console: Console, verification: Verification) -> None:
    rebuilt = {None: "", True: "same bytes", False: "OTHER BYTES"}
    rows: list[list[object]] = [
        [
            cubin.file,
            cubin.target,
            printable(cubin.compiler or "not named"),
            printable(cubin.assembler or "not named"),
            len(cubin.kernels),
            rebuilt[cubin.rebuilt],
        ]
        for cubin in verification.cubins
    ]
    columns = ["cubin", "target", "compiler", "assembler", "kernels", "assembled again"]
    console.print(make_table(f"cubins: {len(rows)}", columns, rows))


def show(verification: Verification, assembler: Assembler | None, seconds: float) -> None:
    """Print a row for each file that has a finding, then totals."""
    console = make_console()
    by_file: dict[str, list[str]] = {}
    for finding in verification.findings:
        by_file.setdefault(finding.file, []).append(f"{finding.kind}: {finding.text}")
    if by_file:
        rows: list[list[object]] = [
            [printable(file), "\n".join(map(printable, texts))] for file, texts in by_file.items()
        ]
        console.print(make_table(f"files with findings: {len(rows)}", ["file", "finding"], rows))
    manifest = verification.manifest
    count = len(verification.cubins)
    kernels = sum(len(cubin.kernels) for cubin in verification.cubins)
    total = f"{count} cubins with {kernels} kernels in {printable(str(verification.folder))}"
    if manifest is not None:
        toolkit = manifest.toolkit
        total += f", toolkit {printable(toolkit['version'])} ({printable(toolkit['build'])})"
    if verification.passed:
        total += ": all as in the manifest"
    else:
        total += f": {len(verification.findings)} findings in {len(by_file)} files"
    console.print(printable(total), markup=False, soft_wrap=True)
    if assembler is not None:
        same = sum(cubin.rebuilt is True for cubin in verification.cubins)
        console.print(
            f"{same} of {count} assembled again with {printable(str(assembler.ptxas))} "
            f"({assembler.version.version}, {assembler.origin}) to the same bytes, {seconds:.0f} s",
            markup=False,
            soft_wrap=True,
        )


def run(args: argparse.Namespace) -> int:
    """Entry of the sub-command."""
    if args.toolkit is not None and not args.rebuild:
        args.usage_error("argument --toolkit: goes with --rebuild")
    from cakert.cubins.assembler import find_assembler
    from cakert.verification import check_flags, rebuild, verify

    folder = args.folder
    if folder is None:
        import cakert.cubins

        folder = Path(cakert.cubins.__file__).parent
    verification = verify(folder)
    assembler = None
    start = time.perf_counter()
    if args.rebuild and verification.manifest is not None:
        check_flags(verification.manifest)
        assembler = find_assembler(verification.manifest.toolkit, args.toolkit)
        console = make_console()
        with counting_progress(console, "assembling", "cubins", disable=args.json) as progress:
            verification = rebuild(verification, assembler, jobs=args.jobs, progress=progress)
    seconds = time.perf_counter() - start
    if args.json:
        print(json.dumps(as_json(verification, assembler), indent=2))
    else:
        if args.all:
            _show_cubins(make_console(), verification)
        show(verification, assembler, seconds)
    return 0 if verification.passed else 1
