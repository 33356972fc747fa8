"""Whatever lies in a plan's memory: kernels read nothing foreign, and take what names something.

Counts of any sign and size, entries that name no block, rows of the tile order that there are not,
in lists of two and of four bytes, through several fetches of a warp. What is left of them is a
pattern, and the result must be that pattern's. The simulator knows what is foreign.
"""

from dataclasses import replace

import numpy as np
import pytest
from helpers.problems import make_problem
from helpers.sim_runs import check, plan_of, run

from cakert import planner, routes, sim

SCHEDULES = ("eager", "lazy", "random")
HEADS = ((1, 1), (2, 1), (2, 2))
COUNTS = (-5, 0, 31, 32, 33, 64, 65, 2**30, -(2**31), 2**31 - 1)
NO_ROW = 2**32 - 1


def pick(rng, values):
    """One of them, which may be tuples."""
    return values[int(rng.integers(len(values)))]


def index_type(rng, monkeypatch):
    """Two or four bytes an entry, whatever the number of KV blocks."""
    dtype = np.dtype(pick(rng, (np.uint16, np.uint32)))
    monkeypatch.setattr(planner, "_index_dtype", lambda kv_blocks: dtype)
    return dtype


def foreign_blocks(blocks, dtype):
    """Numbers of no block."""
    numbers = [blocks, blocks + 1, 65535]
    if dtype.itemsize == 4:
        numbers += [65536, 2**31, 2**32 - 1]
    return np.array(numbers, np.uint32).astype(dtype)


def mostly(rng, values, special):
    """`values`, of which more than half are replaced by special ones."""
    chosen = rng.random(values.shape) < 0.6
    values[chosen] = rng.choice(np.array(special, values.dtype), int(chosen.sum()))
    return values


def compare_rows(problem, out, lse, mask, not_computed):
    """Rows that no entry of the record names keep the poison; the others have their pattern."""
    for row in not_computed:
        head, q_block = divmod(int(row), mask.shape[1])
        tokens = slice(q_block * problem.block, (q_block + 1) * problem.block)
        assert np.isnan(out[tokens, head].astype(np.float32)).all()
        mask[head, q_block], out[tokens, head], lse[tokens, head] = False, 0, -np.inf
    check(problem, out, lse, mask=mask)


@pytest.mark.parametrize(
    ("family", "block", "head_dims", "sms"),
    [
        ("portable", 64, (64, 96, 128), (1, 8)),
        ("sm90", 64, (64, 96, 128), (1, 8)),
        ("sm90", 128, (64, 96, 128), (1, 2, 3, 8)),
        ("sm90", 128, (96, 128), (1, 2)),
        ("sm90_split", 64, (64, 96, 128), (1, 2, 8, 32, 132)),
    ],
)
@pytest.mark.parametrize("blocks", [(1, 2, 5), (40, 70)])
def test_row_lists(seed, family, block, head_dims, sms, blocks, monkeypatch):
    for i in range(3):
        rng = np.random.default_rng([seed, i])
        row_lists(rng, family, block, pick(rng, head_dims), pick(rng, sms), pick(rng, blocks),
                  monkeypatch)  # fmt: skip


def row_lists(rng, family, block, head_dim, sms, blocks, monkeypatch):
    dtype = index_type(rng, monkeypatch)
    q_blocks, heads = int(rng.integers(1, 4)), pick(rng, HEADS)
    rows = heads[0] * q_blocks
    short = block == 64 and bool(rng.integers(2))
    problem = make_problem(
        rng, "lens" if short else "mask", M=block * q_blocks, N=block * blocks, block=block,
        heads=heads, head_dim=head_dim,
    )  # fmt: skip
    counts = mostly(rng, rng.integers(0, blocks + 1, rows).astype(np.int32), (*COUNTS, blocks))
    lists = np.array([rng.permutation(blocks) for _ in range(rows)]).astype(dtype)
    foreign = rng.random(lists.shape) < (0.9 if blocks > 8 else 0.4)
    lists[foreign] = rng.choice(foreign_blocks(blocks, dtype), int(foreign.sum()))
    order = rng.permutation(rows).astype(np.uint32)
    lost = rng.random(rows) < 0.25
    mask = np.zeros((heads[0], q_blocks, blocks), bool)
    for row, count in enumerate(counts.clip(0, blocks)):
        named = lists[row, :count]
        mask[row // q_blocks, row % q_blocks, named[named < blocks]] = True
    options = {"schedule": pick(rng, SCHEDULES), "seed": int(rng.integers(2**31)), "sms": sms}
    with routes.only(family), sim.device("sm_90a", **options) as device:
        plan = plan_of(problem, device)
        reads_order = rows > sms * plan._held.route.per_sm
        not_computed = order[lost] if reads_order else []
        order[lost] = rng.choice(np.array([rows, rows + 1, 2**31, NO_ROW], np.uint32), lost.sum())
        memory = {"row_blocks": lists, "row_counts": counts, "tile_order": order}
        if short:
            lens = memory["kv_block_lens"] = rng.integers(-5, 70, blocks).astype(np.int32)
            problem = replace(problem, lens=lens.clip(0, 64))
        for name, values in memory.items():
            plan["workspace"][name].copy_in(values)
        out, lse = run(plan, problem)
    compare_rows(problem, out, lse, mask, not_computed)


@pytest.mark.parametrize("blocks", [(1, 2, 9), (100, 150)])
def test_group_record(seed, blocks, monkeypatch):
    for i in range(4):
        rng = np.random.default_rng([seed, i])
        group_record(rng, pick(rng, blocks), monkeypatch)


def group_record(rng, blocks, monkeypatch):
    dtype = index_type(rng, monkeypatch)
    q_blocks, heads = int(rng.integers(1, 7)), pick(rng, HEADS)
    rows, short = heads[0] * q_blocks, bool(rng.integers(2))
    problem = make_problem(
        rng, "lens" if short else "mask", M=64 * q_blocks, N=64 * blocks, heads=heads,
        selected=(1, min(blocks, 3)),
    )  # fmt: skip
    options = {
        "schedule": pick(rng, SCHEDULES),
        "seed": int(rng.integers(2**31)),
        "sms": pick(rng, (1, 2, 3, 8)),
    }
    with routes.only("sm90_group"), sim.device("sm_90a", **options) as device:
        plan = plan_of(problem, device)
        work = plan["workspace"]
        groups = work["group_counts"].nbytes // 4
        stride = work["group_members"].nbytes // groups
        # Rows of a KV head each, at most once; a partner, none, or one that there is not.
        record = np.full((groups, 8), NO_ROW, np.uint32)
        unused = np.arange(rows).reshape(heads[1], -1)
        unused = [list(rng.permutation(of_head)) for of_head in unused]
        for slots in record:
            of_head = pick(rng, [some for some in unused if some] or [[]])
            if of_head and rng.random() < 0.9:
                slots[0] = of_head.pop()
                slots[1] = of_head.pop() if of_head and rng.random() < 0.7 else rows + 3
        entries = np.full((groups, stride), blocks, np.uint32)
        for listed in entries:
            listed[: min(stride, blocks)] = rng.permutation(blocks)[:stride]
            rng.shuffle(listed)
        entries = entries.astype(dtype)
        foreign = rng.random(entries.shape) > (0.65 if blocks < 10 else 0.08)
        entries[foreign] = rng.choice(foreign_blocks(blocks, dtype), int(foreign.sum()))
        members = rng.choice(np.array([0, 1, 2, 3, 3, 3, 4, 7, 255], np.uint8), entries.shape)
        counts = mostly(rng, rng.integers(0, stride + 1, groups).astype(np.int32), COUNTS)
        mask = np.zeros((heads[0], q_blocks, blocks), bool)
        for slots, listed, bits, count in zip(record, entries, members, counts, strict=True):
            end = int(np.clip(count, 0, stride))
            for slot, row in enumerate(slots[:2].tolist()):
                if row < rows:
                    named = listed[:end][(bits[:end] >> slot & 1 == 1) & (listed[:end] < blocks)]
                    mask[row // q_blocks, row % q_blocks, named] = True
        memory = {"group_rows": record, "group_blocks": entries, "group_members": members,
                  "group_counts": counts}  # fmt: skip
        if short:
            lens = memory["kv_block_lens"] = rng.integers(-5, 70, blocks).astype(np.int32)
            problem = replace(problem, lens=lens.clip(0, 64))
        for name, values in memory.items():
            work[name].copy_in(values)
        out, lse = run(plan, problem)
    compare_rows(problem, out, lse, mask, np.setdiff1d(np.arange(rows), record))
