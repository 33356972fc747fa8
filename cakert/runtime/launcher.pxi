# Included by library.pyx: the frozen launch. One extension module with the kernel, because either
# makes the other; a file of its own, because the launch path is a concern of its own.
from cuda.bindings cimport cydriver as cu
from libc.stdint cimport int32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from cakert.runtime.arguments cimport block_bytes, check_count, is_scalar, pack_scalar
from cakert.runtime.driver cimport check, enter_context, leave_context, raise_status_with
from cakert.runtime.tensor cimport (
    DL_CPU, DL_CUDA, DL_CUDA_HOST, DL_CUDA_MANAGED, PointerView, device_text, dtype_name, is_tensor,
    must_outlive_launch, point_at, release_pointer, resolve_stream, tensor_device,
)

from cakert.runtime.geometry import check_grid

cdef enum:
    MAX_PARAMS = 256                 # of a kernel launched here: their pointers lie on the stack
    MAX_ATTRIBUTES = 3               # cluster, programmatic dependent launch, cooperative


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
        self, tuple args, object grid, object block, object shared_bytes, object cluster, bint pdl,
        bint cooperative, object stream,
    ):
        """Check and store everything that a launch needs; return the tensors among `args`."""
        cdef Kernel kernel = self.kernel
        cdef tuple layout
        cdef list tensors = []
        self.find_device(args)
        layout = kernel.layout_on(self.device)
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
        self.view_examples(tensors, stream)
        self.freeze_geometry(
            grid, block, checked_int("shared_bytes", shared_bytes, 0, MAX_SHARED_BYTES), cluster,
            pdl, cooperative,
        )
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

    cdef int find_device(self, tuple args) except -1:
        """Take the device of the first tensor on one, the current device if there is none."""
        cdef int32_t device_type = DL_CPU
        cdef int32_t device_id = 0
        for argument in args:
            if not is_scalar(argument) and is_tensor(argument):
                tensor_device(argument, &device_type, &device_id)
                if device_type == DL_CUDA:
                    self.device = device_id
                    return 0
        self.device = driver.current_device()
        return 0

    cdef int view_examples(self, list tensors, object stream) except -1:
        """Take the element type of each tensor."""
        cdef int index
        cdef cu.CUstream handle = NULL
        cdef PointerView* view
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
            large_cluster = blocks_of(dims) > PORTABLE_CLUSTER_BLOCKS
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
        stream may be released as soon as it returns; on another stream keep the tensors. With JAX
        and TensorFlow arrays the call waits for the kernel, because their allocators would reuse a
        released array at once; keep the tensors of other pools yourself.
        torch's lazily negated views (``x.conj().imag``) are passed as they lie in memory: resolve
        them first (``resolve_neg``).
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
                for index in range(taken):
                    if views[index].owner != NULL and must_outlive_launch(tensors[index]):
                        with nogil:
                            status = cu.cuStreamSynchronize(config.hStream)
                        check(status, "cuStreamSynchronize")
                        break
            finally:
                leave_context(pushed)
        finally:
            for index in range(taken):
                release_pointer(&views[index])
        return 0
