# Included by tensor.pyx: one function an interface, each of which fills a TensorView.
from cpython.pycapsule cimport (
    PyCapsule_CheckExact, PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_SetName,
)
from cuda.bindings cimport cydriver as cu
from libc.stdint cimport int32_t, int64_t

from cakert.runtime.dlpack cimport (
    CAKE_DLPACK_MAJOR, CAKE_DLPACK_MINOR, CAKE_DLPACK_READ_ONLY, CakeDLManagedTensor,
    CakeDLManagedTensorVersioned, CakeDLTensor,
)
from cakert.runtime.driver cimport check, ensure_init, enter_context, leave_context


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
    if len(byte_strides) != view.ndim:
        raise ValueError(
            f"strides must have as many entries as shape, {view.ndim}; got {len(byte_strides)}"
        )
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
