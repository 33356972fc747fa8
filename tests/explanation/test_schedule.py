"""Who computes what, against a naive dealing."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.explanations import plan_of, random_mask

import cakert
from cakert import routes
from cakert.cubins import store
from cakert.explanation import schedule


def test_dealing_in_order_is_greedy(rng):
    for sms in (1, 3, 8):
        steps = rng.integers(0, 9, rng.integers(1, 60))
        total, items = [0] * sms, [0] * sms
        for each in steps:
            sm = min(range(sms), key=lambda i: (total[i], i)) if len(steps) > sms else sum(items)
            total[sm] += each
            items[sm] += 1
        dealt = schedule.dealt_in_order(steps, sms)
        assert dealt.steps.tolist() == total
        assert dealt.items.tolist() == items


def test_dealing_round_is_the_loop_of_a_persistent_kernel(rng):
    for sms in (1, 3, 8):
        steps = rng.integers(0, 9, rng.integers(1, 60))
        dealt = schedule.dealt_round(steps, sms)
        assert dealt.steps.tolist() == [int(steps[c::sms].sum()) for c in range(sms)]
        assert dealt.items.tolist() == [len(steps[c::sms]) for c in range(sms)]


def naive_finish(steps, sms, resident, step, alone):
    """The same dealing by small steps of time."""
    waiting = [each for each in steps if each]
    left = [[] for _ in range(sms)]
    for _ in range(resident):
        for slots in left:
            if waiting:
                slots.append(float(waiting.pop(0)))
    now, tick = 0.0, 1e-3
    while any(left):
        now += tick
        for slots in left:
            rate = max(alone, step * len(slots))
            slots[:] = [each - tick / rate for each in slots]
        for slots in left:
            ended = sum(each <= 1e-9 for each in slots)
            slots[:] = [each for each in slots if each > 1e-9]
            slots += [float(waiting.pop(0)) for _ in range(min(ended, len(waiting)))]
    return now


def test_time_of_dealing_by_the_hardware(rng):
    for sms, resident in ((1, 1), (1, 3), (4, 2), (7, 3)):
        steps = rng.integers(0, 9, rng.integers(1, 40))
        step, alone = 0.3, float(rng.choice([0.2, 0.5, 0.8]))
        found = schedule.finish_us(steps, sms, resident, step, alone)
        expected = naive_finish(steps.tolist(), sms, resident, step, alone)
        assert found == pytest.approx(expected, abs=0.05 * max(1, len(steps) / sms))
        assert found >= steps.sum() * step / sms - 1e-9, "no SM is faster than a full one"
        assert found >= steps.max() * alone - 1e-9


def test_a_long_row_that_starts_late_ends_alone():
    steps = np.array([10] * 400 + [64])
    early = schedule.finish_us(steps[::-1], 132, 2, 0.5, 0.7)
    late = schedule.finish_us(steps, 132, 2, 0.5, 0.7)
    assert late > early + 3 and late >= 64 * 0.7 + 10


def test_split_rows_are_taken_in_turns(rng):
    counts = rng.integers(0, 40, 30)
    for cluster in (1, 2, 4, 8):
        for warpgroups in (1, 2):
            found = schedule.split_steps(counts, cluster, warpgroups)
            for row, count in enumerate(counts):
                for c in range(cluster):
                    mine = range(count)[c::cluster]
                    assert found[row, c] == max(len(mine[w::warpgroups]) for w in range(warpgroups))


def test_groups_take_as_long_as_their_longer_row(rng, h200):
    mask = random_mask(rng, 5, 83, 31, 0.5)
    p = plan_of(h200, mask)
    e = cakert.explain(p)
    space = p["workspace"]
    groups = space["group_counts"].nbytes // 4
    rows = space["group_rows"].to_numpy("uint32", (groups, 8))
    counts = np.append(mask.sum(axis=2).reshape(-1), 0)
    total = [0] * 132
    for group, (a, b) in enumerate(rows[:, :2].tolist()):
        longer = max(counts[a], counts[min(b, len(counts) - 1)])
        # Half stages of shared and unshared blocks may make it one step more.
        total[group % 132] += -(-int(longer) // 2)
    extra = e.load.sm_steps - total
    assert np.all(extra >= 0) and np.all(extra <= e.load.sm_items)
    assert e.load.grid == 132


@pytest.mark.parametrize("block", [64, 128])
@pytest.mark.parametrize("head_dim", [64, 96, 128])
def test_thread_blocks_of_an_sm_are_those_of_the_kernels_page(block, head_dim, project):
    name = f"cake_vsa_portable_r{block}_d{head_dim}_bf16"
    entry = store().find(name, (9, 0))
    kernel = entry.kernel(name)
    resident = schedule.resident_blocks(kernel, kernel.threads)
    lines = (project / "docs" / "kernels.md").read_text().splitlines()
    (line,) = (
        line
        for line in lines
        if line.startswith(f"| {block} | {head_dim} |") and f"| {kernel.shared_bytes:,} |" in line
        and line.count(" / ") == 2
    )  # fmt: skip
    assert line.endswith(f"| {resident} |")


@pytest.mark.parametrize("route", ["sm90", "portable"])
def test_rows_are_dealt_in_the_order_of_the_plan(route, rng, h200):
    mask = random_mask(rng, 3, 100, 20, 0.4)
    with routes.only(route):
        e = cakert.explain(plan_of(h200, mask))
    counts = mask.sum(axis=2)
    steps = np.concatenate([np.sort(each)[::-1] for each in counts])
    assert e.load.grid == 300
    assert np.array_equal(e.load.sm_steps, schedule.dealt_in_order(steps, 132).steps)


def test_rows_that_all_run_at_once_are_dealt_in_grid_order(rng, h200):
    mask = random_mask(rng, 2, 100, 20, 0.4)
    e = cakert.explain(plan_of(h200, mask))
    assert (e.family, e.load.grid) == ("sm90", 200)
    steps = mask.sum(axis=2).reshape(-1)
    assert np.array_equal(e.load.sm_steps, schedule.dealt_in_order(steps, 132).steps)
