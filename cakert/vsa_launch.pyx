"""The launch of a plan: checks the tensors of a run, fills CakeVsaParams, calls the driver.

The parameters that a plan fixes are packed once, and its tensor maps encoded once where the kernel
takes them; a run copies both to the C stack, sets addresses and launches. A call writes nothing
shared, so threads and streams may share a plan. A kernel that is not the driver's gets the same
bytes, and maps as descriptions, in a Python call: the simulator.
"""
cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cuda.bindings cimport cydriver as cu
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from cakert.runtime.driver cimport check, enter_context, leave_context
from cakert.runtime.library cimport Kernel
from cakert.runtime.tensor cimport (
    DL_BFLOAT, DL_CPU, DL_CUDA, DL_CUDA_HOST, DL_CUDA_MANAGED, DL_FLOAT, TensorView,
    device_text, dtype_name, is_packed, is_tensor, must_outlive_launch, release_view,
    resolve_stream, view_tensor,
)
from cakert.runtime.tensormap cimport encode_map, replace_address
from cakert.vsa_params cimport (
    CAKE_MAP_OUT_TOKENS, CAKE_VSA_PARAMS_VERSION, CakeTensorMap, CakeVsaParams,
)

from cakert import arrays

cdef extern from *:
    """
    static_assert(sizeof(CakeTensorMap) == sizeof(CUtensorMap), "the driver fills them");
    static_assert(alignof(CakeTensorMap) >= alignof(CUtensorMap), "where the driver wants them");
    """

cdef enum:
    ALIGNMENT = 16                   # bytes: the kernels read and write 16 at a time

include "vsa_tensors.pxi"
include "vsa_parameters.pxi"


cdef struct Expected:
    int64_t shape[3]
    int32_t ndim
    uint8_t code
    uint8_t bits


@cython.final
cdef class VsaCall:
    """One plan's launch, with everything frozen but the tensors.

    Parameters
    ----------
    kernel : Kernel or object
        Takes one CakeVsaParams; loaded on ``device``. Any other than a driver's Kernel reads
        memory of the host, and has ``name``, ``place`` (what messages call its device),
        ``layout`` ((offset, size) of each parameter) and ``launch_packed(params, regions, maps,
        grid, threads, shared_bytes, cluster)``, which returns when the work is done: ``params``
        are the bytes of CakeVsaParams, ``regions`` the tensors, as (name, address, bytes,
        writable) each, ``maps`` one dict a tensor map, with the arguments of
        `runtime.tensormap.encode`.
    device : int
        Of the driver; unused by another kernel.
    M, N, block, num_qo_heads, num_kv_heads, head_dim : int
        The problem; ``block`` is R = C, in tokens.
    dtype : str
        "float16" or "bfloat16".
    sm_scale : float
    index_bytes : int
        Size of an entry of row_blocks and group_blocks.
    grid, threads, shared_bytes : int
        Geometry: thread blocks on x, threads of each, dynamic shared memory in bytes.
    cluster : int
        Thread blocks of a cluster, which divide the grid; 1 launches without clusters.
    tensor_maps : bool
        Whether the kernel takes four tensor maps behind CakeVsaParams: of q, k, v and out.
    keep_alive : tuple
        Owners of the addresses.
    row_blocks, row_counts, tile_order, kv_block_lens : int
        Device addresses of the pattern, 0 where there is none (see cuda/vsa_params.h).
    group_rows, group_blocks, group_members, group_counts : int
        Those of the group record, likewise.
    row_stride, group_stride, num_groups : int
        Entries between two rows' lists and between two groups'; groups.
    """

    cdef readonly object kernel
    cdef readonly int device
    cdef Kernel loaded               # `kernel` where it is the driver's, else None
    cdef str place
    cdef object keep_alive
    cdef str dtype
    cdef CakeVsaParams constants
    cdef cu.CUlaunchConfig config
    cdef cu.CUlaunchAttribute attribute
    cdef uint32_t cluster
    cdef Expected expected[NUM_TENSORS]
    cdef readonly tuple maps         # arguments of each map but its address; empty without maps
    cdef uint64_t encoded[NUM_MAPS][16]  # not CakeTensorMap: objects are not aligned like it

    def __init__(
        self, object kernel not None, *, int device, uint32_t M, uint32_t N, uint32_t block,
        uint32_t num_qo_heads, uint32_t num_kv_heads, uint32_t head_dim, str dtype, float sm_scale,
        uint32_t index_bytes, uint32_t grid, uint32_t threads, uint32_t shared_bytes,
        bint tensor_maps, tuple keep_alive, uint32_t cluster=1,
        uint64_t row_blocks=0, uint64_t row_counts=0, uint64_t tile_order=0,
        uint64_t kv_block_lens=0, uint64_t group_rows=0, uint64_t group_blocks=0,
        uint64_t group_members=0, uint64_t group_counts=0,
        uint32_t row_stride=0, uint32_t group_stride=0, uint32_t num_groups=0,
    ):
        cdef tuple layout
        if isinstance(kernel, Kernel):
            self.loaded = kernel
            self.place = f"cuda:{device}"
            layout = self.loaded.layout_on(device)
        else:
            self.place = kernel.place
            layout = kernel.layout
        check_layout(kernel.name, layout, tensor_maps)
        self.kernel = kernel
        self.device = device
        self.dtype = dtype
        self.keep_alive = keep_alive

        memset(&self.constants, 0, sizeof(self.constants))
        self.constants.version = CAKE_VSA_PARAMS_VERSION
        self.constants.row_blocks = <const void*>row_blocks
        self.constants.row_counts = <const int32_t*>row_counts
        self.constants.kv_block_lens = <const int32_t*>kv_block_lens
        self.constants.tile_order = <const uint32_t*>tile_order
        self.constants.group_rows = <const uint32_t*>group_rows
        self.constants.group_blocks = <const void*>group_blocks
        self.constants.group_members = <const uint8_t*>group_members
        self.constants.group_counts = <const int32_t*>group_counts
        self.constants.index_bytes = index_bytes
        self.constants.row_stride = row_stride
        self.constants.group_stride = group_stride
        self.constants.num_groups = num_groups
        self.constants.num_rows = num_qo_heads * (M // block)
        self.constants.q_tokens = M
        self.constants.kv_tokens = N
        self.constants.q_blocks = M // block
        self.constants.kv_blocks = N // block
        self.constants.num_qo_heads = num_qo_heads
        self.constants.num_kv_heads = num_kv_heads
        self.constants.sm_scale = sm_scale

        memset(&self.config, 0, sizeof(self.config))
        self.config.gridDimX = grid
        self.config.gridDimY = self.config.gridDimZ = 1
        self.config.blockDimX = threads
        self.config.blockDimY = self.config.blockDimZ = 1
        self.config.sharedMemBytes = shared_bytes
        self.cluster = cluster
        if cluster > 1:
            memset(&self.attribute, 0, sizeof(self.attribute))
            self.attribute.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            self.attribute.value.clusterDim.x = cluster
            self.attribute.value.clusterDim.y = self.attribute.value.clusterDim.z = 1
            self.config.attrs = &self.attribute
            self.config.numAttrs = 1

        cdef uint8_t code = DL_BFLOAT if dtype == "bfloat16" else DL_FLOAT
        self.expect(Q, M, num_qo_heads, head_dim, code, 16)
        self.expect(K, N, num_kv_heads, head_dim, code, 16)
        self.expect(V, N, num_kv_heads, head_dim, code, 16)
        self.expect(OUT, M, num_qo_heads, head_dim, code, 16)
        self.expect(LSE, M, num_qo_heads, 1, DL_FLOAT, 32)
        self.expected[LSE].ndim = 2

        self.maps = ()
        if tensor_maps:
            self.maps = (
                describe_map(dtype, head_dim, num_qo_heads, M, block),
                describe_map(dtype, head_dim, num_kv_heads, N, block),
                describe_map(dtype, head_dim, num_kv_heads, N, block),
                describe_map(dtype, head_dim, num_qo_heads, M, CAKE_MAP_OUT_TOKENS),
            )
            if self.loaded is not None:
                self.encode_maps(row_blocks or group_blocks)

    cdef int encode_maps(self, uint64_t anywhere) except -1:
        """Encode the maps; every run replaces their address, which must only be a valid one."""
        cdef CakeTensorMap target
        cdef int which
        for which in range(NUM_MAPS):
            described = <dict>self.maps[which]
            encode_map(
                <cu.CUtensorMap*>&target, described["data_type"], anywhere, described["dims"],
                described["strides"], described["box"], described["swizzle"],
                described["l2_promotion"], self.device,
            )
            memcpy(&self.encoded[which][0], &target, sizeof(target))
        return 0

    cdef int point_maps(
        self, CakeTensorMap* maps, void** arguments, const TensorView* views
    ) except -1:
        """Copy the plan's maps to the caller's stack, at the tensors of a run."""
        cdef int which
        for which in range(NUM_MAPS):
            memcpy(&maps[which], &self.encoded[which][0], sizeof(CakeTensorMap))
            replace_address(<cu.CUtensorMap*>&maps[which], views[which].data)
            arguments[which] = &maps[which]
        return 0

    cdef void expect(
        self, int which, int64_t tokens, int64_t heads, int64_t dim, uint8_t code, uint8_t bits
    ) noexcept:
        self.expected[which].shape[0] = tokens
        self.expected[which].shape[1] = heads
        self.expected[which].shape[2] = dim
        self.expected[which].ndim = 3
        self.expected[which].code = code
        self.expected[which].bits = bits

    def run(self, q, k, v, out, lse, bint return_lse, stream=None):
        """Check the tensors and launch; return ``out`` or ``(out, lse)``.

        ``out`` and ``lse`` may be None and are then allocated by q's framework. ``stream``
        defaults to the current one of q's framework. Errors as in ``run_cake_vsa``.
        """
        cdef TensorView views[NUM_TENSORS]
        cdef CakeVsaParams params = self.constants
        cdef cu.CUlaunchConfig config = self.config
        cdef CakeTensorMap maps[NUM_MAPS]
        cdef void* arguments[1 + NUM_MAPS]
        cdef cu.CUresult status
        cdef int pushed, which
        for which in range(NUM_TENSORS):
            views[which].owner = NULL
        try:
            if self.loaded is not None:
                resolve_stream(stream, q, self.device, &config.hStream)
            self.view_inputs(q, k, v, config.hStream, views)
            if lse is not None and not return_lse:
                raise ValueError(
                    "lse was given without return_lse: pass return_lse=True or lse=None"
                )
            if out is None:
                out = arrays.empty(like=q, shape=self.shape(OUT), dtype=self.dtype)
            if return_lse and lse is None:
                lse = arrays.empty(like=q, shape=self.shape(LSE), dtype="float32")
            self.view_outputs(out, lse, config.hStream, views)
            set_addresses(&params, views, lse is not None)
            if self.loaded is None:
                self.hand_over(&params, views, lse is not None)
                return (out, lse) if return_lse else out
            arguments[0] = &params
            pushed = enter_context(self.device)
            try:
                if self.maps:
                    self.point_maps(maps, &arguments[1], views)
                with nogil:
                    status = cu.cuLaunchKernelEx(
                        &config, <cu.CUfunction>self.loaded.handle, arguments, NULL
                    )
                check(status, "cuLaunchKernelEx")
                if (
                    (views[Q].owner != NULL and must_outlive_launch(q))
                    or (views[K].owner != NULL and must_outlive_launch(k))
                    or (views[V].owner != NULL and must_outlive_launch(v))
                ):
                    with nogil:
                        status = cu.cuStreamSynchronize(config.hStream)
                    check(status, "cuStreamSynchronize")
            finally:
                leave_context(pushed)
        finally:
            for which in range(NUM_TENSORS):
                release_view(&views[which])
        return (out, lse) if return_lse else out

    def pack(self, q, k, v, out, lse):
        """The bytes of CakeVsaParams that ``run`` with these tensors would pass; no launch."""
        cdef TensorView views[NUM_TENSORS]
        cdef CakeVsaParams params = self.constants
        cdef cu.CUstream stream = NULL
        cdef int which
        for which in range(NUM_TENSORS):
            views[which].owner = NULL
        try:
            if self.loaded is not None:
                resolve_stream(None, q, self.device, &stream)
            self.view_inputs(q, k, v, stream, views)
            self.view_outputs(out, lse, stream, views)
            set_addresses(&params, views, lse is not None)
        finally:
            for which in range(NUM_TENSORS):
                release_view(&views[which])
        return PyBytes_FromStringAndSize(<char*>&params, sizeof(params))

    cdef int hand_over(
        self, const CakeVsaParams* params, const TensorView* views, bint with_lse
    ) except -1:
        """Launch a kernel that is not the driver's, on the tensors where they are."""
        cdef int which
        cdef list regions = []
        for which in range(NUM_TENSORS if with_lse else LSE):
            address, size = <uint64_t>views[which].data, num_bytes(&views[which])
            regions.append((NAMES[which], address, size, which >= OUT))
        cdef list maps = []
        for which, described in enumerate(self.maps):
            maps.append({**described, "global_address": <uint64_t>views[which].data})
        self.kernel.launch_packed(
            PyBytes_FromStringAndSize(<const char*>params, sizeof(CakeVsaParams)),
            tuple(regions),
            tuple(maps),
            self.config.gridDimX,
            self.config.blockDimX,
            self.config.sharedMemBytes,
            self.cluster,
        )
        return 0

    cdef bint in_reach(self, const TensorView* view) noexcept:
        """Whether the plan's device reads the memory of ``view``."""
        if self.loaded is None:
            return view.device_type == DL_CPU or view.device_type == DL_CUDA_HOST
        return view.device_id == self.device and (
            view.device_type == DL_CUDA or view.device_type == DL_CUDA_MANAGED
        )

    cdef tuple shape(self, int which):
        cdef Expected* expected = &self.expected[which]
        return tuple([expected.shape[axis] for axis in range(expected.ndim)])

    cdef int view_inputs(
        self, object q, object k, object v, cu.CUstream stream, TensorView* views
    ) except -1:
        self.view(Q, q, stream, views)
        self.view(K, k, stream, views)
        self.view(V, v, stream, views)
        return 0

    cdef int view_outputs(
        self, object out, object lse, cu.CUstream stream, TensorView* views
    ) except -1:
        cdef int which
        self.view(OUT, out, stream, views)
        refuse_read_only(OUT, out, &views[OUT])
        for which in range(OUT):
            refuse_overlap(OUT, which, views)
        if lse is not None:
            self.view(LSE, lse, stream, views)
            refuse_read_only(LSE, lse, &views[LSE])
            for which in range(LSE):
                refuse_overlap(LSE, which, views)
        return 0

    cdef int view(self, int which, object tensor, cu.CUstream stream, TensorView* views) except -1:
        """Fill ``views[which]`` and hold it to what the plan expects."""
        cdef TensorView* view = &views[which]
        cdef Expected* expected = &self.expected[which]
        cdef int axis
        cdef bint same
        if getattr(tensor, "requires_grad", False):
            refuse_grad(which)
        try:
            view_tensor(tensor, stream, view)
        except (BufferError, TypeError, ValueError) as error:
            # What is a tensor but of a kind that no plan takes (a version, a type, too many axes)
            # does not match the plan.
            kind = TypeError if not is_tensor(tensor) else ValueError
            raise kind(f"{NAMES[which]}: {error}") from None
        same = view.ndim == expected.ndim
        if same:
            for axis in range(expected.ndim):
                same = same and view.shape[axis] == expected.shape[axis]
        if not same:
            raise ValueError(
                f"{NAMES[which]} must have the plan's shape {self.shape(which)}, got "
                f"{axes(view.shape, view.ndim)}"
            )
        if view.code != expected.code or view.bits != expected.bits or view.lanes != 1:
            raise ValueError(
                f"{NAMES[which]} must be {dtype_name(expected.code, expected.bits, 1)} as the plan "
                f"is for {self.dtype}, got {dtype_name(view.code, view.bits, view.lanes)}"
            )
        if not self.in_reach(view):
            raise ValueError(
                f"{NAMES[which]} must be on the plan's device {self.place}, got "
                f"{device_text(view.device_type, view.device_id)}"
            )
        if not is_packed(view):
            raise ValueError(
                f"{NAMES[which]} must be contiguous, got strides {axes(view.strides, view.ndim)} "
                f"(in elements) for shape {self.shape(which)}"
            )
        if <uint64_t>view.data % ALIGNMENT != 0:
            raise ValueError(
                f"{NAMES[which]} must be aligned to {<int>ALIGNMENT} bytes, got address "
                f"{<uint64_t>view.data:#x}"
            )
        return 0
