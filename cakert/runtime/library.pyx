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

from cakert.errors import MINIMUM_DRIVER
from cakert.runtime import driver
from cakert.runtime.geometry import DeviceLimits, check_shared
from cakert.runtime.image import check_image, check_sha256
from cakert.runtime.integers import checked_int

MINIMUM_CUDA = 12040                 # the oldest driver with every function that is used here
MAX_SHARED_BYTES = 2**31 - 1         # of the parameter; the device's own limit is far below

cdef dict limits_by_device = {}      # device -> DeviceLimits

KernelAttributes = namedtuple(
    "KernelAttributes",
    ("registers", "shared_bytes", "local_bytes", "constant_bytes", "max_threads"),
)
KernelAttributes.__doc__ = """Resources of a kernel on one device.

Attributes
----------
registers : int
    32-bit registers a thread.
shared_bytes : int
    Static shared memory of a block.
local_bytes : int
    Local memory a thread: spills and arrays that are indexed at run time.
constant_bytes : int
max_threads : int
    Threads that a block of this kernel may have.
"""


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
        The driver refuses the image; the message says for which driver and device.
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


cdef Kernel make_kernel(Library library, str name):
    cdef Kernel kernel = Kernel.__new__(Kernel, library)
    cdef bytes encoded = name.encode()
    cdef const char* text = encoded
    cdef cu.CUresult status
    ensure_init()
    status = cu.cuLibraryGetKernel(&kernel.handle, library.handle, text)
    if status != cu.CUDA_SUCCESS:
        raise_status_with(
            status, "cuLibraryGetKernel", f"kernel {name}; {library.load_detail(-1)}"
        )
    kernel.name = name
    return kernel


@cython.final
cdef class Kernel:
    """A kernel of a `Library`; made by ``library["name"]``.

    Attributes
    ----------
    library : Library
    name : str
    param_layout : tuple[tuple[int, int], ...]
        Offset and size in bytes of each parameter, as the driver reports them; asked at first use,
        on the current device.
    """

    def __cinit__(self, library=None, *args, **keywords):
        if not isinstance(library, Library) or args or keywords:
            raise TypeError('a Kernel is made by its library: library["name"]')
        self.library = library
        self.loaded = {}

    def __init__(self, *args, **keywords):
        raise TypeError('a Kernel is made by its library: library["name"]')

    def __repr__(self):
        return f"Kernel({self.name!r})"

    @property
    def param_layout(self):
        return self.layout_on(driver.current_device() if self.layout is None else 0)

    cdef tuple layout_on(self, int device):
        """Return the parameter layout, asked under the context of `device` at first use.

        The driver answers only while a context is current (driver 580, H200), although a CUkernel
        belongs to none; the caller names the device so that no other one gets a context for it.
        """
        cdef size_t offset = 0
        cdef size_t size = 0
        cdef list layout = []
        cdef cu.CUresult status
        cdef int pushed
        if self.layout is not None:
            return self.layout
        pushed = enter_context(device)
        try:
            while True:
                status = cu.cuKernelGetParamInfo(self.handle, len(layout), &offset, &size)
                if status == cu.CUDA_ERROR_INVALID_VALUE:
                    break            # one past the last parameter
                check(status, "cuKernelGetParamInfo")
                layout.append((offset, size))
        finally:
            leave_context(pushed)
        self.layout = tuple(layout)
        return self.layout

    cdef int attribute(self, int device, cu.CUfunction_attribute which) except? -1:
        cdef cu.CUdevice handle
        cdef int value = 0
        cdef cu.CUresult status
        ensure_init()
        check(cu.cuDeviceGet(&handle, device), "cuDeviceGet")
        status = cu.cuKernelGetAttribute(&value, which, self.handle, handle)
        if status != cu.CUDA_SUCCESS:
            raise_status_with(
                status,
                "cuKernelGetAttribute",
                f"kernel {self.name}; {self.library.load_detail(device)}",
            )
        return value

    def attributes(self, int device=0):
        """Return the kernel's resources on a device.

        Parameters
        ----------
        device : int, optional
            CUDA device, 0 by default.

        Returns
        -------
        KernelAttributes
        """
        cdef int pushed = enter_context(device)
        try:
            return KernelAttributes(
                self.attribute(device, cu.CU_FUNC_ATTRIBUTE_NUM_REGS),
                self.attribute(device, cu.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES),
                self.attribute(device, cu.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES),
                self.attribute(device, cu.CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES),
                self.attribute(device, cu.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK),
            )
        finally:
            leave_context(pushed)

    def load_on(self, int device, shared_bytes=0):
        """Load the kernel's code on a device now and allow it dynamic shared memory.

        Without it the first launch loads the code, which may synchronise and is not allowed while
        a graph is captured. Loading again is free; the largest `shared_bytes` stays in force.

        Parameters
        ----------
        device : int
            CUDA device.
        shared_bytes : int, optional
            Dynamic shared memory of a block in bytes.

        Raises
        ------
        ValueError
            No such device, or more shared memory than a block of this kernel may have there.
        CudaError
            The driver cannot load the code on this device.
        """
        self.ensure_loaded(
            device, checked_int("shared_bytes", shared_bytes, 0, MAX_SHARED_BYTES), False
        )

    cdef int ensure_loaded(self, int device, int shared_bytes, bint large_cluster) except -1:
        cdef cu.CUdevice handle
        cdef cu.CUfunction function = NULL
        cdef cu.CUresult status
        cdef cu.CUstreamCaptureMode mode
        cdef int pushed
        ensure_init()
        allowed = self.loaded.get(device)
        if allowed is not None and 0 <= shared_bytes <= <int>allowed and not large_cluster:
            return 0
        pushed = enter_context(device)
        try:
            if allowed is None:
                enter_relaxed(&mode)
                try:
                    with nogil:
                        status = cu.cuKernelGetFunction(&function, self.handle)
                        if status == cu.CUDA_SUCCESS:
                            status = cu.cuFuncLoad(function)
                finally:
                    leave_relaxed(mode)
                if status != cu.CUDA_SUCCESS:
                    raise_status_with(
                        status,
                        "cuFuncLoad" if function != NULL else "cuKernelGetFunction",
                        f"kernel {self.name}; {self.library.load_detail(device)}",
                    )
                self.loaded.setdefault(device, 0)
            check_shared(
                shared_bytes,
                self.attribute(device, cu.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES),
                device_limits(device),
            )
            check(cu.cuDeviceGet(&handle, device), "cuDeviceGet")
            if large_cluster:
                check(
                    cu.cuKernelSetAttribute(
                        cu.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1, self.handle,
                        handle,
                    ),
                    "cuKernelSetAttribute",
                )
            # Read again: another thread may have raised it while the code was loading. From here to
            # the store the GIL is held, so that the attribute never shrinks.
            if shared_bytes > <int>self.loaded[device]:
                check(
                    cu.cuKernelSetAttribute(
                        cu.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes,
                        self.handle, handle,
                    ),
                    "cuKernelSetAttribute",
                )
                self.loaded[device] = shared_bytes
        finally:
            leave_context(pushed)
        return 0

    def prepare(
        self, *example_args, grid, block, shared_bytes=0, cluster=None, pdl=False,
        cooperative=False, stream=None,
    ):
        """Freeze scalars and geometry; the result launches with the tensors alone.

        Parameters
        ----------
        *example_args
            One argument a parameter. Tensors (any framework, on one CUDA device) fix the device and
            the element type of their place; everything else is frozen: numpy and ctypes scalars by
            their type, Python ints and bools by the parameter's size, Python floats into 4 or 8
            bytes, bytes for structs and tensor maps, None for a null pointer.
        grid, block : int or tuple of up to 3 ints
            Blocks of the grid, threads of a block.
        shared_bytes : int, optional
            Dynamic shared memory of a block.
        cluster : int or tuple of up to 3 ints, optional
            Blocks of a cluster; needs compute capability 9.0.
        pdl : bool, optional
            Programmatic dependent launch. The kernel must execute griddepcontrol.wait before it
            touches anything that an earlier kernel wrote or reads.
        cooperative : bool, optional
            All blocks resident at once, so that the grid may synchronise.
        stream : optional
            Accepted for symmetry with `launch`; producers that are asked by capsule are ordered
            before it.

        Returns
        -------
        Launcher

        Raises
        ------
        TypeError, ValueError
            Wrong number of arguments, an argument of another size than its parameter, tensors that
            are not on one CUDA device, geometry beyond the device's limits.
        CudaError
            The code cannot be loaded on the device.
        """
        cdef Launcher launcher = Launcher.__new__(Launcher, self)
        launcher.freeze(
            example_args, grid, block, shared_bytes, cluster, pdl, cooperative, stream
        )
        return launcher

    def launch(
        self, *args, grid, block, shared_bytes=0, cluster=None, pdl=False, cooperative=False,
        stream=None,
    ):
        """Launch once; arguments and errors are those of `prepare`.

        Parameters
        ----------
        *args
            One argument a parameter.
        grid, block, shared_bytes, cluster, pdl, cooperative
            See `prepare`.
        stream : int, stream object or None, optional
            The stream to launch on: a handle, an object with ``__cuda_stream__``, a torch or CuPy
            stream. None is the current stream of the framework that owns the first tensor, or the
            legacy default stream without a tensor.
        """
        cdef Launcher launcher = Launcher.__new__(Launcher, self)
        cdef tuple tensors = launcher.freeze(
            args, grid, block, shared_bytes, cluster, pdl, cooperative, stream
        )
        launcher.launch(tensors, stream)


include "launcher.pxi"
