"""Why a kernel runs, what takes the time, and how far off the predicted time is."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.explanations import flat, plan_of, random_mask

import cakert
from cakert import routes, sim
from cakert.explanation.describe import describe
from cakert.explanation.model import DEVICES


def test_why_the_family_and_not_those_before(rng, h200):
    mask = random_mask(rng, 2, 100, 8)
    e = cakert.explain(plan_of(h200, mask))
    assert e.family == "sm90"
    reasons = dict(e.passed_over)
    assert reasons.keys() == {"sm90_split", "sm90_group"}
    assert "at most one row an SM" in reasons["sm90_split"]
    assert "more than two rows an SM" in reasons["sm90_group"]
    assert "200 rows on 132 SMs" in e.why
    with routes.only("portable"):
        e = cakert.explain(plan_of(h200, mask))
    assert dict(e.passed_over)["sm90"] == "left out by routes.only()"
    with routes.only("sm90_group"):
        e = cakert.explain(plan_of(h200, mask))
    assert e.why.startswith("routes.only() asked for it")
    with sim.device("sm_100a") as device:
        e = cakert.explain(plan_of(device, mask, head_dim=96))
    assert e.passed_over == tuple(
        (name, "only on compute capability 9.0") for name in ("sm90_split", "sm90_group", "sm90")
    )


def cause_of(device, mask, **options):
    e = cakert.explain(plan_of(device, mask, **options))
    assert e.reason in flat(e)
    return e


def test_an_uneven_mask(rng, h200):
    mask = random_mask(rng, 8, 64, 256, 0.03)
    mask[5] = True
    e = cause_of(h200, mask)
    assert (e.cause, e.bound) == ("imbalance", "longest SM")
    assert "no GPU was asked: sim:sm_90a stands for it" in flat(e)
    assert e.load.imbalance > 2
    assert "head 5 is" in e.reason
    assert "as uneven as this one" in flat(e)


def test_a_tiny_mask(rng, h200):
    assert cause_of(h200, random_mask(rng, 1, 8, 8)).cause == "start"


def test_few_long_rows_leave_sms_idle(rng, h200):
    e = cause_of(h200, np.ones((1, 40, 900), bool))
    assert e.cause == "idle SMs"
    assert f"{e.load.busy} of 132 SMs" in e.reason


def test_one_long_row_among_short_ones_is_no_lack_of_rows(h200):
    """Half of the SMs are idle, and the others wait for one: more rows would change little."""
    mask = np.zeros((1, 66, 300), bool)
    mask[..., 0] = mask[0, 0] = True
    e = cause_of(h200, mask)
    assert e.load.busy < 100
    assert e.cause == "imbalance"
    assert "cannot be divided" in e.reason
    with sim.device("sm_100a") as device:
        assert cause_of(device, mask).cause == "imbalance"


def test_rows_that_an_update_empties_are_named(h200):
    mask = np.ones((4, 400, 64), bool)
    with sim.device("sm_100a") as other:
        for device, left in ((h200, 40), (other, 40), (other, 0)):
            plan = plan_of(device, mask)
            mask_now = np.zeros_like(mask)
            mask_now[0, :left] = True
            cakert.update_cake_vsa(plan, block_mask=mask_now)
            e = cakert.explain(plan)
            assert e.cause == "idle SMs"
            assert e.reason.startswith(f"{1600 - left:,} of 1,600 rows select nothing: ")


def test_a_row_that_is_alone_on_its_sm(h200):
    """All SMs have about the same steps, but most of them not two rows at a time."""
    mask = np.zeros((1, 200, 200), bool)
    mask[:, :132, :100] = mask[:, 132:, :10] = True
    e = cause_of(h200, mask)
    assert (e.family, e.cause) == ("sm90", "steps")
    assert e.predicted_us == pytest.approx(e.limits["longest SM"])
    assert "0.71 us each, where rows side by side take 0.55" in e.reason
    assert "busy to the end" not in e.reason


def test_pairs_of_short_rows_take_turns(h200):
    e = cause_of(h200, np.ones((1, 4096, 1), bool))
    assert (e.family, e.cause) == ("sm90_group", "steps")
    assert "1.84 us a step and 1.60 us a pair of rows" in e.reason


def test_a_dense_mask_is_bound_by_the_kernel(rng, h200):
    e = cause_of(h200, np.ones((4, 132, 132), bool))
    assert e.cause == "steps"
    assert e.tiles.overlap == pytest.approx(0.5)  # all pairs share all
    assert e.load.imbalance < 1.05


def test_rows_without_overlap_are_bound_by_l2(h200):
    # Neighbours, and the same query block of other heads, select different blocks.
    mask = np.zeros((8, 132, 512), bool)
    for row in range(132):
        mask[:, row, (2 * row) % 16 :: 16] = True
    mask[1::2] = np.roll(mask[1::2], 1, axis=2)
    e = cause_of(h200, mask, kv_heads=8)
    assert (e.cause, e.bound) == ("L2", "L2")
    assert e.tiles.overlap < 0.05
    assert "share" in e.reason


def test_nothing_is_said_of_time_where_nothing_was_measured(rng):
    mask = random_mask(rng, 4, 80, 40)
    for arch in ("sm_100a", "sm_103a"):
        with sim.device(arch) as device:
            e = cakert.explain(plan_of(device, mask))
        assert (e.predicted_us, e.predicted_tflops, e.error, e.bound) == (None,) * 4
        assert e.limits.keys() == {"tensor core", "HBM"}
        assert f"not measured on {e.machine.name}" in flat(e)
        assert "data sheet" in flat(e)
    with sim.device("sm_90a", sms=7) as device:
        e = cakert.explain(plan_of(device, mask))
    assert (e.predicted_us, e.limits) == (None, {})
    with sim.device("sm_90a", sms=132) as device:
        with routes.only("portable"):
            e = cakert.explain(plan_of(device, mask))
        assert e.predicted_us is None and "this kernel was not measured" in flat(e)
        e = describe(plan_of(device, mask), DEVICES["h100"])
    assert e.predicted_us is None and e.machine.name == "NVIDIA H100"


def test_predictions_are_within_the_errors_that_are_stated(project):
    """Against every measurement, each on the mask of the benchmark."""
    import check_explain

    from cakert.explanation import model

    bench = project / "docs" / "bench"
    found = list(check_explain.cases(bench / "h200.json"))
    others = list(check_explain.recorded_cases(bench / "explain.json"))
    by_kernel = check_explain.errors(found + others)
    assert by_kernel.keys() == model._COSTS.keys()
    for kernel, (low, high, count) in by_kernel.items():
        costs = model._COSTS[kernel]
        assert count >= 2
        # Rounded to per cents, away from 0.
        assert costs.error[0] <= low < costs.error[0] + 0.0101
        assert costs.error[1] - 0.0101 < high <= costs.error[1]
        if costs.uneven < 10:
            seen = max(c.explanation.load.imbalance for c in found + others if c.kernel == kernel)
            assert costs.uneven == pytest.approx(seen, abs=0.01)
    page = (project / "docs" / "explain.md").read_text()
    assert "\n".join(check_explain.table(found)) in page
    assert "\n".join(check_explain.table(others)) in page
