"""A simulated GPU: memory, modules of PTX, launches."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from cakert.sim.arguments import layout, pack
from cakert.sim.arrays import Array, Lent, host_memory, refuse_host_array
from cakert.sim.copies.tensor_map import DeviceArray, TensorMap
from cakert.sim.core.code import Code
from cakert.sim.core.global_memory import GlobalMemory
from cakert.sim.decode.decoder import decode
from cakert.sim.fault_names import FAULT_NAMES
from cakert.sim.faults import PtxError
from cakert.sim.geometry import geometry
from cakert.sim.machine.launch import MAX_OPERATIONS, run_launch
from cakert.sim.ptx import read
from cakert.sim.ptx.model import Function
from cakert.sim.ptx.model import Module as PtxModule
from cakert.sim.report import Report
from cakert.sim.targets import architecture, check_target

__all__ = ["SCHEDULES", "Gpu", "Module", "Schedule"]

Schedule = Literal["eager", "lazy", "random"]
SCHEDULES: tuple[Schedule, ...] = ("eager", "lazy", "random")


class Gpu:
    """One simulated GPU.

    Launches of one GPU run one after the other, from whichever thread; each returns when it is
    done.

    Parameters
    ----------
    arch
        "sm_90a", "sm_100a" or "sm_103a".
    sms
        Its multiprocessors, which bound how many CTAs are resident at once; None for those of the
        real part.
    schedule
        When asynchronous work completes: as early as allowed ("eager"), as late ("lazy"), or at
        moments drawn from ``seed`` ("random").
    seed
        Of the interleaving of warps, and of a random schedule.
    ignore
        Names of faults (:data:`cakert.sim.fault_names.FAULT_NAMES`) that are noted in the report
        and do not end a launch. One that leaves nothing to go on with, a deadlock or a trap, ends
        it all the same.
    max_operations
        Limit of a livelock: operations of all warps in a row during which nothing happened that
        anybody could wait for. A kernel that computes for longer between two barriers needs a
        higher one.

    Raises
    ------
    ValueError
        An argument out of its table.
    """

    def __init__(
        self,
        arch: str,
        *,
        sms: int | None = None,
        schedule: Schedule = "eager",
        seed: int = 0,
        ignore: Iterable[str] = (),
        max_operations: int = MAX_OPERATIONS,
    ) -> None:
        self._architecture = architecture(arch)
        if schedule not in SCHEDULES:
            raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)}, got {schedule!r}")
        self.sms = self._architecture.sms if sms is None else operator.index(sms)
        if self.sms < 1:
            raise ValueError(f"sms must be at least 1, got {sms}")
        self.schedule = schedule
        self.seed = operator.index(seed)
        if self.seed < 0:
            raise ValueError(f"seed must be at least 0, got {seed}")
        if isinstance(ignore, str):
            raise ValueError(f"ignore must be a collection of fault names, got {ignore!r}")
        self.ignore = frozenset(ignore)
        unknown = self.ignore - FAULT_NAMES
        if unknown:
            raise ValueError(f"ignore must be names of faults, got {_list(unknown)}")
        self.max_operations = operator.index(max_operations)
        if self.max_operations < 1:
            raise ValueError(f"max_operations must be at least 1, got {max_operations}")
        self.memory = GlobalMemory()
        self.lock = threading.RLock()

    @property
    def arch(self) -> str:
        """Its name, such as "sm_100a"."""
        return self._architecture.name

    @property
    def capability(self) -> tuple[int, int]:
        """Compute capability, such as (10, 0)."""
        return self._architecture.capability

    def load_ptx(self, text: str | bytes) -> Module:
        """Read PTX.

        Parameters
        ----------
        text
            The whole file, as text or as its bytes; a NUL at the end, as the driver's image has
            one, is no part of it.

        Raises
        ------
        TypeError
            Neither text nor bytes.
        PtxError
            The text cannot be read; names the line.
        ValueError
            Its target does not run on this GPU.
        """
        ptx = read(_ptx_text(text))
        check_target(ptx.target, self._architecture)
        return Module(self, ptx)

    def array(self, values: npt.ArrayLike, *, name: str = "array") -> Array:
        """A copy of ``values`` in the GPU's memory; ``name`` is what faults call it."""
        with self.lock:
            return Array.allocate(self.memory, values, name)

    def tensor_map(
        self,
        array: DeviceArray,
        *,
        box: Sequence[int],
        element_strides: Sequence[int] | None = None,
        data_type: str | None = None,
        interleave: str = "none",
        swizzle: str = "none",
        l2_promotion: str = "none",
        oob_fill: str = "zero",
    ) -> TensorMap:
        """A tensor map of an array, for a ``__grid_constant__`` parameter of 128 bytes.

        Parameters
        ----------
        array
            An Array or a view of one, outermost axis first, the last one contiguous; the map does
            not keep it alive.
        box, element_strides
            Outermost axis first, in elements.
        data_type, interleave, swizzle, l2_promotion, oob_fill
            As of :class:`cakert.sim.copies.tensor_map.TensorMap`.

        Raises
        ------
        TypeError
            An array that is not in the GPU's memory; a box that is no sequence of ints.
        ValueError
            What cuTensorMapEncodeTiled refuses; a data type of another size than an element.
        """
        _check_array(array)
        return TensorMap.for_array(
            array,
            box=box,
            element_strides=element_strides,
            data_type=data_type,
            interleave=interleave,
            swizzle=swizzle,
            l2_promotion=l2_promotion,
            oob_fill=oob_fill,
        )

    def lend(
        self,
        memory: Any,
        nbytes: int | None = None,
        *,
        writable: bool = False,
        name: str = "lent memory",
    ) -> Lent:
        """Let kernels use host memory where it is, until the result is closed.

        Parameters
        ----------
        memory
            A C-contiguous numpy array; a tensor on the CPU that numpy takes over DLPack; or an
            address, whose owner the caller keeps alive.
        nbytes
            With an address only.

        Raises
        ------
        TypeError
            No memory of the host: something else, a tensor on a GPU, one that requires grad or is
            of a dtype that DLPack and numpy do not share (bfloat16).
        ValueError
            An array with gaps; a read-only one that is to be written; memory that overlaps what
            the GPU has; no size, or one too many.
        """
        owner: object = None
        array = host_memory(memory, name)
        if array is not None:
            if nbytes is not None:
                raise ValueError("nbytes goes with an address, an array has its own")
            if not array.flags.c_contiguous:
                raise ValueError(f"{name} must be C-contiguous, got strides {array.strides}")
            if writable and not array.flags.writeable:
                raise ValueError(f"{name} is a read-only array and cannot be lent as writable")
            pointer, nbytes, owner = array.ctypes.data, array.nbytes, array
        else:
            pointer = operator.index(memory)
            if nbytes is None:
                raise ValueError("nbytes must be given with an address")
        with self.lock:
            return Lent(self.memory, pointer, nbytes, writable, name, owner)

    def __repr__(self) -> str:
        return f"Gpu({self.arch!r}, schedule={self.schedule!r}, seed={self.seed})"


class Module:
    """A PTX file on a GPU; made by :meth:`Gpu.load_ptx`.

    Variables of the module (``.global``, ``.const``) live as long as it, and are shared by its
    launches.
    """

    def __init__(self, gpu: Gpu, ptx: PtxModule) -> None:
        self.gpu = gpu
        self.ptx = ptx
        self.variables: dict[str, Array] = {}
        for variable in ptx.variables.values():
            if variable.space not in ("global", "const") or variable.size == 0:
                continue
            values = np.zeros(variable.size, np.uint8)
            given = np.frombuffer(variable.init or b"", np.uint8)
            values[: len(given)] = given
            with gpu.lock:
                self.variables[variable.name] = Array.allocate(
                    gpu.memory, values, variable.name, writable=variable.space == "global"
                )
        self._code: dict[str, Code] = {}

    @property
    def kernels(self) -> tuple[str, ...]:
        """Names of the kernels, in the order of the text."""
        return tuple(self.ptx.functions)

    def parameters(self, name: str) -> tuple[tuple[int, int], ...]:
        """Offset and size in bytes of each parameter of a kernel."""
        return layout(self._function(name))

    def launch(
        self,
        name: str,
        *,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        args: Sequence[Any] = (),
        shared_bytes: int = 0,
        cluster: int | Sequence[int] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Report:
        """Run a kernel and wait for it. Whatever is refused is refused before anything runs.

        Parameters
        ----------
        name
            One of :attr:`kernels`.
        grid, block, cluster
            An int or up to three of them. Without ``cluster`` the kernel's own.
        args
            One a parameter, see :func:`cakert.sim.arguments.pack`.
        shared_bytes
            Dynamic shared memory of a CTA.
        progress
            Called with CTAs done and CTAs in all, as they end.

        Raises
        ------
        KeyError
            No kernel of that name.
        TypeError, ValueError
            Arguments or geometry that do not fit.
        UnsupportedInstruction
            The kernel has an instruction that is not simulated.
        Fault
            The kernel did what the ISA leaves undefined, or will never finish.
        """
        function = self._function(name)
        shape = geometry(
            self.ptx,
            function,
            grid=grid,
            block=block,
            cluster=cluster,
            shared_bytes=shared_bytes,
        )
        params = pack(function, args)
        with self.gpu.lock:
            return run_launch(
                self._decoded(function),
                arch=self.gpu.arch,
                grid=shape.grid,
                block=shape.block,
                cluster=shape.cluster,
                shared_bytes=shape.shared_bytes,
                params=params,
                memory=self.gpu.memory,
                sms=self.gpu.sms,
                schedule=self.gpu.schedule,
                seed=self.gpu.seed,
                ignore=self.gpu.ignore,
                progress=progress,
                max_operations=self.gpu.max_operations,
            )

    def _function(self, name: str) -> Function:
        function = self.ptx.functions.get(name)
        if function is None:
            raise KeyError(f"no kernel {name!r}; there are {', '.join(self.kernels) or 'none'}")
        return function

    def _decoded(self, function: Function) -> Code:
        code = self._code.get(function.name)
        if code is None:
            code = self._code[function.name] = decode(
                self.ptx,
                function,
                arch=self.gpu.arch,
                global_symbols={name: each.pointer for name, each in self.variables.items()},
            )
        return code


def _list(names: Iterable[object]) -> str:
    return ", ".join(sorted(map(repr, names)))


def _check_array(array: object) -> None:
    refuse_host_array("array", array)
    if isinstance(array, Lent):
        raise TypeError(
            "array: lent memory has no shape; pass its pointer to sim.TensorMap.encode(...)"
        )


def _ptx_text(text: str | bytes) -> str:
    if isinstance(text, bytes):
        try:
            text = text.decode()
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            byte = error.object[error.start]
            raise PtxError(f"line {line}: byte {byte:#04x} is no UTF-8 text") from None
    if not isinstance(text, str):
        raise TypeError(f"PTX must be a str or bytes, got {type(text).__name__}")
    return text.removesuffix("\0")
