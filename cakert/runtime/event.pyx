"""Events: marks in a stream that say when the device came by."""
cimport cython
from cuda.bindings cimport cydriver as cu

from cakert.runtime.driver cimport (
    check, enter_context, enter_relaxed, leave_context, leave_relaxed, may_free,
)
from cakert.runtime.tensor cimport resolve_stream

from cakert.runtime import driver


@cython.final
@cython.no_gc
cdef class Event:
    """A mark that a stream reaches, with the device's time.

    Parameters
    ----------
    device : int
        CUDA device.

    Attributes
    ----------
    device : int

    Raises
    ------
    ValueError
        No such device.
    CudaError
        The driver's status.

    Notes
    -----
    The resolution of the time is about 0.5 us. Between two events lies whatever the stream did
    there, waiting for the host included: time a kernel with work in front of the first event, so
    that all three are in the queue before the device comes to them.
    """

    cdef readonly int device
    cdef cu.CUevent handle

    def __cinit__(self, int device):
        cdef int pushed
        self.device = device
        pushed = enter_context(device)
        try:
            check(cu.cuEventCreate(&self.handle, cu.CU_EVENT_DEFAULT), "cuEventCreate")
        finally:
            leave_context(pushed)

    def __dealloc__(self):
        cdef int pushed
        if self.handle == NULL or not may_free():
            return
        try:
            pushed = enter_context(self.device)
            try:
                # Of an event that is still to come, too: the driver frees it when it has come.
                cu.cuEventDestroy(self.handle)
            finally:
                leave_context(pushed)
        except RuntimeError:
            pass                     # a lost context took its events along

    def __repr__(self):
        return f"Event(device={self.device})"

    def record(self, stream=None):
        """Put the mark behind the work that is in a stream now; an earlier mark is forgotten.

        Parameters
        ----------
        stream : int, stream object or None, optional
            A stream of the event's device; None is its legacy default stream.

        Raises
        ------
        RuntimeError
            The stream is being captured: a graph's node has no time that could be read.
        CudaError
            The driver's status.
        """
        cdef cu.CUstream handle = NULL
        cdef int pushed
        resolve_stream(stream, None, self.device, &handle)
        if driver.is_capturing(<size_t>handle, self.device):
            raise RuntimeError(
                "an event that measures time cannot be recorded on a stream that is being "
                "captured: record it around the launch of the graph"
            )
        pushed = enter_context(self.device)
        try:
            check(cu.cuEventRecord(self.handle, handle), "cuEventRecord")
        finally:
            leave_context(pushed)

    def synchronize(self):
        """Wait until the device has come to the mark; at once where it was never recorded.

        Raises
        ------
        CudaError
            Also for a failure of earlier, asynchronous work.
        """
        cdef cu.CUstreamCaptureMode mode
        cdef cu.CUresult status
        cdef int pushed = enter_context(self.device)
        try:
            enter_relaxed(&mode)
            try:
                with nogil:
                    status = cu.cuEventSynchronize(self.handle)
            finally:
                leave_relaxed(mode)
            check(status, "cuEventSynchronize")
        finally:
            leave_context(pushed)

    def elapsed_us(self, Event start not None):
        """Return the time from `start` to this event.

        Parameters
        ----------
        start : Event
            Of the same device. The device must have come to both: `synchronize` first.

        Returns
        -------
        float
            Microseconds.

        Raises
        ------
        ValueError
            An event of another device.
        CudaError
            CUDA_ERROR_INVALID_HANDLE where one was never recorded, CUDA_ERROR_NOT_READY where the
            device has not come to it, or the failure of earlier work.
        """
        cdef float milliseconds = 0
        cdef int pushed
        if start.device != self.device:
            raise ValueError(
                f"start must be an event of cuda:{self.device}, as this one; it is of "
                f"cuda:{start.device}"
            )
        pushed = enter_context(self.device)
        try:
            check(
                cu.cuEventElapsedTime(&milliseconds, start.handle, self.handle),
                "cuEventElapsedTime",
            )
        finally:
            leave_context(pushed)
        return 1000.0 * milliseconds
