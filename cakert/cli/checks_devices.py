"""Checks of the GPUs: whether there are cubins for them, and whether they can be used now."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cakert.cli.results import Result
from cakert.cli.surroundings import Gpu, Surroundings

if TYPE_CHECKING:
    from cakert.cubins import CubinStore

_EXCLUSIVE, _PROHIBITED = 3, 2  # CUcomputemode
_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE
_LITTLE_MEMORY = 1 << 30


def _name(gpu: Gpu) -> str:
    return f"cuda:{gpu.ordinal} {gpu.name}"


def _store() -> CubinStore | None:
    """The shipped cubins; None where their manifest cannot be read, which is another check's."""
    from cakert.errors import CubinError

    try:
        from cakert.cubins import store

        return store()
    except (CubinError, ImportError):
        return None


def _capabilities() -> tuple[tuple[int, int], ...]:
    """Those that the package has cubins for."""
    cubins = _store()
    return () if cubins is None else cubins.capabilities


def usable(here: Surroundings) -> tuple[Gpu, ...]:
    """The GPUs that have cubins, a context and a compute mode that lets us in."""
    capabilities = _capabilities()
    return tuple(
        gpu
        for gpu in here.driver.gpus
        if gpu.capability in capabilities and not gpu.problem and gpu.compute_mode != _PROHIBITED
    )


def devices(here: Surroundings) -> list[Result]:
    """The GPUs, and whether the shipped cubins fit them."""
    if not here.driver.gpus:
        # A driver that does not answer at all has its own check.
        answers = (
            here.driver.asked and here.driver.library and here.driver.status in (0, _NO_DEVICE)
        )
        if answers and here.module_gpus() and not here.hides_gpus():
            found = f"the kernel module has {here.module_gpus()} GPUs, the driver shows none"
            return [Result("devices-unseen", found)]
        return [Result("devices-none", "no GPU that this process could use")]
    cubins, capabilities = _store(), _capabilities()
    supported = ", ".join(f"{major}.{minor}" for major, minor in capabilities) or "none"
    results = []
    for gpu in here.driver.gpus:
        found = f"{_name(gpu)}, compute capability {gpu.capability[0]}.{gpu.capability[1]}"
        if cubins is not None and gpu.capability in capabilities:
            fit = f"{len(cubins.fitting(gpu.capability))} of {len(cubins.entries)} cubins fit"
            results.append(Result("devices-ok", f"{found}: {fit}"))
        else:
            results.append(Result("device-unsupported", found, {"supported": supported}))
    return results


def _each(here: Surroundings, case: str, judge: Callable[[Gpu], Result | None]) -> list[Result]:
    """One result a GPU that `judge` objects to, else `case` for all of them."""
    results = [result for gpu in here.driver.gpus if (result := judge(gpu)) is not None]
    count = len(here.driver.gpus)
    return results or [Result(case, f"{count} GPUs looked at" if count else "no GPU to look at")]


def compute_mode(here: Surroundings) -> list[Result]:
    """Whether a GPU lets processes in."""

    def judge(gpu: Gpu) -> Result | None:
        values: dict[str, object] = {"ordinal": gpu.ordinal}
        if gpu.compute_mode == _PROHIBITED:
            return Result("compute-mode-prohibited", f"{_name(gpu)}: prohibited", values)
        if gpu.compute_mode == _EXCLUSIVE:
            return Result("compute-mode-exclusive", f"{_name(gpu)}: exclusive process", values)
        return None

    return _each(here, "compute-mode-ok", judge)


def mig(here: Surroundings) -> list[Result]:
    """Whether a GPU is a slice of one."""

    def judge(gpu: Gpu) -> Result | None:
        if " MIG " not in f"{gpu.name} ":
            return None
        return Result("mig-slice", f"{_name(gpu)} with {gpu.multiprocessors} multiprocessors")

    return _each(here, "mig-ok", judge)


def memory(here: Surroundings) -> list[Result]:
    """Whether a context can be made on each GPU, and how much memory is free there."""

    def judge(gpu: Gpu) -> Result | None:
        if gpu.problem:
            hint = "see `nvidia-smi` for who uses it, and in which compute mode it is"
            return Result("context-failed", f"{_name(gpu)}: {gpu.problem}", {"hint": hint})
        if gpu.free_bytes is not None and gpu.free_bytes < _LITTLE_MEMORY:
            of = "" if gpu.total_bytes is None else f" of {gpu.total_bytes >> 20}"
            return Result("memory-low", f"{_name(gpu)}: {gpu.free_bytes >> 20}{of} MiB free")
        free = "unknown" if gpu.free_bytes is None else f"{gpu.free_bytes >> 20} MiB"
        return Result("memory-ok", f"{_name(gpu)}: {free} free")

    return _each(here, "memory-ok", judge)
