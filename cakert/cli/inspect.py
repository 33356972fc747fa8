"""`cakert inspect`: what is in a cubin, a fatbin or a host file, and what changed between two."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from cakert.cli.console import make_console, make_table
from cakert.cli.text import one_line, printable
from cakert.inspect import (
    Comparison,
    ConstantBank,
    CubinRecord,
    Disassembly,
    FatbinEntry,
    Inspection,
    KernelRecord,
    as_json,
    compare,
    comparison_as_json,
    cubin_images,
    disassemble,
    inspect_bytes,
)
from cakert.inspect.files import read_file

_EPILOG = """examples:
  cakert inspect kernel.cubin            a table of its kernels
  cakert inspect libmine.so --json       every cubin and PTX that it embeds
  cakert inspect old.cubin new.cubin --diff
  cakert inspect kernel.cubin --sass     and its machine code, with nvdisasm

exit status: 0 well, 1 a file is unreadable or malformed, 2 wrong usage"""

_KERNEL_COLUMNS = [
    "kernel",
    "registers",
    "shared",
    "stack",
    "local",
    "barriers",
    "threads",
    "cluster",
    "tcgen05",
    "parameters",
    "constant",
    "relocations",
    "code",
]

# Left out of a table where no kernel has any: most have none, and a terminal is not that wide.
_SELDOM = {"local", "barriers", "threads", "cluster", "tcgen05", "relocations"}


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the sub-command."""
    parser = commands.add_parser(
        "inspect",
        help="kernels and resources of cubins, fatbins, and host files that embed them",
        description="Reads cubins, fatbins and host files (objects, libraries, programs, "
        "archives) that embed them. Needs no toolkit, driver or GPU. Sizes are bytes.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="file to read")
    parser.add_argument("--json", action="store_true", help="print JSON (docs/inspect.md)")
    parser.add_argument(
        "--diff", action="store_true", help="compare two files: what changed in which kernel"
    )
    parser.add_argument(
        "--sass",
        action="store_true",
        help="show the machine code too, and with --json how often each opcode stands in it; needs "
        "nvdisasm (cakert[sass], or a CUDA toolkit)",
    )
    parser.set_defaults(run=run, usage_error=parser.error)


def _text(value: Any) -> str:
    """A value in a cell: "128x1x1" for dimensions, "" where the file does not say."""
    if value is None:
        return ""
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    return str(value)


def _banks(banks: tuple[ConstantBank, ...]) -> str:
    return ", ".join(f"[{bank.bank}] {bank.size}" for bank in banks)


def _kernel_row(kernel: KernelRecord) -> list[object]:
    threads = _text(kernel.required_threads)
    if not threads and kernel.max_threads is not None:
        threads = f"<= {_text(kernel.max_threads)}"
    cluster = _text(kernel.cluster)
    if not cluster and kernel.max_cluster is not None:
        cluster = f"<= {kernel.max_cluster}"
    parameters = f"{len(kernel.parameters)}: {_text(kernel.parameter_bytes)}"
    return [
        printable(kernel.demangled or kernel.name),
        _text(kernel.registers),
        kernel.shared_bytes,
        _text(kernel.stack_bytes),
        kernel.local_bytes,
        kernel.barriers,
        threads,
        cluster,
        ", ".join(f"{size} CTA" for size in kernel.tcgen05),
        parameters if kernel.parameters else "none",
        _banks(kernel.constant_banks),
        kernel.relocations,
        kernel.code_bytes,
    ]


def _cubin_title(cubin: CubinRecord) -> str:
    target = cubin.target
    if target == "unknown":
        target = f"unknown target (e_flags {cubin.flags:#010x})"
    parts = [f"cubin for {target}", f"{cubin.size} bytes", f"ABI {cubin.abi_version}"]
    if cubin.toolkit != "unknown":
        parts.append(printable(cubin.toolkit))
    if cubin.relocatable:
        parts.append("to be linked")
    if cubin.global_bytes:
        parts.append(f"{cubin.global_bytes} bytes of global variables")
    if cubin.constant_banks:
        parts.append(f"shared constant banks {_banks(cubin.constant_banks)}")
    return ", ".join(parts)


def _show_cubin(console: Console, title: str, cubin: CubinRecord) -> None:
    # Not as the table's title: that is wrapped to the width of the table.
    console.print(Text(f"{title}{_cubin_title(cubin)}", style="bold"), soft_wrap=True)
    rows = [_kernel_row(kernel) for kernel in cubin.kernels]
    if not rows:
        return
    shown = [
        at
        for at, column in enumerate(_KERNEL_COLUMNS)
        if column not in _SELDOM or any(row[at] not in ("", 0) for row in rows)
    ]
    columns = [_KERNEL_COLUMNS[at] for at in shown]
    cells = [[row[at] for at in shown] for row in rows]
    console.print(make_table(f"kernels: {len(rows)}", columns, cells))


def _entry_row(place: str, entry: FatbinEntry) -> list[object]:
    kernels: tuple[str, ...] = ()
    target = ""
    if entry.cubin is not None:
        kernels, target = tuple(kernel.name for kernel in entry.cubin.kernels), entry.cubin.target
    elif entry.ptx is not None:
        kernels, target = entry.ptx.kernels, f"{entry.ptx.target} (PTX {entry.ptx.version})"
    return [place, entry.kind, entry.arch, target, entry.compression, entry.stored_size, entry.size,
            len(kernels), printable(entry.file_name)]  # fmt: skip


def _show_code(console: Console, code: dict[str, Disassembly]) -> None:
    """Print opcodes and machine code of each function; lines are nvdisasm's, and never wrapped."""
    for name, function in code.items():
        total = sum(function.instructions.values())
        counts = ", ".join(f"{count} {opcode}" for opcode, count in function.instructions.items())
        title = f"{printable(name)}: {total} instructions: {counts}"
        console.print(Text(title, style="bold"), soft_wrap=True)
        for line in function.lines:
            console.print(Text(printable(line)), soft_wrap=True)


def show_file(file: Inspection, code: list[dict[str, Disassembly]] | None = None) -> None:
    """Print tables: for a container its images first, then the kernels of each cubin.

    Parameters
    ----------
    code
        Machine code of each cubin, in the order of ``file.cubins``.
    """
    console = make_console()
    codes = iter(code or ())
    if file.cubin is not None:
        _show_cubin(console, f"{printable(file.name)}: ", file.cubin)
        _show_code(console, next(codes, {}))
        return
    rows = []
    for number, fatbin in enumerate(file.fatbins, 1):
        place = f"{number}: {printable(fatbin.place)}"
        rows += [_entry_row(place, entry) for entry in fatbin.entries]
    kinds = {"fatbin": "fatbin", "archive": "archive with fatbins"}
    kind = kinds.get(file.kind, "host file with fatbins")
    columns = ["fatbin", "kind", "arch", "target", "compression", "stored", "size", "kernels",
               "source"]  # fmt: skip
    heading = f"{printable(file.name)}: {kind}, {file.size} bytes"
    console.print(Text(heading, style="bold"), soft_wrap=True)
    console.print(make_table(f"images: {len(rows)}", columns, rows))
    for number, fatbin in enumerate(file.fatbins, 1):
        for entry in fatbin.entries:
            if entry.cubin is not None:
                _show_cubin(console, f"fatbin {number}, ", entry.cubin)
                _show_code(console, next(codes, {}))


def _change_text(value: Any) -> str:
    """One side of a changed field; parameters and banks as "offset+size" and "[bank] size"."""
    if isinstance(value, tuple) and value and isinstance(value[0], dict):
        if "offset" in value[0]:
            return ", ".join(f"{item['offset']}+{item['size']}" for item in value)
        return ", ".join(f"[{item['bank']}] {item['size']}" for item in value)
    return _text(value) or "none"


def show_comparison(comparison: Comparison) -> None:
    """Print one row a changed field, then how many kernels did not change."""
    rows: list[list[object]] = []
    same = 0
    for change in comparison.changes:
        kernel = printable(change.demangled or change.kernel)
        if change.status == "same":
            same += 1
        elif change.status != "changed":
            rows.append([kernel, change.target, change.status, "", ""])
        for field, (before, after) in change.fields.items():
            sides = [_change_text(before), _change_text(after)]
            rows.append([kernel, change.target, field, *sides])
    console = make_console()
    title = f"{printable(comparison.before)} -> {printable(comparison.after)}"
    if rows:
        columns = ["kernel", "target", "what", "before", "after"]
        console.print(make_table(title, columns, rows))
    console.print(f"{same} of {len(comparison.changes)} kernels did not change", markup=False)


def _print_json(document: dict[str, Any]) -> None:
    # As plain text and not through rich: nothing may be wrapped.
    print(json.dumps(document, indent=2))


def _print_comparison_json(comparison: Comparison) -> None:
    _print_json(comparison_as_json(comparison))


def _add_instructions(document: dict[str, Any], codes: list[list[dict[str, Disassembly]]]) -> None:
    """Put the opcodes of each kernel into the JSON of its record."""
    for file, code in zip(document["files"], codes, strict=True):
        cubins = [file["cubin"]] if file["cubin"] is not None else []
        cubins += [
            entry["cubin"]
            for fatbin in file["fatbins"]
            for entry in fatbin["entries"]
            if entry["cubin"] is not None
        ]
        for cubin, functions in zip(cubins, code, strict=True):
            for kernel in cubin["kernels"]:
                function = functions.get(kernel["name"])
                kernel["instructions"] = None if function is None else function.instructions


def _read(path: Path, sass: bool) -> tuple[Inspection, list[dict[str, Disassembly]]] | None:
    """What is in the file, and its code; None where it cannot be read, after one line on stderr.

    One bad file does not keep the others from being shown, so this is not left to `main`.
    """
    try:
        data = read_file(path)
        file = inspect_bytes(data, str(path))
        images = cubin_images(data, file) if sass else ()
        return file, [disassemble(image, file.name) for image in images]
    except (ImportError, MemoryError, OSError, ValueError) as problem:
        print(f"cakert: error: {one_line(problem)}", file=sys.stderr)
        return None


def run(args: argparse.Namespace) -> int:
    """Entry of the sub-command."""
    if args.diff and len(args.files) != 2:
        args.usage_error(f"argument --diff: expected two files, got {len(args.files)}")
    if args.diff and args.sass:
        args.usage_error("argument --sass: not with --diff, which compares resources and sizes")
    found = [one for one in (_read(path, args.sass) for path in args.files) if one is not None]
    files = [file for file, _ in found]
    status = 0 if len(files) == len(args.files) else 1
    if args.diff:
        if status == 0:
            show = _print_comparison_json if args.json else show_comparison
            show(compare(*files))
    elif args.json:
        document = as_json(files)
        if args.sass:
            _add_instructions(document, [code for _, code in found])
        _print_json(document)
    else:
        for file, code in found:
            show_file(file, code)
    return status
