"""The manifest of the shipped cubins as typed, immutable values.

`tools/build_cubins.py` writes it; this module only reads. Fields that describe how PTX was made
(sources, nvcc's flags, defines) belong to that tool and are not kept here.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cakert.errors import CubinError

FORMAT = 1
MANIFEST = "manifest.json"
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\.cubin")
_TARGET = re.compile(r"sm_[0-9]{2,4}[af]?")


@dataclass(frozen=True)
class KernelInfo:
    """One kernel of a cubin; sizes in bytes, registers a thread.

    `R` (block size), `D` (head_dim) and `dtype` are None for kernels that they do not apply to.
    """

    name: str
    R: int | None
    D: int | None
    dtype: str | None
    threads: int
    registers: int
    shared_bytes: int
    static_shared_bytes: int
    stack_bytes: int
    spill_loads: int
    spill_stores: int


@dataclass(frozen=True)
class Entry:
    """One cubin of the manifest. `sha256` and `ptx_sha256` are as written, valid or not."""

    file: str
    sha256: str
    ptx_sha256: str
    family: str
    target: str
    kernels: tuple[KernelInfo, ...]

    @property
    def ptx_file(self) -> str:
        """Name of the compressed PTX beside the cubin."""
        return self.file.removesuffix(".cubin") + ".ptx.xz"

    def kernel(self, name: str) -> KernelInfo:
        """The kernel called `name`; KeyError with the names there are."""
        for kernel in self.kernels:
            if kernel.name == name:
                return kernel
        raise KeyError(f"{self.file} has no kernel {name!r}, only {[k.name for k in self.kernels]}")


@dataclass(frozen=True)
class Manifest:
    """All entries, and the toolkit that made them: ``{"release", "version", "build"}``.

    `ptxas_flags` is None where the manifest does not name them.
    """

    toolkit: dict[str, str]
    entries: tuple[Entry, ...]
    ptxas_flags: tuple[str, ...] | None = None


class _Reader:
    """Typed access to parsed JSON; every complaint names the file and the place."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fail(self, reason: str) -> CubinError:
        return CubinError(f"{self.path}: malformed manifest: {reason}")

    def get(self, where: str, mapping: Any, key: str, kind: type) -> Any:
        if not isinstance(mapping, dict):
            raise self.fail(f"{where} must be an object, got {type(mapping).__name__}")
        value = mapping.get(key)
        # bool is an int to Python, but not here.
        if not isinstance(value, kind) or isinstance(value, bool):
            raise self.fail(f"{where}: {key} must be {kind.__name__}, got {value!r}")
        return value

    def optional(self, where: str, mapping: Any, key: str, kind: type) -> Any:
        if isinstance(mapping, dict) and mapping.get(key) is None:
            return None
        return self.get(where, mapping, key, kind)

    def size(self, where: str, mapping: Any, key: str) -> int:
        value: int = self.get(where, mapping, key, int)
        if value < 0:
            raise self.fail(f"{where}: {key} must not be negative, got {value}")
        return value

    def kernel(self, where: str, raw: Any) -> KernelInfo:
        name = self.get(where, raw, "name", str)
        where = f"{where} {name}"
        return KernelInfo(
            name=name,
            R=self.optional(where, raw, "R", int),
            D=self.optional(where, raw, "D", int),
            dtype=self.optional(where, raw, "dtype", str),
            threads=self.size(where, raw, "threads"),
            registers=self.size(where, raw, "registers"),
            shared_bytes=self.size(where, raw, "shared_bytes"),
            static_shared_bytes=self.size(where, raw, "static_shared_bytes"),
            stack_bytes=self.size(where, raw, "stack_bytes"),
            spill_loads=self.size(where, raw, "spill_loads"),
            spill_stores=self.size(where, raw, "spill_stores"),
        )

    def entry(self, index: int, raw: Any) -> Entry:
        file = self.get(f"entry {index}", raw, "file", str)
        # A bare name: the manifest must not lead out of its folder.
        if not _FILE_NAME.fullmatch(file):
            raise self.fail(f"entry {index}: file must be a bare .cubin name, got {file!r}")
        target = self.get(file, raw, "target", str)
        if not _TARGET.fullmatch(target):
            raise self.fail(f"{file}: target must look like sm_90a, got {target!r}")
        kernels = self.get(file, raw, "kernels", list)
        if not kernels:
            raise self.fail(f"{file}: kernels is empty")
        # Hashes are judged where they are used, beside the actual one; here any text will do.
        hashes = {
            key: value if isinstance(value := raw.get(key), str) else ""
            for key in ("sha256", "ptx_sha256")
        }
        return Entry(
            file=file,
            family=self.get(file, raw, "family", str),
            target=target,
            kernels=tuple(self.kernel(file, kernel) for kernel in kernels),
            **hashes,
        )


def read_manifest(folder: Path) -> Manifest:
    """Read ``manifest.json`` of `folder`.

    Raises
    ------
    CubinError
        It is missing, unreadable, of another format, or malformed; the text names file and place.
    """
    manifest, problems = survey_manifest(folder)
    if problems:
        raise problems[0]
    return manifest


def survey_manifest(folder: Path) -> tuple[Manifest, tuple[CubinError, ...]]:
    """As `read_manifest`, but a malformed entry does not keep the others from being read.

    Returns
    -------
    manifest, problems
        The sound entries, of a file that stands there twice the first; one error a bad entry.

    Raises
    ------
    CubinError
        There is no manifest, or none of this format.
    """
    path = folder / MANIFEST
    reader = _Reader(path)
    try:
        raw = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise CubinError(
            f"{path}: no manifest, so the folder is no store of cubins (of the package's own: "
            "reinstall cakert; in a source tree run tools/build_cubins.py)"
        ) from None
    except OSError as problem:
        raise CubinError(f"{path}: cannot be read: {problem.strerror}") from problem
    except (ValueError, RecursionError) as problem:
        raise reader.fail(f"not JSON: {problem}") from problem
    found = reader.get("manifest", raw, "format", int)
    if found != FORMAT:
        raise reader.fail(f"format must be {FORMAT}, got {found}")
    toolkit = reader.get("manifest", raw, "toolkit", dict)
    toolkit = {
        key: reader.get("toolkit", toolkit, key, str) for key in ("release", "version", "build")
    }
    for key, value in toolkit.items():
        # It is shown as it is, in messages too.
        if not (value.isascii() and value.isprintable()):
            raise reader.fail(f"toolkit: {key} must be printable ASCII, got {value!a}")
    entries: dict[str, Entry] = {}
    problems: list[CubinError] = []
    twice: list[CubinError] = []
    for index, each in enumerate(reader.get("manifest", raw, "entries", list)):
        try:
            entry = reader.entry(index, each)
        except CubinError as problem:
            problems.append(problem)
            continue
        if entry.file in entries:
            twice.append(reader.fail(f"{entry.file} stands there twice"))
        entries.setdefault(entry.file, entry)
    flags = reader.optional("manifest", raw, "flags", dict)
    ptxas = reader.optional("flags", flags, "ptxas", list) if flags is not None else None
    manifest = Manifest(
        toolkit, tuple(entries.values()), None if ptxas is None else tuple(map(str, ptxas))
    )
    return manifest, (*problems, *twice)
