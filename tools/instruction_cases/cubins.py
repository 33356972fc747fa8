"""Texts assembled by ptxas, here and now or beforehand for a machine that has no toolkit."""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
import zipfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

__all__ = ["Assembler", "CubinPack", "CubinSource", "assemble"]

_VERSION = "ptxas-version"


def assemble(ptx: str) -> bytes:
    """The cubin of a text for sm_90a; RuntimeError with the words of ptxas."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "case.ptx", Path(folder) / "case.cubin"
        source.write_text(ptx)
        command = ["ptxas", "-arch=sm_90a", str(source), "-o", str(target)]
        done = subprocess.run(command, text=True, capture_output=True, check=False)
        if done.returncode:
            raise RuntimeError(f"ptxas: {(done.stdout + done.stderr).strip()[:2000]}")
        return target.read_bytes()


class CubinSource(Protocol):
    """Gives cubins of texts."""

    def version(self) -> str:
        """Of the ptxas that made them."""

    def cubin(self, ptx: str) -> bytes:
        """Of one text; RuntimeError where there is none."""


class Assembler:
    """ptxas on PATH."""

    def version(self) -> str:
        """The last line of ``ptxas --version``, which names the build."""
        done = subprocess.run(["ptxas", "--version"], text=True, capture_output=True, check=True)
        return done.stdout.strip().splitlines()[-1]

    def cubin(self, ptx: str) -> bytes:
        """See `assemble`."""
        return assemble(ptx)


class CubinPack:
    """A zip file of cubins, each named by the SHA-256 of its text."""

    def __init__(self, path: Path) -> None:
        with zipfile.ZipFile(path) as file:
            self._members = {name: file.read(name) for name in file.namelist()}

    @staticmethod
    def write(path: Path, texts: Iterable[str]) -> None:
        """Assemble texts into a new pack; RuntimeError with the words of ptxas."""
        texts = list(texts)
        with ThreadPoolExecutor(4) as pool, zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as file:
            file.writestr(_VERSION, Assembler().version())
            for text, cubin in zip(texts, pool.map(assemble, texts), strict=True):
                file.writestr(hashlib.sha256(text.encode()).hexdigest(), cubin)

    def version(self) -> str:
        """Of the ptxas that made the pack."""
        return self._members[_VERSION].decode()

    def cubin(self, ptx: str) -> bytes:
        """RuntimeError where the pack was made of other texts."""
        found = self._members.get(hashlib.sha256(ptx.encode()).hexdigest())
        if found is None:
            raise RuntimeError("the pack has no cubin of this text: make it again")
        return found
