"""A small problem, and a device in host memory to plan it on: everything but the driver is real."""

import sys
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import cakert
from cakert import routes, vsa_device
from cakert.runtime import driver, memory
from helpers import fake_cupy
from helpers.group_record import rows_of_record

MB, NB = 4, 8
SCALARS = {
    "M": MB * 64,
    "N": NB * 64,
    "R": 64,
    "C": 64,
    "num_qo_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 128,
    "q_data_type": "bfloat16",
    "sm_scale": None,
    "device": 0,
}
PATTERN = dict.fromkeys(
    ("indptr", "indices", "block_mask", "kv_block_lens", "q2k_indices", "q2k_num")
)


def plan(**changes):
    return cakert.plan_cake_vsa(**{**PATTERN, **SCALARS, **changes})


def random_mask(heads=4, q_blocks=MB, kv_blocks=NB):
    rng = np.random.default_rng()
    mask = rng.random((heads, q_blocks, kv_blocks)) < 0.4
    mask[..., rng.integers(0, kv_blocks)] = True
    return mask


def random_q2k(topk=3, ragged=True):
    rng = np.random.default_rng()
    order = np.argsort(rng.random((4, MB, NB)), axis=-1)
    num = rng.integers(1, topk + 1, (4, MB)).astype(np.int32)
    lists = order[..., :topk].astype(np.int32)
    if ragged:
        lists[np.arange(topk) >= num[..., None]] = -1
    return np.ascontiguousarray(lists), num


class HostWorkspace:
    """`Workspace` over host memory, poisoned; remembers the streams of its copies."""

    alive = 0

    def __init__(self, device, nbytes):
        self.device, self.nbytes = device, nbytes
        self.data = np.full(nbytes, 0xA5, np.uint8)
        self.pointer = self.data.ctypes.data
        self.streams = []
        HostWorkspace.alive += 1

    def clear(self, stream=None):
        self.streams.append(stream)
        self.data[:] = 0

    def copy_in(self, array, stream=None):
        self.streams.append(stream)
        self.data[: array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)

    def copy_rows_in(self, array2d, pitch_bytes, stream=None):
        self.streams.append(stream)
        rows = np.ascontiguousarray(array2d).view(np.uint8)
        assert rows.shape[1] <= pitch_bytes
        self.data.reshape(len(rows), pitch_bytes)[:, : rows.shape[1]] = rows


class HostCall:
    """`VsaCall`: keeps what it was made of; a run gives back its arguments."""

    def __init__(self, kernel, **frozen):
        self.kernel, self.frozen = kernel, frozen

    def run(self, *arguments):
        return arguments


class HostKernel:
    def __init__(self):
        self.loaded = []

    def load_on(self, device, shared_bytes=0):
        self.loaded.append((device, shared_bytes))


SMS = 5  # fewer than the rows of the problem: a grouped route pairs them


def install(monkeypatch: pytest.MonkeyPatch, family: str | None = None) -> SimpleNamespace:
    """Replace the device behind plan and update for the length of a test; CuPy is a stand-in.

    Plans take the kernels of `family` where it has one for their problem.
    """
    cupy = fake_cupy.install(monkeypatch)
    record = SimpleNamespace(threads=128, shared_bytes=98304)
    entry = SimpleNamespace(kernel=lambda name: record)
    device = SimpleNamespace(
        kernel=HostKernel(), waits=[], sources=[], cupy=cupy, on=fake_cupy.Ndarray
    )

    def open_device(problem, index):
        device.index = index
        shape = {"R": problem.block, "head_dim": problem.head_dim}
        forced = family in routes.families((9, 0), **shape)
        size = {"rows": problem.num_qo_heads * problem.q_blocks, "kv_blocks": problem.kv_blocks}
        with routes.only(family) if forced else nullcontext():
            route = routes.choose((9, 0), **shape, **size, sms=SMS, dtype=problem.dtype)
        return route, entry

    launch = ModuleType("cakert.vsa_launch")
    launch.VsaCall = HostCall
    monkeypatch.setitem(sys.modules, "cakert.vsa_launch", launch)
    # Whatever driver this machine has: other tests of the process may have used it.
    monkeypatch.setattr(driver, "initialised", lambda: False)
    monkeypatch.setattr(memory, "Workspace", HostWorkspace)
    monkeypatch.setattr(vsa_device, "open_device", open_device)
    monkeypatch.setattr(vsa_device, "_multiprocessors", lambda device: SMS)
    monkeypatch.setattr(vsa_device, "load_kernel", lambda name, entry, index: device.kernel)
    monkeypatch.setattr(
        vsa_device, "stream_of", lambda tensor, index: device.sources.append(tensor) or 77
    )
    monkeypatch.setattr(vsa_device, "wait", lambda *args: device.waits.append(args))
    return device


def device_rows(p):
    """The row lists that a kernel would read, (head, query block) -> list."""
    frozen, work = p._call.frozen, p._held.workspace
    index = np.uint16 if frozen["index_bytes"] == 2 else np.uint32
    if "group_rows" in work:
        problem, groups = p._held.problem, frozen["num_groups"]
        entries = groups, frozen["group_stride"]
        return rows_of_record(
            work["group_rows"].data.view(np.uint32).reshape(groups, 8),
            work["group_blocks"].data.view(index).reshape(entries),
            work["group_members"].data.reshape(entries),
            work["group_counts"].data.view(np.int32),
            num_rows=problem.num_qo_heads * problem.q_blocks,
            kv_blocks=problem.kv_blocks,
        )
    counts = work["row_counts"].data.view(np.int32)
    stride = frozen["row_stride"]
    lists = work["row_blocks"].data.view(index).reshape(len(counts), stride)
    assert (counts >= 0).all()
    assert (counts <= stride).all()
    return [row[:count].tolist() for row, count in zip(lists, counts, strict=True)]


def rows_of(mask, heads=4):
    return [
        np.flatnonzero(mask[head // (heads // len(mask)), block]).tolist()
        for head in range(heads)
        for block in range(mask.shape[1])
    ]


def equal_plans(a, b):
    """Whether a kernel would read the same from both."""
    work_a, work_b = a._held.workspace, b._held.workspace
    assert work_a.keys() == work_b.keys()
    same = a.tiles_fetched == b.tiles_fetched and device_rows(a) == device_rows(b)
    for name in work_a:
        given, other = work_a[name].data, work_b[name].data
        if name in ("group_blocks", "group_members"):  # whose order matters, up to the counts
            groups = a._call.frozen["num_groups"]
            given, other = given.reshape(groups, -1), other.reshape(groups, -1)
            counts = work_a["group_counts"].data.view(np.int32)
            ends = counts * (given.shape[1] // a._call.frozen["group_stride"])
            read = np.arange(given.shape[1]) < ends[:, None]
            given, other = given[read], other[read]
        if name != "row_blocks":
            same = same and np.array_equal(given, other)
    return same
