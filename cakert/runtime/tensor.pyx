"""Any framework's tensor as a plain C view, and the stream that its framework works on.

Asked for in this order: numpy's own description, the DLPack C exchange interface (on the type; no
Python object is made), a `__dlpack__` capsule, `__cuda_array_interface__`. What a type offers is
found once and kept; no framework is imported that its user has not imported.
"""
import sys
from collections import namedtuple

cimport cython
from cpython.object cimport PyObject
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid
from cuda.bindings cimport cydriver as cu
from libc.stdint cimport int32_t, uint8_t, uint16_t

from cakert.runtime.dlpack cimport (
    CAKE_DLPACK_MAJOR, CakeDLPackExchangeAPI, CakeDLPackExchangeHeader,
)

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


cdef bint must_outlive_launch(object obj) except -1:
    return entry_of(obj).framework in ("jax", "tensorflow")


cdef int not_a_tensor(object obj) except -1:
    raise TypeError(
        f"expected a tensor (numpy, torch, CuPy, JAX or any object with __dlpack__ or "
        f"__cuda_array_interface__), got {type(obj).__module__}.{type(obj).__qualname__}"
    )


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


include "views.pxi"
include "streams.pxi"


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
