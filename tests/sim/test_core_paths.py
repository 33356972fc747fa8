"""Paths of a warp that wait for each other, and the CTAs of a grid that do."""

import numpy as np
import pytest
from test_core_warp import kernel, run

from cakert import sim

SEEDS = [None, 3, 4]


@pytest.fixture
def data():
    return np.random.default_rng().integers(1, 1000, 32, np.uint32)


@pytest.mark.parametrize("seed", SEEDS)
def test_both_arms_of_a_branch_meet_at_their_own_barrier(data, seed):
    """A membermask names lanes, not places: the two bar.warp.sync are one barrier."""
    body = """
    ld.global.u32 %r1, [%rd2];
    mov.u32 %r9, buffer;
    shl.b32 %r8, %t, 2;
    add.s32 %r7, %r9, %r8;
    xor.b32 %r8, %r8, 4;
    add.s32 %r9, %r9, %r8;
    and.b32 %r2, %t, 1;
    setp.eq.s32 %p1, %r2, 1;
    @%p1 bra ODD;
    add.s32 %r1, %r1, 100;
    st.shared.u32 [%r7], %r1;
    bar.warp.sync 0xffffffff;
    ld.shared.u32 %r3, [%r9];
    mul.lo.s32 %r3, %r3, 3;
    bra.uni MEET;
ODD:
    st.shared.u32 [%r7], %r1;
    bar.warp.sync 0xffffffff;
    ld.shared.u32 %r3, [%r9];
MEET:
    st.global.u32 [%rd3], %r3;
"""
    got = run(body, data, variables=".shared .align 16 .b8 buffer[128];", seed=seed)
    np.testing.assert_array_equal(got[::2], 3 * data[1::2])
    np.testing.assert_array_equal(got[1::2], data[::2] + 100)


@pytest.mark.parametrize(
    "statement",
    ["bar.warp.sync 0x0000ffff;", "shfl.sync.bfly.b32 %r1, %t, 1, 0x1f, 0x0000ffff;"],
)
def test_a_lane_outside_its_membermask(data, statement):
    with pytest.raises(sim.Fault, match=r"lane 16 .*0x0000ffff") as caught:
        run(statement, data)
    assert caught.value.name == "lane-outside-membermask"
    # The same by the lanes that it names is right.
    body = f"""
    setp.ge.u32 %p1, %t, 16;
    @%p1 bra DONE;
    {statement}
    st.global.u32 [%rd3], %t;
DONE:
"""
    np.testing.assert_array_equal(run(body, data)[:16], np.arange(16))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_barrier_of_the_grid_that_polls_with_an_atomic(seed):
    """Every CTA adds 0 to the counter until all have arrived: none may keep the others out."""
    num_ctas = 8
    body = """
    mov.u32 %r1, %ctaid.x;
    mul.wide.u32 %rd4, %r1, 4;
    add.s64 %rd5, %out, %rd4;
    add.s64 %rd6, %in, %rd4;
    setp.ne.s32 %p1, %t, 0;
    @%p1 bra DONE;
    ld.global.u32 %r2, [%rd6+4];
    st.global.u32 [%rd5], %r2;
    membar.gl;
    atom.global.add.u32 %r3, [%in], 1;
POLL:
    atom.global.add.u32 %r3, [%in], 0;
    setp.ne.s32 %p2, %r3, 8;
    @%p2 bra POLL;
    xor.b32 %r4, %r1, 5;
    mul.wide.u32 %rd7, %r4, 4;
    add.s64 %rd8, %out, %rd7;
    ld.volatile.global.u32 %r5, [%rd8];
    st.global.u32 [%rd5+32], %r5;
DONE:
"""
    data = np.random.default_rng().integers(1, 1000, 1 + num_ctas, np.uint32)
    data[0] = 0  # the counter
    gpu = sim.Gpu("sm_100a", schedule="eager" if seed is None else "random", seed=seed or 0)
    module = gpu.load_ptx(kernel(body))
    out = gpu.array(np.zeros(2 * num_ctas, np.uint32))
    module.launch("k", grid=(num_ctas, 1, 1), block=(32, 1, 1), args=[out, gpu.array(data)])
    got = out.numpy()
    np.testing.assert_array_equal(got[:num_ctas], data[1:])
    np.testing.assert_array_equal(got[num_ctas:], data[1:][np.arange(num_ctas) ^ 5])


@pytest.mark.parametrize("access", ["ld.local.u32 %r1, [{}];", "st.local.u32 [{}], %r1;"])
def test_the_element_before_a_local_array(data, access):
    body = """
    .local .align 8 .b8 depot[16];
    mov.u64 %rd4, depot;
    mov.b32 %r1, 7;
    st.local.u32 [%rd4], %t;
    ACCESS
    ld.local.u32 %r1, [%rd4];
    st.global.u32 [%rd3], %r1;
"""
    with pytest.raises(sim.Fault) as caught:
        run(body.replace("ACCESS", access.format("%rd4+-4")), data)
    assert caught.value.name == "local-out-of-bounds"
    assert access.split()[0] in str(caught.value)
    got = run(body.replace("ACCESS", access.format("%rd4")), data)
    np.testing.assert_array_equal(got, 7 if access.startswith("st") else np.arange(32))
