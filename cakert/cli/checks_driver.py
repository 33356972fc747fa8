"""Checks of the driver: its library, kernel module and files, and what stands in its way."""

from __future__ import annotations

import os
import re
from pathlib import Path

from cakert.cli.results import Result
from cakert.cli.surroundings import Surroundings
from cakert.errors import MINIMUM_CUDA, MINIMUM_DRIVER, cuda_text

_STUB, _NO_DEVICE, _NOT_READY, _MISMATCH, _COMPAT = 34, 100, 802, 803, 804
_TOO_OLD = (35, 36)


def _near(here: Surroundings) -> tuple[list[Path], list[Path]]:
    """Folders of LD_LIBRARY_PATH with a libcuda: the driver's, and the toolkit's stubs."""
    real: list[Path] = []
    stubs: list[Path] = []
    for folder in here.library_path():
        if folder.name == "stubs" and any(folder.glob("libcuda.so*")):
            stubs.append(folder)
        elif (folder / "libcuda.so.1").exists():
            real.append(folder)
    return real, stubs


def libcuda(here: Surroundings) -> list[Result]:
    """Which libcuda is there, and whether it is the driver's."""
    state = here.driver
    if not state.library:
        return [_without_libcuda(here)]
    results = []
    real, stubs = _near(here)
    if state.status == _STUB or Path(state.library).parent.name == "stubs":
        results.append(Result("libcuda-stub", state.library))
    elif stubs:
        results.append(Result("libcuda-stub-near", f"{stubs[0]} is there too", {"path": stubs[0]}))
    files = {(folder / "libcuda.so.1").resolve() for folder in real}
    if len(files) > 1:
        found = f"LD_LIBRARY_PATH has one each in {', '.join(map(str, real))}; {state.library} won"
        results.append(Result("libcuda-several", found))
    if here.wsl() and "/wsl/" not in state.library:
        results.append(Result("wsl-shadowed", state.library))
    return results or [Result("libcuda-ok", state.library)]


def _without_libcuda(here: Surroundings) -> Result:
    loader = here.driver.loader
    if loader and "No such file" not in loader:
        return Result("libcuda-broken", loader, {"machine": here.interpreter.machine})
    if here.wsl():
        return Result("wsl-missing", "no libcuda.so.1 in WSL")
    if here.pci_gpus() or here.kernel_module():
        return Result("libcuda-missing-gpu", "no libcuda.so.1, though there is an NVIDIA GPU")
    return Result("libcuda-missing", "no libcuda.so.1: no NVIDIA driver is installed")


def container(here: Surroundings) -> list[Result]:
    """What the NVIDIA container runtime was told."""
    env = here.environ
    inside = here.container() or "NVIDIA_VISIBLE_DEVICES" in env
    if not inside:
        return [Result("container-ok", "not in a container of docker or podman")]
    if here.driver.gpus:
        return [Result("container-ok", "a container that has its GPUs")]
    if not here.driver.asked:
        return [Result("container-ok", f"a container; GPUs {here.driver.problem}")]
    capabilities = env.get("NVIDIA_DRIVER_CAPABILITIES")
    if capabilities and not {"all", "compute"} & {each.strip() for each in capabilities.split(",")}:
        found = f"NVIDIA_DRIVER_CAPABILITIES={capabilities}"
        return [Result("container-capabilities", found)]
    visible = env.get("NVIDIA_VISIBLE_DEVICES")
    if visible is not None and visible in ("", "void", "none"):
        return [Result("container-void", f"NVIDIA_VISIBLE_DEVICES={visible}")]
    where = " whose host has the driver's kernel module" if here.kernel_module() else ""
    return [Result("container-no-gpu", f"a container{where}, without a GPU")]


def _library_version(here: Surroundings) -> str:
    """Version in the name of the file behind libcuda, "" where there is none."""
    if not here.driver.library:
        return ""
    found = re.search(r"\.so\.(\d+\.\d+(?:\.\d+)?)$", str(Path(here.driver.library).resolve()))
    return found.group(1) if found else ""


def kernel_module(here: Surroundings) -> list[Result]:
    """The kernel module, and whether libcuda is of the same driver."""
    module, library = here.kernel_module(), _library_version(here)
    if not here.driver.library:
        return [Result("module-ok", f"nvidia {module}" if module else "none, and no libcuda")]
    if not module:
        # A libcuda without any GPU to drive, as in an image that runs anywhere, is no trouble.
        idle = here.driver.status == _NO_DEVICE and not here.pci_gpus()
        if here.driver.status not in (0, _STUB) and not idle and not here.wsl():
            return [Result("module-missing", "no /proc/driver/nvidia/version")]
        return [Result("module-ok", "none that shows itself in /proc/driver/nvidia")]
    if not library or library == module:
        return [Result("module-ok", f"nvidia {module}, libcuda {library or 'unknown'}")]
    found = f"kernel module {module}, libcuda {library} ({here.driver.library})"
    works = not here.driver.problem
    return [Result("module-compat" if works else "module-mismatch", found)]


def device_files(here: Surroundings) -> list[Result]:
    """The files in /dev by which libcuda reaches the kernel module."""
    if here.driver.gpus:
        return [Result("device-files-ok", "those that the GPUs here need")]
    if not here.kernel_module() or here.wsl():
        return [Result("device-files-ok", "none are needed: no kernel module nvidia")]
    folder = here.root / "dev"
    control = folder / "nvidiactl"
    gpus = sorted(path for path in folder.glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name))
    if not control.exists() or not gpus:
        missing = "nvidiactl" if not control.exists() else "nvidia0"
        return [Result("device-files-missing", f"no /dev/{missing}")]
    if denied := [path for path in (control, *gpus) if not os.access(path, os.R_OK | os.W_OK)]:
        files = ", ".join(path.name for path in denied)
        return [Result("device-files-denied", f"no permission to read and write {files} in /dev")]
    if not (folder / "nvidia-uvm").exists():
        return [Result("uvm-missing", "no /dev/nvidia-uvm")]
    return [Result("device-files-ok", f"nvidiactl, nvidia-uvm, {len(gpus)} GPUs")]


def driver(here: Surroundings) -> list[Result]:
    """Whether the driver can be initialised, and is new enough for the cubins."""
    state = here.driver
    if state.forked:
        return [Result("driver-forked", state.problem)]
    if not state.library:
        return [Result("driver-none", "none to initialise")]
    if not state.asked:
        return [Result("driver-none", state.problem)]
    if state.status in _TOO_OLD:
        return [Result("driver-old", state.problem)]
    if state.version is not None and state.version < MINIMUM_CUDA:
        needed = f"{cuda_text(MINIMUM_CUDA)} (driver {MINIMUM_DRIVER} or newer)"
        found = f"it offers CUDA {cuda_text(state.version)}, the cubins need {needed}"
        return [Result("driver-old", found)]
    cases = {
        _NOT_READY: "driver-not-ready",
        _MISMATCH: "driver-mismatch",
        _COMPAT: "driver-compat",
    }
    if state.status in cases:
        return [Result(cases[state.status], state.problem)]
    # A stub has its own case; no device is for the checks of devices.
    if state.problem and state.status not in (_STUB, _NO_DEVICE):
        hint = state.hint or "see `nvidia-smi` and the kernel log (dmesg | grep NVRM)"
        return [Result("driver-failed", state.problem, {"hint": hint})]
    if state.version is None:
        return [Result("driver-ok", "it answers, and has no GPU for this process")]
    return [Result("driver-ok", f"CUDA {cuda_text(state.version)}")]


def visible_devices(here: Surroundings) -> list[Result]:
    """CUDA_VISIBLE_DEVICES, which the driver reads up to the first entry that it cannot use."""
    value = here.environ.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return [Result("visible-ok", "CUDA_VISIBLE_DEVICES is not set")]
    found = f"CUDA_VISIBLE_DEVICES={value!r}"
    entries = [each.strip() for each in value.split(",")]
    if here.hides_gpus():
        return [Result("visible-none", found)]
    for entry in entries:
        if entry == "-1":
            break
        if re.fullmatch(r"(GPU|MIG)-[\w/-]+", entry):
            continue
        if not re.fullmatch(r"\d+", entry):
            return [Result("visible-garbage", f"{found}: {entry!r} is no GPU")]
        count = here.module_gpus()
        if count and int(entry) >= count:
            text = f"{found}: there are {count} GPUs"
            return [Result("visible-beyond", text, {"count": count})]
    return [Result("visible-ok", found)]
