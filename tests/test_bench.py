"""The benchmark's arithmetic; its measurements need a GPU and the eyes of a person."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

import bench_ceilings
import bench_peers
import bench_vsa
import bench_workloads

FOUND = {
    "matmul_8192": 700.0,
    "l2_feed_tb_s": {"16": 8.5, "44": 8.0, "112": 6.0},
    "launch_us": {"graph": 5.0, "kernels": 1.5},
}


def workload(name):
    return next(w for w in bench_workloads.WORKLOADS if w.name == name)


def row(name, peer, tflops, **more):
    return {"workload": name, "peer": peer, "tflops": tflops, **more}


def test_goals_are_of_workloads_and_contenders_have_distinct_modules():
    names = [w.name for w in bench_workloads.WORKLOADS]
    assert len(set(names)) == len(names)
    assert set(bench_workloads.GOALS) <= set(names)
    assert all(not goal.own or goal.own in names for goal in bench_workloads.GOALS.values())
    assert len({peer.module for peer in bench_peers.PEERS.values()}) == len(bench_peers.PEERS)


def test_ours_is_set_against_the_best_peer_or_our_own():
    table = bench_vsa.goals(
        [
            row("B_h16_s16384_d25", "cakert", 600.0),
            row("B_h16_s16384_d25", "slow", 300.0),
            row("B_h16_s16384_d25", "fast", 640.0),
            {"workload": "B_h16_s16384_d25", "peer": "absent", "not_measured": "not installed"},
            row("B_h16_s16384_d25_D96", "cakert", 540.0),
            row("B_h16_s16384_d25_D96", "fast", 100.0),
            row("B_h16_s16384_d50", "cakert", 600.0),
        ]
    )
    assert [(r["workload"], r["best_peer"], r["ratio"], r["met"]) for r in table] == [
        ("B_h16_s16384_d25", "fast", 600 / 640, "no"),
        ("B_h16_s16384_d25_D96", "own B_h16_s16384_d25", 0.9, "goal"),
    ]


def test_a_goal_between_floor_and_goal():
    assert [bench_workloads.Goal(0.9, 1.1).met(r) for r in (0.89, 0.9, 1.1)] == [
        "no",
        "floor",
        "goal",
    ]


def test_bounds():
    w = workload("A_h7_m32768_n32768_k64")  # 16 MiB of K and V a head, heads in turn
    assert bench_ceilings.footprint_mib(w, 132) == 16
    measured = {"tflops": 350.0, "ms": 2.0, "tiles": 10**6, "clock": "graph replays"}
    bounds = bench_ceilings.bounds_ms(w, measured, 132, FOUND)
    assert bounds == pytest.approx(
        {"tensor core": 1.0, "L2 feed": 10**6 * 32768 / 8.5e9, "launch": 0.005}
    )
    absent = FOUND | {"l2_feed_tb_s": "not measured: no nvcc"}
    bounds = bench_ceilings.bounds_ms(w, measured | {"clock": "kernels"}, 132, absent)
    assert bounds == pytest.approx({"tensor core": 1.0, "launch": 0.0015})


def test_tiles_fetched_of_the_plan_go_before_the_masks():
    import torch

    mask = torch.ones((2, 3, 4), dtype=torch.bool)
    assert bench_ceilings.tiles_fetched({"route": "x"}, mask) == 24
    assert bench_ceilings.tiles_fetched(SimpleNamespace(tiles_fetched=7), mask) == 7
    assert bench_ceilings.tiles_fetched(object(), mask) == 24


def test_a_ceiling_that_cannot_be_measured_says_why():
    def fail():
        raise RuntimeError("no nvcc\nmore")

    assert bench_ceilings.reason_or(fail) == "not measured: no nvcc"


def test_plot_shows_what_was_and_what_was_not_measured(project, tmp_path):
    pytest.importorskip("matplotlib")
    import json

    import plot_bench

    report = json.loads((project / "docs" / "bench" / "h200.json").read_text())
    absent = {key: value for key, value in report["rows"][0].items() if key != "tflops"}
    report["rows"].append(absent | {"peer": "cudnn_bsa", "not_measured": "not installed"})
    plot_bench.draw(report, tmp_path / "plot.svg")
    assert (tmp_path / "plot.svg").stat().st_size > 1000
