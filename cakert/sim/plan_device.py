"""A simulated GPU as the device of a plan: kernels, plan memory and launches on CPU tensors.

What a plan needs of the driver is here in the shape of `runtime/`: a kernel with a parameter
layout, workspaces that take copies, and a launch of packed parameters.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from cakert.sim.copies.tensor_map import TensorMap
from cakert.sim.gpu import Gpu, Module, Schedule
from cakert.sim.machine.launch import MAX_OPERATIONS
from cakert.sim.report import Report

__all__ = ["SimulatedDevice", "SimulatedKernel", "SimulatedWorkspace", "device"]

Progress = Callable[[int, int], None]
Region = tuple[str, int, int, bool]


@contextmanager
def device(
    arch: str,
    *,
    sms: int | None = None,
    schedule: Schedule = "eager",
    seed: int = 0,
    ignore: Iterable[str] = (),
    max_operations: int = MAX_OPERATIONS,
    progress: Progress | None = None,
) -> Iterator[SimulatedDevice]:
    """A device for ``plan_cake_vsa`` whose memory is that of CPU tensors.

    Plans on it take and give tensors on the CPU (torch, numpy with ml_dtypes), run the PTX of the
    shipped cubins, and end with the ``with`` block.

    Parameters
    ----------
    arch, sms, schedule, seed, ignore, max_operations
        As of :class:`~cakert.sim.gpu.Gpu`.
    progress
        Called with CTAs done and CTAs in all while a run goes on.
    """
    simulated = SimulatedDevice(
        Gpu(
            arch,
            sms=sms,
            schedule=schedule,
            seed=seed,
            ignore=ignore,
            max_operations=max_operations,
        ),
        progress,
    )
    try:
        yield simulated
    finally:
        simulated.close()


class SimulatedDevice:
    """What :func:`device` gives.

    Attributes
    ----------
    gpu
        The GPU behind it; None once it is closed.
    capability, multiprocessors
        As a driver would say of the GPU.
    report
        Of the last run, or None.
    """

    def __init__(self, gpu: Gpu, progress: Progress | None = None) -> None:
        self.gpu: Gpu | None = gpu
        self.report: Report | None = None
        self.progress = progress
        self.arch = gpu.arch
        self.capability = gpu.capability
        self.multiprocessors = gpu.sms
        self._lock = threading.Lock()
        self._modules: dict[str, Module] = {}

    def close(self) -> None:
        """End the device; its plans cannot run any more."""
        self.gpu = None
        with self._lock:
            self._modules.clear()

    def require_open(self) -> Gpu:
        """The GPU.

        Raises
        ------
        RuntimeError
            The ``with`` block of the device has ended.
        """
        gpu = self.gpu
        if gpu is None:
            raise RuntimeError(
                f"the simulated device {self} is closed: plan and run inside its with block"
            )
        return gpu

    def kernel(self, name: str, file: str, ptx: Callable[[], str]) -> SimulatedKernel:
        """A kernel of a PTX file, which is read once.

        Parameters
        ----------
        file
            What tells the text from others.
        ptx
            Gives the text.
        """
        gpu = self.require_open()
        with self._lock:
            module = self._modules.get(file)
            if module is None:
                module = self._modules[file] = gpu.load_ptx(ptx())
        return SimulatedKernel(self, module, name)

    def workspace(self, name: str, nbytes: int) -> SimulatedWorkspace:
        """Memory of a plan."""
        return SimulatedWorkspace(self, name, nbytes)

    def __str__(self) -> str:
        return f"sim:{self.arch}"

    def __repr__(self) -> str:
        return f"<{'closed ' if self.gpu is None else ''}simulated device {self.arch}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a simulated device cannot be copied or pickled")


class SimulatedKernel:
    """A kernel with the interface that a plan's launch expects (``vsa_launch.HostKernel``)."""

    def __init__(self, device: SimulatedDevice, module: Module, name: str) -> None:
        self.device, self.module, self.name = device, module, name

    @property
    def place(self) -> str:
        """What messages call the device."""
        return str(self.device)

    def load_on(self, device: object, shared_bytes: int = 0) -> None:
        """Nothing is left to load; RuntimeError where the device is closed."""
        self.device.require_open()

    @property
    def layout(self) -> tuple[tuple[int, int], ...]:
        """Offset and size of each parameter in bytes."""
        return self.module.parameters(self.name)

    def launch_packed(
        self,
        params: bytes,
        regions: tuple[Region, ...],
        maps: tuple[dict[str, Any], ...],
        grid: int,
        threads: int,
        shared_bytes: int,
        cluster: int,
    ) -> None:
        """Run on packed parameters, with the tensors lent where they are.

        Parameters
        ----------
        params
            The kernel's first parameter.
        regions
            Name, address, bytes and whether it may be written, of each tensor.
        maps
            The parameters behind it: arguments of ``TensorMap.encode``.
        cluster
            Thread blocks of a cluster along x.

        Raises
        ------
        RuntimeError
            The device is closed.
        Fault
            The kernel is at fault.
        """
        _uncompiled(self._launch)(params, regions, maps, grid, threads, shared_bytes, cluster)

    def _launch(
        self,
        params: bytes,
        regions: tuple[Region, ...],
        maps: tuple[dict[str, Any], ...],
        grid: int,
        threads: int,
        shared_bytes: int,
        cluster: int,
    ) -> None:
        gpu = self.device.require_open()
        with gpu.lock, ExitStack() as lent:
            for name, address, nbytes, writable in _disjoint(regions):
                lent.enter_context(gpu.lend(address, nbytes, writable=writable, name=name))
            self.device.report = self.module.launch(
                self.name,
                grid=grid,
                block=threads,
                args=(params, *(TensorMap.encode(**each) for each in maps)),
                shared_bytes=shared_bytes,
                cluster=cluster,
                progress=self.device.progress,
            )


class SimulatedWorkspace:
    """Memory of a plan with the interface of ``runtime.memory.Workspace``; it has no streams."""

    def __init__(self, device: SimulatedDevice, name: str, nbytes: int) -> None:
        self.device, self.nbytes = device, nbytes
        self._array = device.require_open().array(np.zeros(nbytes, np.uint8), name=name)

    @property
    def pointer(self) -> int:
        """Its address."""
        return self._array.pointer

    def copy_in(self, array: npt.NDArray[Any], stream: object = None) -> None:
        """Copy an array to the start."""
        self._write(np.ascontiguousarray(array).reshape(1, -1), self.nbytes)

    def copy_rows_in(
        self, array2d: npt.NDArray[Any], pitch_bytes: int, stream: object = None
    ) -> None:
        """Copy rows to places that are ``pitch_bytes`` apart."""
        self._write(np.ascontiguousarray(array2d), pitch_bytes)

    def clear(self, stream: object = None) -> None:
        """Write zeros."""
        with self.device.require_open().lock:
            self._array.data[:] = 0

    def to_numpy(self, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """A copy of the first elements."""
        count = int(np.prod(shape, dtype=np.int64))
        values = self._array.data[: count * np.dtype(dtype).itemsize].copy()
        return values.view(dtype).reshape(shape)

    def _write(self, rows: npt.NDArray[Any], pitch: int) -> None:
        gpu = self.device.require_open()
        source = rows.view(np.uint8).reshape(len(rows), -1)
        with gpu.lock:  # never under a run
            target = self._array.data[: len(rows) * pitch].reshape(len(rows), pitch)
            target[:, : source.shape[1]] = source


def _uncompiled(function: Callable[..., None]) -> Callable[..., None]:
    """The function, out of reach of ``torch.compile``.

    What a compiled function calls behind a graph break is compiled too, and that would be the
    simulator itself: numpy code, which torch does not do in full.
    """
    dynamo = sys.modules.get("torch._dynamo")
    return function if dynamo is None else dynamo.disable(function)


def _disjoint(regions: Iterable[Region]) -> list[Region]:
    """Regions with those joined that overlap: inputs may share memory."""
    joined: list[Region] = []
    for name, start, size, writable in sorted(regions, key=lambda region: region[1]):
        if joined and start < joined[-1][1] + joined[-1][2]:
            other, first, length, other_writable = joined[-1]
            end = max(first + length, start + size)
            joined[-1] = (f"{other}+{name}", first, end - first, writable or other_writable)
        else:
            joined.append((name, start, size, writable))
    return joined
