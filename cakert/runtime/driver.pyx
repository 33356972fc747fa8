"""The driver: found at first use, checked at every call, its primary contexts made current.

Rules: importing touches no driver. A status becomes `cakert.errors.CudaError`. Contexts are the
devices' primary ones, retained once and never reset. In a forked child every path raises.
"""
import atexit
import os

from cuda.bindings cimport cydriver as cu
from posix.unistd cimport getpid

from cakert.errors import MINIMUM_DRIVER, CudaError, DriverNotFoundError, ForkedProcessError

cdef int owner_pid = 0      # process that initialised the driver; 0 before that
cdef bint forked = False    # this process is a child of one that had used the driver
cdef bint ending = False    # the interpreter is shutting down
cdef cu.CUcontext contexts[MAX_DEVICES]
cdef cu.CUstream copy_streams[MAX_DEVICES]


def _after_fork_in_child():
    """Make every path of a child fail early, the launch path (which tests no pid) included."""
    global forked
    cdef int device
    if owner_pid != 0:
        forked = True
        for device in range(MAX_DEVICES):
            contexts[device] = NULL
            copy_streams[device] = NULL


def _at_exit():
    global ending
    ending = True


os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_at_exit)


cdef str status_name(cu.CUresult status):
    cdef const char* text = NULL
    try:
        if cu.cuGetErrorName(status, &text) == cu.CUDA_SUCCESS and text != NULL:
            return (<bytes>text).decode("ascii", "replace")
    except RuntimeError:
        pass  # a driver without cuGetErrorName: the table's name serves
    return ""


cdef int raise_status(cu.CUresult status, const char* call) except -1 with gil:
    return raise_status_with(status, call, "")


cdef int raise_status_with(cu.CUresult status, const char* call, str detail) except -1:
    raise CudaError(<int>status, status_name(status), (<bytes>call).decode("ascii"), detail)


cdef int ensure_init() except -1:
    global owner_pid
    cdef cu.CUresult status
    if owner_pid != 0:
        # The pid is compared although a fork hook stands above: C code may fork without Python.
        if forked or owner_pid != getpid():
            raise ForkedProcessError(
                "the CUDA driver was used before this process was forked, and its contexts do not "
                'survive a fork: use spawn (multiprocessing.set_start_method("spawn")), or call '
                "the driver only in the children"
            )
        return 0
    try:
        status = cu.cuInit(0)
    except RuntimeError as error:
        raise DriverNotFoundError(
            "no NVIDIA driver was found (libcuda.so.1 cannot be opened): cakert needs a machine "
            f"with an NVIDIA GPU and driver {MINIMUM_DRIVER} or newer; in a container, start it "
            f"with GPU access (--gpus all). The loader says: {error}"
        ) from error
    check(status, "cuInit")
    owner_pid = getpid()
    return 0


cdef cu.CUcontext primary_context(int device) except NULL:
    cdef cu.CUdevice handle
    cdef cu.CUcontext context = NULL
    if 0 <= device < MAX_DEVICES and contexts[device] != NULL:
        return contexts[device]
    check_device(device)
    check(cu.cuDeviceGet(&handle, device), "cuDeviceGet")
    check(cu.cuDevicePrimaryCtxRetain(&context, handle), "cuDevicePrimaryCtxRetain")
    contexts[device] = context
    return context


cdef int check_device(int device) except -1:
    cdef int count = 0
    ensure_init()
    check(cu.cuDeviceGetCount(&count), "cuDeviceGetCount")
    if not 0 <= device < min(count, <int>MAX_DEVICES):
        raise ValueError(f"device must be in [0, {count}), the GPUs of this machine; got {device}")
    return 0


cdef int enter_context(int device) except -1:
    cdef cu.CUcontext wanted = NULL
    cdef cu.CUcontext current = NULL
    if 0 <= device < MAX_DEVICES:
        wanted = contexts[device]
    if wanted == NULL:
        wanted = primary_context(device)
    check(cu.cuCtxGetCurrent(&current), "cuCtxGetCurrent")
    if current == wanted:
        return 0
    # Pushed and popped even where no context is current: setting it for good would change the
    # current device that a framework reads in this thread.
    check(cu.cuCtxPushCurrent(wanted), "cuCtxPushCurrent")
    return 1


cdef int leave_context(int pushed) except -1:
    cdef cu.CUcontext popped = NULL
    if pushed:
        check(cu.cuCtxPopCurrent(&popped), "cuCtxPopCurrent")
    return 0


cdef int enter_relaxed(cu.CUstreamCaptureMode* mode) except -1:
    mode[0] = cu.CU_STREAM_CAPTURE_MODE_RELAXED
    check(cu.cuThreadExchangeStreamCaptureMode(mode), "cuThreadExchangeStreamCaptureMode")
    return 0


cdef int leave_relaxed(cu.CUstreamCaptureMode mode) except -1:
    check(cu.cuThreadExchangeStreamCaptureMode(&mode), "cuThreadExchangeStreamCaptureMode")
    return 0


cdef bint may_free() noexcept:
    return owner_pid != 0 and not ending and not forked and owner_pid == getpid()


cdef cu.CUstream copy_stream(int device) except NULL:
    cdef cu.CUstream stream = NULL
    cdef int pushed
    if 0 <= device < MAX_DEVICES and copy_streams[device] != NULL:
        return copy_streams[device]
    pushed = enter_context(device)
    try:
        check(cu.cuStreamCreate(&stream, cu.CU_STREAM_NON_BLOCKING), "cuStreamCreate")
    finally:
        leave_context(pushed)
    copy_streams[device] = stream
    return stream


def initialised():
    """Tell whether this process has used the driver; never touches it.

    Returns
    -------
    bool
    """
    return owner_pid != 0 and not forked


def driver_version():
    """Return the newest CUDA version that the driver supports, e.g. 13000 for CUDA 13.0.

    Returns
    -------
    int
        1000 * major + 10 * minor.

    Raises
    ------
    DriverNotFoundError, ForkedProcessError, CudaError
    """
    cdef int version = 0
    ensure_init()
    check(cu.cuDriverGetVersion(&version), "cuDriverGetVersion")
    return version


def version_text(int version):
    """Spell a version as people do: "13.0" for 13000."""
    return f"{version // 1000}.{version % 1000 // 10}"


def device_count():
    """Return the number of CUDA devices; 0 where the driver sees none.

    Returns
    -------
    int

    Raises
    ------
    DriverNotFoundError, ForkedProcessError, CudaError
    """
    cdef int count = 0
    try:
        ensure_init()
    except CudaError as error:
        if error.status == <int>cu.CUDA_ERROR_NO_DEVICE:
            return 0
        raise
    check(cu.cuDeviceGetCount(&count), "cuDeviceGetCount")
    return count


def device_name(int device):
    """Return the product name of a device, e.g. "NVIDIA H200".

    Parameters
    ----------
    device : int
        Ordinal in [0, device_count()).

    Returns
    -------
    str
    """
    cdef char text[256]
    cdef cu.CUdevice handle
    check_device(device)
    check(cu.cuDeviceGet(&handle, device), "cuDeviceGet")
    check(cu.cuDeviceGetName(text, 256, handle), "cuDeviceGetName")
    return (<bytes>(<const char*>text)).decode("utf-8", "replace")


def device_attribute(int device, int attribute):
    """Return one attribute of a device.

    Parameters
    ----------
    device : int
        Ordinal in [0, device_count()).
    attribute : int
        A CUdevice_attribute of cuda.h, e.g. 16 for the number of multiprocessors.

    Returns
    -------
    int
    """
    cdef cu.CUdevice handle
    cdef int value = 0
    check_device(device)
    check(cu.cuDeviceGet(&handle, device), "cuDeviceGet")
    check(
        cu.cuDeviceGetAttribute(&value, <cu.CUdevice_attribute>attribute, handle),
        "cuDeviceGetAttribute",
    )
    return value


def device_capability(int device):
    """Return the compute capability of a device as (major, minor).

    Parameters
    ----------
    device : int
        Ordinal in [0, device_count()).

    Returns
    -------
    tuple[int, int]
    """
    return (
        device_attribute(device, <int>cu.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
        device_attribute(device, <int>cu.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
    )


def device_multiprocessors(int device):
    """Return how many SMs a device has."""
    return device_attribute(device, <int>cu.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)


def current_device():
    """Return the device of this thread's current context; 0 where no context is current.

    Returns
    -------
    int
    """
    cdef cu.CUcontext context = NULL
    cdef cu.CUdevice device = 0
    ensure_init()
    check(cu.cuCtxGetCurrent(&context), "cuCtxGetCurrent")
    if context != NULL:
        check(cu.cuCtxGetDevice(&device), "cuCtxGetDevice")
    return device


def is_capturing(size_t stream, int device=-1):
    """Tell whether a stream is being captured into a CUDA graph.

    Parameters
    ----------
    stream : int
        Stream handle; 0 and 1 are the legacy default stream.
    device : int, optional
        Whose default stream is meant by the handles up to 2; the current device's if left out.

    Returns
    -------
    bool
        Also True for the legacy default stream while a capture of another stream forbids its use.
    """
    cdef cu.CUstreamCaptureStatus capture = cu.CU_STREAM_CAPTURE_STATUS_NONE
    cdef cu.CUcontext context = NULL
    cdef cu.CUresult status
    cdef int pushed = 0
    ensure_init()
    if stream <= 2:
        if device >= 0:
            pushed = enter_context(device)
        else:
            check(cu.cuCtxGetCurrent(&context), "cuCtxGetCurrent")
            if context == NULL:
                return False  # a default stream of no context: nothing can be captured there
    try:
        status = cu.cuStreamIsCapturing(<cu.CUstream>stream, &capture)
    finally:
        leave_context(pushed)
    if status == cu.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:
        return True
    check(status, "cuStreamIsCapturing")
    return capture != cu.CU_STREAM_CAPTURE_STATUS_NONE


def synchronize(int device):
    """Wait for all work of a device.

    Parameters
    ----------
    device : int
        Ordinal in [0, device_count()).

    Raises
    ------
    CudaError
        Also for a failure of an earlier, asynchronous launch.
    """
    cdef int pushed = enter_context(device)
    cdef cu.CUresult status
    try:
        with nogil:
            status = cu.cuCtxSynchronize()
        check(status, "cuCtxSynchronize")
    finally:
        leave_context(pushed)


def stream_synchronize(size_t stream, int device=-1):
    """Wait for the work of one stream.

    Parameters
    ----------
    stream : int
        Stream handle; 0 is the default stream of `device`.
    device : int, optional
        Whose default stream is meant by 0, 1 and 2; the current context's where it is left out.

    Raises
    ------
    CudaError
        Also for a failure of an earlier, asynchronous launch.
    """
    cdef cu.CUstreamCaptureMode mode
    cdef cu.CUresult status
    cdef int pushed
    if device < 0:
        device = current_device()
    pushed = enter_context(device)
    try:
        enter_relaxed(&mode)
        with nogil:
            status = cu.cuStreamSynchronize(<cu.CUstream>stream)
        leave_relaxed(mode)
        check(status, "cuStreamSynchronize")
    finally:
        leave_context(pushed)
