"""The table of routes."""

import itertools
import threading

import pytest

from cakert import routes

CAPABILITIES = [(9, 0), (10, 0), (10, 3)]
PROBLEMS = list(itertools.product([64, 128], [64, 96, 128], ["float16", "bfloat16"]))


@pytest.mark.parametrize(
    ("block", "head_dim", "dtype"),
    PROBLEMS,
)
def test_every_problem_has_a_kernel_on_every_device(block, head_dim, dtype):
    names = set()
    for capability in CAPABILITIES:
        route = routes.choose(capability, R=block, head_dim=head_dim, dtype=dtype)
        names.add(route.name)
        assert route.family == ("sm90" if capability == (9, 0) else "portable")
        assert route.tensor_maps == (route.family == "sm90")
        most = 132 if route.family == "sm90" and block == 128 else 11991
        assert [route.grid(rows, 132) for rows in (1, 7, 11991)] == [1, 7, most]
    short = {"float16": "fp16", "bfloat16": "bf16"}[dtype]
    assert names == {
        f"cake_vsa_{family}_r{block}_d{head_dim}_{short}" for family in ("sm90", "portable")
    }


def test_a_family_can_be_forced():
    problem = {"R": 64, "head_dim": 96, "dtype": "bfloat16"}
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
    with pytest.raises(ValueError, match="family must be one of sm90, portable, got 'sm91'"):
        routes.only("sm91").__enter__()


def test_families_of_a_device():
    assert routes.families() == ("sm90", "portable")
    assert routes.families((9, 0)) == ("sm90", "portable")
    assert routes.families((10, 3)) == ("portable",)
    assert routes.families((8, 0)) == ()


def test_kernels_have_cubins():
    from cakert import cubins

    store = cubins.store()
    for capability in CAPABILITIES:
        for block, head_dim, dtype in PROBLEMS:
            for family in routes.families(capability):
                with routes.only(family):
                    route = routes.choose(capability, R=block, head_dim=head_dim, dtype=dtype)
                entry = store.find(route.name, capability)
                assert entry is not None, f"{route.name} for {capability}"
                assert entry.family == family
                assert entry.kernel(route.name).threads % 32 == 0
    assert set(store.capabilities) == set(CAPABILITIES)


@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (10, 1), (11, 0), (12, 0), (12, 1)])
def test_other_devices_have_none(capability):
    with pytest.raises(RuntimeError, match=r"no kernel .*9\.0, 10\.0, 10\.3") as error:
        routes.choose(capability, R=64, head_dim=128, dtype="bfloat16")
    assert f"{capability[0]}.{capability[1]}" in str(error.value)
