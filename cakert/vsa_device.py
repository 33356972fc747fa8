"""A plan's side of its device: which one, which kernel, which memory, which stream.

The one module between the contract and `runtime/`, or, where a plan's device is simulated, `sim/`.
Both are imported inside functions: a machine without a driver checks plans as well, and
`import cakert` stays small.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from typing import Any, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from cakert import arrays, groups, routes, validation
from cakert.errors import MINIMUM_CUDA, MINIMUM_DRIVER, CubinError
from cakert.groups import Groups
from cakert.planner import Pattern
from cakert.validation import Device, Problem, is_simulated

__all__ = [
    "DeviceIndex",
    "capabilities",
    "capture_under_way",
    "group_rows",
    "load_kernel",
    "make_call",
    "open_device",
    "require_open",
    "stream_of",
    "upload",
    "wait",
    "wake_driver",
    "write",
]

Tensor: TypeAlias = Any

# Frameworks whose captures only the driver knows of; torch and CuPy are asked themselves.
_FOREIGN = ("cakert", "other")

_load_lock = threading.Lock()
_libraries: dict[str, Any] = {}
_kernels: dict[tuple[str, str], Any] = {}


class DeviceIndex:
    """The plan's device: a simulated one, or an index that the driver is only asked for late."""

    def __init__(self, problem: Problem) -> None:
        self._index = problem.device

    def __call__(self) -> Device:
        """The device; RuntimeError where the current device is meant and there is none."""
        if self._index is None:
            self._index = _current_device()
        return self._index


def capabilities() -> tuple[tuple[int, int], ...]:
    """Compute capabilities with cubins; empty where the package was installed without any."""
    from cakert import cubins

    try:
        return tuple(cubins.store().capabilities)
    except CubinError:
        return ()


def _current_device() -> int:
    torch = sys.modules.get("torch")
    # torch remembers a device that it has not made current yet.
    if torch is not None and torch.cuda.is_initialized():
        return int(torch.cuda.current_device())
    from cakert.runtime import driver

    if driver.device_count() == 0:
        _refuse_device("cuda", "this machine has no CUDA device")
    return int(driver.current_device())


def capture_under_way(tensors: Iterable[Tensor | None], device: Device | None = None) -> bool:
    """Whether copies of ``tensors`` would be captured; never the first to touch the driver.

    Parameters
    ----------
    device
        Also look at the default stream of this device, which must be in use already; a simulated
        one has no streams.
    """
    known = [(arrays.framework_of(t), t) for t in tensors if t is not None and arrays.is_tensor(t)]
    torch = sys.modules.get("torch")
    if (
        torch is not None
        and torch.cuda.is_initialized()
        and torch.cuda.is_current_stream_capturing()
    ):
        return True
    cupy = sys.modules.get("cupy")
    if (
        cupy is not None
        and any(framework == "cupy" for framework, _ in known)
        and cupy.cuda.get_current_stream().is_capturing()
    ):
        return True
    driver = sys.modules.get("cakert.runtime.driver")
    if driver is None or not driver.initialised():
        return False
    # The streams that copies would use, which need not be those of the current device.
    streams = [(t.stream, t.device) for framework, t in known if framework == "cakert"]
    streams += [
        (0, arrays.device_of(t)[1])
        for framework, t in known
        if framework == "other" and arrays.device_of(t)[0] == "cuda"
    ]
    if device is not None and not is_simulated(device):
        streams.append((0, device))
    return bool(driver.is_capturing(0)) or any(driver.is_capturing(*each) for each in streams)


def wake_driver(tensors: Iterable[Tensor | None]) -> None:
    """Use the driver for the first time where ``tensors`` lie in foreign GPU memory.

    Whether such a tensor's owner captures can be asked of nobody else.
    """
    foreign = [t for t in tensors if t is not None and arrays.framework_of(t) in _FOREIGN]
    if any(arrays.device_of(tensor)[0] == "cuda" for tensor in foreign):
        from cakert.runtime import driver

        driver.device_count()


def open_device(problem: Problem, device: Device) -> tuple[routes.Route, Any]:
    """Open a device: the route there, and the cubin entry that has its kernel.

    Raises
    ------
    RuntimeError
        No driver, no such device, no cubins for its capability, or a driver too old for them; a
        simulated device that is closed.
    CubinError
        The manifest is missing or malformed.
    """
    from cakert import cubins

    if is_simulated(device):
        capability = device.require_open().capability
    else:
        capability = _open_driver(device)
    route = routes.choose(
        capability,
        R=problem.block,
        head_dim=problem.head_dim,
        dtype=problem.dtype,
        rows=problem.num_qo_heads * problem.q_blocks,
        kv_blocks=problem.kv_blocks,
        sms=_multiprocessors(device),
    )
    entry = cubins.store().find(route.name, capability)
    if entry is None:
        raise RuntimeError(
            f"no cubin has kernel {route.name} for compute capability "
            f"{capability[0]}.{capability[1]}: reinstall cakert"
        )
    return route, entry


def _open_driver(index: int) -> tuple[int, int]:
    """The capability of a CUDA device that cubins run on."""
    from cakert import cubins
    from cakert.runtime import driver

    count = driver.device_count()
    if index >= count:
        _refuse_device(f"cuda:{index}", f"this machine has {count} CUDA device(s)")
    capability: tuple[int, int] = driver.device_capability(index)
    store = cubins.store()
    if capability not in store.capabilities:
        _refuse_device(
            f"cuda:{index}",
            f"{driver.device_name(index)} has compute capability {capability[0]}.{capability[1]}",
        )
    version = driver.driver_version()
    if version < MINIMUM_CUDA:
        raise RuntimeError(
            f"cubins of CUDA 13.0 need driver {MINIMUM_DRIVER} or newer, got a driver for CUDA "
            f"{driver.version_text(version)}"
        )
    return capability


def require_open(device: Device) -> None:
    """RuntimeError where ``device`` is a simulated one that is closed."""
    if is_simulated(device):
        device.require_open()


def load_kernel(name: str, entry: Any, device: Device) -> Any:
    """The kernel of a verified cubin, loaded once a process.

    A simulated device loads the PTX that the cubin was assembled from, once a device.
    """
    from cakert import cubins

    if is_simulated(device):
        return device.kernel(name, entry.ptx_file, lambda: cubins.store().ptx(entry))
    from cakert.runtime.library import Library

    with _load_lock:
        kernel = _kernels.get((name, entry.target))
        if kernel is None:
            library = _libraries.get(entry.file)
            if library is None:
                store = cubins.store()
                library = _libraries[entry.file] = Library(
                    store.read(entry),
                    sha256=entry.sha256,
                    detail=f"{entry.file}: {entry.target}, toolkit {store.toolkit['release']}",
                )
            kernel = _kernels[name, entry.target] = library[name]
        return kernel


def group_rows(
    problem: Problem, pattern: Pattern, route: routes.Route, device: Device
) -> Groups | None:
    """The groups of a pattern's rows, where the route's kernel reads them.

    Raises
    ------
    ValueError
        Their lists are too long together for the kernel's offsets.
    """
    if not route.grouped:
        return None
    number, stride = groups.group_shape(
        num_qo_heads=problem.num_qo_heads,
        num_kv_heads=problem.num_kv_heads,
        q_blocks=problem.q_blocks,
        kv_blocks=problem.kv_blocks,
        capacity=pattern.capacity,
    )
    if number * stride > validation.MAX_LIST_ENTRIES:
        raise ValueError(
            "the lists of all groups of query blocks must have at most "
            f"{validation.MAX_LIST_ENTRIES} entries, got {number} groups of up to {stride}"
        )
    return groups.plan_groups(
        pattern.row_blocks,
        pattern.row_counts,
        kv_blocks=problem.kv_blocks,
        num_kv_heads=problem.num_kv_heads,
        sms=_multiprocessors(device),
        capacity=pattern.capacity,
    )


def upload(
    problem: Problem,
    pattern: Pattern,
    grouped: Groups | None,
    lens: npt.NDArray[np.int32] | None,
    device: Device,
    stream: int,
) -> dict[str, Any]:
    """Allocate a plan's device memory and start filling it: workspaces by name."""
    if grouped is None:
        rows = problem.num_qo_heads * problem.q_blocks
        lists = rows * pattern.capacity * pattern.index_bytes
        sizes = {"row_blocks": lists, "row_counts": rows * 4, "tile_order": rows * 4}
    else:
        entries = len(grouped.counts) * grouped.stride
        sizes = {
            "group_rows": grouped.rows.nbytes,
            "group_blocks": entries * pattern.index_bytes,
            "group_members": entries,
            "group_counts": grouped.counts.nbytes,
        }
    if lens is not None:
        sizes["kv_block_lens"] = lens.nbytes
    workspace = {name: _workspace(device, name, nbytes) for name, nbytes in sizes.items()}
    if grouped is None and pattern.row_blocks.shape[1] < pattern.capacity:
        # A kernel may read past a row's list in vain, but not what nobody has written.
        workspace["row_blocks"].clear(stream)
    write(workspace, pattern, grouped, lens, stream)
    return workspace


def _workspace(device: Device, name: str, nbytes: int) -> Any:
    if is_simulated(device):
        return device.workspace(name, nbytes)
    from cakert.runtime.memory import Workspace

    return Workspace(device, nbytes)


def write(
    workspace: dict[str, Any],
    pattern: Pattern | None,
    grouped: Groups | None,
    lens: npt.NDArray[np.int32] | None,
    stream: int,
) -> None:
    """Copy a pattern and lengths into their workspaces, in the order of ``stream``.

    Parameters
    ----------
    grouped
        The groups of ``pattern``, where the kernel reads them in place of its rows.
    """
    if grouped is not None:
        pitch = grouped.stride * grouped.blocks.itemsize
        workspace["group_rows"].copy_in(grouped.rows, stream)
        workspace["group_blocks"].copy_rows_in(grouped.blocks, pitch, stream)
        workspace["group_members"].copy_rows_in(grouped.members, grouped.stride, stream)
        workspace["group_counts"].copy_in(grouped.counts, stream)
    elif pattern is not None:
        pitch = pattern.capacity * pattern.index_bytes
        workspace["row_blocks"].copy_rows_in(pattern.row_blocks, pitch, stream)
        workspace["row_counts"].copy_in(pattern.row_counts, stream)
        workspace["tile_order"].copy_in(pattern.tile_order, stream)
    if lens is not None:
        workspace["kv_block_lens"].copy_in(lens, stream)


def make_call(
    problem: Problem,
    pattern: Pattern,
    grouped: Groups | None,
    route: routes.Route,
    record: Any,
    kernel: Any,
    device: Device,
    workspace: dict[str, Any],
) -> Any:
    """The launch of a plan, with everything frozen but the tensors of a run."""
    from cakert.vsa_launch import VsaCall

    addresses = {name: space.pointer for name, space in workspace.items()}
    items = problem.num_qo_heads * problem.q_blocks
    sms = _multiprocessors(device)
    if grouped is None:
        sizes = {"row_stride": pattern.capacity}
        if items <= sms * route.per_sm:
            # All rows run at once, and start sooner where none has to look its number up.
            addresses["tile_order"] = 0
    else:
        items = len(grouped.counts)
        sizes = {"num_groups": items, "group_stride": grouped.stride}
    return VsaCall(
        kernel,
        device=0 if is_simulated(device) else device,
        M=problem.M,
        N=problem.N,
        block=problem.block,
        num_qo_heads=problem.num_qo_heads,
        num_kv_heads=problem.num_kv_heads,
        head_dim=problem.head_dim,
        dtype=problem.dtype,
        sm_scale=problem.sm_scale,
        index_bytes=pattern.index_bytes,
        grid=route.grid(items, sms) * route.cluster,
        cluster=route.cluster,
        threads=route.threads or record.threads,
        shared_bytes=record.shared_bytes,
        tensor_maps=route.tensor_maps,
        keep_alive=tuple(workspace.values()),
        **addresses,
        **sizes,
    )


def _multiprocessors(device: Device) -> int:
    if is_simulated(device):
        return int(device.multiprocessors)
    from cakert.runtime import driver

    return int(driver.device_multiprocessors(device))


def stream_of(tensor: Tensor, device: Device) -> int:
    """The stream that metadata is copied on: its framework's current one, else the legacy one."""
    if is_simulated(device) or arrays.framework_of(tensor) == "numpy":
        return 0
    from cakert.runtime import tensor as runtime_tensor

    return int(runtime_tensor.current_stream(tensor, device))


def wait(stream: int, device: Device) -> None:
    """Wait for the work of a stream; a simulated device never has any under way."""
    if is_simulated(device):
        return
    from cakert.runtime import driver

    driver.stream_synchronize(stream, device)


def _refuse_device(device: str, found: str) -> NoReturn:
    raise RuntimeError(
        f"device must be a CUDA device of compute capability "
        f"{validation.describe_capabilities(capabilities())}, got {device}: {found}"
    )
