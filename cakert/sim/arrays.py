"""Global memory as a caller sees it: arrays that the GPU owns, and host memory that is lent to it.

Addresses of the simulated GPU are the host's own, so lent memory is used where it lies. A kernel
reaches registered bytes only; whatever else it touches is a "global-out-of-bounds" fault.
"""

from __future__ import annotations

import operator
import weakref
from types import TracebackType
from typing import Any, final

import numpy as np
import numpy.typing as npt

from cakert.sim.core.global_memory import GlobalMemory

__all__ = ["Array", "Lent", "host_memory", "refuse_host_array"]

ALIGNMENT = 256
"""Bytes; what cuMemAlloc gives."""
GUARD = 4096
"""Unregistered bytes before and after an array: a stray access cannot land in a neighbour."""


class Array:
    """An array in the memory of a simulated GPU, or a view of one; made by ``Gpu.array``.

    Parameters
    ----------
    data
        The values where they are, registered with the GPU as long as ``owner`` lives.
    name
        For faults and messages.
    owner
        What holds the registration.

    Attributes
    ----------
    data
        The values themselves: not a copy, so leave it alone while a kernel runs.
    """

    __slots__ = ("_owner", "data", "name")

    def __init__(self, data: npt.NDArray[Any], name: str, owner: object) -> None:
        self.data, self.name, self._owner = data, name, owner

    @classmethod
    def allocate(
        cls, memory: GlobalMemory, values: npt.ArrayLike, name: str, *, writable: bool = True
    ) -> Array:
        """A copy of any numpy array, in C order, between guard zones.

        Parameters
        ----------
        writable
            Whether kernels may write it.

        Raises
        ------
        TypeError
            Objects, which have no bytes.
        """
        source = np.asarray(values)
        if source.dtype.hasobject:
            raise TypeError(f"{name}: an array of the GPU holds numbers, got dtype {source.dtype}")
        buffer = np.zeros(source.nbytes + ALIGNMENT + 2 * GUARD, np.uint8)
        start = GUARD + -(buffer.ctypes.data + GUARD) % ALIGNMENT
        data = buffer[start : start + source.nbytes].view(source.dtype).reshape(source.shape)
        data[...] = source
        owner = _Registration()
        if data.nbytes:
            memory.register(data.ctypes.data, data.nbytes, writable, name, buffer)
            weakref.finalize(owner, memory.unregister, data.ctypes.data).atexit = False
        return cls(data, name, owner)

    @property
    def pointer(self) -> int:
        """Address of the first element; of an allocation, a multiple of 256."""
        return int(self.data.ctypes.data)

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each axis."""
        return self.data.shape

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes between neighbours along each axis."""
        return self.data.strides

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of an element."""
        return self.data.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.data.nbytes

    def numpy(self) -> npt.NDArray[Any]:
        """A copy of the values as they are now."""
        return self.data.copy()

    def copy_from(self, values: npt.ArrayLike) -> None:
        """Overwrite the values.

        Raises
        ------
        ValueError
            Another shape, or another dtype.
        """
        source = np.asarray(values)
        if source.shape != self.shape or source.dtype != self.dtype:
            raise ValueError(
                f"{self.name} has shape {self.shape} and dtype {self.dtype}, got {source.shape} "
                f"and {source.dtype}"
            )
        self.data[...] = source

    def __getitem__(self, index: Any) -> Array:
        """A part of the array, the memory shared; basic indexing only."""
        return self._view(self.data[index])

    def transpose(self, *axes: int) -> Array:
        """The array with its axes in another order, the memory shared."""
        return self._view(self.data.transpose(*axes))

    def reshape(self, *shape: int) -> Array:
        """The array in another shape, the memory shared."""
        return self._view(self.data.reshape(*shape))

    def view(self, dtype: npt.DTypeLike) -> Array:
        """The bytes of the array as elements of another dtype, the memory shared."""
        return self._view(self.data.view(dtype))

    def _view(self, data: Any) -> Array:
        if not isinstance(data, np.ndarray) or not np.may_share_memory(data, self.data):
            raise ValueError(f"{self.name}: the result would not be a view of the same memory")
        return Array(data, self.name, self._owner)

    def __repr__(self) -> str:
        return f"Array(name={self.name!r}, shape={self.shape}, dtype={self.dtype})"


class _Registration:
    """Lives as long as an array or a view of it."""


@final
class Lent:
    """Host memory that a simulated GPU may use, until :meth:`close` or the end of a ``with``.

    Attributes
    ----------
    pointer
        Its address, the same on host and GPU.
    nbytes
        Its size.
    """

    __slots__ = ("_memory", "nbytes", "pointer")

    def __init__(
        self,
        memory: GlobalMemory,
        pointer: int,
        nbytes: int,
        writable: bool,
        name: str,
        owner: object,
    ) -> None:
        self.pointer, self.nbytes = pointer, nbytes
        memory.register(pointer, nbytes, writable, name, owner)
        self._memory: GlobalMemory | None = memory

    def close(self) -> None:
        """Take the memory back; a second call does nothing."""
        memory, self._memory = self._memory, None
        if memory is not None:
            memory.unregister(self.pointer)

    def __enter__(self) -> Lent:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def refuse_host_array(name: str, value: object) -> None:
    """Raise TypeError for an array of the host (numpy, torch, ...) where one of the GPU is due.

    numpy's scalars are values and pass.
    """
    if isinstance(value, np.generic):
        return
    if isinstance(value, np.ndarray):
        kind = "numpy array"
    elif any(hasattr(value, protocol) for protocol in _HOST_PROTOCOLS):
        kind = f"{type(value).__module__.partition('.')[0]}.{type(value).__name__}"
    else:
        return
    raise TypeError(
        f"{name}: a {kind} is not in the GPU's memory; pass gpu.array(...) or gpu.lend(...)"
    )


_HOST_PROTOCOLS = ("__dlpack__", "__array_interface__", "__cuda_array_interface__")


def host_memory(memory: Any, name: str) -> npt.NDArray[Any] | None:
    """The memory of a numpy array or a CPU tensor as a numpy array; None for an address.

    Raises
    ------
    TypeError
        Something else, or a tensor that numpy cannot take over DLPack.
    """
    if isinstance(memory, np.ndarray):
        return memory
    if hasattr(memory, "__dlpack__"):
        try:
            return np.from_dlpack(memory)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise TypeError(
                f"{name}: numpy cannot take this {type(memory).__name__} over DLPack ({error}); "
                "lend a view of another dtype on the CPU, or its address with nbytes"
            ) from error
    try:
        operator.index(memory)
    except TypeError:
        raise TypeError(
            f"{name} must be a numpy array, a tensor on the CPU or an address, got "
            f"{type(memory).__name__}"
        ) from None
    return None
