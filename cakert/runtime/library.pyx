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
from libc.stdint cimport int32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from cakert.runtime.arguments cimport block_bytes, check_count, is_scalar, pack_scalar
from cakert.runtime.driver cimport (
    check, ensure_init, enter_context, leave_context, may_free, raise_status_with,
)
from cakert.runtime.tensor cimport (
    DL_CPU, DL_CUDA, DL_CUDA_HOST, DL_CUDA_MANAGED, PointerView, device_text, dtype_name, is_tensor,
    point_at, release_pointer, resolve_stream, tensor_device,
)

from cakert.runtime import driver
from cakert.runtime.geometry import (
    DeviceLimits, check_block, check_cluster, check_grid, check_shared, dim3,
)
from cakert.runtime.image import check_image, check_sha256

cdef enum:
    MAX_PARAMS = 256                 # of a kernel launched here: their pointers lie on the stack
    MAX_ATTRIBUTES = 3               # cluster, programmatic dependent launch, cooperative
    PORTABLE_CLUSTER_BLOCKS = 8

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
        code = <const char*>(<bytes>self.image)
        options[0] = cu.CU_LIBRARY_BINARY_IS_PRESERVED
        values[0] = <void*><size_t>1
        with nogil:
            status = cu.cuLibraryLoadData(
                &self.handle, code, NULL, NULL, 0, options, values, 1
            )
        if status != cu.CUDA_SUCCESS:
            raise_status_with(status, "cuLibraryLoadData", self.load_detail(-1))
        self.names = enumerate_kernels(self)

    def __dealloc__(self):
        # Quiet: an unload that fails because the driver is gone has nothing left to free.
        if self.handle != NULL and may_free():
            try:
                cu.cuLibraryUnload(self.handle)
            except RuntimeError:
                pass

    cdef str load_detail(self, int device):
        """Say what was being loaded, by which driver, for which device (-1: the current one)."""
        cdef list clauses = [f"image: {self.source or 'from memory'}, {len(self.image)} bytes"]
        if self.detail:
            clauses.append(self.detail)
        try:
            version = driver.driver_version()
            clauses.append(f"the driver supports CUDA {version // 1000}.{version % 1000 // 10}")
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
    cdef size_t offset = 0
    cdef size_t size = 0
    cdef list layout = []
    status = cu.cuLibraryGetKernel(&kernel.handle, library.handle, text)
    if status != cu.CUDA_SUCCESS:
        raise_status_with(
            status, "cuLibraryGetKernel", f"kernel {name}; {library.load_detail(-1)}"
        )
    kernel.name = name
    while True:
        status = cu.cuKernelGetParamInfo(kernel.handle, len(layout), &offset, &size)
        if status == cu.CUDA_ERROR_INVALID_VALUE:
            break                    # one past the last parameter
        check(status, "cuKernelGetParamInfo")
        layout.append((offset, size))
    kernel.param_layout = tuple(layout)
    return kernel


@cython.final
cdef class Kernel:
    """A kernel of a `Library`; made by ``library["name"]``.

    Attributes
    ----------
    library : Library
    name : str
    param_layout : tuple[tuple[int, int], ...]
        Offset and size in bytes of each parameter, as the driver reports them.
    """

    def __cinit__(self, library=None, *args, **keywords):
        if not isinstance(library, Library) or args or keywords:
            raise TypeError('a Kernel is made by its library: library["name"]')
        self.library = library
        self.loaded = {}

    def __init__(self, *args, **keywords):
        raise TypeError('a Kernel is made by its library: library["name"]')

    def __repr__(self):
        return f"Kernel({self.name!r}, {len(self.param_layout)} parameters)"

    cdef int attribute(self, int device, cu.CUfunction_attribute which) except? -1:
        cdef cu.CUdevice handle
        cdef int value = 0
        cdef cu.CUresult status
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

    def load_on(self, int device, int shared_bytes=0):
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
        self.ensure_loaded(device, shared_bytes, False)

    cdef int ensure_loaded(self, int device, int shared_bytes, bint large_cluster) except -1:
        cdef cu.CUdevice handle
        cdef cu.CUfunction function = NULL
        cdef cu.CUresult status
        cdef int pushed
        allowed = self.loaded.get(device)
        if allowed is not None and shared_bytes <= <int>allowed and not large_cluster:
            return 0
        pushed = enter_context(device)
        try:
            if allowed is None:
                status = cu.cuKernelGetFunction(&function, self.handle)
                if status == cu.CUDA_SUCCESS:
                    with nogil:
                        status = cu.cuFuncLoad(function)
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


cdef inline bint reachable(const PointerView* view, int device) noexcept nogil:
    """Whether kernels on `device` can address the tensor."""
    if view.device_type == DL_CUDA:
        return view.device_id == device
    return view.device_type == DL_CUDA_MANAGED or view.device_type == DL_CUDA_HOST


@cython.final
cdef class Launcher:
    """A kernel with frozen scalars and geometry; made by `Kernel.prepare`.

    Attributes
    ----------
    kernel : Kernel
    device : int
        CUDA device of the tensors.
    grid, block : tuple[int, int, int]
    num_tensors : int
        Tensors that `run` takes.
    """

    cdef readonly Kernel kernel
    cdef readonly int device
    cdef readonly tuple grid
    cdef readonly tuple block
    cdef readonly int num_tensors
    cdef int num_params
    cdef bytearray scalars             # the parameter block; places of tensors are unused
    cdef void** params                 # into `scalars`; NULL where a tensor goes
    cdef int* places                   # parameter index of each tensor
    cdef PointerView* examples         # element type and device of each tensor
    cdef cu.CUlaunchConfig config
    cdef cu.CUlaunchAttribute attributes[MAX_ATTRIBUTES]

    def __cinit__(self, kernel=None, *args, **keywords):
        if not isinstance(kernel, Kernel) or args or keywords:
            raise TypeError("a Launcher is made by kernel.prepare(...)")
        self.kernel = kernel

    def __init__(self, *args, **keywords):
        raise TypeError("a Launcher is made by kernel.prepare(...)")

    def __dealloc__(self):
        free(self.params)
        free(self.places)
        free(self.examples)

    def __repr__(self):
        return (
            f"Launcher({self.kernel.name!r}, grid={self.grid}, block={self.block}, "
            f"device={self.device})"
        )

    cdef tuple freeze(
        self, tuple args, object grid, object block, int shared_bytes, object cluster, bint pdl,
        bint cooperative, object stream,
    ):
        """Check and store everything that a launch needs; return the tensors among `args`."""
        cdef Kernel kernel = self.kernel
        cdef tuple layout = kernel.param_layout
        cdef list tensors = []
        check_count(kernel.name, len(layout), len(args))
        if len(layout) > MAX_PARAMS:
            raise ValueError(
                f"{kernel.name} has {len(layout)} parameters; at most {<int>MAX_PARAMS} are "
                "supported"
            )
        self.num_params = <int>len(layout)
        self.scalars = bytearray(block_bytes(layout))
        self.params = <void**>malloc(max(1, self.num_params) * sizeof(void*))
        self.places = <int*>malloc(max(1, self.num_params) * sizeof(int))
        self.examples = <PointerView*>malloc(max(1, self.num_params) * sizeof(PointerView))
        if self.params == NULL or self.places == NULL or self.examples == NULL:
            raise MemoryError
        self.freeze_arguments(args, layout, tensors)
        self.find_device(tensors, stream)
        self.freeze_geometry(grid, block, shared_bytes, cluster, pdl, cooperative)
        return tuple(tensors)

    cdef int freeze_arguments(self, tuple args, tuple layout, list tensors) except -1:
        cdef char* start = self.scalars
        cdef int index
        cdef size_t offset, size
        for index in range(self.num_params):
            offset, size = layout[index]
            if is_scalar(args[index]) or not is_tensor(args[index]):
                pack_scalar(args[index], start + offset, size, index)
                self.params[index] = start + offset
                continue
            if size != 8:
                raise ValueError(
                    f"argument {index} must have {size} bytes, the size of the kernel's parameter; "
                    "a tensor gives an address of 8"
                )
            self.params[index] = NULL
            self.places[self.num_tensors] = index
            self.num_tensors += 1
            tensors.append(args[index])
        return 0

    cdef int find_device(self, list tensors, object stream) except -1:
        """Take the device of the first tensor on one, and the element type of each."""
        cdef int index
        cdef int32_t device_type = DL_CPU
        cdef int32_t device_id = 0
        cdef cu.CUstream handle = NULL
        cdef PointerView* view
        self.device = -1
        for index in range(self.num_tensors):
            tensor_device(tensors[index], &device_type, &device_id)
            if device_type == DL_CUDA:
                self.device = device_id
                break
        if self.device < 0:
            self.device = driver.current_device()
        if tensors:
            resolve_stream(stream, tensors[0], self.device, &handle)
        for index in range(self.num_tensors):
            view = &self.examples[index]
            point_at(tensors[index], handle, view)
            release_pointer(view)
            if not reachable(view, self.device):
                self.wrong_device(index, view)
        return 0

    cdef int freeze_geometry(
        self, object grid, object block, int shared_bytes, object cluster, bint pdl,
        bint cooperative,
    ) except -1:
        cdef Kernel kernel = self.kernel
        cdef cu.CUlaunchAttribute* attribute
        cdef bint large_cluster = False
        cdef object limits = device_limits(self.device)
        cdef object dims
        self.grid = dim3("grid", grid)
        self.block = dim3("block", block)
        check_grid(self.grid, limits)
        memset(&self.config, 0, sizeof(self.config))
        memset(self.attributes, 0, sizeof(self.attributes))
        self.config.gridDimX, self.config.gridDimY, self.config.gridDimZ = self.grid
        self.config.blockDimX, self.config.blockDimY, self.config.blockDimZ = self.block
        if cluster is not None:
            dims = dim3("cluster", cluster)
            check_cluster(dims, self.grid, limits)
            large_cluster = dims[0] * dims[1] * dims[2] > PORTABLE_CLUSTER_BLOCKS
            attribute = &self.attributes[self.config.numAttrs]
            attribute.id = cu.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            attribute.value.clusterDim.x = dims[0]
            attribute.value.clusterDim.y = dims[1]
            attribute.value.clusterDim.z = dims[2]
            self.config.numAttrs += 1
        if pdl:
            if limits.capability < (9, 0):
                raise ValueError(
                    "pdl must be False on a device of compute capability "
                    f"{limits.capability}: programmatic dependent launch needs (9, 0)"
                )
            attribute = &self.attributes[self.config.numAttrs]
            attribute.id = cu.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            self.config.numAttrs += 1
        if cooperative:
            attribute = &self.attributes[self.config.numAttrs]
            attribute.id = cu.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
            attribute.value.cooperative = 1
            self.config.numAttrs += 1
        kernel.ensure_loaded(self.device, shared_bytes, large_cluster)
        self.config.sharedMemBytes = shared_bytes
        check_block(
            self.block, limits,
            kernel.attribute(self.device, cu.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK),
        )
        return 0

    cdef int wrong_device(self, int index, const PointerView* view) except -1:
        raise ValueError(
            f"argument {self.places[index]} must be on cuda:{self.device}, the device of the other "
            f"tensors; it is on {device_text(view.device_type, view.device_id)}"
        )

    cdef int wrong_dtype(self, int index, const PointerView* view) except -1:
        cdef const PointerView* example = &self.examples[index]
        raise ValueError(
            f"argument {self.places[index]} must be of type "
            f"{dtype_name(example.code, example.bits, example.lanes)}, as prepared; got "
            f"{dtype_name(view.code, view.bits, view.lanes)}"
        )

    def run(self, *tensors, stream=None):
        """Launch on the tensors given, in the order of the kernel's tensor parameters.

        Parameters
        ----------
        *tensors
            As many as were among the example arguments, of the same element types, on the same
            device. Shapes and strides are not looked at: the kernel gets addresses.
        stream : int, stream object or None, optional
            None is the current stream of the framework that owns the first tensor.

        Raises
        ------
        TypeError
            Another number of tensors, or an object that is no tensor.
        ValueError
            A tensor on another device or of another element type.
        CudaError
            The driver refuses the launch, or reports the failure of earlier work.

        Notes
        -----
        The call borrows the tensors: memory that a stream-ordered allocator gave out on the same
        stream may be released as soon as it returns; on another stream keep the tensors.
        """
        self.launch(tensors, stream)

    cdef int launch(self, tuple tensors, object stream) except -1:
        # Config, attributes and pointers live on this call's stack: a thread may enter while
        # another one waits in the driver with the GIL released.
        cdef cu.CUlaunchConfig config
        cdef cu.CUlaunchAttribute attributes[MAX_ATTRIBUTES]
        cdef void* params[MAX_PARAMS]
        cdef PointerView views[MAX_PARAMS]
        cdef PointerView* view
        cdef const PointerView* example
        cdef cu.CUfunction function = <cu.CUfunction>self.kernel.handle
        cdef cu.CUresult status
        cdef int taken = 0
        cdef int index
        cdef int pushed
        if len(tensors) != self.num_tensors:
            raise TypeError(
                f"{self.kernel.name} was prepared with {self.num_tensors} tensors; got "
                f"{len(tensors)}"
            )
        config = self.config
        memcpy(attributes, self.attributes, config.numAttrs * sizeof(cu.CUlaunchAttribute))
        config.attrs = attributes
        memcpy(params, self.params, self.num_params * sizeof(void*))
        resolve_stream(
            stream, tensors[0] if self.num_tensors else None, self.device, &config.hStream
        )
        try:
            for index in range(self.num_tensors):
                view = &views[index]
                example = &self.examples[index]
                point_at(tensors[index], config.hStream, view)
                taken += 1
                if not reachable(view, self.device):
                    self.wrong_device(index, view)
                if (
                    view.code != example.code or view.bits != example.bits
                    or view.lanes != example.lanes
                ):
                    self.wrong_dtype(index, view)
                params[self.places[index]] = &view.data
            pushed = enter_context(self.device)
            try:
                with nogil:
                    status = cu.cuLaunchKernelEx(&config, function, params, NULL)
                if status != cu.CUDA_SUCCESS:
                    raise_status_with(status, "cuLaunchKernelEx", f"kernel {self.kernel.name}")
            finally:
                leave_context(pushed)
        finally:
            for index in range(taken):
                release_pointer(&views[index])
        return 0
