# The one place that cimports cydriver for the rest of the package: status checks, lazy
# initialisation, versions, device attributes, primary contexts.
from cuda.bindings cimport cydriver as cu

cdef enum:
    MAX_DEVICES = 256

# Raises cakert.CudaError with the status' name, `call` and a hint; succeeds without the GIL.
cdef int raise_status(cu.CUresult status, const char* call) except -1 with gil
# The same with what the caller knows besides (image, target, device, sizes).
cdef int raise_status_with(cu.CUresult status, const char* call, str detail) except -1

cdef inline int check(cu.CUresult status, const char* call) except -1 nogil:
    if status == cu.CUDA_SUCCESS:
        return 0
    return raise_status(status, call)

# cuInit once per process, at first use; RuntimeError without a driver, in a forked child of a
# process that had used it ("use spawn").
cdef int ensure_init() except -1
# Retained once per device and process, never reset.
cdef cu.CUcontext primary_context(int device) except NULL
# Makes the device's primary context current where it is not; returns 1 if it was pushed, and
# then leave_context must follow.
cdef int enter_context(int device) except -1
cdef int leave_context(int pushed) except -1
# Whether destructors may call the driver: not while the interpreter ends, not in a forked child.
cdef bint may_free() noexcept
# Between the two this thread may allocate, free and wait while another one captures a graph in
# global mode; without it such a call would fail, and spoil the capture.
cdef int enter_relaxed(cu.CUstreamCaptureMode* mode) except -1
cdef int leave_relaxed(cu.CUstreamCaptureMode mode) except -1
# A private non-blocking stream of the device, for copies that the caller waits for.
cdef cu.CUstream copy_stream(int device) except NULL
