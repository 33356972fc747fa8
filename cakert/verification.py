"""A folder of cubins against its manifest: every finding, not only the first.

The store (`cakert.cubins`) refuses the first thing that is wrong with the one cubin that it is
asked for. This looks at all of them and says everything; `cakert verify` and `cakert doctor` show
it. A folder is data that nobody vouches for: sizes are bounded before a file is read or unpacked.
"""

from __future__ import annotations

import hashlib
import re
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from cakert.cubins.assembler import (
    PTXAS_FLAGS,
    Assembler,
    BuildError,
    assemble,
    ptx_compiler,
    ptx_geometry,
    ptx_kernels,
    ptx_target,
)
from cakert.cubins.manifest import MANIFEST, Entry, KernelInfo, Manifest, survey_manifest
from cakert.cubins.packed import unpack
from cakert.errors import CubinError
from cakert.inspect.cubin import inspect_cubin
from cakert.inspect.records import CubinRecord, KernelRecord

KINDS = (
    "manifest", "missing", "unreadable", "hash", "image", "target", "kernels", "resources",
    "toolkit", "ptx", "stray", "duplicate", "rebuild",
)  # fmt: skip
"""What a finding is about; docs/doctor.md says what each means."""

_LARGEST_FILE = 256 << 20
_LARGEST_MANIFEST = 1 << 20  # twenty times that of the package: parsed, it is many times larger

# From sm_90 on the driver's own 1024 bytes stand in front of a block's shared memory, and ptxas
# counts them in the file but not in what it prints, which is what the manifest records.
_RESERVED_SHARED = 1024


@dataclass(frozen=True)
class Finding:
    """One thing that is not as the manifest says: `file` by its bare name, `kind` of `KINDS`."""

    file: str
    kind: str
    text: str


@dataclass(frozen=True)
class CheckedCubin:
    """One entry of the manifest, and what its files say.

    Attributes
    ----------
    compiler, assembler
        Versions as the PTX and the cubin name them; None where they do not, or cannot be read.
    kernels
        Of the manifest.
    rebuilt
        Whether assembling the PTX again gave the bytes of the cubin; None where nobody tried.
    """

    file: str
    target: str
    compiler: str | None
    assembler: str | None
    kernels: tuple[str, ...]
    rebuilt: bool | None = None


@dataclass(frozen=True)
class Verification:
    """What was looked at and found; `manifest` is None where there is none to read."""

    folder: Path
    manifest: Manifest | None
    cubins: tuple[CheckedCubin, ...]
    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        """Whether everything is as the manifest says."""
        return not self.findings


def verify(folder: Path) -> Verification:
    """Hold every file of a folder against its manifest; nothing is written.

    Parameters
    ----------
    folder
        With ``manifest.json``, cubins and their PTX, as ``cakert/cubins``.

    Raises
    ------
    NotADirectoryError
        `folder` is none.
    """
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder}: no such folder")
    look = _Look(folder)
    # Before it is parsed: a pipe of that name would never end.
    if (folder / MANIFEST).exists() and look.read(MANIFEST, _LARGEST_MANIFEST) is None:
        return Verification(folder, None, (), tuple(look.findings))
    try:
        manifest, problems = survey_manifest(folder)
    except CubinError as problem:
        look.add(MANIFEST, "manifest", _without_path(problem, folder / MANIFEST))
        return Verification(folder, None, (), tuple(look.findings))
    for each in problems:
        look.add(MANIFEST, "manifest", _without_path(each, folder / MANIFEST))
    look.duplicates(manifest)
    cubins = tuple(look.entry(manifest, entry) for entry in manifest.entries)
    look.strays(manifest)
    return Verification(folder, manifest, cubins, tuple(look.findings))


def _without_path(problem: BaseException, path: Path) -> str:
    return str(problem).removeprefix(f"{path}: ")


def _expected(what: str, manifest: object, actual: object) -> str:
    return f"{what}: expected {manifest!r} (manifest), actual {actual!r}"


class _Look:
    """Collects the findings of one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.findings: list[Finding] = []

    def add(self, file: str, kind: str, text: str) -> None:
        self.findings.append(Finding(file, kind, text))

    def read(self, file: str, largest: int = _LARGEST_FILE) -> bytes | None:
        path = self.folder / file
        try:
            status = path.stat()
            if not stat.S_ISREG(status.st_mode):
                self.add(file, "unreadable", "expected a regular file, actual: another kind")
            elif status.st_size > largest:
                reason = f"expected at most {largest} bytes, actual {status.st_size}"
                self.add(file, "unreadable", reason)
            else:
                return path.read_bytes()
        except FileNotFoundError:
            self.add(file, "missing", "expected by the manifest, actual: no such file")
        except OSError as problem:
            self.add(file, "unreadable", f"cannot be read: {problem.strerror}")
        return None

    def hash(self, file: str, expected: str, data: bytes) -> None:
        actual = hashlib.sha256(data).hexdigest()
        if expected == actual:
            return
        where = f"sha256: expected {expected!r} (manifest), actual {actual!r} ({len(data)} bytes)"
        if not re.fullmatch(r"[0-9a-f]{64}", expected):
            where += "; the manifest has no valid hash for it"
        self.add(file, "hash", where)

    def duplicates(self, manifest: Manifest) -> None:
        """A kernel that two files offer for one target: lookup could not choose."""
        seen: dict[tuple[str, str], str] = {}
        for entry in manifest.entries:
            for kernel in entry.kernels:
                other = seen.setdefault((kernel.name, entry.target), entry.file)
                if other != entry.file:
                    text = f"kernel {kernel.name} for {entry.target} stands in {other} as well"
                    self.add(entry.file, "duplicate", text)

    def strays(self, manifest: Manifest) -> None:
        """Cubins and PTX that no entry names, the leftovers of an interrupted write included."""
        named = {name for entry in manifest.entries for name in (entry.file, entry.ptx_file)}
        # A malformed entry was reported as such; its files are not strays on top of that.
        if any(finding.kind == "manifest" for finding in self.findings):
            return
        for path in sorted(self.folder.iterdir()):
            if path.name not in named and re.search(r"\.(cubin|ptx)\b", path.name):
                self.add(path.name, "stray", "no entry of the manifest names it")

    # --- one entry ---

    def entry(self, manifest: Manifest, entry: Entry) -> CheckedCubin:
        record = self.cubin(manifest, entry)
        compiler = self.ptx(manifest, entry)
        assembler = None if record is None or record.toolkit == "unknown" else record.toolkit
        names = tuple(kernel.name for kernel in entry.kernels)
        return CheckedCubin(entry.file, entry.target, compiler, assembler, names)

    def cubin(self, manifest: Manifest, entry: Entry) -> CubinRecord | None:
        data = self.read(entry.file)
        if data is None:
            return None
        self.hash(entry.file, entry.sha256, data)
        path = self.folder / entry.file
        try:
            record = inspect_cubin(data, str(path))
        except CubinError as problem:
            self.add(entry.file, "image", _without_path(problem, path))
            return None
        if record.target != entry.target:
            text = _expected("target", entry.target, record.target)
            self.add(entry.file, "target", f"{text} (e_flags {record.flags:#010x})")
        toolkit = manifest.toolkit
        made = f"release {toolkit['release']}, V{toolkit['version']}"
        if not record.toolkit.endswith(made):
            self.add(entry.file, "toolkit", _expected("assembler", made, record.toolkit))
        expected = sorted(kernel.name for kernel in entry.kernels)
        actual = sorted(kernel.name for kernel in record.kernels)
        if expected != actual:
            self.add(entry.file, "kernels", _expected("kernels", expected, actual))
        kernels = {kernel.name: kernel for kernel in record.kernels}
        for kernel in entry.kernels:
            if kernel.name in kernels:
                self.resources(entry, kernel, kernels[kernel.name])
        return record

    def resources(self, entry: Entry, kernel: KernelInfo, found: KernelRecord) -> None:
        """What both the manifest and the file say; None is what this file does not."""
        arch = int("".join(filter(str.isdigit, entry.target)))
        shared = kernel.static_shared_bytes + (_RESERVED_SHARED if arch >= 90 else 0)
        pairs: list[tuple[str, int, int | None]] = [
            ("registers", kernel.registers, found.registers),
            ("static shared bytes with those reserved", shared, found.shared_bytes),
            ("stack bytes", kernel.stack_bytes, found.frame_bytes),
        ]
        for what, expected, actual in pairs:
            if actual is not None and expected != actual:
                text = _expected(f"{kernel.name}: {what}", expected, actual)
                self.add(entry.file, "resources", text)
        limit = found.required_threads or found.max_threads
        if limit is not None:
            most = limit[0] * limit[1] * limit[2]
            if kernel.threads > most or (found.required_threads and kernel.threads != most):
                text = _expected(f"{kernel.name}: threads", kernel.threads, most)
                self.add(entry.file, "resources", text)
        spilled = kernel.spill_loads + kernel.spill_stores
        if spilled and not found.frame_bytes and found.frame_bytes is not None:
            text = f"{kernel.name}: {spilled} spilled bytes (manifest), but no stack to hold them"
            self.add(entry.file, "resources", text)

    def ptx(self, manifest: Manifest, entry: Entry) -> str | None:
        """Check the PTX; returns its compiler."""
        file = entry.ptx_file
        packed = self.read(file)
        if packed is None:
            return None
        try:
            data = unpack(packed)
            text = data.decode("utf-8")
        except ValueError as problem:
            self.add(file, "ptx", str(problem))
            return None
        self.hash(file, entry.ptx_sha256, data)
        if (target := ptx_target(text)) != entry.target:
            self.add(file, "target", _expected(".target", entry.target, target))
        expected = sorted(kernel.name for kernel in entry.kernels)
        if expected != (actual := sorted(ptx_kernels(text))):
            self.add(file, "kernels", _expected(".entry", expected, actual))
        self.geometry(entry, text)
        compiler = ptx_compiler(text)
        toolkit = manifest.toolkit
        made = f"release {toolkit['release']}, V{toolkit['version']}"
        if compiler != made:
            self.add(file, "toolkit", _expected("compiler", made, compiler))
        return compiler

    def geometry(self, entry: Entry, text: str) -> None:
        """Threads and dynamic shared memory: a constant of the source, in no table of the cubin."""
        try:
            found = ptx_geometry(text)
        except (BuildError, ValueError) as problem:
            self.add(entry.ptx_file, "ptx", str(problem))
            return
        for kernel in entry.kernels:
            if kernel.name not in found:
                reason = f"no constant {kernel.name}_geometry (threads, dynamic shared bytes)"
                self.add(entry.ptx_file, "ptx", reason)
                continue
            names = ("threads", "dynamic shared bytes")
            expected = (kernel.threads, kernel.shared_bytes)
            for what, want, actual in zip(names, expected, found[kernel.name], strict=True):
                if want != actual:
                    reason = _expected(f"{kernel.name}: {what}", want, actual)
                    self.add(entry.ptx_file, "resources", reason)


# --- assembling again -----------------------------------------------------------------------------


def check_flags(manifest: Manifest) -> None:
    """Refuse a manifest whose cubins were assembled with other flags than `assemble` uses.

    Raises
    ------
    BuildError
    """
    if manifest.ptxas_flags is not None and manifest.ptxas_flags != PTXAS_FLAGS:
        raise BuildError(
            f"the cubins were assembled with the ptxas flags {list(manifest.ptxas_flags)}, this "
            f"cakert assembles with {list(PTXAS_FLAGS)}: the bytes would differ"
        )


def rebuild(
    verification: Verification,
    assembler: Assembler,
    *,
    jobs: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Verification:
    """Assemble the PTX of each cubin again and compare the bytes.

    Parameters
    ----------
    verification
        Of `verify`. A cubin whose files are missing, or whose PTX is not the recorded one, is left
        out: it has its finding already.
    assembler
        The ptxas of the manifest's toolkit, from `find_assembler`.
    jobs
        How many at once.
    progress
        Called after each with those done and all.

    Returns
    -------
    Verification
        With `rebuilt` filled in, and a finding for each cubin that came out otherwise.

    Raises
    ------
    BuildError
        The cubins were made with other flags.
    """
    manifest = verification.manifest
    if manifest is None:
        return verification
    check_flags(manifest)
    folder = verification.folder
    other = {"missing", "unreadable", "hash", "ptx"}
    bad = {finding.file for finding in verification.findings if finding.kind in other}
    work = [
        entry
        for entry in manifest.entries
        if entry.ptx_file not in bad and (folder / entry.file).is_file()
    ]

    def one(entry: Entry) -> str:
        """What came out otherwise; empty where the bytes are equal."""
        try:
            ptx = unpack((folder / entry.ptx_file).read_bytes())
            stem = entry.file.removesuffix(".cubin")
            fresh, _ = assemble(assembler.ptxas, ptx, stem, entry.target)
            shipped = (folder / entry.file).read_bytes()
        except (BuildError, OSError, ValueError) as problem:
            return f"could not be assembled: {problem}"
        if fresh == shipped:
            return ""
        digests = [hashlib.sha256(data).hexdigest() for data in (shipped, fresh)]
        return (
            f"ptxas {assembler.version.version} makes other bytes of its PTX: expected "
            f"{digests[0]!r} ({len(shipped)} bytes), actual {digests[1]!r} ({len(fresh)} bytes)"
        )

    said: dict[str, str] = {}
    with ThreadPoolExecutor(jobs) as pool:
        try:
            for done, (entry, text) in enumerate(zip(work, pool.map(one, work), strict=True), 1):
                said[entry.file] = text
                progress(done, len(work))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # Ctrl-C: end with what is running
            raise
    cubins = tuple(
        replace(cubin, rebuilt=not said[cubin.file]) if cubin.file in said else cubin
        for cubin in verification.cubins
    )
    wrong = tuple(Finding(file, "rebuild", text) for file, text in said.items() if text)
    return replace(verification, cubins=cubins, findings=(*verification.findings, *wrong))
