"""The table of routes."""

import itertools

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
        assert route.family == "portable"
        assert [route.grid(rows) for rows in (1, 7, 11991)] == [1, 7, 11991]
    short = {"float16": "fp16", "bfloat16": "bf16"}[dtype]
    assert names == {f"cake_vsa_portable_r{block}_d{head_dim}_{short}"}


def test_kernels_have_cubins():
    from cakert import cubins

    store = cubins.store()
    for capability in CAPABILITIES:
        for block, head_dim, dtype in PROBLEMS:
            route = routes.choose(capability, R=block, head_dim=head_dim, dtype=dtype)
            entry = store.find(route.name, capability)
            assert entry is not None, f"{route.name} for {capability}"
            assert entry.kernel(route.name).threads % 32 == 0
    assert set(store.capabilities) == set(CAPABILITIES)


@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (10, 1), (11, 0), (12, 0), (12, 1)])
def test_other_devices_have_none(capability):
    with pytest.raises(RuntimeError, match=r"no kernel .*9\.0, 10\.0, 10\.3") as error:
        routes.choose(capability, R=64, head_dim=128, dtype="bfloat16")
    assert f"{capability[0]}.{capability[1]}" in str(error.value)
