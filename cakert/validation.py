"""The checks of plan and update that look at no values of tensors and need no device.

Order, which callers may rely on: scalars (:func:`check_scalars`); which patterns are there
(:func:`check_presence`); shapes, dtypes and devices (:func:`check_metadata`). Values are checked
by the planner, after them. Every message names the argument, what is allowed and what it got.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from cakert import arrays

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from cakert.sim import SimulatedDevice

__all__ = [
    "Problem",
    "check_metadata",
    "check_presence",
    "check_scalars",
    "describe_capabilities",
    "is_simulated",
    "parse_device",
    "parse_dtype",
    "parse_scale",
]

Tensor = Any
# Of a plan: index of a CUDA device, or a simulated one.
Device: TypeAlias = "int | SimulatedDevice"

BLOCKS = (64, 128)
HEAD_DIMS = (64, 96, 128)
DTYPES = ("float16", "bfloat16")
# One thread block a row on grid x, and 32-bit token numbers in cuda/vsa_params.h.
MAX_ROWS = MAX_TOKENS = 2**31 - 1
# The kernels reach the rows of a tile with 32-bit offsets: 32 rows of heads x 192 bytes.
MAX_HEADS = 2**19
# They index the entries of all row lists with 32 bits (cuda/vsa_rows.cuh).
MAX_LIST_ENTRIES = 2**32 - 1


@dataclass(frozen=True)
class Problem:
    """The scalars of a plan, checked and in one form.

    Attributes
    ----------
    M, N
        Query and key/value tokens.
    block
        Tokens of a block: R = C.
    dtype
        "float16" or "bfloat16".
    sm_scale
        The factor of the logits, 1/sqrt(head_dim) where None was given.
    device
        Index of the CUDA device, or a simulated one; None means the current CUDA device at plan
        time.
    """

    M: int
    N: int
    block: int
    num_qo_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: str
    sm_scale: float
    device: Device | None

    @property
    def q_blocks(self) -> int:
        """MB."""
        return self.M // self.block

    @property
    def kv_blocks(self) -> int:
        """NB."""
        return self.N // self.block


def check_scalars(
    *,
    M: Any,
    N: Any,
    R: Any,
    C: Any,
    num_qo_heads: Any,
    num_kv_heads: Any,
    head_dim: Any,
    q_data_type: Any,
    sm_scale: Any,
    device: Any,
    capabilities: Callable[[], Iterable[tuple[int, int]]],
) -> Problem:
    """Check every argument of a plan that is no tensor.

    Parameters
    ----------
    capabilities
        Called for a message only: the compute capabilities that have cubins.

    Raises
    ------
    ValueError
        A scalar out of its table.
    RuntimeError
        ``device`` is neither a CUDA device nor a simulated one.
    """
    block = _integer("R", R)
    if block not in BLOCKS:
        raise ValueError(f"R must be 64 or 128, got {block}")
    if _integer("C", C) != block:
        raise ValueError(f"C must equal R = {block}, got {C}")
    tokens = {"M": _integer("M", M), "N": _integer("N", N)}
    for name, value in tokens.items():
        size_name = "R" if name == "M" else "C"
        if value <= 0 or value % block:
            raise ValueError(
                f"{name} must be a positive multiple of {size_name} = {block}, got {value}"
            )
        if value > MAX_TOKENS:
            raise ValueError(f"{name} must be at most {MAX_TOKENS}, got {value}")
    qo_heads = _positive("num_qo_heads", num_qo_heads)
    kv_heads = _positive("num_kv_heads", num_kv_heads)
    if qo_heads % kv_heads:
        raise ValueError(
            f"num_qo_heads must be a multiple of num_kv_heads, got {qo_heads} and {kv_heads}"
        )
    if qo_heads > MAX_HEADS:
        raise ValueError(f"num_qo_heads must be at most {MAX_HEADS}, got {qo_heads}")
    rows = qo_heads * (tokens["M"] // block)
    if rows > MAX_ROWS:
        raise ValueError(
            f"num_qo_heads * (M // R) must be at most {MAX_ROWS} (the grid), got {rows}"
        )
    dim = _integer("head_dim", head_dim)
    if dim not in HEAD_DIMS:
        raise ValueError(f"head_dim must be 64, 96 or 128, got {dim}")
    return Problem(
        M=tokens["M"],
        N=tokens["N"],
        block=block,
        num_qo_heads=qo_heads,
        num_kv_heads=kv_heads,
        head_dim=dim,
        dtype=parse_dtype(q_data_type),
        sm_scale=parse_scale(sm_scale, dim),
        device=parse_device(device, capabilities),
    )


def parse_dtype(q_data_type: Any) -> str:
    """``"float16"`` or ``"bfloat16"`` for a name, a torch dtype, or a numpy/ml_dtypes type.

    Raises
    ------
    ValueError
        Anything else.
    """
    name: str | None = None
    torch = sys.modules.get("torch")
    if isinstance(q_data_type, str):
        name = q_data_type  # not through numpy: it would take "f2" and "e" as well
    elif torch is not None and isinstance(q_data_type, torch.dtype):
        name = str(q_data_type).removeprefix("torch.")
    elif q_data_type is not None:  # numpy reads None as float64
        try:
            name = np.dtype(q_data_type).name
        except TypeError:
            name = None
    if name not in DTYPES:
        raise ValueError(f"q_data_type must be float16 or bfloat16, got {q_data_type!r}")
    return name


def parse_scale(sm_scale: Any, head_dim: int) -> float:
    """The scale as a Python float; None means ``1 / sqrt(head_dim)``.

    Takes any real number and 0-d arrays of any framework.

    Raises
    ------
    ValueError
        Not a number, not finite, or not finite once rounded to float32, the kernels' type.
    """
    if sm_scale is None:
        return 1.0 / math.sqrt(head_dim)
    value = sm_scale
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()  # numpy and ml_dtypes scalars, 0-d tensors
    try:
        number = math.nan if isinstance(value, (bool, str, bytes)) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    with np.errstate(over="ignore"):
        finite = bool(np.isfinite(np.float32(number)))
    if not finite:
        raise ValueError(f"sm_scale must be None or a finite float32 number, got {sm_scale!r}")
    return number


def is_simulated(device: object) -> TypeIs[SimulatedDevice]:
    """Whether ``device`` is one of :func:`cakert.sim.device`; imports no simulator to tell."""
    cls = getattr(sys.modules.get("cakert.sim.plan_device"), "SimulatedDevice", None)
    return isinstance(cls, type) and isinstance(device, cls)


def parse_device(
    device: Any, capabilities: Callable[[], Iterable[tuple[int, int]]]
) -> Device | None:
    """Index of the CUDA device that ``device`` names; None for the current one ("cuda").

    Parameters
    ----------
    device
        A torch.device, "cuda", "cuda:1", an int, a CuPy device or a JAX device; a simulated
        device, which is returned as it is.

    Raises
    ------
    RuntimeError
        Anything else; names what was found and the supported capabilities.
    """
    if is_simulated(device):
        return device
    if isinstance(device, str):
        kind, colon, number = device.partition(":")
        if kind == "cuda" and not colon:
            return None
        if kind == "cuda" and number.isascii() and number.isdigit() and len(number) < 10:
            return int(number)
    elif isinstance(getattr(device, "type", None), str) and hasattr(device, "index"):
        if device.type == "cuda":  # torch.device
            return None if device.index is None else int(device.index)
    elif hasattr(device, "platform"):
        if device.platform in ("gpu", "cuda"):  # JAX; its id counts over all hosts of a cluster
            local = getattr(device, "local_hardware_id", None)
            return int(device.id if local is None else local)
    elif not isinstance(device, (bool, np.bool_)):
        try:
            index = operator.index(getattr(device, "id", device))  # CuPy's devices have .id
        except TypeError:
            index = -1
        if index >= 0:
            return index
    raise RuntimeError(
        f"device must be a CUDA device of compute capability "
        f'{describe_capabilities(capabilities())}, or what "with cakert.sim.device(...) as device" '
        f"gives, got {device!r}"
    )


def describe_capabilities(capabilities: Iterable[tuple[int, int]]) -> str:
    """For messages: ``"9.0 (SM90), 10.0 (SM100)"``, or ``"(no cubins installed)"``."""
    names = [f"{major}.{minor} (SM{major}{minor})" for major, minor in sorted(set(capabilities))]
    return ", ".join(names) or "(no cubins installed)"


def check_presence(
    problem: Problem,
    *,
    indptr: Tensor | None,
    indices: Tensor | None,
    block_mask: Tensor | None,
    kv_block_lens: Tensor | None,
    q2k_indices: Tensor | None,
    q2k_num: Tensor | None,
) -> None:
    """Check which of the pattern arguments were given, and that they go together.

    Raises
    ------
    ValueError
        None or too many of them, half of a pair, or one that 128-token blocks do not have.
    """
    if problem.block != 64:
        for name, value in (("kv_block_lens", kv_block_lens), ("q2k_indices", q2k_indices)):
            if value is not None:
                raise ValueError(f"{name} needs 64-token blocks, got R = C = {problem.block}")
    if q2k_num is not None and q2k_indices is None:
        raise ValueError("q2k_num was given without q2k_indices")
    if (indptr is None) != (indices is None):
        given, missing = ("indices", "indptr") if indptr is None else ("indptr", "indices")
        raise ValueError(f"{given} was given without {missing}")
    if q2k_indices is not None:
        for name, value in (("block_mask", block_mask), ("indptr/indices", indptr)):
            if value is not None:
                raise ValueError(f"q2k_indices excludes {name}, got both")
    elif block_mask is None and indptr is None:
        raise ValueError(
            "a pattern must be given: block_mask, indptr with indices, or q2k_indices; got none"
        )


def check_metadata(
    problem: Problem,
    device: Callable[[], Device],
    *,
    indptr: Tensor | None = None,
    indices: Tensor | None = None,
    block_mask: Tensor | None = None,
    kv_block_lens: Tensor | None = None,
    q2k_indices: Tensor | None = None,
    q2k_num: Tensor | None = None,
    topk: int | None = None,
) -> None:
    """Check shapes, dtypes, devices and (q2k) contiguity of the tensors that were given.

    Parameters
    ----------
    device
        Called where a tensor on a GPU must be compared: the plan's device.
    topk
        The width that ``q2k_indices`` must have; None where any in [1, NB] will do.

    Raises
    ------
    TypeError
        Not a tensor.
    ValueError
        A wrong shape, dtype or device; a q2k tensor that is not contiguous.
    """
    heads, kv_heads = problem.num_qo_heads, problem.num_kv_heads
    mb, nb = problem.q_blocks, problem.kv_blocks
    if indptr is not None:
        info = arrays.inspect(indptr, "indptr")
        _expect_shape("indptr", info, "(MB + 1,)", [(mb + 1,)])
        _expect_dtype("indptr", info, ("int32", "int64"))
        _expect_device("indptr", info, problem, device)
    if indices is not None:
        info = arrays.inspect(indices, "indices")
        if len(info.shape) != 1:
            raise ValueError(f"indices must have one axis, got shape {info.shape}")
        _expect_dtype("indices", info, ("int32", "int64"))
        _expect_device("indices", info, problem, device)
    if block_mask is not None:
        info = arrays.inspect(block_mask, "block_mask")
        _expect_shape(
            "block_mask",
            info,
            "(num_qo_heads, MB, NB) or (num_kv_heads, MB, NB)",
            [(heads, mb, nb), (kv_heads, mb, nb)],
        )
        _expect_dtype("block_mask", info, ("bool", "uint8"))
        _expect_device("block_mask", info, problem, device)
    if q2k_indices is not None:
        info = arrays.inspect(q2k_indices, "q2k_indices")
        if len(info.shape) != 3 or info.shape[:2] != (heads, mb):
            raise ValueError(
                f"q2k_indices must have shape (num_qo_heads, MB, topk) = ({heads}, {mb}, topk), "
                f"got {info.shape}"
            )
        if not 1 <= info.shape[2] <= nb:
            raise ValueError(
                f"topk (the last axis of q2k_indices) must be in [1, NB] = [1, {nb}], "
                f"got {info.shape[2]}"
            )
        if topk is not None and info.shape[2] != topk:
            raise ValueError(f"q2k_indices must keep the plan's topk = {topk}, got {info.shape[2]}")
        _expect_packed_int32("q2k_indices", info, problem, device)
    if q2k_num is not None:
        info = arrays.inspect(q2k_num, "q2k_num")
        _expect_shape("q2k_num", info, "(num_qo_heads, MB)", [(heads, mb)])
        _expect_packed_int32("q2k_num", info, problem, device)
    if kv_block_lens is not None:
        info = arrays.inspect(kv_block_lens, "kv_block_lens")
        _expect_shape("kv_block_lens", info, "(NB,)", [(nb,)])
        _expect_dtype("kv_block_lens", info, ("int32", "int64"))
        _expect_device("kv_block_lens", info, problem, device)


def _integer(name: str, value: Any) -> int:
    if not isinstance(value, (bool, np.bool_)):
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise ValueError(f"{name} must be an integer, got {value!r}")


def _positive(name: str, value: Any) -> int:
    number = _integer(name, value)
    if number < 1:
        raise ValueError(f"{name} must be positive, got {number}")
    return number


def _expect_shape(
    name: str, info: arrays.ArrayInfo, meaning: str, allowed: list[tuple[int, ...]]
) -> None:
    if info.shape not in allowed:
        values = " or ".join(str(shape) for shape in dict.fromkeys(allowed))
        raise ValueError(f"{name} must have shape {meaning} = {values}, got {info.shape}")


def _expect_dtype(name: str, info: arrays.ArrayInfo, allowed: tuple[str, ...]) -> None:
    if info.dtype not in allowed:
        raise ValueError(f"{name} must be {' or '.join(allowed)}, got {info.dtype}")


def _expect_device(
    name: str, info: arrays.ArrayInfo, problem: Problem, device: Callable[[], Device]
) -> None:
    kind, index = info.device
    if kind == "cpu" or (kind == "cuda" and index == device()):
        return
    plan = _device_name(device() if kind == "cuda" else problem.device)
    raise ValueError(
        f"{name} must be on the CPU or on the plan's device {plan}, got {kind}:{index}"
    )


def _expect_packed_int32(
    name: str, info: arrays.ArrayInfo, problem: Problem, device: Callable[[], Device]
) -> None:
    """The q2k tensors: kernels of a later route read them where they are."""
    _expect_dtype(name, info, ("int32",))
    kind, index = info.device
    if kind != ("cpu" if is_simulated(problem.device) else "cuda"):
        raise ValueError(
            f"{name} must be on the plan's device {_device_name(problem.device)}, "
            f"got {kind}:{index}"
        )
    if kind == "cuda" and index != device():
        raise ValueError(
            f"{name} must be on the plan's device {_device_name(device())}, got cuda:{index}"
        )
    if not info.contiguous:
        raise ValueError(
            f"{name} must be contiguous, got strides {info.strides} for shape {info.shape}"
        )


def _device_name(device: Device | None) -> str:
    if device is None:
        return "cuda"
    return str(device) if is_simulated(device) else f"cuda:{device}"
