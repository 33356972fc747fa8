"""The table of routes."""

import itertools
import threading

import numpy as np
import pytest

from cakert import routes

CAPABILITIES = [(9, 0), (10, 0), (10, 3)]
LARGE = {"rows": 11991, "kv_blocks": 1713, "sms": 132}
PROBLEMS = list(itertools.product([64, 128], [64, 96, 128], ["float16", "bfloat16"]))


@pytest.mark.parametrize(
    ("block", "head_dim", "dtype"),
    PROBLEMS,
)
def test_every_problem_has_a_kernel_on_every_device(block, head_dim, dtype):
    hopper = "sm90_group" if (block, head_dim) == (64, 128) else "sm90"
    names = set()
    for capability in CAPABILITIES:
        route = routes.choose(capability, R=block, head_dim=head_dim, dtype=dtype, **LARGE)
        names.add(route.name)
        assert route.family == (hopper if capability == (9, 0) else "portable")
        assert route.tensor_maps == (route.family != "portable")
        assert route.grouped == (route.family == "sm90_group")
        persistent = route.grouped or (route.family == "sm90" and block == 128)
        most = 132 if persistent else 11991
        assert [route.grid(items, 132) for items in (1, 7, 11991)] == [1, 7, most]
    short = {"float16": "fp16", "bfloat16": "bf16"}[dtype]
    assert names == {
        f"cake_vsa_{family}_r{block}_d{head_dim}_{short}" for family in (hopper, "portable")
    }


@pytest.mark.parametrize(("block", "head_dim", "dtype"), PROBLEMS)
def test_the_kernel_of_rows_can_be_forced_wherever_another_comes_first(block, head_dim, dtype):
    with routes.only("sm90"):
        route = routes.choose((9, 0), R=block, head_dim=head_dim, dtype=dtype, **LARGE)
    assert (route.family, route.tensor_maps, route.grouped) == ("sm90", True, False)
    assert route.grid(11991, 132) == (132 if block == 128 else 11991)


@pytest.mark.parametrize(
    ("rows", "kv_blocks", "family"),
    [
        (265, 1, "sm90_group"),
        (264, 1713, "sm90"),
        (133, 1713, "sm90"),
        (132, 1713, "sm90_split"),
        (1, 2, "sm90_split"),
        (1, 1, "sm90"),
    ],
)
def test_many_rows_are_grouped_and_few_are_split(rows, kv_blocks, family):
    size = {"rows": rows, "kv_blocks": kv_blocks, "sms": 132}
    problem = {"R": 64, "head_dim": 128, "dtype": "bfloat16", **size}
    assert routes.choose((9, 0), **problem).family == family
    with routes.only("sm90_group"):
        assert routes.choose((9, 0), **problem).family == "sm90_group"


@pytest.mark.parametrize(
    ("rows", "kv_blocks", "head_dim", "cluster", "threads"),
    [
        (132, 1713, 128, 1, 288),
        (67, 1713, 128, 1, 288),
        (66, 1713, 128, 2, 288),
        (17, 16, 128, 2, 288),
        (16, 16, 128, 4, 288),  # clusters of four and eight on half the SMs at most
        (16, 15, 128, 4, 160),
        (8, 1713, 128, 8, 288),
        (8, 1713, 64, 8, 288),
        (8, 1713, 96, 4, 288),  # whose 12 tiles of columns four divides
        (8, 7, 128, 4, 160),
        (1, 2, 128, 2, 160),
    ],
)
def test_few_rows_are_split_as_far_as_lists_and_device_go(
    rows, kv_blocks, head_dim, cluster, threads
):
    size = {"rows": rows, "kv_blocks": kv_blocks, "sms": 132}
    route = routes.choose((9, 0), R=64, head_dim=head_dim, dtype="float16", **size)
    assert (route.family, route.cluster, route.threads) == ("sm90_split", cluster, threads)
    assert route.grid(rows, 132) == rows
    with routes.only("sm90"):
        route = routes.choose((9, 0), R=64, head_dim=head_dim, dtype="float16", **size)
    assert (route.family, route.cluster, route.threads) == ("sm90", 1, None)


def test_a_family_can_be_forced():
    problem = {"R": 64, "head_dim": 96, "dtype": "bfloat16", **LARGE}
    seen = []
    with routes.only("portable"):
        assert routes.choose((9, 0), **problem).family == "portable"
        with routes.only("sm90"):
            assert routes.choose((9, 0), **problem).family == "sm90"
            with pytest.raises(RuntimeError, match=r"no sm90 kernel .*10\.0.*with kernels: 9\.0$"):
                routes.choose((10, 0), **problem)
        # Of this thread only.
        thread = threading.Thread(target=lambda: seen.append(routes.choose((9, 0), **problem)))
        thread.start()
        thread.join()
        assert routes.choose((9, 0), **problem).family == "portable"
    assert seen[0].family == routes.choose((9, 0), **problem).family == "sm90"
    refused = pytest.raises(RuntimeError, match=r"no sm90_group kernel .*head_dim = 96")
    with routes.only("sm90_group"), refused:
        routes.choose((9, 0), **problem)
    names = "sm90_split, sm90_group, sm90, portable"
    with pytest.raises(ValueError, match=f"family must be one of {names}, got 'sm91'"):
        routes.only("sm91").__enter__()


def test_families_of_a_device():
    hopper = ("sm90_split", "sm90_group", "sm90", "portable")
    assert routes.families() == hopper
    assert routes.families((9, 0)) == hopper
    assert routes.families((9, 0), R=64, head_dim=96) == ("sm90_split", "sm90", "portable")
    assert routes.families((9, 0), R=128, head_dim=128) == ("sm90", "portable")
    assert routes.families(R=64, head_dim=128) == hopper
    assert routes.families((10, 3)) == ("portable",)
    assert routes.families((8, 0)) == ()


def test_kernels_have_cubins():
    from cakert import cubins

    store = cubins.store()
    for capability in CAPABILITIES:
        for block, head_dim, dtype in PROBLEMS:
            for family in routes.families(capability, R=block, head_dim=head_dim):
                with routes.only(family):
                    route = routes.choose(
                        capability, R=block, head_dim=head_dim, dtype=dtype, **LARGE
                    )
                entry = store.find(route.name, capability)
                assert entry is not None, f"{route.name} for {capability}"
                assert entry.family == family
                assert entry.kernel(route.name).threads % 32 == 0
    assert set(store.capabilities) == set(CAPABILITIES)


@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (10, 1), (11, 0), (12, 0), (12, 1)])
def test_other_devices_have_none(capability):
    with pytest.raises(RuntimeError, match=r"no kernel .*9\.0, 10\.0, 10\.3") as error:
        routes.choose(capability, R=64, head_dim=128, dtype="bfloat16", **LARGE)
    assert f"{capability[0]}.{capability[1]}" in str(error.value)


def test_families_are_considered_as_they_are_chosen():
    rng = np.random.default_rng()
    for _ in range(200):
        problem = {
            "R": int(rng.choice([64, 128])),
            "head_dim": int(rng.choice([64, 96, 128])),
            "rows": int(rng.integers(1, 600)),
            "kv_blocks": int(rng.integers(1, 5)),
            "sms": 132,
        }
        for capability in ((9, 0), (10, 0)):
            taken = routes.choose(capability, dtype="float16", **problem).family
            entries = routes.considered(capability, **problem)
            assert next(name for name, _, suits in entries if suits) == taken
            assert tuple(name for name, _, _ in entries) == routes.families()
