"""Tensors of any framework: what they are, their values on the host, and new ones like them.

No framework is imported here: an object can only be a torch, CuPy or JAX tensor where its module
is already loaded. bfloat16 is ml_dtypes' type in numpy. Copies to and from a GPU run on the
current stream of the tensor's framework; they synchronise and belong to plan, never to run.
"""

from __future__ import annotations

import operator
import sys
from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np
import numpy.typing as npt

__all__ = [
    "ArrayInfo",
    "as_bool",
    "device_of",
    "dtype_name",
    "empty",
    "framework_of",
    "from_numpy",
    "inspect",
    "is_tensor",
    "overwrite",
    "to_numpy",
]

Tensor = Any
Array = npt.NDArray[Any]
Framework = Literal["numpy", "torch", "cupy", "jax", "cakert", "other"]

# DLPack device types (dlpack.h): host memory, pinned or not, and what a GPU may address.
_DLPACK_CPU = (1, 3)
_DLPACK_CUDA = (2, 13)


@dataclass(frozen=True)
class ArrayInfo:
    """What a tensor is, without touching its values.

    Attributes
    ----------
    device
        ``("cpu", 0)``, ``("cuda", index)``, or another type's own name with its index.
    dtype
        Canonical name: "bool", "int32", "float16", "bfloat16", ...
    strides
        In elements.
    """

    framework: Framework
    device: tuple[str, int]
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def contiguous(self) -> bool:
        """C order without gaps; axes of size 1 may have any stride."""
        if 0 in self.shape:
            return True
        step = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and stride != step:
                return False
            step *= size
        return True


def framework_of(x: object, name: str = "the argument") -> Framework:
    """The framework whose tensor ``x`` is.

    "cakert" is a DeviceArray, "other" any other producer of DLPack or
    ``__cuda_array_interface__``.

    Raises
    ------
    TypeError
        ``x`` is no tensor; the message calls it ``name``.
    """
    if isinstance(x, np.ndarray):
        return "numpy"
    if _is_instance(x, "torch", "Tensor"):
        return "torch"
    if _is_instance(x, "cupy", "ndarray"):
        return "cupy"
    if _is_instance(x, "jax", "Array"):
        return "jax"
    if _is_instance(x, "cakert.runtime.memory", "DeviceArray"):
        return "cakert"
    if isinstance(x, type) or not (
        hasattr(x, "__dlpack__") or hasattr(x, "__cuda_array_interface__")
    ):
        raise TypeError(
            f"{name} must be a tensor (numpy, torch, CuPy, JAX, or anything with __dlpack__ or "
            f"__cuda_array_interface__), got {type(x).__name__}"
        )
    return "other"


def is_tensor(x: object) -> bool:
    """Whether ``x`` is a tensor of any framework that this module reads."""
    try:
        framework_of(x)
    except TypeError:
        return False
    return True


def inspect(x: Tensor, name: str = "the argument") -> ArrayInfo:
    """Framework, device, dtype, shape and strides of ``x``.

    Raises
    ------
    TypeError
        Not a tensor, or one without strides (sparse layouts); the message calls it ``name``.
    """
    framework = framework_of(x, name)
    shape = tuple(int(size) for size in x.shape) if framework != "other" else ()
    if framework == "numpy":
        strides = tuple(stride // (x.itemsize or 1) for stride in x.strides)
        return ArrayInfo(framework, ("cpu", 0), x.dtype.name, shape, strides)
    if framework == "torch":
        if x.layout is not sys.modules["torch"].strided:
            raise TypeError(f"{name} must be a dense tensor, got layout {x.layout}")
        dtype = str(x.dtype).removeprefix("torch.")
        return ArrayInfo(framework, _torch_device(x), dtype, shape, tuple(x.stride()))
    if framework == "cupy":
        strides = tuple(stride // x.itemsize for stride in x.strides)
        return ArrayInfo(framework, ("cuda", int(x.device.id)), x.dtype.name, shape, strides)
    if framework == "jax":
        return ArrayInfo(framework, _jax_device(x), x.dtype.name, shape, _packed(shape))
    from cakert.runtime import tensor

    info = tensor.describe(x)
    return ArrayInfo(
        framework,
        _dlpack_device(info.device_type, info.device_id),
        str(info.dtype),
        tuple(info.shape),
        tuple(info.strides),
    )


def device_of(x: Tensor) -> tuple[str, int]:
    """``("cpu", 0)`` or ``("cuda", index)``; another device type by its own name."""
    return inspect(x).device


def dtype_name(x: Tensor) -> str:
    """Canonical name of the element type: "bool", "int32", "float16", "bfloat16", ..."""
    return inspect(x).dtype


def to_numpy(x: Tensor) -> Array:
    """The values of ``x`` on the host.

    Returns
    -------
    An array of any strides that MAY SHARE MEMORY with a tensor on the CPU: read it, do not write
    it, and copy what must outlive the caller's next write. A tensor on a GPU is copied, ordered
    after the work on its framework's current stream.
    """
    framework = framework_of(x)
    if framework == "numpy":
        return np.asarray(x)
    if framework == "torch":
        return _torch_to_numpy(x)
    if framework == "cupy":
        return np.asarray(sys.modules["cupy"].asnumpy(x))
    if framework == "jax":
        return np.asarray(x)
    if framework == "cakert":
        return np.asarray(x.numpy())
    if inspect(x).device[0] == "cpu":
        return np.from_dlpack(x)
    from cakert.runtime import memory

    return np.asarray(memory.copy_to_host(x))


def from_numpy(a: Array, *, like: Tensor) -> Tensor:
    """``a`` as a tensor of ``like``'s framework, where ``like`` is.

    Parameters
    ----------
    a
        C-contiguous and writable; the result may share its memory.
    like
        A producer on the CPU that we do not know gets numpy, one on a GPU a DeviceArray.
    """
    info = inspect(like)
    if info.framework == "torch":
        # A tensor made under inference_mode could not be overwritten outside it.
        with sys.modules["torch"].inference_mode(False):
            return _torch_from_numpy(a).to(like.device)
    if info.framework == "cupy":
        cupy = sys.modules["cupy"]
        with cupy.cuda.Device(info.device[1]):
            return cupy.asarray(a)
    if info.framework == "jax":
        return sys.modules["jax"].device_put(a, next(iter(like.devices())))
    if info.device[0] == "cpu":
        return a
    return _device_array_from(a, info.device[1], like)


def as_bool(x: Tensor) -> Tensor:
    """A new tensor ``x != 0`` of ``x``'s framework, where ``x`` is."""
    if framework_of(x) in ("cakert", "other"):
        return from_numpy(operator.ne(to_numpy(x), False), like=x)
    # False and not 0: against an int, a bool tensor would first be widened to int64.
    return operator.ne(x, False)


def overwrite(target: Tensor, a: Array) -> Tensor:
    """Write ``a`` into ``target``, which :func:`from_numpy` made.

    Returns
    -------
    ``target``, or a new tensor where the framework's tensors are immutable (JAX).
    """
    framework = framework_of(target)
    if framework == "jax":
        return from_numpy(a, like=target)
    if framework == "torch":
        target.copy_(_torch_from_numpy(a))
    elif framework == "cupy":
        with sys.modules["cupy"].cuda.Device(target.device.id):
            target.set(a)
    elif framework == "numpy":
        np.copyto(target, a)
    else:
        target.copy_from(a)
    return target


def empty(*, like: Tensor, shape: tuple[int, ...], dtype: str) -> Tensor:
    """An uninitialised tensor for an output, of ``like``'s framework and on its device.

    JAX arrays cannot be written and foreign producers cannot be asked for memory: both get a
    DeviceArray, allocated in the order of ``like``'s current stream.
    """
    framework = framework_of(like)
    if framework == "torch":
        torch = sys.modules["torch"]
        return torch.empty(shape, dtype=getattr(torch, dtype), device=like.device)
    if framework == "cupy":
        cupy = sys.modules["cupy"]
        with cupy.cuda.Device(like.device.id):
            return cupy.empty(shape, dtype=_numpy_dtype(dtype))
    kind, index = device_of(like)
    if kind == "cpu":
        return np.empty(shape, _numpy_dtype(dtype))
    from cakert.runtime.memory import DeviceArray

    return DeviceArray.empty(shape, dtype, device=index, stream=_stream_for(like, index))


def _is_instance(x: object, module: str, attribute: str) -> bool:
    """Whether ``x`` is of a class of a module that may not be loaded, or only half."""
    cls = getattr(sys.modules.get(module), attribute, None)
    return isinstance(cls, type) and isinstance(x, cls)


def _numpy_dtype(name: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def _packed(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * max(shape[axis + 1], 1)
    return tuple(strides)


def _torch_device(x: Tensor) -> tuple[str, int]:
    return str(x.device.type), int(x.device.index or 0)


def _jax_device(x: Tensor) -> tuple[str, int]:
    devices = x.devices()
    if len(devices) != 1:
        return f"jax array over {len(devices)} devices", 0
    device = next(iter(devices))
    if device.platform not in ("gpu", "cuda"):
        return str(device.platform), 0
    local = getattr(device, "local_hardware_id", None)
    return "cuda", int(device.id if local is None else local)


def _dlpack_device(device_type: int, device_id: int) -> tuple[str, int]:
    if device_type in _DLPACK_CPU:
        return "cpu", 0
    if device_type in _DLPACK_CUDA:
        return "cuda", device_id
    return f"dlpack_device_{device_type}", device_id


def _torch_to_numpy(x: Tensor) -> Array:
    torch = sys.modules["torch"]
    # numpy knows neither gradients nor torch's lazy conjugate and negative bits.
    host = x.detach().resolve_conj().resolve_neg().cpu()
    if host.dtype is torch.bfloat16:
        bits: Array = host.view(torch.int16).numpy()
        return bits.view(ml_dtypes.bfloat16)
    return np.asarray(host.numpy())


def _torch_from_numpy(a: Array) -> Tensor:
    torch = sys.modules["torch"]
    if a.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(a.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(a)


def _device_array_from(a: Array, device: int, like: Tensor) -> Tensor:
    from cakert.runtime.memory import DeviceArray

    return DeviceArray.from_numpy(a, device=device, stream=_stream_for(like, device))


def _stream_for(like: Tensor, device: int) -> Any:
    """The stream of a new DeviceArray; the object that owns it where ``like`` knows one."""
    from cakert.runtime import tensor

    if framework_of(like) == "cakert":
        return like.stream_object
    return tensor.current_stream(like, device)
