"""Any framework's tensor as a plain C view, and the stream that its framework works on.

Asked for in this order: numpy's own description, the DLPack C exchange interface (on the type; no
Python object is made), a `__dlpack__` capsule, `__cuda_array_interface__`. What a type offers is
found once and kept; no framework is imported that its user has not imported.
"""
import sys
from collections import namedtuple

cimport cython
from cpython.object cimport PyObject
from cpython.pycapsule cimport (
    PyCapsule_CheckExact, PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_SetName,
)
from cuda.bindings cimport cydriver as cu
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t

from cakert.runtime.dlpack cimport (
    CAKE_DLPACK_MAJOR, CAKE_DLPACK_MINOR, CAKE_DLPACK_READ_ONLY, CakeDLManagedTensor,
    CakeDLManagedTensorVersioned, CakeDLPackExchangeAPI, CakeDLPackExchangeHeader, CakeDLTensor,
)
from cakert.runtime.driver cimport check, ensure_init, enter_context, leave_context

cdef enum OwnerKind:
    OWNER_NONE = 0
    OWNER_VERSIONED = 1
    OWNER_UNVERSIONED = 2

cdef enum Interface:
    FROM_NOTHING = 0
    FROM_NUMPY = 1
    FROM_EXCHANGE = 2
    FROM_CAPSULE = 3
    FROM_ARRAY_INTERFACE = 4

# numpy (and ml_dtypes) names -> DLPack (code, bits). Types narrower than a byte are left out: numpy
# stores one a byte, which a DLPack type cannot say.
cdef dict DTYPES = {
    "bool": (DL_BOOL, 8),
    "int8": (DL_INT, 8), "int16": (DL_INT, 16), "int32": (DL_INT, 32), "int64": (DL_INT, 64),
    "uint8": (DL_UINT, 8), "uint16": (DL_UINT, 16), "uint32": (DL_UINT, 32),
    "uint64": (DL_UINT, 64),
    "float16": (DL_FLOAT, 16), "float32": (DL_FLOAT, 32), "float64": (DL_FLOAT, 64),
    "bfloat16": (DL_BFLOAT, 16),
    "complex64": (DL_COMPLEX, 64), "complex128": (DL_COMPLEX, 128),
    "float8_e3m4": (7, 8), "float8_e4m3": (8, 8), "float8_e4m3b11fnuz": (9, 8),
    "float8_e4m3fn": (10, 8), "float8_e4m3fnuz": (11, 8), "float8_e5m2": (12, 8),
    "float8_e5m2fnuz": (13, 8), "float8_e8m0fnu": (14, 8),
}
cdef dict DTYPE_NAMES = {pair: name for name, pair in DTYPES.items()}
cdef dict CODE_NAMES = {
    DL_INT: "int", DL_UINT: "uint", DL_FLOAT: "float", 3: "opaque", DL_BFLOAT: "bfloat",
    DL_COMPLEX: "complex", DL_BOOL: "bool", 15: "float6_e2m3fn", 16: "float6_e3m2fn",
    17: "float4_e2m1fn",
}
cdef dict DEVICE_NAMES = {
    DL_CPU: "the CPU", DL_CUDA_HOST: "pinned host memory", DL_CUDA_MANAGED: "managed memory",
}
# Root module -> name of the framework, searched along a type's bases.
cdef dict FRAMEWORKS = {
    "torch": "torch", "numpy": "numpy", "cupy": "cupy", "jax": "jax", "jaxlib": "jax",
    "numba": "numba", "numba_cuda": "numba", "cakert": "cakert", "paddle": "paddle",
    "tensorflow": "tensorflow",
}

TensorInfo = namedtuple(
    "TensorInfo",
    ("pointer", "shape", "strides", "dtype", "device_type", "device_id", "readonly", "framework"),
)
TensorInfo.__doc__ = """What a tensor is, as plain Python values.

Attributes
----------
pointer : int
    Address of the first element; 0 for some empty tensors.
shape, strides : tuple[int, ...]
    Strides in elements.
dtype : str
    numpy's or ml_dtypes' name ("bfloat16"); a vector type says its lanes ("float32x2").
device_type, device_id : int
    DLPack's numbers: 1 is the CPU, 2 CUDA.
readonly : bool
framework : str
    "torch", "numpy", "jax", "cupy", "numba", "cakert" or the root module of the type.
"""


@cython.final
cdef class TypeEntry:
    """What one type offers. Holds the type: the address of a freed type may be reused."""

    cdef object type
    cdef object capsule                # keeps the exchange table where a producer frees it
    cdef CakeDLPackExchangeAPI* api
    cdef Interface interface
    cdef str framework


cdef dict entries = {}                 # type -> TypeEntry, for the life of the process
cdef PyObject* last_entry = NULL       # the entry used last; `entries` holds it


cdef inline TypeEntry entry_of(object obj):
    global last_entry
    cdef TypeEntry entry
    cdef PyObject* cached = last_entry
    if cached != NULL and (<TypeEntry>cached).type is type(obj):
        return <TypeEntry>cached
    entry = <TypeEntry>entries.get(type(obj))
    if entry is None:
        entry = make_entry(obj)
        if entry.interface == FROM_NOTHING:
            return entry               # not kept: any object may be asked
        entry = <TypeEntry>entries.setdefault(type(obj), entry)
    last_entry = <PyObject*>entry
    return entry


cdef TypeEntry make_entry(object obj):
    cdef TypeEntry entry = TypeEntry.__new__(TypeEntry)
    entry.type = type(obj)
    entry.framework = framework_name(type(obj))
    entry.interface = FROM_NOTHING
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(obj, numpy.ndarray):
        entry.interface = FROM_NUMPY
        return entry
    if numpy is not None and isinstance(obj, numpy.generic):
        return entry                   # a scalar, although it has __array_interface__
    entry.capsule = getattr(type(obj), "__dlpack_c_exchange_api__", None)
    if entry.capsule is not None:
        entry.api = exchange_table(entry.capsule)
    if entry.api != NULL:
        entry.interface = FROM_EXCHANGE
    elif hasattr(obj, "__dlpack__") and not isinstance(obj, type):
        entry.interface = FROM_CAPSULE
    elif hasattr(obj, "__cuda_array_interface__") and not isinstance(obj, type):
        entry.interface = FROM_ARRAY_INTERFACE
    return entry


cdef CakeDLPackExchangeAPI* exchange_table(object capsule) except? NULL:
    """Return the table of our major version, or NULL: then the type is asked by capsule."""
    cdef CakeDLPackExchangeHeader* header
    if not PyCapsule_IsValid(capsule, "dlpack_exchange_api"):
        return NULL
    header = <CakeDLPackExchangeHeader*>PyCapsule_GetPointer(capsule, "dlpack_exchange_api")
    while header != NULL and header.version.major != CAKE_DLPACK_MAJOR:
        header = header.prev_api
    return <CakeDLPackExchangeAPI*>header


cdef str framework_name(object kind):
    for base in kind.__mro__:
        root = str(getattr(base, "__module__", "")).partition(".")[0]
        if root in FRAMEWORKS:
            return FRAMEWORKS[root]
    return str(getattr(kind, "__module__", "")).partition(".")[0]


cdef bint is_tensor(object obj) except -1:
    return entry_of(obj).interface != FROM_NOTHING


cdef int not_a_tensor(object obj) except -1:
    raise TypeError(
        f"expected a tensor (numpy, torch, CuPy, JAX or any object with __dlpack__ or "
        f"__cuda_array_interface__), got {type(obj).__module__}.{type(obj).__qualname__}"
    )


# --- views -------------------------------------------------------------------------------------

cdef int fill(TensorView* view, const CakeDLTensor* tensor, object obj) except -1:
    cdef int axis
    if not 0 <= tensor.ndim <= MAX_NDIM:
        raise ValueError(
            f"a tensor must have between 0 and {<int>MAX_NDIM} axes; got {tensor.ndim} "
            f"({type(obj).__qualname__})"
        )
    view.data = tensor.data
    if view.data != NULL:
        view.data = <char*>view.data + tensor.byte_offset
    view.device_type = tensor.device.device_type
    view.device_id = tensor.device.device_id
    view.code = tensor.dtype.code
    view.bits = tensor.dtype.bits
    view.lanes = tensor.dtype.lanes
    view.ndim = tensor.ndim
    for axis in range(tensor.ndim):
        view.shape[axis] = tensor.shape[axis]
    if tensor.strides != NULL:
        for axis in range(tensor.ndim):
            view.strides[axis] = tensor.strides[axis]
    else:
        pack_strides(view)
    return 0


cdef void pack_strides(TensorView* view) noexcept nogil:
    cdef int axis
    cdef int64_t stride = 1
    for axis in range(view.ndim - 1, -1, -1):
        view.strides[axis] = stride
        stride *= view.shape[axis]


cdef int view_tensor(object obj, cu.CUstream stream, TensorView* view) except -1:
    cdef TypeEntry entry = entry_of(obj)
    cdef CakeDLTensor tensor
    view.owner = NULL
    view.owner_kind = OWNER_NONE
    view.readonly = 0
    if entry.interface == FROM_EXCHANGE:
        if entry.api.dltensor_from_py_object_no_sync == NULL:
            return view_owned(obj, entry, view)
        entry.api.dltensor_from_py_object_no_sync(<void*>obj, &tensor)
        return fill(view, &tensor, obj)
    if entry.interface == FROM_NUMPY:
        return view_numpy(obj, view)
    if entry.interface == FROM_CAPSULE:
        return view_capsule(obj, entry, stream, view)
    if entry.interface == FROM_ARRAY_INTERFACE:
        return view_array_interface(obj, stream, True, view)
    return not_a_tensor(obj)


cdef int point_at(object obj, cu.CUstream stream, PointerView* view) except -1:
    cdef TypeEntry entry = entry_of(obj)
    cdef CakeDLTensor tensor
    cdef TensorView whole
    if entry.api != NULL and entry.api.dltensor_from_py_object_no_sync != NULL:
        entry.api.dltensor_from_py_object_no_sync(<void*>obj, &tensor)
        view.data = tensor.data
        if view.data != NULL:
            view.data = <char*>view.data + tensor.byte_offset
        view.owner = NULL
        view.device_type = tensor.device.device_type
        view.device_id = tensor.device.device_id
        view.code = tensor.dtype.code
        view.bits = tensor.dtype.bits
        view.lanes = tensor.dtype.lanes
        return 0
    view_tensor(obj, stream, &whole)
    view.data = whole.data
    view.owner = whole.owner
    view.owner_kind = whole.owner_kind
    view.device_type = whole.device_type
    view.device_id = whole.device_id
    view.code = whole.code
    view.bits = whole.bits
    view.lanes = whole.lanes
    return 0


cdef void release_view(TensorView* view) noexcept:
    cdef void* owner = view.owner
    view.owner = NULL                  # released exactly once, whatever the caller does
    release_owner(owner, view.owner_kind)


cdef void release_pointer(PointerView* view) noexcept:
    cdef void* owner = view.owner
    view.owner = NULL
    release_owner(owner, view.owner_kind)


cdef void release_owner(void* owner, int32_t kind) noexcept:
    cdef CakeDLManagedTensorVersioned* versioned
    cdef CakeDLManagedTensor* unversioned
    if owner == NULL:
        return
    if kind == OWNER_VERSIONED:
        versioned = <CakeDLManagedTensorVersioned*>owner
        if versioned.deleter != NULL:
            versioned.deleter(versioned)
    elif kind == OWNER_UNVERSIONED:
        unversioned = <CakeDLManagedTensor*>owner
        if unversioned.deleter != NULL:
            unversioned.deleter(unversioned)


cdef int view_owned(object obj, TypeEntry entry, TensorView* view) except -1:
    cdef CakeDLManagedTensorVersioned* managed = NULL
    entry.api.managed_tensor_from_py_object_no_sync(<void*>obj, &managed)
    return take_versioned(managed, obj, view)


cdef int take_versioned(
    CakeDLManagedTensorVersioned* managed, object obj, TensorView* view
) except -1:
    """Make `view` the owner of `managed`; on failure `managed` is deleted."""
    cdef unsigned int major = managed.version.major
    view.owner = managed
    view.owner_kind = OWNER_VERSIONED
    try:
        if major != CAKE_DLPACK_MAJOR:
            raise BufferError(
                f"{type(obj).__qualname__} exports DLPack {major}.{managed.version.minor}; "
                f"cakert reads major version {<int>CAKE_DLPACK_MAJOR}"
            )
        view.readonly = (managed.flags & CAKE_DLPACK_READ_ONLY) != 0
        fill(view, &managed.dl_tensor, obj)
    except BaseException:
        release_view(view)
        raise
    return 0


cdef int view_capsule(
    object obj, TypeEntry entry, cu.CUstream stream, TensorView* view
) except -1:
    cdef object capsule = ask_capsule(obj, capsule_stream(obj, entry, stream))
    cdef CakeDLManagedTensorVersioned* versioned
    cdef CakeDLManagedTensor* unversioned
    # Both names are accepted whatever was asked for: some producers ignore max_version. Renaming
    # tells the capsule's own destructor that the deleter is now ours to call.
    if PyCapsule_IsValid(capsule, "dltensor_versioned"):
        versioned = <CakeDLManagedTensorVersioned*>PyCapsule_GetPointer(
            capsule, "dltensor_versioned"
        )
        PyCapsule_SetName(capsule, "used_dltensor_versioned")
        capsule = None                 # its destructor must not run while an error is set
        return take_versioned(versioned, obj, view)
    if PyCapsule_IsValid(capsule, "dltensor"):
        unversioned = <CakeDLManagedTensor*>PyCapsule_GetPointer(capsule, "dltensor")
        PyCapsule_SetName(capsule, "used_dltensor")
        capsule = None
        view.owner = unversioned
        view.owner_kind = OWNER_UNVERSIONED
        try:
            fill(view, &unversioned.dl_tensor, obj)
        except BaseException:
            release_view(view)
            raise
        return 0
    what = "a used capsule" if PyCapsule_CheckExact(capsule) else type(capsule).__qualname__
    raise TypeError(
        f"{type(obj).__qualname__}.__dlpack__ must return a capsule named dltensor_versioned or "
        f"dltensor; got {what}"
    )


cdef object capsule_stream(object obj, TypeEntry entry, cu.CUstream stream):
    """The `stream` argument of __dlpack__: None off CUDA, -1 where no ordering is needed."""
    cdef cu.CUstream producer = NULL
    device_type, device_id = obj.__dlpack_device__()
    if int(device_type) not in (DL_CUDA, DL_CUDA_MANAGED):
        return None
    if entry.framework in ("torch", "cupy"):
        framework_stream(obj, entry, device_id, &producer)
        if producer == stream:
            return -1
    return <size_t>stream if stream != NULL else 1  # 0 is not allowed there, 1 is the legacy stream


cdef object ask_capsule(object obj, object stream):
    try:
        return obj.__dlpack__(
            stream=stream, max_version=(<int>CAKE_DLPACK_MAJOR, <int>CAKE_DLPACK_MINOR)
        )
    except TypeError:
        pass                           # a producer of the time before max_version
    try:
        return obj.__dlpack__(stream=stream)
    except TypeError:
        if stream is not None:
            raise
    return obj.__dlpack__()


cdef int view_numpy(object array, TensorView* view) except -1:
    cdef dict interface = array.__array_interface__
    cdef object dtype = array.dtype
    cdef int64_t item = dtype.itemsize
    dtype_code(dtype.name, &view.code, &view.bits)
    if not dtype.isnative:
        raise TypeError(f"a numpy array must be in native byte order; got dtype {dtype.str}")
    view.lanes = 1
    view.device_type = DL_CPU
    view.device_id = 0
    pointer, readonly = interface["data"]
    view.data = <void*><size_t>pointer
    view.readonly = bool(readonly)
    fill_axes(view, interface["shape"], interface["strides"], item)
    return 0


cdef int fill_axes(
    TensorView* view, tuple shape, object byte_strides, int64_t item
) except -1:
    cdef int axis
    cdef int64_t stride
    if len(shape) > MAX_NDIM:
        raise ValueError(
            f"a tensor must have between 0 and {<int>MAX_NDIM} axes; got {len(shape)}"
        )
    view.ndim = <int32_t>len(shape)
    for axis in range(view.ndim):
        view.shape[axis] = shape[axis]
    if byte_strides is None:
        pack_strides(view)
        return 0
    for axis in range(view.ndim):
        stride = byte_strides[axis]
        if stride % item != 0 and view.shape[axis] > 1:
            raise ValueError(
                f"strides must be multiples of the item size ({item} bytes); got {stride} bytes "
                f"on axis {axis}"
            )
        view.strides[axis] = stride // item
    return 0


cdef int view_array_interface(
    object obj, cu.CUstream stream, bint order, TensorView* view
) except -1:
    cdef dict interface = obj.__cuda_array_interface__
    cdef object typestr = interface["typestr"]
    cdef object producer = interface.get("stream")
    cdef object name
    cdef int64_t item
    if interface.get("mask") is not None:
        raise TypeError(f"{type(obj).__qualname__} is a masked array: pass its data alone")
    if typestr[0] == ">":
        raise TypeError(f"an array must be in native byte order; got typestr {typestr!r}")
    item = int(typestr[2:])
    if typestr[1] == "V":              # bfloat16 and the like have no letter of their own
        name = str(getattr(getattr(obj, "dtype", None), "name", typestr))
    else:
        kind = {"b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex"}.get(typestr[1])
        if kind is None:
            raise TypeError(f"an array of typestr {typestr!r} has no DLPack type")
        name = kind if kind == "bool" else f"{kind}{8 * item}"
    dtype_code(name, &view.code, &view.bits)
    view.lanes = 1
    pointer, readonly = interface["data"]
    view.data = <void*><size_t>(pointer or 0)
    view.readonly = bool(readonly)
    fill_axes(view, tuple(interface["shape"]), interface.get("strides"), item)
    view.device_type = DL_CUDA
    view.device_id = pointer_device(<cu.CUdeviceptr><size_t>view.data)
    if order and producer is not None and view.data != NULL:
        if producer == 0:
            raise ValueError(
                "__cuda_array_interface__['stream'] must be None or a handle from 1; got 0"
            )
        order_after(<cu.CUstream><size_t>producer, stream, view.device_id)
    return 0


cdef int pointer_device(cu.CUdeviceptr pointer) except -1:
    cdef int device = 0
    cdef cu.CUcontext context = NULL
    cdef cu.CUresult status
    ensure_init()
    if pointer != 0:
        status = cu.cuPointerGetAttribute(
            &device, cu.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer
        )
        if status == cu.CUDA_ERROR_INVALID_VALUE:
            raise ValueError(
                f"__cuda_array_interface__: the address 0x{pointer:x} is not CUDA memory"
            )
        check(status, "cuPointerGetAttribute")
        return device
    check(cu.cuCtxGetCurrent(&context), "cuCtxGetCurrent")
    if context != NULL:
        check(cu.cuCtxGetDevice(&device), "cuCtxGetDevice")
    return device


cdef int order_after(cu.CUstream producer, cu.CUstream consumer, int device) except -1:
    """Make `consumer` wait for what is on `producer` now; the host does not wait."""
    cdef cu.CUevent event = NULL
    cdef int pushed
    if producer == consumer or (<size_t>producer <= 1 and <size_t>consumer <= 1):
        return 0                       # 0 and 1 both mean the legacy stream
    pushed = enter_context(device)
    try:
        check(cu.cuEventCreate(&event, cu.CU_EVENT_DISABLE_TIMING), "cuEventCreate")
        try:
            check(cu.cuEventRecord(event, producer), "cuEventRecord")
            check(cu.cuStreamWaitEvent(consumer, event, 0), "cuStreamWaitEvent")
        finally:
            # The driver keeps the event until the recorded work is done.
            check(cu.cuEventDestroy(event), "cuEventDestroy")
    finally:
        leave_context(pushed)
    return 0


cdef bint is_packed(const TensorView* view) noexcept nogil:
    cdef int axis
    cdef int64_t expected = 1
    for axis in range(view.ndim):
        if view.shape[axis] == 0:
            return True
    for axis in range(view.ndim - 1, -1, -1):
        if view.shape[axis] != 1:
            if view.strides[axis] != expected:
                return False
            expected *= view.shape[axis]
    return True


cdef int tensor_device(object obj, int32_t* device_type, int32_t* device_id) except -1:
    cdef TypeEntry entry = entry_of(obj)
    cdef TensorView view
    if entry.interface == FROM_CAPSULE:
        kind, number = obj.__dlpack_device__()
        device_type[0] = int(kind)
        device_id[0] = number
        return 0
    if entry.interface == FROM_ARRAY_INTERFACE:
        view.owner = NULL
        view_array_interface(obj, NULL, False, &view)
    else:
        view_tensor(obj, NULL, &view)
    device_type[0] = view.device_type
    device_id[0] = view.device_id
    release_view(&view)
    return 0


cdef str dtype_name(uint8_t code, uint8_t bits, uint16_t lanes):
    cdef str name = DTYPE_NAMES.get((code, bits))
    if name is None:
        name = CODE_NAMES.get(code, f"code{code}_{bits}")
        if code < 7:                   # the codes from 7 on name their width
            name = f"{name}{bits}"
    return name if lanes == 1 else f"{name}x{lanes}"


cdef int dtype_code(str name, uint8_t* code, uint8_t* bits) except -1:
    cdef object pair = DTYPES.get(name)
    if pair is None:
        raise TypeError(f"dtype must be one of {', '.join(DTYPES)}; got {name}")
    code[0], bits[0] = pair
    return 0


cdef str device_text(int32_t device_type, int32_t device_id):
    if device_type == DL_CUDA:
        return f"cuda:{device_id}"
    return DEVICE_NAMES.get(device_type, f"DLPack device ({device_type}, {device_id})")


# --- streams -----------------------------------------------------------------------------------

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


def current_stream(object obj, int device):
    """Return the stream that the framework of a tensor works on now.

    Parameters
    ----------
    obj : tensor
        Any object that :func:`describe` reads.
    device : int
        CUDA device whose stream is asked for.

    Returns
    -------
    int
        Handle of the stream; 0, the legacy default stream, for frameworks without a current
        stream (JAX, numba, numpy).

    Raises
    ------
    TypeError
        `obj` is no tensor.
    """
    cdef cu.CUstream stream = NULL
    if not is_tensor(obj):
        not_a_tensor(obj)
    resolve_stream(None, obj, device, &stream)
    return <size_t>stream


def stream_of(object stream):
    """Return the handle of a stream given as an int, ``__cuda_stream__``, torch or CuPy stream.

    Parameters
    ----------
    stream : int or stream object

    Returns
    -------
    int

    Raises
    ------
    TypeError
        `stream` is none of these.
    ValueError
        The handle is negative or wider than 64 bits.
    """
    return stream_handle(stream)


def describe(object obj):
    """Describe a tensor of any framework without reading its elements.

    Parameters
    ----------
    obj : tensor
        A numpy array, or an object with the DLPack exchange interface, ``__dlpack__`` or
        ``__cuda_array_interface__``. It must stay alive as long as the pointer is used.

    Returns
    -------
    TensorInfo

    Raises
    ------
    TypeError
        `obj` is no tensor, or its element type has no DLPack code.
    ValueError
        More than 16 axes, or strides that are no multiples of the item size.
    """
    cdef TypeEntry entry = entry_of(obj)
    cdef TensorView view
    cdef cu.CUstream stream = NULL
    cdef int32_t device_type = DL_CPU
    cdef int32_t device_id = 0
    if entry.interface == FROM_CAPSULE:
        # Asked on the producer's own current stream, so that nothing waits for a description.
        tensor_device(obj, &device_type, &device_id)
        if device_type == DL_CUDA:
            framework_stream(obj, entry, device_id, &stream)
    if entry.interface == FROM_ARRAY_INTERFACE:
        view.owner = NULL
        view_array_interface(obj, NULL, False, &view)
    else:
        view_tensor(obj, stream, &view)
    try:
        return TensorInfo(
            <size_t>view.data,
            tuple([view.shape[axis] for axis in range(view.ndim)]),
            tuple([view.strides[axis] for axis in range(view.ndim)]),
            dtype_name(view.code, view.bits, view.lanes),
            view.device_type,
            view.device_id,
            bool(view.readonly),
            entry.framework,
        )
    finally:
        release_view(&view)
