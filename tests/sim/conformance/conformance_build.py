"""From the fetched wheels to PTX: nvcc for CUDA sources, Triton in a process of its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
FLASHINFER = "flashinfer-0.7.2.post1"
TRITON = f"triton-3.6.0-cp{sys.version_info[0]}{sys.version_info[1]}"
FETCH = "run tools/get_conformance.sh"

OLDEST_NVCC = (12, 9)  # the first with sm_103a

# What the wheel's own build passes, but for -cubin.
NVCC_FLAGS = ("-ptx", "--std=c++17", "--use_fast_math")


def folder() -> Path:
    """Where `tools/get_conformance.sh` unpacks by default."""
    chosen = os.environ.get("CAKERT_CONFORMANCE")
    return Path(chosen) if chosen else Path.home() / ".cache/cakert/conformance"


def sources() -> Path:
    """CUDA sources of the flashinfer wheel."""
    return folder() / FLASHINFER / "flashinfer/data/csrc"


@cache
def why_unavailable(what: str) -> str:
    """The reason why tests of "flashinfer" or "triton" kernels cannot run here, or nothing."""
    if what == "flashinfer":
        if not sources().is_dir():
            return f"no kernels of the flashinfer wheel in {folder()}: {FETCH}"
        if shutil.which("nvcc") is None:
            return "no nvcc on PATH to compile the kernels of the flashinfer wheel"
        version = subprocess.run(["nvcc", "--version"], capture_output=True, text=True).stdout
        found = re.search(r"release (\d+)\.(\d+)", version)
        if found is None or tuple(map(int, found.groups())) < OLDEST_NVCC:
            return (
                f"nvcc must be {OLDEST_NVCC[0]}.{OLDEST_NVCC[1]} or newer, got {version.strip()!r}"
            )
        return ""
    if not (folder() / TRITON).is_dir():
        python = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        return f"no {TRITON} in {folder()}: {FETCH} with PYTHON={python}"
    return ""


@cache
def sm90_manifest() -> dict[str, dict[str, Any]]:
    """Records of the wheel's sm_90a modules by stage ("small_k1", "attention", ...)."""
    path = sources() / "cake_vsa_sm90/cake_vsa_sm90_manifest.json"
    return {module["route"]["stage"]: module for module in json.loads(path.read_text())["modules"]}


@dataclass(frozen=True)
class TritonKernel:
    """What Triton's compiler says about a kernel: its PTX and how to launch it.

    Attributes
    ----------
    threads
        Of a thread block.
    shared_bytes
        Dynamic shared memory.
    hidden_pointers
        Parameters that Triton appends to those of the source (scratch memory; unused here).
    """

    ptx: str
    name: str
    threads: int
    shared_bytes: int
    hidden_pointers: int


class Toolchain:
    """Compiles into a folder and remembers."""

    def __init__(self, scratch: Path):
        self.scratch = scratch

    def cuda(self, source: Path, arch: str) -> str:
        """PTX of a CUDA source for "sm_100a" and the like."""
        ptx = self.scratch / f"{source.stem}.{arch}.ptx"
        if not ptx.exists():
            partial = ptx.with_suffix(f".{os.getpid()}")
            command = ["nvcc", *NVCC_FLAGS, f"-arch={arch}", str(source), "-o", str(partial)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
            assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr}"
            partial.replace(ptx)
        return ptx.read_text()

    def triton(self, kernel: str, capability: int) -> TritonKernel:
        """A kernel of `triton_kernels` for compute capability 90, 100 or 103."""
        record = self.scratch / f"triton-{kernel}-{capability}.json"
        if not record.exists():
            script = HERE / "triton_compile.py"
            command = [sys.executable, str(script), str(folder() / TRITON), kernel]
            command += [str(capability), str(record)]
            environment = {**os.environ, "TRITON_HOME": str(self.scratch)}
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=300, env=environment
            )
            assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr}"
        return TritonKernel(**json.loads(record.read_text()))
