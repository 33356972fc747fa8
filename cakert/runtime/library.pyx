"""Kernel images, the kernels in them, and launches.

A `Library` holds the image and serves all devices; a `Kernel` holds its library; a `Launcher`
holds its kernel. Nothing that `Launcher.run` does allocates, imports, looks up a name or writes
shared state, so one launcher may run in several threads at once.
"""
import os
import weakref
from collections import namedtuple
from pathlib import Path

cimport cython
from cuda.bindings cimport cydriver as cu
from libc.stdlib cimport free, malloc

from cakert.runtime.driver cimport (
    check, ensure_init, enter_context, enter_relaxed, leave_context, leave_relaxed, may_free,
    raise_status_with,
)

from cakert.errors import MINIMUM_DRIVER, CudaError
from cakert.runtime import driver
from cakert.runtime.geometry import DeviceLimits, check_shared
from cakert.runtime.image import check_image, check_sha256
from cakert.runtime.integers import checked_int

MINIMUM_CUDA = 12040                 # the oldest driver with every function that is used here
MAX_SHARED_BYTES = 2**31 - 1         # of the parameter; the device's own limit is far below

cdef enum:
    PORTABLE_CLUSTER_BLOCKS = 8      # more need an attribute of the kernel

cdef dict limits_by_device = {}      # device -> DeviceLimits

cdef object device_limits(int device):
    limits = limits_by_device.get(device)
    if limits is None:
        limits = limits_by_device[device] = DeviceLimits(
            grid=(
                driver.device_attribute(device, <int>cu.CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X),
                driver.device_attribute(device, <int>cu.CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y),
                driver.device_attribute(device, <int>cu.CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z),
            ),
            block=(
                driver.device_attribute(device, <int>cu.CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X),
                driver.device_attribute(device, <int>cu.CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y),
                driver.device_attribute(device, <int>cu.CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z),
            ),
            block_threads=driver.device_attribute(
                device, <int>cu.CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK
            ),
            shared_bytes=driver.device_attribute(
                device, <int>cu.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
            ),
            capability=driver.device_capability(device),
        )
    return limits


@cython.final
@cython.no_gc_clear                  # the image must outlive cuLibraryUnload in __dealloc__
cdef class Library:
    """A kernel image (cubin or fatbin), loaded for all devices.

    Parameters
    ----------
    path_or_bytes : str, os.PathLike, bytes, bytearray or memoryview
        The image, or the file that holds it.
    sha256 : str, optional
        Expected SHA-256 of the image in hexadecimal; compared before anything is loaded.
    detail : str, optional
        What is known of the image (toolkit, target), for the messages of driver errors.

    Attributes
    ----------
    source : str or None
        The file's path.
    names : tuple[str, ...]
        Names of the kernels in the image, sorted.

    Raises
    ------
    CubinError
        The image is malformed, or is not the expected one.
    CudaError
        The driver refuses the image, or finds no kernel in it (then `status` is that of
        CUDA_ERROR_NO_BINARY_FOR_GPU); the message says for which driver and device.
    RuntimeError
        There is no driver, or this process is a forked child of one that had used it.

    Notes
    -----
    ``library["name"]`` is a `Kernel`; an unknown name is a KeyError that lists the names found.
    The image is unloaded when neither the library nor a kernel of it is referenced any more.
    """

    def __cinit__(self, path_or_bytes, *, sha256=None, detail=""):
        cdef cu.CUlibraryOption options[1]
        cdef void* values[1]
        cdef const char* code
        cdef cu.CUresult status
        cdef cu.CUstreamCaptureMode mode
        self.kernels = {}
        self.detail = detail
        if isinstance(path_or_bytes, (bytes, bytearray, memoryview)):
            self.image = bytes(path_or_bytes)
        elif isinstance(path_or_bytes, (str, os.PathLike)):
            self.source = os.fspath(path_or_bytes)
            self.image = Path(path_or_bytes).read_bytes()
        else:
            raise TypeError(
                "path_or_bytes must be a path or the bytes of an image; got "
                f"{type(path_or_bytes).__qualname__}"
            )
        name = self.source or "kernel image"
        check_image(self.image, name)
        if sha256 is not None:
            check_sha256(self.image, sha256, name)
        ensure_init()
        version = driver.driver_version()
        if version < MINIMUM_CUDA:
            raise RuntimeError(
                f"cakert needs driver {MINIMUM_DRIVER} or newer for cubins of CUDA 13.0, one for "
                f"CUDA {driver.version_text(MINIMUM_CUDA)} to load anything; got a driver for CUDA "
                f"{driver.version_text(version)}"
            )
        code = <const char*>(<bytes>self.image)
        options[0] = cu.CU_LIBRARY_BINARY_IS_PRESERVED
        values[0] = <void*><size_t>1
        # Relaxed here and below: loading is no part of a graph that another thread captures.
        enter_relaxed(&mode)
        try:
            with nogil:
                status = cu.cuLibraryLoadData(
                    &self.handle, code, NULL, NULL, 0, options, values, 1
                )
        finally:
            leave_relaxed(mode)
        if status != cu.CUDA_SUCCESS:
            raise_status_with(status, "cuLibraryLoadData", self.load_detail(-1))
        self.names = enumerate_kernels(self)
        if not self.names:
            # Driver 580 answers so, and not with a status, where an image has code for none of its
            # devices, or PTX that it cannot compile.
            raise CudaError(
                <int>cu.CUDA_ERROR_NO_BINARY_FOR_GPU, call="cuLibraryGetKernelCount",
                detail=f"the driver finds no kernel in it; {self.load_detail(-1)}",
            )

    def __dealloc__(self):
        cdef cu.CUstreamCaptureMode mode
        # Quiet: an unload that fails because the driver is gone has nothing left to free.
        if self.handle != NULL and may_free():
            try:
                enter_relaxed(&mode)
                with nogil:
                    cu.cuLibraryUnload(self.handle)
                leave_relaxed(mode)
            except RuntimeError:
                pass

    cdef str load_detail(self, int device):
        """Say what was being loaded, by which driver, for which device (-1: the current one)."""
        cdef list clauses = [f"image: {self.source or 'from memory'}, {len(self.image)} bytes"]
        if self.detail:
            clauses.append(self.detail)
        try:
            version = driver.version_text(driver.driver_version())
            clauses.append(f"the driver supports CUDA {version}")
            if device < 0 and driver.device_count() > 0:
                device = driver.current_device()
            if device >= 0:
                major, minor = driver.device_capability(device)
                clauses.append(f"cuda:{device} has compute capability ({major}, {minor})")
        except RuntimeError:
            pass                     # the failure that is being reported matters more
        return "; ".join(clauses)

    def __getitem__(self, str name not None):
        cdef Kernel kernel
        reference = self.kernels.get(name)
        if reference is not None:
            kernel = reference()
            if kernel is not None:
                return kernel
        if name not in self.names:
            raise KeyError(
                f"{self.source or 'the library'} has no kernel {name!r}; it has: "
                f"{', '.join(self.names) or 'none'}"
            )
        kernel = make_kernel(self, name)
        self.kernels[name] = weakref.ref(kernel)
        return kernel

    def __contains__(self, name):
        return name in self.names

    def __iter__(self):
        return iter(self.names)

    def __len__(self):
        return len(self.names)

    def __repr__(self):
        return f"Library({self.source or 'bytes'!r}, {len(self.names)} kernels)"


cdef tuple enumerate_kernels(Library library):
    cdef unsigned int count = 0
    cdef unsigned int index
    cdef const char* name = NULL
    cdef cu.CUkernel* kernels
    cdef list names = []
    check(cu.cuLibraryGetKernelCount(&count, library.handle), "cuLibraryGetKernelCount")
    if count == 0:
        return ()
    kernels = <cu.CUkernel*>malloc(count * sizeof(cu.CUkernel))
    if kernels == NULL:
        raise MemoryError
    try:
        check(
            cu.cuLibraryEnumerateKernels(kernels, count, library.handle),
            "cuLibraryEnumerateKernels",
        )
        for index in range(count):
            check(cu.cuKernelGetName(&name, kernels[index]), "cuKernelGetName")
            names.append((<bytes>name).decode("utf-8", "replace"))
    finally:
        free(kernels)
    return tuple(sorted(names))


include "kernel.pxi"
include "launcher.pxi"
