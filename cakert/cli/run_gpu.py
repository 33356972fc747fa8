"""``cakert run`` on a GPU: which one, one launch for the results, many for the time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cakert.cli.console import capability_text
from cakert.cli.devices import Device, Machine, look_around
from cakert.cli.kernel_files import Image, targets_text
from cakert.cli.launch_job import Job
from cakert.errors import CudaError
from cakert.inspect.fit import runs_on

Array = npt.NDArray[Any]

WARM_UP = 3
_L2_CACHE_SIZE = 38  # CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE


def pick_device(
    wanted: int | None, images: tuple[Image, ...], path: Path
) -> tuple[Device, tuple[Image, ...]]:
    """The GPU to run on, and the cubins that it loads.

    Raises
    ------
    CubinError
        There is nothing but PTX.
    RuntimeError
        There is no such GPU, or no image of the file fits it.
    """
    cubins = tuple(image for image in images if image.kind == "cubin")
    if not cubins:
        if wanted is None:
            raise RuntimeError(
                f"{path}: PTX alone, which runs on the simulator: give --device sim:sm_90a, "
                "sim:sm_100a or sim:sm_103a"
            )
        from cakert.runtime.image import check_image

        check_image(images[0].read(), images[0].place)  # says what to do with PTX
    machine = look_around()
    if wanted is None:
        for device in machine.devices:
            if fitting := _fitting(cubins, device):
                return device, fitting
        raise RuntimeError(
            f"{path}: no GPU to run it on: {_found(machine)}; it has {targets_text(images)}. PTX "
            "runs without one: --device sim:sm_90a, sim:sm_100a or sim:sm_103a"
        )
    device = machine.device(wanted)
    if fitting := _fitting(cubins, device):
        return device, fitting
    raise RuntimeError(
        f"--device cuda:{wanted}: {_text(device)} loads no image of {path}, which has "
        f"{targets_text(images)}"
    )


def _fitting(cubins: tuple[Image, ...], device: Device) -> tuple[Image, ...]:
    # What has an unknown target may load: the driver will say.
    return tuple(one for one in cubins if runs_on(one.target, device.capability) is not False)


def _text(device: Device) -> str:
    return f"{device.name} ({capability_text((device.capability,))})"


def _found(machine: Machine) -> str:
    if not machine.devices:
        return machine.problem
    return "found " + ", ".join(map(_text, machine.devices))


def execute(
    job: Job, device: Device, launches: int
) -> tuple[dict[str, Array], npt.NDArray[np.float64] | None]:
    """Launch once and fetch all arrays; then launch again for the time.

    Parameters
    ----------
    launches
        Timed ones, after `WARM_UP` others; 0 for none.

    Returns
    -------
    dict, numpy.ndarray or None
        The arrays after exactly one launch, by name; microseconds of each timed launch.

    Raises
    ------
    TypeError, ValueError
        Arguments or geometry that the device does not take.
    CudaError
        The driver refuses something, or the kernel failed.
    """
    from cakert.runtime import driver
    from cakert.runtime.library import Library
    from cakert.runtime.memory import DeviceArray

    initial = [argument.value for argument in job.arguments if argument.is_array]
    if not initial and device.ordinal != 0:
        raise ValueError(
            f"on cuda:{device.ordinal} the kernel needs at least one array, which says where it "
            "runs; without one use CUDA_VISIBLE_DEVICES"
        )
    kernel = Library(job.image.read(), detail=job.image.place)[job.symbol]
    arrays = [DeviceArray.from_numpy(array, device.ordinal) for array in initial]
    waiting = iter(arrays)
    arguments: list[Any] = [
        next(waiting) if argument.is_array else _raw(argument.value) for argument in job.arguments
    ]
    launcher = kernel.prepare(
        *arguments,
        grid=job.grid,
        block=job.block,
        shared_bytes=job.shared_bytes,
        cluster=job.cluster,
    )
    # Uploads were put on the legacy stream, where the launch goes too.
    try:
        launcher.run(*arrays, stream=0)
        driver.synchronize(device.ordinal)
        names = [argument.name for argument in job.arguments if argument.is_array]
        results = {name: array.numpy() for name, array in zip(names, arrays, strict=True)}
        if not launches:
            return results, None
        for array, values in zip(arrays, initial, strict=True):
            array.copy_from(values)
        return results, _time(launcher, arrays, device.ordinal, launches)
    except CudaError as problem:
        place = f"kernel {job.symbol}, {job.launch_text}"
        detail = f"{problem.detail}; {place}" if problem.detail else place
        raise CudaError(problem.status, problem.name, problem.call, detail) from problem


def _raw(value: Any) -> bytes:
    # Bytes and not the scalar: their number was checked, and the driver knows no types.
    return value if isinstance(value, bytes) else bytes(value.tobytes())


def flush_bytes(device: int) -> int:
    """What is written before each timed launch: four times the L2 cache."""
    from cakert.runtime import driver

    return 4 * driver.device_attribute(device, _L2_CACHE_SIZE)


def _time(launcher: Any, arrays: list[Any], device: int, launches: int) -> npt.NDArray[np.float64]:
    """Microseconds of each launch, by events.

    The memory that is cleared in between pushes the arrays out of the L2 cache, and it keeps the
    device busy while the host queues the launch and its events: else they would count its time.
    """
    from cakert.runtime import driver
    from cakert.runtime.event import Event
    from cakert.runtime.memory import Workspace

    cleared = Workspace(device, flush_bytes(device))
    pairs = [(Event(device), Event(device)) for _ in range(launches)]
    for _ in range(WARM_UP):
        launcher.run(*arrays, stream=0)
    for start, end in pairs:
        cleared.clear(stream=0)
        start.record(0)
        launcher.run(*arrays, stream=0)
        end.record(0)
    driver.synchronize(device)
    return np.array([end.elapsed_us(start) for start, end in pairs])
