"""Machine code of cubins as text, by NVIDIA's nvdisasm where that is installed.

What is read of its output (13.5): a comment names each section; an instruction is its offset in a
comment, an optional predicate, and an opcode whose modifiers follow behind dots.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from cakert.cubins.assembler import tool_folders
from cakert.errors import CubinError

__all__ = ["Disassembly", "disassemble", "find_nvdisasm"]

# A cubin of some megabytes takes seconds.
_SECONDS = 120

_SECTION = re.compile(r"//-+ \.text\.(.+?)\s+-+$")
_ANY_SECTION = re.compile(r"//-+ .+ -+$")
_INSTRUCTION = re.compile(
    r"\s*/\*[0-9a-f]{4,}\*/\s+(?:\{\s*)?(?:@!?U?P[0-9T]+\s+)?([A-Z][A-Z0-9_]*)"
)


@dataclass(frozen=True, slots=True)
class Disassembly:
    """Machine code of one kernel or device function.

    Attributes
    ----------
    lines
        Labels and instructions as nvdisasm prints them.
    instructions
        How many there are of each opcode, without its modifiers ("HGMMA"), most frequent first.
    """

    lines: tuple[str, ...]
    instructions: dict[str, int]


def find_nvdisasm() -> str:
    """Path of nvdisasm: from the wheel of PyPI, ``PATH``, or ``CUDA_HOME``.

    Raises
    ------
    ImportError
        There is none; names the package that brings it.
    """
    folders = tool_folders(None, "nvdisasm")
    # That of the wheel first: who installed it wants the newer one.
    folders.sort(key=lambda found: found[1] != "wheels")
    if not folders:
        raise ImportError(
            "machine code needs nvdisasm: pip install 'cakert[sass]', or put the one of a CUDA "
            "toolkit on PATH"
        )
    return str(folders[0][0] / "nvdisasm")


def disassemble(data: bytes, name: str = "cubin") -> dict[str, Disassembly]:
    """The machine code of a cubin, by the name of its section (that of the kernel).

    Parameters
    ----------
    data
        A whole cubin.
    name
        What messages call it.

    Raises
    ------
    ImportError
        nvdisasm is not installed.
    CubinError
        nvdisasm does not read the cubin; with the first line of what it says.
    """
    tool = find_nvdisasm()
    with tempfile.TemporaryDirectory(prefix="cakert-") as folder:
        file = Path(folder) / "image.cubin"
        file.write_bytes(data)
        try:
            done = subprocess.run(
                [tool, "--print-code", file.name],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                timeout=_SECONDS,
            )
        except subprocess.TimeoutExpired:
            raise CubinError(f"{name}: nvdisasm has not ended after {_SECONDS} s") from None
        except OSError as problem:
            raise CubinError(f"{tool}: cannot be run: {problem.strerror}") from problem
    if done.returncode != 0:
        said = next(filter(None, map(str.strip, done.stderr.splitlines())), "nothing")
        raise CubinError(f"{name}: nvdisasm ends with status {done.returncode} and says: {said}")
    return read_output(done.stdout)


def read_output(text: str) -> dict[str, Disassembly]:
    """The code sections in what ``nvdisasm --print-code`` prints."""
    sections: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if _ANY_SECTION.match(line):
            found = _SECTION.match(line)
            lines = sections.setdefault(found[1], []) if found else []
        elif _is_code(line):
            lines.append(line.rstrip())
    return {name: _count(lines) for name, lines in sections.items()}


def _is_code(line: str) -> bool:
    """Whether it is an instruction or a label, and not a directive."""
    return bool(_INSTRUCTION.match(line)) or bool(re.match(r"[.\w$]+:$", line))


def _count(lines: list[str]) -> Disassembly:
    found = filter(None, map(_INSTRUCTION.match, lines))
    counts = Counter(match[1] for match in found)
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return Disassembly(tuple(lines), dict(ordered))
