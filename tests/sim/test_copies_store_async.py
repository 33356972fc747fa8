"""st.async, red.async and st.bulk."""

import numpy as np
import pytest
from copies_fakes import ALL, Bench
from test_copies_tma_load import shared_of
from test_copies_tma_store import UPDATES

from cakert.sim.faults import Fault

TX = "mbarrier::complete_tx::bytes"
LANES = np.arange(32)


def lane_values(seed):
    return np.random.default_rng(seed).integers(1, 1 << 31, 32)


@pytest.mark.parametrize("schedule", ["eager", "lazy", "random"])
@pytest.mark.parametrize(("vector", "bits"), [(1, 32), (2, 32), (4, 32), (1, 64), (2, 64)])
def test_registers_of_every_lane_arrive_in_the_other_cta(vector, bits, schedule):
    bench = Bench(ctas=2, schedule=schedule)
    width = vector * bits // 8
    barrier = bench.barrier(1024, 32 * width, rank=1)
    kind = "r" if bits == 32 else "rd"
    values = {f"{kind}{4 + i}": lane_values(i) for i in range(vector)}
    names = ",".join("%" + name for name in values)
    operand = f"{{{names}}}" if vector > 1 else names
    dotted = f".v{vector}" if vector > 1 else ""
    text = f"st.async.weak.shared::cluster.{TX}{dotted}.b{bits} [%r1+16], {operand}, [%r2];"
    # Two runs of lanes with a gap.
    slots = np.where(LANES < 10, LANES, LANES + 3)
    bench.issue(
        text, mask=ALL, r1=shared_of(1, 4096 - 16) + width * slots, r2=shared_of(1, 1024), **values
    )
    if schedule == "lazy":
        assert barrier.phase == 0
        with pytest.raises(Fault, match="shared-in-flight"):
            bench.ctas[1].shared.generic_read(np.array([4096]), 0, None)
    bench.launch.engine.drain()
    assert barrier.phase == 1
    word = np.uint32 if bits == 32 else np.uint64
    for lane in range(32):
        got = bench.read_shared(4096 + width * int(slots[lane]), width, rank=1).view(word)
        assert got.tolist() == [int(array[lane]) for array in values.values()]
    gap = bench.read_shared(4096 + 10 * width, 3 * width, rank=1)
    assert (gap == 0xFF).all()


def test_lanes_may_go_to_different_ctas_and_barriers():
    bench = Bench(ctas=4)
    barriers = [bench.barrier(1024, 32, rank) for rank in range(4)]
    ranks = LANES % 4
    base = (ranks + 1) << 24
    text = f"st.async.shared::cluster.{TX}.u32 [%r1], %r4, [%r2];"
    values = lane_values(3)
    bench.issue(text, rank=2, mask=ALL, r1=base + 2048 + 4 * LANES, r2=base + 1024, r4=values)
    assert [barrier.phase for barrier in barriers] == [1] * 4
    for lane in range(32):
        got = bench.read_shared(2048 + 4 * lane, 4, rank=lane % 4).view(np.uint32)
        assert got[0] == values[lane]


def test_the_mask_is_respected():
    bench = Bench()
    barrier = bench.barrier(1024, 4)
    text = f"st.async.weak.shared::cluster.{TX}.b32 [%r1], %r4, [%r2];"
    bench.issue(text, mask=1 << 5, r1=2048 + 4 * LANES, r2=1024, r4=LANES + 7)
    assert barrier.phase == 1
    got = bench.read_shared(2048, 128).view(np.uint32)
    assert [i for i in range(32) if got[i] != 0xFFFFFFFF] == [5] and got[5] == 12


def test_sources_are_taken_at_issue():
    bench = Bench(schedule="lazy")
    bench.barrier(1024, 4)
    text = f"st.async.weak.shared::cluster.{TX}.b32 [%r1], %r4, [%r2];"
    handler, layout = bench.bind(text)
    from copies_fakes import Warp

    warp = Warp(bench.cta, 0, layout.template(), layout.num_predicates)
    for name, value in (("%r1", 2048), ("%r2", 1024), ("%r4", 99)):
        warp.file32[layout.register(name, 32)] = value
    handler(warp, 1)
    warp.file32[layout.register("%r4", 32)] = 1
    bench.launch.engine.drain()
    assert bench.read_shared(2048, 4).view(np.uint32)[0] == 99


def test_generic_addresses():
    bench = Bench()
    barrier = bench.barrier(1024, 4)
    text = f"st.async.weak.{TX}.u32 [%rd1], %r4, [%rd2];"
    bench.issue(text, rd1=(1 << 48) + 2048, rd2=(1 << 48) + 1024, r4=5)
    assert barrier.phase == 1 and bench.read_shared(2048, 4)[0] == 5
    with pytest.raises(Fault, match="not-shared"):
        bench.issue(text, rd1=2048, rd2=(1 << 48) + 1024, r4=5)


def test_what_a_store_refuses():
    bench = Bench(ctas=2)
    bench.barrier(1024, 100)
    text = f"st.async.weak.shared::cluster.{TX}.v4.b32 [%r1], {{%r4,%r5,%r6,%r7}}, [%r2];"
    values = {f"r{i}": 1 for i in range(4, 8)}
    with pytest.raises(Fault, match="shared-misaligned"):
        bench.issue(text, r1=2056, r2=1024, **values)
    with pytest.raises(Fault, match="mbarrier-uninitialised"):
        bench.issue(text, r1=2048, r2=1032, **values)
    with pytest.raises(Fault, match="copy-barrier-elsewhere"):
        bench.issue(text, r1=shared_of(1, 2048), r2=1024, **values)
    with pytest.raises(Fault, match="cluster-rank"):
        bench.issue(text, r1=shared_of(2, 2048), r2=shared_of(2, 1024), **values)


FORMS = [
    ("add", "u32"),
    ("add", "s32"),
    ("add", "u64"),
    ("add", "s64"),
    ("inc", "u32"),
    ("dec", "u32"),
    ("min", "u32"),
    ("max", "s32"),
    ("and", "b32"),
    ("or", "b32"),
    ("xor", "b32"),
]


@pytest.mark.parametrize(("operation", "element"), FORMS)
@pytest.mark.parametrize("schedule", ["eager", "lazy"])
def test_reductions_meet_in_one_element(operation, element, schedule):
    bench = Bench(ctas=2, schedule=schedule)
    width = int(element[1:]) // 8
    word = np.uint32 if width == 4 else np.uint64
    start = np.array([3, 12], word)
    bench.write_shared(4096, start, rank=1)
    barrier = bench.barrier(1024, 32 * width, rank=1)
    values = np.random.default_rng(8).integers(1, 20, 32)
    text = (
        f"red.async.relaxed.cluster.shared::cluster.{TX}.{operation}.{element} "
        f"[%r1], %{'r4' if width == 4 else 'rd4'}, [%r2];"
    )
    registers = {("r4" if width == 4 else "rd4"): values}
    where = shared_of(1, 4096) + width * (LANES % 2)
    bench.issue(text, mask=ALL, r1=where, r2=shared_of(1, 1024), **registers)
    bench.launch.engine.drain()
    assert barrier.phase == 1
    expected = start.tolist()
    for lane in range(32):
        expected[lane % 2] = int(UPDATES[operation](expected[lane % 2], int(values[lane])))
    assert bench.read_shared(4096, 2 * width, rank=1).view(word).tolist() == expected


def test_bulk_zeroes():
    bench = Bench()
    bench.write_shared(2048, np.ones(256, np.uint8))
    bench.issue("st.bulk.weak.shared::cta [%r1], 64, 0;", r1=2064)
    expected = np.ones(256, np.uint8)
    expected[16:80] = 0
    np.testing.assert_array_equal(bench.read_shared(2048, 256), expected)
    with pytest.raises(Fault, match="bulk-misaligned"):
        bench.issue("st.bulk.weak.shared::cta [%r1], 64, 0;", r1=2068)
    # Written through the generic proxy.
    with pytest.raises(Fault, match="missing-proxy-fence"):
        bench.shared.async_read((2064, 8), None)
