# Included by tensor.pyx: which stream a launch goes to.
import sys

from cuda.bindings cimport cydriver as cu


cdef int resolve_stream(object stream, object tensor, int device, cu.CUstream* out) except -1:
    if stream is None:
        if tensor is None:
            out[0] = NULL
            return 0
        return framework_stream(tensor, entry_of(tensor), device, out)
    out[0] = <cu.CUstream><size_t>stream_handle(stream)
    return 0


cdef int framework_stream(
    object tensor, TypeEntry entry, int device, cu.CUstream* out
) except -1:
    cdef void* handle = NULL
    out[0] = NULL                      # legacy: JAX and numba have no current stream to ask for
    if entry.api != NULL:
        entry.api.current_work_stream(DL_CUDA, device, &handle)
        out[0] = <cu.CUstream>handle
    elif entry.framework == "torch":
        # About 0.1 us; torch.cuda.current_stream() makes a Stream object, about 5 us.
        out[0] = <cu.CUstream><size_t>sys.modules["torch"]._C._cuda_getCurrentRawStream(device)
    elif entry.framework == "cupy":
        out[0] = <cu.CUstream><size_t>cupy_stream(sys.modules["cupy"], device)
    elif entry.framework == "cakert":
        out[0] = <cu.CUstream><size_t>tensor.stream
    return 0


cdef object cupy_stream(object cupy, int device):
    try:
        return cupy.cuda.get_current_stream(device).ptr
    except TypeError:                  # a release that knows the current device only
        with cupy.cuda.Device(device):
            return cupy.cuda.get_current_stream().ptr


cdef object stream_handle(object stream):
    cdef object handle = None
    if isinstance(stream, int) and not isinstance(stream, bool):
        handle = stream
    else:
        protocol = getattr(stream, "__cuda_stream__", None)
        if protocol is not None:
            version, handle = protocol() if callable(protocol) else protocol
            if version != 0:
                raise TypeError(
                    f"stream: __cuda_stream__ of {type(stream).__qualname__} has version "
                    f"{version}; cakert knows version 0"
                )
        else:
            handle = getattr(stream, "cuda_stream", None)      # torch
            if handle is None:
                handle = getattr(stream, "ptr", None)          # CuPy
    if not isinstance(handle, int) or isinstance(handle, bool):
        raise TypeError(
            "stream must be None, an int handle, an object with __cuda_stream__, or a torch or "
            f"CuPy stream; got {type(stream).__module__}.{type(stream).__qualname__}"
        )
    if not 0 <= handle < 1 << 64:
        raise ValueError(f"stream: a handle must be in [0, 2**64); got {handle}")
    return handle
