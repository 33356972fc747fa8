"""The cubins of the package: found by kernel and device, verified before anyone loads them.

The files stand in this folder as data: ``<family>_<variant>.<target>.cubin``, its PTX beside it,
and one ``manifest.json``. Nothing here writes, and nothing is cached but the manifest, so a store
may be used from any number of threads.
"""

from __future__ import annotations

import functools
import hashlib
import re
from pathlib import Path

from cakert.cubins.image import ImageInfo, check_image, describe_image
from cakert.cubins.manifest import Entry, KernelInfo, Manifest, read_manifest
from cakert.cubins.packed import unpack
from cakert.errors import CubinError

__all__ = [
    "CubinStore",
    "Entry",
    "ImageInfo",
    "KernelInfo",
    "Manifest",
    "check_image",
    "describe_image",
    "read_manifest",
    "store",
]

# Targets that load on a device, best first. `a` targets run on exactly one capability, `f` targets
# on later members of their family too (PTX ISA, section 11.1.2). A capability that is not a key has
# no cubins: the driver would refuse any of these there.
TARGETS_OF: dict[tuple[int, int], tuple[str, ...]] = {
    (9, 0): ("sm_90a", "sm_90"),
    (10, 0): ("sm_100a", "sm_100f"),
    (10, 3): ("sm_103a", "sm_103f", "sm_100f"),
}


class CubinStore:
    """The cubins of one folder.

    Parameters
    ----------
    root
        Folder with ``manifest.json`` and the files it names.

    Raises
    ------
    CubinError
        The manifest is missing or malformed.
    """

    def __init__(self, root: Path) -> None:
        self.root = Path(root)
        manifest = read_manifest(self.root)
        self.toolkit = manifest.toolkit
        self.entries: tuple[Entry, ...] = manifest.entries
        self._by_kernel: dict[tuple[str, str], Entry] = {}
        for entry in self.entries:
            for kernel in entry.kernels:
                other = self._by_kernel.setdefault((kernel.name, entry.target), entry)
                if other is not entry:
                    raise CubinError(
                        f"{self.root}: kernel {kernel.name} for {entry.target} stands in both "
                        f"{other.file} and {entry.file}"
                    )

    @property
    def capabilities(self) -> tuple[tuple[int, int], ...]:
        """Compute capabilities that at least one cubin loads on, ascending."""
        targets = {entry.target for entry in self.entries}
        return tuple(
            capability
            for capability, usable in sorted(TARGETS_OF.items())
            if targets.intersection(usable)
        )

    def find(self, kernel_name: str, capability: tuple[int, int]) -> Entry | None:
        """The best cubin that holds `kernel_name` and loads on `capability`, or None."""
        for target in TARGETS_OF.get(capability, ()):
            entry = self._by_kernel.get((kernel_name, target))
            if entry is not None:
                return entry
        return None

    def fitting(self, capability: tuple[int, int]) -> tuple[Entry, ...]:
        """Every cubin that loads on `capability`, in the manifest's order."""
        usable = TARGETS_OF.get(capability, ())
        return tuple(entry for entry in self.entries if entry.target in usable)

    def read(self, entry: Entry) -> bytes:
        """The bytes of a cubin, proven to be those of the manifest.

        Raises
        ------
        CubinError
            The file is missing, its hash is not the recorded one, it is no sound ELF image, or
            it is of another target or lacks a kernel of the entry. Names file, expected, actual.
        """
        data = self._read_file(entry.file)
        self._check_hash(entry.file, entry.sha256, data)
        path = str(self.root / entry.file)
        info = describe_image(data, path)
        if info.target != entry.target:
            raise CubinError(
                f"{path}: expected target {entry.target} (manifest), actual {info.target} "
                f"(e_flags {info.flags:#x})"
            )
        expected = {kernel.name for kernel in entry.kernels}
        if expected != set(info.kernels):
            raise CubinError(
                f"{path}: expected kernels {sorted(expected)} (manifest), actual "
                f"{sorted(info.kernels)}"
            )
        return data

    def ptx(self, entry: Entry) -> str:
        """The PTX that a cubin was assembled from, verified like it.

        Raises
        ------
        CubinError
            The file is missing, no valid xz, or its text is not the recorded one.
        """
        packed = self._read_file(entry.ptx_file)
        try:
            data = unpack(packed)
        except ValueError as problem:
            raise CubinError(f"{self.root / entry.ptx_file}: {problem}") from problem
        self._check_hash(entry.ptx_file, entry.ptx_sha256, data)
        return data.decode("utf-8")

    def _read_file(self, file: str) -> bytes:
        path = self.root / file
        try:
            return path.read_bytes()
        except FileNotFoundError:
            raise CubinError(
                f"{path}: expected by the manifest, actual: no such file (reinstall cakert)"
            ) from None
        except OSError as problem:
            raise CubinError(f"{path}: cannot be read: {problem.strerror}") from problem

    def _check_hash(self, file: str, expected: str, data: bytes) -> None:
        actual = hashlib.sha256(data).hexdigest()
        if expected == actual:
            return
        if re.fullmatch(r"[0-9a-f]{64}", expected):
            why = "the file is not the one that was shipped"
        else:
            why = "the manifest has no valid hash for it"
        raise CubinError(
            f"{self.root / file}: {why}: sha256 expected {expected!r}, actual {actual!r} "
            f"({len(data)} bytes)"
        )


@functools.lru_cache(maxsize=1)
def store() -> CubinStore:
    """The store of the installed package; the manifest is read once.

    Raises
    ------
    CubinError
        The manifest is missing or malformed.
    """
    return CubinStore(Path(__file__).parent)
