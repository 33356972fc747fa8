"""Kernel.attributes and Kernel.occupancy under the stub: what they ask, refuse and give back."""

from __future__ import annotations

import pytest
from kernel_scripts import run

CLUSTERED = """
image = tiny_cubin({"pair": (8, 4)}, max_threads=256, cluster=(2, 1, 1))
"""


def test_resources_are_the_drivers():
    result = run(
        CLUSTERED + "report([list(cakert.Library(image)['pair'].attributes(0)), context_depth()])"
    )
    (registers, shared, local, constant, threads, version, cluster), depth = result.report
    assert (registers, shared, local, constant, threads) == (128, 0, 0, 0, 256)
    assert version == [9, 0] and cluster == [2, 1, 1] and depth == 0


def test_occupancy_of_a_kernel_without_clusters():
    result = run(
        """
        kernel = cakert.Library(image)["add"]
        report([kernel.occupancy(256), kernel.occupancy((32, 4), 60000),
                kernel.occupancy(128, cluster=4), kernel.attributes().cluster, context_depth()])
        """
    )
    plain, shared, clustered, demanded, depth = result.report
    assert plain == [8, None] and shared == [3, None] and clustered == [16, 132 * 16 // 4]
    assert demanded is None and depth == 0
    asked = result.trace.named("cuOccupancyMaxActiveBlocksPerMultiprocessor")
    assert [(call["threads"], call["shared"]) for call in asked] == [
        (256, 0),
        (128, 60000),
        (128, 0),
    ]
    assert not result.trace.named("cuLaunchKernelEx")


def test_the_cluster_that_a_kernel_demands_is_taken():
    result = run(
        CLUSTERED
        + """
kernel = cakert.Library(image)["pair"]
report([kernel.occupancy(256), kernel.occupancy(256, cluster=(2, 1)),
        failure(lambda: kernel.occupancy(256, cluster=4))])
"""
    )
    own, same, other = result.report
    assert own == same == [8, 132 * 8 // 2]
    assert other["type"] == "ValueError" and "(2, 1, 1)" in other["text"]
    assert "(4, 1, 1)" in other["text"]


@pytest.mark.parametrize(("blocks", "asked"), [(8, 0), (16, 1)])
def test_a_large_cluster_that_a_kernel_demands_is_allowed(blocks, asked):
    """More than eight blocks are not portable: the driver wants to be told, once a kernel."""
    result = run(
        f"""
        image = tiny_cubin({{"wide": (8, 4)}}, cluster=({blocks}, 1, 1))
        kernel = cakert.Library(image)["wide"]
        kernel.load_on(0)
        mark("loaded")
        kernel.launch(FakeCuda(array(4)), 4, grid={blocks}, block=32)
        """
    )
    told = result.trace.named("cuKernelSetAttribute")
    assert [call["attribute"] for call in told] == [14] * asked
    assert not result.trace.after("loaded").named("cuKernelSetAttribute")


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        ("kernel.occupancy(1024)", ("at most 512 threads", "1024")),
        ("kernel.occupancy(0)", ("block", "0")),
        ("kernel.occupancy(32, -1)", ("shared_bytes", "-1")),
        ("kernel.occupancy(32, 240000)", ("shared_bytes", "240000")),
        ("kernel.occupancy(32, cluster=17)", ("cluster", "17")),
    ],
)
def test_what_cannot_run_is_refused(call, parts):
    result = run(
        f"""
        kernel = cakert.Library(image)["add"]
        report([failure(lambda: {call}), context_depth()])
        """
    )
    error, depth = result.report
    assert error["type"] == "ValueError" and depth == 0
    assert all(part in error["text"] for part in parts), error["text"]


@pytest.mark.parametrize(
    "call", ["cuOccupancyMaxActiveBlocksPerMultiprocessor", "cuOccupancyMaxActiveClusters"]
)
def test_a_failing_call_is_named(call):
    result = run(
        """
        kernel = cakert.Library(image)["add"]
        report([failure(lambda: kernel.occupancy(32, cluster=2)), context_depth()])
        """,
        fail={call: 802},
    )
    error, depth = result.report
    assert error["type"] == "CudaError" and call in error["text"] and depth == 0


def test_each_device_is_asked_for_itself():
    result = run(
        """
        kernel = cakert.Library(image)["add"]
        report([kernel.occupancy(128, cluster=2, device=1), kernel.occupancy(128, cluster=2)])
        """,
        devices=2,
        env={"STUB_CUDA_SMS": "132;20"},
    )
    assert result.report == [[16, 20 * 16 // 2], [16, 132 * 16 // 2]]


def test_clusters_need_a_hopper():
    result = run(
        """
        image = tiny_cubin({"add": (8, 8, 4)}, target="sm_80")
        report(failure(lambda: cakert.Library(image)["add"].occupancy(128, cluster=2)))
        """,
        capability=(8, 0),
    )
    assert result.report["type"] == "ValueError" and "(8, 0)" in result.report["text"]
