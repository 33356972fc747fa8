#!/usr/bin/env python3
"""Draw the terminal pictures of docs/: run the commands for real, and keep what they print as SVG.

    tools/make_shots.py                 every picture, to docs/pictures/
    tools/make_shots.py inspect diff    some of them
    tools/make_shots.py --list

A picture is a line of SHOTS. Commands run in a folder with the files that FILES stages, in a
terminal of the picture's width. The SVG names no font of the network and holds no random
identifier, so the same output gives the same file.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "pictures"
ROWS = 60


class Shot(NamedTuple):
    """A picture.

    Attributes
    ----------
    name
        Its file without the suffix.
    command
        As a reader types it.
    status
        The exit status that it ends with.
    columns
        Width of the terminal.
    varies
        Whether it shows times, versions or what this machine has; the others are tested to show
        what the command prints today.
    gpu
        Whether it needs a GPU; left out where there is none, unless it is named.
    """

    name: str
    command: str
    status: int = 0
    columns: int = 100
    varies: bool = False
    gpu: bool = False


SHOTS = [
    Shot("info", "cakert info", columns=110, varies=True),
    Shot("demo", "cakert demo", varies=True),
    Shot("inspect", "cakert inspect kernel.cubin", columns=116),
    Shot("inspect-library", "cakert inspect libmine.so", columns=116),
    Shot("diff", "cakert inspect old.cubin new.cubin --diff"),
    Shot("own-kernel", "cakert inspect scale.cubin"),
    Shot("doctor", "cakert doctor", columns=116, varies=True),
    Shot("verify", "cakert verify", columns=110, varies=True),
    Shot(
        "run",
        "cakert run scale.ptx --device sim:sm_90a --grid 4 --block 256 "
        "--arg 'x:f32[1000]=iota' --arg f:f32=2 --arg n:u32=1000",
    ),
    Shot("explain-text", "cakert explain mask.npy", columns=116),
    Shot("damaged", "cakert inspect damaged.cubin", status=1),
    Shot("load", "cakert load kernel.cubin --shared 98432", columns=116, varies=True, gpu=True),
    Shot("refused", "cakert load new.cubin", status=1, varies=True, gpu=True),
]


def _shipped(name: str) -> bytes:
    from cakert.cubins import store

    return (store().root / f"{name}.cubin").read_bytes()


def _library() -> bytes:
    """A host file around a fatbin: code for two GPUs and PTX, compressed as nvcc does it."""
    from cakert.cubins import store

    sys.path.insert(0, str(ROOT / "tests"))
    try:
        from helpers.fatbin_files import entry, fatbin, host_file
    finally:
        sys.path.pop(0)
    name = "vsa_portable_r64_d64_bf16"
    text = next(store().ptx(e) for e in store().entries if e.file == f"{name}.sm_90.cubin")
    return host_file(
        {
            ".nv_fatbin": fatbin(
                entry("elf", _shipped(f"{name}.sm_90"), arch=90, method="zstd"),
                entry("elf", _shipped(f"{name}.sm_100a"), arch=100, suffix="a", method="zstd"),
                entry("ptx", text.encode() + bytes(1), arch=90, method="zstd"),
            )
        }
    )


def _mask() -> bytes:
    """Eight heads of 64 x 64 blocks: seven look around themselves, one at everything."""
    import io

    import numpy as np

    near = np.abs(np.subtract.outer(np.arange(64), np.arange(64))) < 6
    mask = near[None].repeat(8, axis=0)
    mask[2] = True
    written = io.BytesIO()
    np.save(written, mask)
    return written.getvalue()


def _lists() -> bytes:
    """What a router chose: 16 of 512 KV blocks for each of 8 x 512 query blocks."""
    import io

    import numpy as np

    rng = np.random.default_rng(0)
    chosen = rng.permuted(np.arange(512)[None, None].repeat(8, 0).repeat(512, 1), axis=2)
    written = io.BytesIO()
    np.savez_compressed(written, q2k_indices=chosen[:, :, :16].astype(np.int32))
    return written.getvalue()


FILES: dict[str, Callable[[], bytes]] = {
    "kernel.cubin": lambda: _shipped("vsa_sm90_r64_d128_bf16.sm_90a"),
    "old.cubin": lambda: _shipped("vsa_portable_r64_d64_bf16.sm_90"),
    "new.cubin": lambda: _shipped("vsa_portable_r64_d64_bf16.sm_100a"),
    "damaged.cubin": lambda: _shipped("vsa_portable_r64_d64_bf16.sm_90")[:20000],
    "libmine.so": _library,
    "mask.npy": _mask,
    "lists.npz": _lists,
    **{
        name: (ROOT / "tests" / "data" / "docs" / name).read_bytes
        for name in ("scale.cubin", "scale.ptx")
    },
}


def stage(folder: Path) -> None:
    """Write the files that commands of SHOTS and of docs/ name."""
    for name, make in FILES.items():
        (folder / name).write_bytes(make())


def run_in_terminal(shot: Shot, folder: Path) -> str:
    """What the command writes to a terminal, escape sequences included.

    Raises
    ------
    RuntimeError
        It ended with another status than the shot's.
    """
    terminal, line = pty.openpty()
    fcntl.ioctl(line, termios.TIOCSWINSZ, struct.pack("4H", ROWS, shot.columns, 0, 0))
    arguments = shlex.split(shot.command)
    # `cakert` of this interpreter, not of PATH.
    command = [sys.executable, "-m", "cakert.cli", *arguments[1:]]
    package_root = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    process = subprocess.Popen(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=line,
        stderr=line,
        env=os.environ
        | {"TERM": "xterm-256color", "COLUMNS": str(shot.columns), "PYTHONPATH": package_root},
    )
    os.close(line)
    written = b""
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # Linux says so when the last writer has gone
            break
        if not part:
            break
        written += part
    os.close(terminal)
    if process.wait() != shot.status:
        text = written.decode(errors="replace")
        raise RuntimeError(
            f"{shot.command}: exit status {process.returncode}, expected {shot.status}\n{text}"
        )
    return settle(written.decode())


def settle(written: str) -> str:
    """The text that stays: without what a progress bar drew and took away again."""
    written = written.replace("\r\n", "\n")
    written = re.sub(r"\x1b\[\?25[lh]", "", written)  # cursor off and on
    kept: list[str] = []
    for row in written.split("\n"):
        parts = re.split(r"\r|\x1b\[2K", row)
        while "\x1b[1A" in parts:  # up a row, to erase it
            parts.remove("\x1b[1A")
            kept.pop()
        kept.append(anonymous(parts[-1]))
    return "\n".join(kept).strip("\n")


def anonymous(row: str) -> str:
    """A row without the folder of this source tree; the rules of its table stay where they are."""
    place = "~/cakert"
    while str(ROOT) in row:
        before, behind = row.split(str(ROOT), 1)
        text, rule, rest = behind.partition("│")
        if rule:
            text = f"{text.rstrip()} ".ljust(len(text) + len(str(ROOT)) - len(place))
        row = f"{before}{place}{text}{rule}{rest}"
    return row


def svg(shot: Shot, written: str) -> str:
    """The picture: the command behind a prompt, then what it wrote."""
    from rich._export_format import CONSOLE_SVG_FORMAT
    from rich.console import Console
    from rich.terminal_theme import DIMMED_MONOKAI
    from rich.text import Text

    template = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    template = re.sub(r"Fira Code(, monospace)?", "monospace", template)
    with Path(os.devnull).open("w") as nowhere:
        console = Console(
            record=True, width=shot.columns, file=nowhere, force_terminal=True, highlight=False,
            color_system="truecolor",
        )  # fmt: skip
        console.print(Text.assemble(("$ ", "bold green"), (shot.command, "bold")))
        console.print(Text.from_ansi(written))
        return console.export_svg(
            title="", theme=DIMMED_MONOKAI, code_format=template, unique_id=f"shot-{shot.name}"
        )


def _gpu_is_here() -> bool:
    from cakert.runtime import driver

    try:
        return bool(driver.device_count())
    except RuntimeError:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="pictures to draw; all where none is named")
    parser.add_argument("--list", action="store_true", help="print names and commands only")
    options = parser.parse_args()
    unknown = set(options.names) - {shot.name for shot in SHOTS}
    if unknown:
        parser.error(f"no picture is called {', '.join(sorted(unknown))}")
    shots = [shot for shot in SHOTS if not options.names or shot.name in options.names]
    if not options.names and not options.list:
        left_out = [shot.name for shot in shots if shot.gpu and not _gpu_is_here()]
        shots = [shot for shot in shots if shot.name not in left_out]
        if left_out:
            print(f"left as they are, for want of a GPU: {', '.join(left_out)}")
    if options.list:
        for shot in shots:
            print(f"{shot.name:16} {shot.command}")
        return
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        stage(folder)
        for shot in shots:
            target = PICTURES / f"{shot.name}.svg"
            target.write_text(svg(shot, run_in_terminal(shot, folder)))
            print(f"{target.relative_to(ROOT)}: {shot.command}")


if __name__ == "__main__":
    main()
