"""What ``cakert run`` launches: kernel, arguments, geometry, checked before anything runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cakert.cli.argument_specs import ArraySpec, BytesSpec, ScalarSpec, Spec
from cakert.cli.initial_values import make_array, make_bytes, make_scalar
from cakert.cli.kernel_files import Image
from cakert.inspect import KernelRecord
from cakert.runtime.geometry import dim3

Array = npt.NDArray[Any]

_ADDRESS_BYTES = 8
_TENSOR_MAP_BYTES = 128


@dataclass(frozen=True)
class Argument:
    """One kernel argument.

    Attributes
    ----------
    number
        Place among the parameters, from 0.
    name
        As given, else ``arg`` and the number.
    spec
    value
        The initial values of an array, a scalar of the type, or the bytes of a struct.
    """

    number: int
    name: str
    spec: Spec
    value: Array | np.generic | bytes

    @property
    def is_array(self) -> bool:
        """Whether the kernel gets an address."""
        return isinstance(self.spec, ArraySpec)


@dataclass(frozen=True)
class Job:
    """A launch.

    Attributes
    ----------
    image, symbol
        The kernel.
    arguments
    grid, block, cluster
        As given: one to three extents; no cluster is None.
    shared_bytes
        Dynamic shared memory of a block.
    """

    image: Image
    symbol: str
    arguments: tuple[Argument, ...]
    grid: tuple[int, ...]
    block: tuple[int, ...]
    cluster: tuple[int, ...] | None
    shared_bytes: int

    @property
    def launch_text(self) -> str:
        """Geometry in one line, for tables and messages."""
        text = f"grid {dims_text(self.grid)}, block {dims_text(self.block)}"
        if self.cluster is not None:
            text += f", cluster {dims_text(self.cluster)}"
        if self.shared_bytes:
            text += f", {self.shared_bytes} bytes of shared memory"
        return text


def dims_text(dims: Sequence[int]) -> str:
    """``4x2x1``."""
    return "x".join(map(str, dims))


def check_sizes(
    kernel: str, specs: Sequence[Spec], names: Sequence[str], sizes: Sequence[int]
) -> None:
    """Hold the arguments to the kernel's parameters.

    Parameters
    ----------
    kernel
        For messages.
    sizes
        Bytes of each parameter.

    Raises
    ------
    ValueError
        Another number of arguments, or one of another size.
    """
    if len(specs) != len(sizes):
        wanted = ", ".join(map(str, sizes))
        bytes_each = f" (of {wanted} bytes)" if sizes else ""
        raise ValueError(
            f"{kernel} takes {len(sizes)} arguments{bytes_each}, got {len(specs)} --arg"
        )
    for number, (spec, name, size) in enumerate(zip(specs, names, sizes, strict=True)):
        given = size_of(spec)
        if given == size:
            continue
        kind = {ArraySpec: "the address of an array", BytesSpec: "the struct"}.get(
            type(spec), spec.type_text
        )
        hint = ""
        if isinstance(spec, ArraySpec):
            hint = "; pass a struct by value as bytes=HEX or bytes=@FILE"
            if size == _TENSOR_MAP_BYTES:
                hint += " (a tensor map cannot be made here: use cakert.runtime.tensormap)"
        raise ValueError(
            f"argument {number} ({name}): the parameter of {kernel} has {size} bytes, {kind} "
            f"has {given}{hint}"
        )


def size_of(spec: Spec) -> int:
    """Bytes that an argument takes among the parameters.

    Raises
    ------
    OSError, ValueError
        The file of a struct is unreadable or too large.
    """
    if isinstance(spec, ArraySpec):
        return _ADDRESS_BYTES
    return spec.nbytes if isinstance(spec, ScalarSpec) else len(make_bytes(spec))


def check_geometry(
    record: KernelRecord,
    grid: Sequence[int],
    block: Sequence[int],
    cluster: Sequence[int] | None,
) -> None:
    """Hold grid, block and cluster to what a cubin says of its kernel.

    Raises
    ------
    ValueError
        They do not fit; names what was demanded.
    """
    threads = math.prod(block)
    if record.required_threads is not None and dim3("block", block) != record.required_threads:
        raise ValueError(
            f"--block: {record.name} demands {dims_text(record.required_threads)}, got "
            f"{dims_text(block)}"
        )
    if record.max_threads is not None and threads > math.prod(record.max_threads):
        raise ValueError(
            f"--block: {record.name} was compiled for at most {math.prod(record.max_threads)} "
            f"threads, got {dims_text(block)} = {threads}"
        )
    # Zeros, as of a file that is damaged, demand nothing: the driver has no cluster then either.
    needed = record.cluster if record.cluster and all(record.cluster) else None
    if cluster is not None:
        if needed is not None and dim3("cluster", cluster) != needed:
            raise ValueError(
                f"--cluster: {record.name} demands {dims_text(needed)}, got {dims_text(cluster)}"
            )
        if record.max_cluster is not None and math.prod(cluster) > record.max_cluster:
            raise ValueError(
                f"--cluster: {record.name} was compiled for at most {record.max_cluster} blocks, "
                f"got {dims_text(cluster)}"
            )
        needed = dim3("cluster", cluster)
    if needed is not None and any(g % c for g, c in zip(dim3("grid", grid), needed, strict=True)):
        raise ValueError(
            f"--grid: must be a multiple of the cluster {dims_text(needed)} on each axis, got "
            f"{dims_text(grid)}"
        )


def make_arguments(specs: Sequence[Spec], names: Sequence[str], seed: int) -> tuple[Argument, ...]:
    """Draw and read the values.

    Raises
    ------
    OSError, ValueError, MemoryError
        A file is missing, damaged or holds something else; there is not enough memory.
    """
    made = []
    for number, (spec, name) in enumerate(zip(specs, names, strict=True)):
        value: Array | np.generic | bytes
        if isinstance(spec, ArraySpec):
            value = make_array(spec, seed, number)
        elif isinstance(spec, ScalarSpec):
            value = make_scalar(spec)
        else:
            value = make_bytes(spec)
        made.append(Argument(number, name, spec, value))
    return tuple(made)
