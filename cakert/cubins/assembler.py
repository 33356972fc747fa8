"""ptxas: where it is, how it is called so that its bytes come out equal, and what its PTX says.

A cubin of the package is what ptxas makes of exactly the PTX that stands beside it. Its bytes hold
the names of both files, but no folder: so ptxas runs inside a folder of its own and is given bare
names of fixed form. `tools/build_cubins.py` makes the cubins with the functions here, and
`cakert verify --rebuild` makes them again.

Standard library only, and nothing of the package: the build tool loads this file by its path, on
an interpreter that has neither the package nor its requirements.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path

PTXAS_FLAGS = ("-v",)


class BuildError(RuntimeError):
    """A build that cannot go on; the text is what the user reads."""


@dataclass(frozen=True)
class Version:
    """What a tool of the toolkit says about itself; equal values promise equal bytes."""

    release: str  # "13.0"
    version: str  # "13.0.88"
    build: str  # "cuda_13.0.r13.0/compiler.36424714_0"

    @property
    def identity(self) -> dict[str, str]:
        """As the manifest records it under ``toolkit``."""
        return {"release": self.release, "version": self.version, "build": self.build}


@dataclass(frozen=True)
class Assembler:
    """A ptxas, its version, and where it was found, for people."""

    ptxas: Path
    version: Version
    origin: str


# --- finding tools --------------------------------------------------------------------------------


def tool_folders(toolkit: Path | None, *tools: str) -> list[tuple[Path, str]]:
    """Folders that hold all of `tools`, and where each was found, in order of preference.

    Parameters
    ----------
    toolkit
        The only toolkit to look at: a folder with ``bin``. Where it is None: PATH (the folder of
        the first of `tools`), CUDA_HOME, CUDA_PATH, and the wheels of the extra ``cubins``.
    """
    folders: list[tuple[Path, str]] = []
    if toolkit is not None:
        folders.append((toolkit / "bin", "--toolkit"))
    else:
        if on_path := shutil.which(tools[0]):
            folders.append((Path(on_path).resolve().parent, "PATH"))
        homes = ((os.environ.get(variable), variable) for variable in ("CUDA_HOME", "CUDA_PATH"))
        folders += [(Path(home) / "bin", variable) for home, variable in homes if home]
        # The wheels unpack into one tree that looks like a toolkit.
        for key in ("purelib", "platlib"):
            wheels = Path(sysconfig.get_path(key)) / "nvidia" / "cu13" / "bin"
            if (wheels, "wheels") not in folders:
                folders.append((wheels, "wheels"))
    return [
        (folder, origin)
        for folder, origin in folders
        if all((folder / tool).is_file() for tool in tools)
    ]


def run_tool(command: list[str], cwd: Path, env: dict[str, str] | None = None) -> str:
    """Run a tool; returns what it printed (nvcc and ptxas report on both streams).

    Raises
    ------
    BuildError
        It cannot be run, or failed.
    """
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as problem:
        raise BuildError(f"{command[0]} cannot be run: {problem.strerror}") from problem
    if done.returncode != 0:
        raise BuildError(
            f"{Path(command[0]).name} failed with status {done.returncode}\n"
            f"  {' '.join(command)}\n{done.stdout.rstrip()}"
        )
    return done.stdout


def parse_version(text: str) -> Version:
    """Read what ``nvcc --version`` and ``ptxas --version`` print.

    Raises
    ------
    BuildError
        The text has another form.
    """
    release = re.search(r"release (\d+\.\d+), V(\d+\.\d+\.\d+)", text)
    build = re.search(r"^Build (\S+)", text, re.MULTILINE)
    if not release or not build:
        raise BuildError(f"--version has an unknown form: {text.strip()!r}")
    return Version(release.group(1), release.group(2), build.group(1))


def find_assembler(identity: dict[str, str], toolkit: Path | None = None) -> Assembler:
    """Find the ptxas of one version and build: another one would give other bytes.

    Parameters
    ----------
    identity
        ``toolkit`` of a manifest: release, version and build that is wanted.
    toolkit
        As in `tool_folders`.

    Raises
    ------
    BuildError
        There is none, or none of that version; names those that there are and the pip command.
    """
    others = []
    for folder, origin in tool_folders(toolkit, "ptxas"):
        ptxas = folder / "ptxas"
        try:
            version = parse_version(run_tool([str(ptxas), "--version"], folder))
        except BuildError as problem:
            others.append(f"{ptxas} ({origin}), which does not run: {problem}")
            continue
        if version.identity == identity:
            return Assembler(ptxas, version, origin)
        others.append(f"{ptxas} ({origin}) of version {version.version} ({version.build})")
    if others:
        found = f"found {'; '.join(others)}"
    elif toolkit is not None:
        found = f"found none in {toolkit / 'bin'}"
    else:
        found = "found none on PATH, in CUDA_HOME or CUDA_PATH, or from pip"
    raise BuildError(
        f"the cubins were assembled by ptxas {identity['version']} ({identity['build']}); {found}: "
        f"pip install nvidia-cuda-nvcc=={identity['version']}"
    )


# --- assembling -----------------------------------------------------------------------------------


def assemble(ptxas: Path, ptx: bytes, stem: str, target: str) -> tuple[bytes, str]:
    """Assemble PTX as the cubins of the package are.

    Parameters
    ----------
    stem
        Name of the cubin without ``.cubin``; it stands in the bytes.
    target
        As "sm_90a".

    Returns
    -------
    cubin, report
        The bytes, and what ``ptxas -v`` said.

    Raises
    ------
    BuildError
        ptxas cannot be run, or failed.
    """
    with tempfile.TemporaryDirectory(prefix="cakert-cubin-") as folder:
        work = Path(folder)
        (work / f"{stem}.ptx").write_bytes(ptx)
        report = run_tool(
            [str(ptxas), f"-arch={target}", *PTXAS_FLAGS, "-o", f"{stem}.cubin", f"{stem}.ptx"],
            cwd=work,
            env={**os.environ, "TMPDIR": folder},
        )
        return (work / f"{stem}.cubin").read_bytes(), report


# --- reading PTX ----------------------------------------------------------------------------------

# As nvcc writes it: each of these on one line. A pattern that ran on over line ends would take
# quadratic time on a file of blank lines.
_ENTRY = re.compile(r"^[ \t]*(?:\.visible[ \t]+|\.weak[ \t]+)?\.entry[ \t]+([\w$]+)", re.MULTILINE)
_TARGET = re.compile(r"^[ \t]*\.target[ \t]+(sm_\d+[af]?)\b", re.MULTILINE)
_COMPILER = re.compile(
    r"^// Cuda compilation tools, (release \d+\.\d+, V\d+\.\d+\.\d+)", re.MULTILINE
)
_GEOMETRY = re.compile(
    r"^(?:\.visible[ \t]+)?\.(?:const|global)[ \t]+(?:\.align[ \t]+\d+[ \t]+)?\.(b8|b32|u32)[ \t]+"
    r"([\w$]+)_geometry\[(\d+)\][ \t]*(?:=[ \t]*\{([^}\n]*)\})?;",
    re.MULTILINE,
)


def ptx_kernels(ptx: str) -> list[str]:
    """Names of the entry points, in order of appearance."""
    return _ENTRY.findall(ptx)


def ptx_target(ptx: str) -> str | None:
    """The architecture that the text is written for, as "sm_90a"; None without ``.target``."""
    found = _TARGET.search(ptx)
    return found.group(1) if found else None


def ptx_compiler(ptx: str) -> str | None:
    """The compiler as nvcc names it in the header, "release 13.0, V13.0.88"; None without one."""
    found = _COMPILER.search(ptx)
    return found.group(1) if found else None


def ptx_geometry(ptx: str) -> dict[str, tuple[int, int]]:
    """``{kernel: (threads, dynamic shared bytes)}`` from the ``<kernel>_geometry`` constants.

    The kernel source computes both once, as ``uint32_t[2]``. nvcc writes the constant as bytes or
    words and omits trailing zeros.

    Raises
    ------
    BuildError
        A constant of that name is of another length.
    ValueError
        Its values are no numbers, or none of that size.
    """
    found = {}
    for kind, name, length, values in _GEOMETRY.findall(ptx):
        expected = 8 if kind == "b8" else 2
        # Lengths first: the text is a file's, and may have or promise any number of values.
        if int(length) != expected or values.count(",") >= expected:
            words = int(length) // (4 if kind == "b8" else 1)
            raise BuildError(f"{name}_geometry: expected 2 words, got {words}")
        numbers = [int(v, 0) for v in values.split(",")] if values.strip() else []
        numbers += [0] * (expected - len(numbers))
        if kind == "b8":
            raw = bytes(numbers)
            numbers = [int.from_bytes(raw[at : at + 4], "little") for at in (0, 4)]
        found[name] = (numbers[0], numbers[1])
    return found
