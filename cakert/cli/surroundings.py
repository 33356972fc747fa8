"""What `cakert doctor` looks at, gathered once: the checks themselves ask nothing else.

So a test gives a check any surroundings: variables, a folder that plays the file system, what a
driver said. Frameworks are looked up by their metadata and never imported.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import io
import os
import platform
import re
import struct
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

_COMPUTE_MODE = 20  # CU_DEVICE_ATTRIBUTE_COMPUTE_MODE


@dataclass(frozen=True)
class Gpu:
    """One GPU as the driver describes it; `status` and `problem` say why there is no context."""

    ordinal: int
    name: str
    capability: tuple[int, int]
    multiprocessors: int = 0
    compute_mode: int = 0
    free_bytes: int | None = None
    total_bytes: int | None = None
    status: int = 0
    problem: str = ""


@dataclass(frozen=True)
class DriverState:
    """What came of using the driver.

    Attributes
    ----------
    library
        File of the libcuda that this process has loaded; empty without one.
    problem, status, hint
        Why the driver cannot be used, the CUresult, and what to do about it; empty where it can.
    loader
        What the dynamic loader says where there is no libcuda.
    version
        Newest CUDA version that it offers, as 13000.
    asked
        Whether it was used at all: not where our extension module for that cannot be imported.
    """

    library: str = ""
    loader: str = ""
    problem: str = ""
    status: int = 0
    hint: str = ""
    forked: bool = False
    version: int | None = None
    gpus: tuple[Gpu, ...] = ()
    asked: bool = True


@dataclass(frozen=True)
class Interpreter:
    """The Python that runs this."""

    implementation: str
    version: tuple[int, int]
    system: str
    machine: str
    suffix: str
    """Of its extension modules, as ".cpython-312-x86_64-linux-gnu.so"."""
    gil: bool
    start_method: str


@dataclass(frozen=True)
class Surroundings:
    """Everything that the checks look at.

    Attributes
    ----------
    root
        The file system: ``proc``, ``dev``, ``sys`` and ``etc`` are looked for below it.
    import_path
        ``sys.path``; "" is the current folder.
    packages
        Installed distributions by their normalised names, with versions.
    package
        Folder of the `cakert` that runs.
    failures
        Extension modules that cannot be imported, with the reason.
    unusable
        Distributions of `REQUIREMENTS` that are installed and cannot be imported, with the reason.
    """

    environ: Mapping[str, str]
    root: Path
    import_path: tuple[str, ...]
    interpreter: Interpreter
    packages: Mapping[str, str]
    package: Path
    driver: DriverState = field(default_factory=DriverState)
    failures: Mapping[str, str] = field(default_factory=dict)
    unusable: Mapping[str, str] = field(default_factory=dict)

    def library_path(self) -> list[Path]:
        """Folders of LD_LIBRARY_PATH, in its order."""
        return [Path(each) for each in self.environ.get("LD_LIBRARY_PATH", "").split(":") if each]

    def read(self, *parts: str) -> str:
        """A file below `root`; empty where there is none, or it cannot be read."""
        try:
            return self.root.joinpath(*parts).read_text(errors="replace")
        except OSError:
            return ""

    def hides_gpus(self) -> bool:
        """Whether CUDA_VISIBLE_DEVICES leaves no GPU to this process."""
        value = self.environ.get("CUDA_VISIBLE_DEVICES")
        return value is not None and value.partition(",")[0].strip() in ("", "-1")

    def wsl(self) -> bool:
        """Whether this is Linux inside Windows."""
        return "microsoft" in self.read("proc", "version").lower()

    def container(self) -> bool:
        """Whether this is a container, as far as docker and podman mark theirs."""
        marks = (("", ".dockerenv"), ("run", ".containerenv"))
        return any(self.root.joinpath(*mark).exists() for mark in marks)

    def kernel_module(self) -> str:
        """Version of the loaded kernel module nvidia, as "580.65.06"; empty without one."""
        text = self.read("proc", "driver", "nvidia", "version")
        found = re.search(r"\s(\d{3,4}\.\d+(?:\.\d+)?)\s", text)
        return found.group(1) if found else ""

    def module_gpus(self) -> int:
        """How many GPUs the kernel module has."""
        return len(list(self.root.glob("proc/driver/nvidia/gpus/*")))

    def pci_gpus(self) -> int:
        """How many NVIDIA display and 3D controllers stand on the PCI bus."""
        return sum(
            self.read("sys", "bus", "pci", "devices", device.name, "vendor").strip() == "0x10de"
            and self.read("sys", "bus", "pci", "devices", device.name, "class").startswith("0x03")
            for device in self.root.glob("sys/bus/pci/devices/*")
        )


REQUIREMENTS = {
    "cuda-bindings": "cuda.bindings.driver",
    "ml-dtypes": "ml_dtypes",
    "numpy": "numpy",
    "pyelftools": "elftools.elf.elffile",
    "rich": "rich.console",
}
"""What the package requires: distributions, and the module by which each is known to work."""

EXTENSIONS = (
    "cakert.runtime.driver",
    "cakert.runtime.tensor",
    "cakert.runtime.arguments",
    "cakert.runtime.library",
    "cakert.runtime.memory",
    "cakert.runtime.event",
    "cakert.runtime.tensormap",
    "cakert.group_lists",
    "cakert.vsa_launch",
    "cakert.sim.core.code",
    "cakert.sim.core.global_memory",
    "cakert.sim.core.lane_ops",
    "cakert.sim.core.shared_memory",
    "cakert.sim.core.warp",
    "cakert.sim.matrix.mma_core",
)
"""The extension modules, as setup.py builds them."""


def normalised(name: str) -> str:
    """The name of a distribution as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def look_at_interpreter() -> Interpreter:
    """The running one."""
    import multiprocessing

    gil = getattr(sys, "_is_gil_enabled", lambda: True)
    return Interpreter(
        implementation=platform.python_implementation(),
        version=(sys.version_info.major, sys.version_info.minor),
        system=platform.system(),
        machine=platform.machine(),
        suffix=str(sysconfig.get_config_var("EXT_SUFFIX")),
        gil=gil() and not sysconfig.get_config_var("Py_GIL_DISABLED"),
        # The default is asked for, not set: get_start_method() alone would fix it.
        start_method=multiprocessing.get_start_method(allow_none=True)
        or multiprocessing.get_all_start_methods()[0],
    )


def import_extensions(package: Path) -> dict[str, str]:
    """Import each extension module of the package; those that fail, with the reason.

    Where a file is cut short none is imported: the end of this process would be a bus error.
    """
    suffix = str(sysconfig.get_config_var("EXT_SUFFIX"))
    stems = {name: package.joinpath(*name.split(".")[1:]) for name in EXTENSIONS}
    reasons = {name: _cut_short(Path(f"{stem}{suffix}")) for name, stem in stems.items()}
    if not any(reasons.values()):
        reasons = {name: _why_not(name) for name in EXTENSIONS}
    return {name: reason for name, reason in reasons.items() if reason}


def _cut_short(library: Path) -> str:
    """How much of a shared library is there, by its table of sections, which is at its end."""
    try:
        with library.open("rb") as file:
            header, size = file.read(64), os.fstat(file.fileno()).st_size
    except OSError:
        return ""  # what the import says is better
    if len(header) < 64 or header[:6] != b"\x7fELF\2\1":
        return ""
    (offset,) = struct.unpack_from("<Q", header, 40)
    entry, count = struct.unpack_from("<HH", header, 58)
    whole = offset + entry * count
    return f"{library.name} has {size} of {whole} bytes" if size < whole else ""


def _why_not(module: str) -> str:
    try:
        # An extension module that misses numpy prints a traceback besides raising.
        with contextlib.redirect_stderr(io.StringIO()):
            importlib.import_module(module)
    # Whatever goes wrong while a module is imported is what the user has to know.
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"
    return ""


def installed_packages() -> dict[str, str]:
    """Distributions by normalised name, with versions; of several of a name the one imported."""
    found: dict[str, str] = {}
    for each in metadata.distributions():  # in the order of sys.path
        try:
            name, version = each.metadata["Name"], each.version
        except UnicodeDecodeError:
            continue  # damaged: pip cannot read it either
        if name and version:
            found.setdefault(normalised(name), version)
    return found


def loaded_libcuda(maps: str) -> str:
    """File of libcuda in the text of ``/proc/self/maps``; empty without one."""
    found = re.search(r"(/\S*/libcuda\.so[^/\s]*)", maps)
    return found.group(1) if found else ""


def ask_driver() -> DriverState:
    """Use the driver as a kernel would, each GPU up to a context; errors are results here."""
    from cakert.errors import CudaError, DriverNotFoundError, ForkedProcessError
    from cakert.runtime import driver

    state = DriverState()
    try:
        count = driver.device_count()
        version = driver.driver_version()  # where there is no GPU, this raises what cuInit said
        state = DriverState(version=version, gpus=tuple(map(_ask_gpu, range(count))))
    except ForkedProcessError as problem:
        state = DriverState(problem=str(problem), forked=True)
    except DriverNotFoundError as problem:
        state = DriverState(problem=str(problem), loader=_loader_text())
    except CudaError as problem:
        state = DriverState(problem=str(problem), status=problem.status, hint=problem.hint)
    return replace(state, library=_library())


def driver_unasked() -> DriverState:
    """What can be said of the driver without the extension module that uses it."""
    loader = _loader_text()
    problem = "not asked: the extension module that asks it cannot be imported"
    return DriverState(library=_library(), loader=loader, problem=problem, asked=False)


def _library() -> str:
    return loaded_libcuda(Path("/proc/self/maps").read_text(errors="replace"))


def _loader_text() -> str:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as problem:
        return str(problem)
    return ""


def _ask_gpu(ordinal: int) -> Gpu:
    from cakert.errors import CudaError
    from cakert.runtime import driver

    gpu = Gpu(
        ordinal,
        driver.device_name(ordinal),
        driver.device_capability(ordinal),
        multiprocessors=driver.device_multiprocessors(ordinal),
        compute_mode=driver.device_attribute(ordinal, _COMPUTE_MODE),
    )
    try:
        free, total = _memory(ordinal)
    except CudaError as problem:
        return replace(gpu, status=problem.status, problem=str(problem))
    return replace(gpu, free_bytes=free, total_bytes=total)


def _memory(ordinal: int) -> tuple[int, int]:
    """Free and total bytes, which only a context tells; the context is given back at once."""
    from cuda.bindings import driver as cuda

    from cakert.errors import CudaError

    def call(function: str, *arguments: object) -> list[Any]:
        status, *values = getattr(cuda, function)(*arguments)
        if int(status):
            raise CudaError(int(status), call=function)
        return list(values)

    (device,) = call("cuDeviceGet", ordinal)
    (context,) = call("cuDevicePrimaryCtxRetain", device)
    try:
        call("cuCtxPushCurrent", context)
        try:
            free, total = call("cuMemGetInfo")
        finally:
            call("cuCtxPopCurrent")
    finally:
        call("cuDevicePrimaryCtxRelease", device)
    return int(free), int(total)


def look_around_fully() -> Surroundings:
    """The surroundings of this process."""
    import cakert

    packages = installed_packages()
    tried = {name: _why_not(REQUIREMENTS[name]) for name in REQUIREMENTS if name in packages}
    package = Path(cakert.__file__).resolve().parent
    failures = import_extensions(package)
    can_ask = "cakert.runtime.driver" in sys.modules
    return Surroundings(
        environ=dict(os.environ),
        root=Path("/"),
        import_path=tuple(sys.path),
        interpreter=look_at_interpreter(),
        packages=packages,
        package=package,
        driver=ask_driver() if can_ask else driver_unasked(),
        failures=failures,
        unusable={name: reason for name, reason in tried.items() if reason},
    )
