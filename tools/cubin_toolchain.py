"""nvcc and ptxas: where they are, how they are called, and what their output says.

The bytes of a cubin must not depend on the folder it was built in. So nvcc runs in the repository
root with relative paths only, ptxas sees nothing but file names of fixed form, there is no
``-lineinfo``, and ptxas assembles exactly the PTX that is shipped. What `cakert verify --rebuild`
needs of this stands in the package, in ``cakert/cubins/assembler.py``. Standard library only.
"""

from __future__ import annotations

import importlib.util
import os
import re
import struct
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cubin_variants import Variant


def _load_assembler() -> Any:
    """The package's module by its path: importing the package would need what it requires.

    It is that of this tree; where the tools stand without it (tests of an installed package), the
    installed one.
    """
    root = Path(__file__).resolve().parent.parent / "cakert"
    if not root.is_dir() and (package := importlib.util.find_spec("cakert")) and package.origin:
        root = Path(package.origin).parent
    spec = importlib.util.spec_from_file_location(
        "cubin_assembler", root / "cubins" / "assembler.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


if TYPE_CHECKING:
    from cakert.cubins import assembler
else:
    assembler = _load_assembler()

NVCC_FLAGS = ("-ptx", "-std=c++17", "-O3", "-I", "cuda")
PTXAS_FLAGS = assembler.PTXAS_FLAGS
BuildError = assembler.BuildError
ptx_geometry = assembler.ptx_geometry
ptx_kernels = assembler.ptx_kernels


@dataclass(frozen=True)
class Toolchain:
    """An nvcc and the ptxas of the same toolkit."""

    nvcc: Path
    ptxas: Path
    version: assembler.Version
    origin: str  # where it was found, for people

    @property
    def identity(self) -> dict[str, str]:
        """What the manifest records; equal identities promise equal bytes."""
        return self.version.identity


@dataclass(frozen=True)
class KernelResources:
    """Resources of one kernel: bytes, and registers a thread."""

    name: str
    threads: int
    shared_bytes: int  # dynamic
    static_shared_bytes: int
    registers: int
    stack_bytes: int
    spill_stores: int
    spill_loads: int
    tensor_instructions: dict[str, int]  # SASS mnemonic -> how many stand in the kernel


@dataclass(frozen=True)
class Built:
    """One variant built for one target."""

    ptx: bytes
    cubin: bytes
    kernels: tuple[KernelResources, ...]
    spilling: tuple[str, ...]  # functions with a spill or a stack frame, callees included
    warnings: tuple[str, ...]
    serialised: tuple[str, ...] = ()  # what ptxas says of wgmma that it does not let overlap


# --- finding a toolkit ----------------------------------------------------------------------------


def find_toolchain(
    toolkit: Path | None = None, identity: dict[str, str] | None = None
) -> Toolchain | None:
    """The first toolkit of: `toolkit`, PATH, CUDA_HOME, the wheels; None without one.

    Parameters
    ----------
    identity
        `Toolchain.identity` that is wanted: the first toolkit that has it goes before the others.

    Raises
    ------
    BuildError
        `toolkit` was given and has no ``bin/nvcc`` and ``bin/ptxas``, or nvcc does not run.
    """
    candidates = assembler.tool_folders(toolkit, "nvcc", "ptxas")
    if not candidates:
        if toolkit is not None:
            raise BuildError(f"--toolkit {toolkit}: no bin/nvcc and bin/ptxas there")
        return None
    found = []
    for folder, origin in candidates if identity else candidates[:1]:
        nvcc = folder / "nvcc"
        version = assembler.parse_version(assembler.run_tool([str(nvcc), "--version"], Path.cwd()))
        found.append(Toolchain(nvcc, folder / "ptxas", version, origin))
    return next((each for each in found if each.identity == identity), found[0])


# --- reading ptxas's output -----------------------------------------------------------------------


def parse_ptxas(
    text: str,
) -> tuple[dict[str, tuple[int, int]], dict[str, tuple[int, int, int]], list[str]]:
    """Read ``ptxas -v``.

    Returns
    -------
    used
        ``{kernel: (registers, static shared bytes)}``.
    properties
        ``{function: (stack bytes, spill stores, spill loads)}``, device functions included.
    warnings
        Lines that ptxas marked as warnings.
    """
    used: dict[str, tuple[int, int]] = {}
    properties: dict[str, tuple[int, int, int]] = {}
    warnings = []
    entry = function = None
    for line in text.splitlines():
        if "warning" in line.lower():
            warnings.append(line.strip())
        if match := re.search(r"Compiling entry function '([^']+)'", line):
            entry = match.group(1)
        elif match := re.search(r"Function properties for (\S+)", line):
            function = match.group(1).strip("'")
        elif match := re.search(
            r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line
        ):
            if function is not None:
                properties[function] = (
                    int(match.group(1)),
                    int(match.group(2)),
                    int(match.group(3)),
                )
        elif (match := re.search(r"Used (\d+) registers", line)) and entry is not None:
            shared = re.search(r"(\d+)(?:\+\d+)? bytes smem", line)
            used[entry] = (int(match.group(1)), int(shared.group(1)) if shared else 0)
            entry = None
    return used, properties, warnings


def serialised_wgmma(text: str) -> tuple[str, ...]:
    """Lines of ``ptxas -v`` on wgmma that runs one instruction at a time (C7510 to C7520).

    ptxas marks them as information, and the kernel stays right; it is merely several times slower.
    """
    return tuple(
        line.strip()
        for line in text.splitlines()
        if re.search(r"\bC75(1\d|20)\b|wgmma\S* instructions are serialized", line)
    )


# Low nine bits of the 16-byte instructions of sm_90 to sm_103, as nvdisasm 13.0 names them.
_TENSOR_OPCODES = {0x1F0: "HGMMA", 0x03C: "HMMA"}


def tensor_instructions(cubin: bytes, kernel: str) -> dict[str, int]:
    """How many tensor core instructions of each kind a kernel's code has, zeros left out."""
    headers, size, count, names = (
        struct.unpack_from(form, cubin, at)[0]
        for form, at in (("<Q", 0x28), ("<H", 0x3A), ("<H", 0x3C), ("<H", 0x3E))
    )
    sections = [struct.unpack_from("<IIQQQQ", cubin, headers + i * size) for i in range(count)]
    wanted = f".text.{kernel}\0".encode()
    for name, _, _, _, start, length in sections:
        at = sections[names][4] + name
        if cubin[at : at + len(wanted)] == wanted:
            words = struct.unpack_from(f"<{length // 8}Q", cubin, start)
            break
    else:
        raise BuildError(f"the cubin has no code of {kernel}")
    seen = Counter(word & 0x1FF for word in words[::2])
    return {name: seen[code] for code, name in _TENSOR_OPCODES.items() if seen[code]}


# --- building -------------------------------------------------------------------------------------


def nvcc_command(toolchain: Toolchain, variant: Variant, target: str, output: Path) -> list[str]:
    """The command that turns a variant into PTX, to be run in the repository root."""
    defines = [f"-D{define}" for define in variant.defines]
    return [
        str(toolchain.nvcc),
        *NVCC_FLAGS,
        f"-arch={target}",
        *defines,
        "-o",
        str(output),
        variant.source,
    ]


def build_variant(toolchain: Toolchain, root: Path, variant: Variant, target: str) -> Built:
    """Build one variant for one target.

    Parameters
    ----------
    root
        Repository root: ``variant.source`` and the include folder ``cuda`` are relative to it.

    Raises
    ------
    BuildError
        A tool failed, or the PTX does not hold exactly the kernels that the table names, each
        with its geometry constant.
    """
    if target not in variant.targets:
        raise BuildError(f"{variant.stem} is not written for {target}, only for {variant.targets}")
    if not (root / variant.source).is_file():
        raise BuildError(f"{variant.stem}: no source {variant.source} in {root}")
    with tempfile.TemporaryDirectory(prefix="cakert-cubin-") as folder:
        work = Path(folder)
        # nvcc names its intermediate files after the process, so give each build its own folder.
        env = {**os.environ, "TMPDIR": folder}
        name = f"{variant.stem}.{target}"
        command = nvcc_command(toolchain, variant, target, work / f"{name}.ptx")
        said = assembler.run_tool(command, cwd=root, env=env)
        ptx = (work / f"{name}.ptx").read_bytes()
    warnings = [line.strip() for line in said.splitlines() if "warning" in line.lower()]
    cubin, report = assembler.assemble(toolchain.ptxas, ptx, name, target)

    text = ptx.decode("utf-8")
    if str(root) in text:
        raise BuildError(f"{name}: the PTX names the folder {root}; its bytes would depend on it")
    expected = sorted(kernel.name for kernel in variant.kernels)
    if sorted(ptx_kernels(text)) != expected:
        raise BuildError(f"{name}: expected the kernels {expected}, got {ptx_kernels(text)}")
    geometry = ptx_geometry(text)
    used, properties, ptxas_warnings = parse_ptxas(report)
    resources = []
    for kernel in expected:
        if kernel not in geometry:
            raise BuildError(f"{name}: the PTX has no constant {kernel}_geometry (threads, bytes)")
        if kernel not in used or kernel not in properties:
            raise BuildError(f"{name}: ptxas reported no resources for {kernel}:\n{report}")
        threads, shared = geometry[kernel]
        if not (1 <= threads <= 1024):
            raise BuildError(f"{name}: {kernel}_geometry has {threads} threads, not 1 to 1024")
        resources.append(KernelResources(kernel, threads, shared, used[kernel][1], used[kernel][0],
                                         *properties[kernel],
                                         tensor_instructions(cubin, kernel)))  # fmt: skip
    spilling = tuple(sorted(name for name, numbers in properties.items() if any(numbers)))
    return Built(ptx, cubin, tuple(resources), spilling, tuple(warnings + ptxas_warnings),
                 serialised_wgmma(report))  # fmt: skip
