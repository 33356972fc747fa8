# Included by library.pyx: a kernel of a library, its resources and its code on each device. It and
# its library make each other, hence one extension module.
from libc.string cimport memset

from cakert.runtime.geometry import check_block, check_cluster, dim3

KernelAttributes = namedtuple(
    "KernelAttributes",
    (
        "registers", "shared_bytes", "local_bytes", "constant_bytes", "max_threads",
        "binary_version", "cluster",
    ),
)
KernelAttributes.__doc__ = """Resources of a kernel on one device, as the driver has them.

Attributes
----------
registers : int
    32-bit registers a thread.
shared_bytes : int
    Static shared memory of a block.
local_bytes : int
    Local memory a thread: stack, spills and arrays that are indexed at run time.
constant_bytes : int
    ``__constant__`` variables of the module.
max_threads : int
    Threads that a block of this kernel may have.
binary_version : tuple[int, int]
    Architecture of the machine code, as a compute capability: of a fatbin the image that the driver
    took, or made from PTX.
cluster : tuple[int, int, int] or None
    Cluster that the kernel demands, in blocks.
"""

Occupancy = namedtuple("Occupancy", ("blocks_per_sm", "clusters"))
Occupancy.__doc__ = """What of a kernel a device runs at a time.

Attributes
----------
blocks_per_sm : int
    Thread blocks on one SM; 0 where not even one fits.
clusters : int or None
    Clusters on the whole device, None without clusters.
"""


cdef inline int blocks_of(tuple dims) except -1:
    """Product of three extents: blocks of a cluster, threads of a block."""
    return dims[0] * dims[1] * dims[2]


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
            version = self.attribute(device, cu.CU_FUNC_ATTRIBUTE_BINARY_VERSION)
            return KernelAttributes(
                self.attribute(device, cu.CU_FUNC_ATTRIBUTE_NUM_REGS),
                self.attribute(device, cu.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES),
                self.attribute(device, cu.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES),
                self.attribute(device, cu.CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES),
                self.attribute(device, cu.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK),
                (version // 10, version % 10),
                self.required_cluster(device),
            )
        finally:
            leave_context(pushed)

    cdef object required_cluster(self, int device):
        """The cluster that the code demands, or None; the device's context is current."""
        dims = (
            self.attribute(device, cu.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH),
            self.attribute(device, cu.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT),
            self.attribute(device, cu.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH),
        )
        return dims if dims[0] else None

    def occupancy(self, block, shared_bytes=0, cluster=None, int device=0):
        """Return how many thread blocks and clusters of this kernel a device runs at a time.

        Parameters
        ----------
        block : int or tuple of up to 3 ints
            Threads of a block.
        shared_bytes : int, optional
            Dynamic shared memory of a block in bytes.
        cluster : int or tuple of up to 3 ints, optional
            Blocks of a cluster; the one that the kernel demands where None.
        device : int, optional
            CUDA device, 0 by default.

        Returns
        -------
        Occupancy

        Raises
        ------
        ValueError
            More threads, shared memory or blocks of a cluster than the device or the kernel allow,
            or another cluster than the kernel demands.
        CudaError
            The code cannot be loaded on the device.
        """
        cdef cu.CUlaunchConfig config
        cdef cu.CUlaunchAttribute attribute
        cdef cu.CUfunction function = <cu.CUfunction>self.handle
        cdef int shared = checked_int("shared_bytes", shared_bytes, 0, MAX_SHARED_BYTES)
        cdef int blocks = 0
        cdef int clusters = 0
        cdef int pushed
        threads = dim3("block", block)
        dims = None if cluster is None else dim3("cluster", cluster)
        limits = device_limits(device)
        if dims is not None:
            check_cluster(dims, dims, limits)
        large = dims is not None and blocks_of(dims) > PORTABLE_CLUSTER_BLOCKS
        self.ensure_loaded(device, shared, large)
        pushed = enter_context(device)
        try:
            check_block(
                threads, limits,
                self.attribute(device, cu.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK),
            )
            required = self.required_cluster(device)
            if required is not None and dims not in (None, required):
                raise ValueError(
                    f"cluster must be {required}, which the kernel demands; got {dims}"
                )
            dims = required or dims
            check(
                cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(
                    &blocks, function, blocks_of(threads), shared
                ),
                "cuOccupancyMaxActiveBlocksPerMultiprocessor",
            )
            if dims is None:
                return Occupancy(blocks, None)
            memset(&config, 0, sizeof(config))
            memset(&attribute, 0, sizeof(attribute))
            config.gridDimX, config.gridDimY, config.gridDimZ = dims
            config.blockDimX, config.blockDimY, config.blockDimZ = threads
            config.sharedMemBytes = shared
            attribute.id = cu.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            attribute.value.clusterDim.x = dims[0]
            attribute.value.clusterDim.y = dims[1]
            attribute.value.clusterDim.z = dims[2]
            config.attrs = &attribute
            config.numAttrs = 1
            check(
                cu.cuOccupancyMaxActiveClusters(&clusters, function, &config),
                "cuOccupancyMaxActiveClusters",
            )
            return Occupancy(blocks, clusters)
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
                required = self.required_cluster(device)
                if required is not None:
                    large_cluster |= blocks_of(required) > PORTABLE_CLUSTER_BLOCKS
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
