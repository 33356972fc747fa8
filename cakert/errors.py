"""Exceptions of the package, and what to do about each status of the CUDA driver.

The table below is data: status code -> (name, what it means, what to do). It holds the codes
that users of a kernel runtime meet; any other code keeps the name that the driver reports.
"""

from __future__ import annotations

__all__ = [
    "MINIMUM_CUDA",
    "MINIMUM_DRIVER",
    "STATUS_TABLE",
    "CubinError",
    "CudaError",
    "DriverNotFoundError",
    "ForkedProcessError",
    "cuda_text",
]

MINIMUM_DRIVER = 580
"""Oldest NVIDIA driver branch that loads cubins of CUDA toolkit 13.0."""

MINIMUM_CUDA = 13000
"""The same as a driver tells it (cuDriverGetVersion)."""


def cuda_text(version: int) -> str:
    """What cuDriverGetVersion gives as people write it: "13.0" for 13000."""
    return f"{version // 1000}.{version % 1000 // 10}"


_UPDATE_DRIVER = (
    f"update the NVIDIA driver: cubins of CUDA toolkit 13.0 need driver {MINIMUM_DRIVER} or newer"
)
_OTHER_TARGET = (
    "`cakert load FILE` says what the image holds and what this GPU takes, `cakert info` lists the "
    "shipped cubins; code for sm_90a, sm_100a or sm_103a runs on exactly that architecture"
)
_REINSTALL = (
    "the image is damaged or is no cubin: compare its SHA-256 with the manifest, or reinstall"
)
_CONTEXT_LOST = (
    "the context is lost, so every later call fails: restart the process, and run the kernel "
    "under compute-sanitizer to find the access"
)
_CAPTURE = (
    "a CUDA graph is being captured: load kernels and allocate memory before the capture starts"
)

STATUS_TABLE: dict[int, tuple[str, str, str]] = {
    1: ("CUDA_ERROR_INVALID_VALUE", "an argument is out of the range that the driver takes", ""),
    2: (
        "CUDA_ERROR_OUT_OF_MEMORY",
        "not enough device memory",
        (
            "free tensors, empty the framework's cache (torch.cuda.empty_cache()), or use a "
            "smaller problem"
        ),
    ),
    3: (
        "CUDA_ERROR_NOT_INITIALIZED",
        "the driver is not initialised in this process",
        (
            "a process that was forked after its parent had used CUDA cannot use it: use spawn "
            '(multiprocessing.set_start_method("spawn"))'
        ),
    ),
    4: ("CUDA_ERROR_DEINITIALIZED", "the driver is shutting down", ""),
    34: (
        "CUDA_ERROR_STUB_LIBRARY",
        "the libcuda found is the toolkit's stub for linking",
        "take the toolkit's lib64/stubs folder out of LD_LIBRARY_PATH",
    ),
    35: ("CUDA_ERROR_INSUFFICIENT_DRIVER", "the driver is too old", _UPDATE_DRIVER),
    36: ("CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER", "the driver is too old", _UPDATE_DRIVER),
    46: (
        "CUDA_ERROR_DEVICE_UNAVAILABLE",
        "the GPU is busy or in an exclusive mode",
        "end the other process, or see `nvidia-smi -q -d COMPUTE`",
    ),
    100: (
        "CUDA_ERROR_NO_DEVICE",
        "the driver sees no GPU",
        "check `nvidia-smi` and CUDA_VISIBLE_DEVICES",
    ),
    101: (
        "CUDA_ERROR_INVALID_DEVICE",
        "there is no device of this number",
        "`cakert info` lists the devices",
    ),
    200: ("CUDA_ERROR_INVALID_IMAGE", "the driver cannot read the kernel image", _REINSTALL),
    201: ("CUDA_ERROR_INVALID_CONTEXT", "no CUDA context is current", ""),
    209: ("CUDA_ERROR_NO_BINARY_FOR_GPU", "the image has no code for this GPU", _OTHER_TARGET),
    218: (
        "CUDA_ERROR_INVALID_PTX",
        "the driver cannot compile the PTX of the image",
        "load a cubin made for this GPU instead",
    ),
    222: (
        "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
        "the image comes from a toolkit newer than the driver",
        _UPDATE_DRIVER,
    ),
    300: ("CUDA_ERROR_INVALID_SOURCE", "the driver cannot read the kernel image", _REINSTALL),
    301: ("CUDA_ERROR_FILE_NOT_FOUND", "file not found", ""),
    400: (
        "CUDA_ERROR_INVALID_HANDLE",
        "a stream, event or kernel handle is not valid here",
        "a stream must belong to the device of the tensors and be alive",
    ),
    500: ("CUDA_ERROR_NOT_FOUND", "the named symbol is not there", ""),
    700: ("CUDA_ERROR_ILLEGAL_ADDRESS", "a kernel accessed memory it must not", _CONTEXT_LOST),
    701: (
        "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
        "the launch needs more registers or threads than a block may have",
        "launch with fewer threads a block",
    ),
    702: (
        "CUDA_ERROR_LAUNCH_TIMEOUT",
        "a kernel ran longer than the display driver allows",
        _CONTEXT_LOST,
    ),
    709: ("CUDA_ERROR_CONTEXT_IS_DESTROYED", "the context was destroyed", ""),
    715: ("CUDA_ERROR_ILLEGAL_INSTRUCTION", "a kernel met an illegal instruction", _CONTEXT_LOST),
    716: ("CUDA_ERROR_MISALIGNED_ADDRESS", "a kernel used a misaligned address", _CONTEXT_LOST),
    717: (
        "CUDA_ERROR_INVALID_ADDRESS_SPACE",
        "a kernel used an address of the wrong space",
        _CONTEXT_LOST,
    ),
    718: ("CUDA_ERROR_INVALID_PC", "a kernel's program counter left its code", _CONTEXT_LOST),
    719: ("CUDA_ERROR_LAUNCH_FAILED", "a kernel failed while it ran", _CONTEXT_LOST),
    720: (
        "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE",
        "a cooperative grid must fit the GPU at once",
        "launch fewer blocks",
    ),
    801: ("CUDA_ERROR_NOT_SUPPORTED", "the device or driver does not support this", ""),
    802: (
        "CUDA_ERROR_SYSTEM_NOT_READY",
        "machines with NVSwitch need the fabric manager before CUDA starts",
        "sudo systemctl start nvidia-fabricmanager (of the driver's exact version)",
    ),
    803: (
        "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        "libcuda and the kernel module are of different drivers",
        "reboot after a driver update; in a container remove the image's own libcuda",
    ),
    804: (
        "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
        "this GPU takes no compatibility package",
        "take the `compat` folder out of LD_LIBRARY_PATH, and update the driver itself",
    ),
    900: (
        "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
        "the call is not allowed while a stream is captured",
        _CAPTURE,
    ),
    901: ("CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "the stream capture is invalid", _CAPTURE),
    904: (
        "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
        "the capture would depend on work outside of it",
        "order the streams by events that are recorded inside the capture",
    ),
    906: (
        "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
        "the legacy default stream was used while another stream is captured",
        "use the captured stream for the call, or capture in thread-local mode",
    ),
    908: (
        "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
        "the capture belongs to another thread",
        _CAPTURE,
    ),
    912: (
        "CUDA_ERROR_INVALID_CLUSTER_SIZE",
        "the GPU cannot run clusters of this size",
        "use a smaller cluster or fewer resources a block",
    ),
    999: (
        "CUDA_ERROR_UNKNOWN",
        "the driver reports an unknown failure",
        "check `nvidia-smi` and the kernel log; after a suspend, reload the nvidia_uvm module",
    ),
}


class CudaError(RuntimeError):
    """A call of the CUDA driver failed.

    Parameters
    ----------
    status : int
        The CUresult.
    name : str, optional
        Its name; looked up in :data:`STATUS_TABLE` where it is empty.
    call : str, optional
        The driver function that returned it.
    detail : str, optional
        What the caller knows besides: the image, its target, the device, sizes in bytes.

    Attributes
    ----------
    status : int
    name, call, detail : str
    hint : str
        What to do about it; empty where nothing useful is known.
    """

    status: int
    name: str
    call: str
    detail: str
    hint: str

    def __init__(self, status: int, name: str = "", call: str = "", detail: str = "") -> None:
        known_name, meaning, hint = STATUS_TABLE.get(status, ("", "", ""))
        self.status = int(status)
        self.name = name or known_name or f"CUresult {status}"
        self.call = call
        self.detail = detail
        self.hint = hint
        message = f"{call or 'the CUDA driver'} failed with {self.name} ({self.status})"
        for clause in (meaning, detail, hint):
            if clause:
                message += f"; {clause}" if clause is not meaning else f": {clause}"
        super().__init__(message)

    def __reduce__(self) -> tuple[type[CudaError], tuple[int, str, str, str]]:
        """Pickle by the constructor's arguments: worker pools send exceptions to their parent."""
        return type(self), (self.status, self.name, self.call, self.detail)


class DriverNotFoundError(RuntimeError):
    """There is no NVIDIA driver on this machine."""


class ForkedProcessError(RuntimeError):
    """The driver was used in a forked child of a process that had used it."""


class CubinError(ValueError):
    """A kernel image is malformed, or its bytes are not those that were expected."""
