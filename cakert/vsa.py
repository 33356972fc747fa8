"""The contract: plan, run, update and check of block-sparse ("video sparse") attention.

A plan is checked on the host, uploaded once and then only read, so any number of threads and
streams may run it. An update writes the same device memory in stream order.
"""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn, TypeAlias

import numpy as np

from cakert import arrays, planner, validation, vsa_device
from cakert.groups import Groups
from cakert.planner import Faults, Pattern
from cakert.routes import Route
from cakert.validation import Device, Problem

__all__ = [
    "CakeVsaPlan",
    "check_cake_vsa",
    "plan_cake_vsa",
    "run_cake_vsa",
    "update_cake_vsa",
]

Tensor: TypeAlias = Any


class _Held(NamedTuple):
    """What a plan keeps for update, out of reach of whoever edits the dict."""

    problem: Problem
    device: Device
    route: Route
    pattern_kind: str  # "mask" (also for BSR) or "q2k"
    capacity: int
    workspace: dict[str, Any]
    q2k_indices: Tensor | None
    q2k_num: Tensor | None
    row_counts: Tensor


class CakeVsaPlan(dict[str, Any]):
    """What :func:`~cakert.plan_cake_vsa` returns: a dict to read, and the launch that it describes.

    Changing a key has no effect on a run. A plan owns device memory and is bound to its process:
    it cannot be copied or pickled. Arrays are tensors of the framework of the pattern that was
    given, where that was.

    Keys
    ----
    M, N, R, C, num_qo_heads, num_kv_heads, head_dim, dtype, sm_scale
        As given; ``mb`` and ``nb`` are M // R and N // C.
    block_mask
        The mask as bool, a copy; None for BSR and q2k.
    row_counts
        int32 (num_qo_heads, mb): selected blocks of each row. The one key that update writes.
    max_selected_blocks, uniform_selected_blocks
        The longest row (int); whether all are equally long (bool).
    indptr, indices
        int32: the pattern as sorted BSR, where all query heads share one; otherwise None.
    q2k_indices, q2k_num
        The caller's objects; ``q2k_num`` full of topk where None was given.
    kv_block_lens
        int32 (nb,), a copy; None where none was given.
    route
        Name of the kernel that runs.
    workspace
        Device memory of the plan by name, for inspection.

    Attributes
    ----------
    tiles_fetched
        Blocks of K, and as many of V, that a run fetches: the sum of ``row_counts``, less what
        rows share whose kernel fetches for two at a time. Update writes it.
    """

    __slots__ = ("__weakref__", "_call", "_held", "_lens_fault", "_pattern_fault", "tiles_fetched")

    tiles_fetched: int
    _call: Any
    _held: _Held
    _lens_fault: str | None
    _pattern_fault: str | None

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("a plan owns device memory and cannot be copied or pickled: plan again")


def plan_cake_vsa(
    indptr: Tensor | None,
    indices: Tensor | None,
    block_mask: Tensor | None,
    kv_block_lens: Tensor | None,
    q2k_indices: Tensor | None,
    q2k_num: Tensor | None,
    *,
    M: int,
    N: int,
    R: int,
    C: int,
    num_qo_heads: int,
    num_kv_heads: int,
    head_dim: int,
    q_data_type: Any,
    sm_scale: float | None,
    device: Any,
) -> dict[str, Any]:
    """Check and upload a sparsity pattern; load the kernel that will run it.

    MB = M // R query blocks, NB = N // C key/value blocks. Exactly one kind of pattern is used:
    ``block_mask`` (it wins over BSR where both are given), BSR, or q2k lists. What was checked
    is what runs: later writes to the caller's tensors have no effect before an update.

    Parameters
    ----------
    indptr, indices
        BSR pattern of all heads, (MB + 1,) and (nnz,), int32 or int64, on the CPU or the plan's
        device. Unsorted rows and repeated columns are put in order. Beside a ``block_mask``
        their shapes and types are still checked, their values are not read.
    block_mask
        (num_qo_heads, MB, NB) or (num_kv_heads, MB, NB), bool or uint8 (read as ``!= 0``), on
        the CPU or the plan's device, any strides.
    kv_block_lens
        (NB,), int32 or int64, on the CPU or the plan's device: valid tokens of each KV block,
        in [1, C]. None: all. 64-token blocks only.
    q2k_indices
        Contiguous int32 (num_qo_heads, MB, topk) on the plan's device: selected KV blocks of
        each query block; 1 <= topk <= NB. 64-token blocks only.
    q2k_num
        Contiguous int32 (num_qo_heads, MB) on the plan's device: active entries of each row,
        in [1, topk]. None: all. Entries past it are not read as indices.
    M, N
        Query and key/value tokens: positive multiples of R and C.
    R, C
        Block sizes in tokens, equal: 64 or 128.
    num_qo_heads, num_kv_heads
        The first a multiple of the second.
    head_dim
        64, 96 or 128.
    q_data_type
        float16 or bfloat16: a torch dtype, a name, or a numpy or ml_dtypes type.
    sm_scale
        Factor of the logits, any finite float32 number; None means ``1 / sqrt(head_dim)``.
    device
        A torch.device, "cuda", "cuda:1", an int, a CuPy or a JAX device. "cuda" means the
        current one. Or a simulated device (:func:`cakert.sim.device`): tensors on the CPU are its
        memory.

    Returns
    -------
    A :class:`~cakert.vsa.CakeVsaPlan`, which lists its keys.

    Raises
    ------
    ValueError
        An argument out of its table, in the order scalars; presence; shapes, dtypes, devices;
        q2k_num; indices; duplicates; empty rows; kv_block_lens.
    TypeError
        A pattern argument that is no tensor.
    RuntimeError
        Not a CUDA device, no driver or one that is too old, a device without cubins, a graph
        capture under way, a process forked after the driver was used, a simulated device that is
        closed.
    CudaError, CubinError
        The driver failed; a cubin is not the one that was shipped.
    """
    problem = validation.check_scalars(
        M=M,
        N=N,
        R=R,
        C=C,
        num_qo_heads=num_qo_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        q_data_type=q_data_type,
        sm_scale=sm_scale,
        device=device,
        capabilities=vsa_device.capabilities,
    )
    tensors = {
        "indptr": indptr,
        "indices": indices,
        "block_mask": block_mask,
        "kv_block_lens": kv_block_lens,
        "q2k_indices": q2k_indices,
        "q2k_num": q2k_num,
    }
    _refuse_capture(tensors)
    validation.check_presence(problem, **tensors)
    resolve = vsa_device.DeviceIndex(problem)
    validation.check_metadata(problem, resolve, **tensors)
    vsa_device.wake_driver(tensors.values())
    _refuse_capture(tensors)

    _refuse_too_many_entries(problem, q2k_indices)
    source, kind, pattern = _read_pattern(problem, tensors)
    lens = None
    if kv_block_lens is not None:
        lens = planner.plan_block_lens(
            arrays.to_numpy(kv_block_lens), block=problem.block, faults=Faults(strict=True)
        )

    where = resolve()
    route, entry = vsa_device.open_device(problem, where)
    _refuse_capture(tensors, where)  # only now can every library's captures be seen
    grouped = vsa_device.group_rows(problem, pattern, route, where)
    kernel = vsa_device.load_kernel(route.name, entry, where)
    record = entry.kernel(route.name)
    kernel.load_on(where, record.shared_bytes)
    stream = vsa_device.stream_of(source, where)
    workspace = vsa_device.upload(problem, pattern, grouped, lens, where, stream)
    vsa_device.wait(stream, where)  # a run may come from any stream, so nothing may be under way

    if kind == "q2k" and q2k_num is None:
        q2k_num = arrays.from_numpy(pattern.row_counts.copy(), like=q2k_indices)
    shared: tuple[Tensor, ...] = (None, None)
    if pattern.shared is not None:
        shared = tuple(arrays.from_numpy(array, like=source) for array in pattern.shared)
    plan = CakeVsaPlan(
        M=M,
        N=N,
        R=R,
        C=C,
        mb=problem.q_blocks,
        nb=problem.kv_blocks,
        num_qo_heads=num_qo_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        dtype=q_data_type,
        sm_scale=sm_scale,
        block_mask=None if block_mask is None else arrays.as_bool(block_mask),
        row_counts=arrays.from_numpy(pattern.row_counts, like=source),
        max_selected_blocks=pattern.max_selected,
        uniform_selected_blocks=pattern.uniform,
        indptr=shared[0],
        indices=shared[1],
        q2k_indices=q2k_indices,
        q2k_num=q2k_num,
        kv_block_lens=None if lens is None else arrays.from_numpy(lens, like=kv_block_lens),
        route=route.name,
        workspace=dict(workspace),
    )
    plan._pattern_fault = plan._lens_fault = None
    plan.tiles_fetched = _tiles_fetched(pattern, grouped)
    plan._held = _Held(
        problem=problem,
        device=where,
        route=route,
        pattern_kind=kind,
        capacity=pattern.capacity,
        workspace=workspace,
        q2k_indices=q2k_indices,
        q2k_num=q2k_num,
        row_counts=plan["row_counts"],
    )
    plan._call = vsa_device.make_call(
        problem, pattern, grouped, route, record, kernel, where, workspace
    )
    return plan


def run_cake_vsa(
    plan: dict[str, Any],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    out: Tensor | None,
    lse: Tensor | None,
    return_lse: bool,
    backend: str,
) -> Any:
    """Launch the attention of a plan on the current stream of ``q``'s framework.

    Parameters
    ----------
    plan
        From :func:`~cakert.plan_cake_vsa`.
    q
        (M, num_qo_heads, head_dim), contiguous, dtype and device of the plan, 16-byte aligned.
    k, v
        (N, num_kv_heads, head_dim), likewise.
    out
        Like ``q``, or None: allocated by ``q``'s framework, or a DeviceArray where that cannot
        lend memory (JAX).
    lse
        float32 (M, num_qo_heads) or None; only with ``return_lse``. Filled with the natural
        logarithm of the sum of ``exp(sm_scale * q.k)`` over the selected, valid keys.
    return_lse
        Whether to compute and return the LSE.
    backend
        "cake".

    Returns
    -------
    ``out``, or ``(out, lse)`` with ``return_lse``.

    Raises
    ------
    ValueError
        A tensor that does not match the plan, or another backend.
    TypeError
        ``plan`` is not one, or an argument is no tensor.
    RuntimeError
        A tensor requires grad while grad is enabled; the plan's simulated device is closed.
    CudaError
        The launch failed.
    cakert.sim.Fault
        A simulated device found the kernel at fault.
    """
    if backend != "cake":
        raise ValueError(f'backend must be "cake", got {backend!r}')
    if not isinstance(plan, CakeVsaPlan):
        _refuse_plan(plan)
    return plan._call.run(q, k, v, out, lse, return_lse)


def update_cake_vsa(
    plan: dict[str, Any],
    *,
    block_mask: Tensor | None = None,
    q2k_indices: Tensor | None = None,
    q2k_num: Tensor | None = None,
    kv_block_lens: Tensor | None = None,
) -> None:
    """Give a plan another pattern of the same kind and shape; update + run equals plan + run.

    What is not given stays; of the q2k pair the one that is not given is read again from the tensor
    that the plan was made with, and with no tensor given both are. Values that plan would refuse
    are repaired: an index outside [0, NB) is skipped, a block named twice counts once, ``q2k_num``
    is clamped to [0, topk] and ``kv_block_lens`` to [0, C]; a row that ends up empty gives zeros
    and lse = -inf. :func:`check_cake_vsa` tells.

    Parameters
    ----------
    plan
        From :func:`~cakert.plan_cake_vsa`. Its ``row_counts`` is written; the other keys go on
        describing the pattern of plan.
    block_mask
        As in plan; for plans of a mask or BSR.
    q2k_indices, q2k_num
        As in plan, with the same topk; for plans of q2k lists.
    kv_block_lens
        As in plan; for plans that were made with ``kv_block_lens``.

    Raises
    ------
    ValueError
        Another kind of pattern, a wrong shape, dtype or device.
    TypeError
        ``plan`` is not one, or an argument is no tensor.
    RuntimeError
        A graph capture is under way: this version's update works on the host. The plan's
        simulated device is closed.

    Notes
    -----
    The copies run on the current stream of the framework of the tensors given; numpy, JAX and
    others have none, theirs run on the legacy default stream, which does not wait for torch's side
    streams (pass a torch tensor, on the CPU if you like, to update in the order of torch's current
    stream). Ordering against runs on other streams is the caller's.
    """
    own = _own(plan)
    held = own._held
    given = (block_mask, q2k_indices, q2k_num, kv_block_lens)
    touched = (*given, held.q2k_indices, held.q2k_num, held.row_counts)
    if vsa_device.capture_under_way(touched, held.device):
        raise RuntimeError(
            "update_cake_vsa cannot be captured in a CUDA graph: in this version it works on the "
            "host; update between replays instead, a captured run reads the plan's memory"
        )
    problem, lens = held.problem, None
    if held.pattern_kind == "mask":
        _refuse_kind("block_mask", q2k_indices=q2k_indices, q2k_num=q2k_num)
        if all(tensor is None for tensor in given):
            raise ValueError(
                "update_cake_vsa needs block_mask for this plan: only the q2k tensors of a plan "
                "can be read again, and it holds none"
            )
    else:
        _refuse_kind("q2k_indices", block_mask=block_mask)
    if kv_block_lens is not None and "kv_block_lens" not in held.workspace:
        raise ValueError(
            "kv_block_lens was given to update, but the plan has none: plan with "
            f"kv_block_lens full of C = {problem.block} if lengths are to change later"
            if problem.block == 64
            else f"kv_block_lens needs 64-token blocks, got R = C = {problem.block}"
        )
    validation.check_metadata(
        problem,
        lambda: held.device,
        block_mask=block_mask,
        q2k_indices=q2k_indices,
        q2k_num=q2k_num,
        kv_block_lens=kv_block_lens,
        topk=held.capacity,
    )

    faults, lens_faults = Faults(strict=False), Faults(strict=False)
    pattern: Pattern | None = None
    grouped: Groups | None = None
    if block_mask is not None:
        pattern = planner.from_mask(
            arrays.to_numpy(block_mask), num_qo_heads=problem.num_qo_heads, faults=faults
        )
    elif held.pattern_kind == "q2k" and (
        kv_block_lens is None or q2k_indices is not None or q2k_num is not None
    ):
        pattern = _q2k_pattern(
            problem,
            held.q2k_indices if q2k_indices is None else q2k_indices,
            held.q2k_num if q2k_num is None else q2k_num,
            faults,
        )
    if pattern is not None:
        grouped = vsa_device.group_rows(problem, pattern, held.route, held.device)
    if kv_block_lens is not None:
        lens = planner.plan_block_lens(
            arrays.to_numpy(kv_block_lens), block=problem.block, faults=lens_faults
        )

    # A framework that has a current stream goes before numpy, which has none.
    sources = [tensor for tensor in given if tensor is not None] or [held.q2k_indices]
    source = min(sources, key=lambda tensor: arrays.framework_of(tensor) == "numpy")
    stream = vsa_device.stream_of(source, held.device)
    vsa_device.write(held.workspace, pattern, grouped, lens, stream)
    # Kept apart: the half that was not given is still in use, with what was wrong with it.
    if lens is not None:
        own._lens_fault = lens_faults.first
    if pattern is not None:
        own._pattern_fault = faults.first
        own.tiles_fetched = _tiles_fetched(pattern, grouped)
        counts = arrays.overwrite(held.row_counts, pattern.row_counts)
        if counts is not held.row_counts:
            own["row_counts"] = counts


def check_cake_vsa(plan: dict[str, Any]) -> None:
    """Raise what plan would have raised for the values that updates brought, if anything.

    Raises
    ------
    ValueError
        A pattern or lengths that are in use had to be repaired by the update that gave them.
    TypeError
        ``plan`` is not one.
    RuntimeError
        The plan's simulated device is closed.
    """
    own = _own(plan)
    vsa_device.require_open(own._held.device)
    fault = own._pattern_fault or own._lens_fault
    if fault is not None:
        raise ValueError(fault)


def _refuse_capture(tensors: dict[str, Tensor | None], device: Device | None = None) -> None:
    if vsa_device.capture_under_way(tensors.values(), device):
        raise RuntimeError(
            "plan_cake_vsa was called inside a CUDA graph capture: plan before capture, it loads "
            "code, allocates and synchronises"
        )


def _refuse_too_many_entries(problem: Problem, q2k_indices: Tensor | None) -> None:
    width = problem.kv_blocks if q2k_indices is None else int(q2k_indices.shape[2])
    entries = problem.num_qo_heads * problem.q_blocks * width
    if entries > validation.MAX_LIST_ENTRIES:
        raise ValueError(
            "num_qo_heads * (M // R) * (N // C, or topk of q2k_indices) must be at most "
            f"{validation.MAX_LIST_ENTRIES}, got {entries}"
        )


def _read_pattern(
    problem: Problem, tensors: dict[str, Tensor | None]
) -> tuple[Tensor, str, Pattern]:
    """The tensor whose framework the plan answers in, the kind of pattern, and its rows."""
    strict = Faults(strict=True)
    mask, indptr, lists = (tensors[name] for name in ("block_mask", "indptr", "q2k_indices"))
    if mask is not None:
        pattern = planner.from_mask(
            arrays.to_numpy(mask), num_qo_heads=problem.num_qo_heads, faults=strict
        )
        return mask, "mask", pattern
    if indptr is not None:
        pattern = planner.from_bsr(
            arrays.to_numpy(indptr),
            arrays.to_numpy(tensors["indices"]),
            q_blocks=problem.q_blocks,
            kv_blocks=problem.kv_blocks,
            num_qo_heads=problem.num_qo_heads,
            faults=strict,
        )
        return indptr, "mask", pattern
    return lists, "q2k", _q2k_pattern(problem, lists, tensors["q2k_num"], strict)


def _q2k_pattern(
    problem: Problem, q2k_indices: Tensor, q2k_num: Tensor | None, faults: Faults
) -> Pattern:
    lists = arrays.to_numpy(q2k_indices)
    counts = (
        np.full(lists.shape[:2], lists.shape[2], np.int32)
        if q2k_num is None
        else arrays.to_numpy(q2k_num)
    )
    return planner.from_q2k(lists, counts, kv_blocks=problem.kv_blocks, faults=faults)


def _tiles_fetched(pattern: Pattern, grouped: Groups | None) -> int:
    return int(pattern.row_counts.sum(dtype=np.int64)) if grouped is None else grouped.tiles


def _own(plan: dict[str, Any]) -> CakeVsaPlan:
    if not isinstance(plan, CakeVsaPlan):
        _refuse_plan(plan)
    return plan


def _refuse_plan(plan: Any) -> NoReturn:
    raise TypeError(f"plan must be what plan_cake_vsa returned, got {type(plan).__name__}")


def _refuse_kind(wanted: str, **others: Tensor | None) -> None:
    for name, value in others.items():
        if value is not None:
            raise ValueError(
                f"the plan's pattern is of another kind: update it with {wanted}, got {name}"
            )
