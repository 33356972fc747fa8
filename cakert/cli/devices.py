"""What GPUs there are, and for which of them the package has cubins."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cakert.errors import CudaError, DriverNotFoundError

if TYPE_CHECKING:
    from cakert.cubins import CubinStore

_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE: a driver is there, a GPU is not


class Device(NamedTuple):
    """One GPU as the driver describes it."""

    ordinal: int
    name: str
    capability: tuple[int, int]


class Machine(NamedTuple):
    """The driver and its GPUs; `driver_version` is None and `problem` says why without one."""

    driver_version: int | None
    devices: tuple[Device, ...]
    problem: str

    def device(self, ordinal: int) -> Device:
        """The GPU of a number; RuntimeError in terms of ``--device`` where there is none."""
        for device in self.devices:
            if device.ordinal == ordinal:
                return device
        reason = self.problem
        if self.devices:
            reason = f"must be in [0, {len(self.devices)}), the GPUs of this machine"
        raise RuntimeError(f"--device cuda:{ordinal}: {reason}")

    def supported(self, store: CubinStore) -> tuple[Device, ...]:
        """The GPUs that the store has cubins for."""
        return tuple(d for d in self.devices if d.capability in store.capabilities)


def look_around() -> Machine:
    """Ask the driver; a machine without driver or GPU is a result here, not an error."""
    from cakert.runtime import driver

    try:
        count = driver.device_count()
        version = driver.driver_version()
    except DriverNotFoundError:
        return Machine(None, (), "no NVIDIA driver found")
    except CudaError as problem:
        if problem.status == _NO_DEVICE:
            return Machine(None, (), "an NVIDIA driver is there, but it sees no GPU")
        return Machine(None, (), f"the NVIDIA driver does not work here: {problem}")
    devices = tuple(
        Device(index, driver.device_name(index), driver.device_capability(index))
        for index in range(count)
    )
    return Machine(version, devices, "" if devices else "the NVIDIA driver sees no GPU")
