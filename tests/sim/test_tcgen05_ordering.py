"""What may overlap what: commits, waits, fences, and the races that they prevent."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from tcgen05_fakes import BASE, Bench, idesc, put_k_major

from cakert.sim.faults import Fault, UnsupportedInstruction

SCHEDULES = ["eager", "lazy", "random"]
LOAD = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r0}, [%r500];"
STORE = "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r500], {%r0};"
MMA = "tcgen05.mma.cta_group::1.kind::f16 [%r500], %rd0, %rd1, %r501, %p0;"
MMA_TS = "tcgen05.mma.cta_group::1.kind::f16 [%r503], [%r500], %rd1, %r501, %p0;"
WAIT_LD = "tcgen05.wait::ld.sync.aligned;"
WAIT_ST = "tcgen05.wait::st.sync.aligned;"
BEFORE = "tcgen05.fence::before_thread_sync;"
AFTER = "tcgen05.fence::after_thread_sync;"


def ready(schedule: str) -> Bench:
    """All of tensor memory written, operands of an MMA in place, an mbarrier at BASE + 64."""
    bench = Bench(schedule)
    bench.alloc(512)
    bench.fill()
    bench.memory.cells[:] = 0x3F803F80
    bench.set("%r500", 0)
    bench.set("%r501", idesc(128, 64))
    bench.set("%r503", 256)
    bench.set("%p0", False)
    for name, at, rows in (("%rd0", 4096, 128), ("%rd1", 65536, 64)):
        ones = np.ones((rows, 16), ml_dtypes.bfloat16).view(np.uint8)
        bench.set(name, put_k_major(bench.cta.shared, at, ones))
    bench.barrier()
    return bench


@pytest.fixture(params=SCHEDULES)
def bench(request) -> Bench:
    return ready(request.param)


def fault_of(bench: Bench, statement: str, warp: int = 0) -> Fault:
    with pytest.raises(Fault) as caught:
        bench.run(statement, warp)
    return caught.value


def test_waits_name_what_the_lazy_schedule_must_complete():
    bench = ready("lazy")
    other = bench.barrier(BASE + 72)
    bench.run(STORE)
    bench.one(MMA.replace("[%r500]", "[%r503]"))
    bench.commit(address=BASE + 64)
    bench.commit(address=BASE + 72)
    bench.set("%r500", 1)
    bench.run(STORE, warp=4)
    wait = bench.run(WAIT_ST)
    engine = bench.launch.engine
    assert engine.perform_one(set(wait.needs())) and wait.ready()
    assert len(engine) == 4
    # MMA, commit, commit in this order; the store of the other warp stays in flight.
    for _ in range(3):
        assert engine.perform_one({(bench.cta, BASE + 72)})
    assert other.completed(0)
    assert [operation.name for operation in engine.pending()] == ["tcgen05.st"]


def test_load_without_a_commit(bench):
    bench.one(MMA, warp=4)
    fault = fault_of(bench, LOAD)
    assert fault.name == "tcgen05-uncommitted"
    assert "kind::f16" in str(fault)
    bench.commit(warp=4, lane=1)  # another thread's commit covers nothing
    bench.drain()
    assert fault_of(bench, LOAD).name == "tcgen05-uncommitted"
    bench.commit(warp=4)
    bench.drain()
    bench.run(LOAD)


def test_load_before_the_commit_arrived(bench):
    bench.one(MMA, warp=4)
    bench.commit(warp=4)
    barrier = bench.cta.mbarriers.at(BASE + 64)
    if bench.launch.engine.schedule != "eager":
        assert barrier.phase == 0
        fault = fault_of(bench, LOAD)
        assert fault.name == "tmem-in-flight"
        assert "before its commit" in str(fault)
        assert fault_of(bench, STORE).name == "tmem-in-flight"
    bench.drain()
    assert barrier.phase == 1
    bench.run(LOAD)
    bench.finish(bench.run(WAIT_LD))
    assert (bench.get("%r0").view(np.float32) == 16).all()


def test_columns_beside_an_mma_in_flight_are_free(bench):
    bench.one(MMA, warp=4)
    bench.set("%r500", 64)
    bench.run(LOAD)
    bench.run(WAIT_LD)


def test_mma_waits_for_loads_and_stores(bench):
    bench.run(LOAD)
    bench.one(MMA, warp=4)
    assert "tcgen05-missing-wait-ld" in bench.launch.notes
    bench.run(WAIT_LD)
    bench.commit(warp=4)
    bench.drain()
    bench.set("%r0", 0x3F803F80)
    bench.run(STORE)
    assert fault_of_one(bench, MMA_TS).name == "tmem-store-in-flight"
    bench.finish(bench.run(WAIT_ST))
    bench.one(MMA_TS, warp=4)


def fault_of_one(bench: Bench, statement: str) -> Fault:
    with pytest.raises(Fault) as caught:
        bench.one(statement, warp=4)
    return caught.value


def test_operand_a_of_an_mma_in_flight_may_be_read_not_written(bench):
    bench.one(MMA_TS, warp=4)
    bench.run(LOAD)
    bench.finish(bench.run(WAIT_LD))
    assert fault_of(bench, STORE).name == "tcgen05-uncommitted"


def test_columns_of_an_mma_in_flight_cannot_be_freed(bench):
    bench.one(MMA, warp=4)
    bench.set("%r1", 512)
    free = "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r500, %r1;"
    assert fault_of(bench, free).name == "tcgen05-uncommitted"
    bench.commit(warp=4)
    bench.drain()
    bench.run(free)


def test_mmas_of_one_accumulator_run_in_order(bench):
    bench.one(MMA, warp=4)
    bench.set("%p0", True)
    for _ in range(3):
        bench.one(MMA, warp=4)
    bench.commit(warp=4)
    bench.drain()
    assert (bench.memory.cells[:, :64].view(np.float32) == 64).all()
    assert "relies-on-in-order-tensor-pipe" not in bench.launch.notes


def test_overlap_that_the_isa_does_not_order_is_noted(bench):
    bench.one(MMA, warp=4)  # writes columns 0..63
    bench.one(MMA_TS, warp=4)  # reads columns 0..7, another accumulator
    assert bench.launch.notes == ["relies-on-in-order-tensor-pipe"]
    bench.commit(warp=4)
    bench.drain()
    bench.launch.notes.clear()
    bench.one(MMA_TS, warp=4)
    assert bench.launch.notes == []


def test_another_thread_is_not_ordered_either(bench):
    bench.one(MMA, warp=4)
    bench.one(MMA, warp=5)
    assert bench.launch.notes == ["relies-on-in-order-tensor-pipe"]


def test_commit_covers_everything_before_it_and_fires_each_time(bench):
    bench.barrier(BASE + 72)
    bench.one(MMA, warp=4)
    bench.commit(warp=4)
    bench.commit(warp=4, address=BASE + 72)
    bench.drain()
    assert bench.cta.mbarriers.at(BASE + 64).phase == 1
    assert bench.cta.mbarriers.at(BASE + 72).phase == 1


def test_commit_of_a_thread_that_issued_nothing_waits_for_nothing():
    bench = ready("lazy")
    barrier = bench.cta.mbarriers.at(BASE + 64)
    bench.one(MMA, warp=4)
    bench.commit(warp=4, lane=1)
    assert bench.launch.engine.perform_one({(bench.cta, BASE + 64)})
    assert barrier.phase == 1
    assert [operation.name for operation in bench.launch.engine.pending()] == ["tcgen05.mma"]
    bench.commit(warp=4)
    assert bench.launch.engine.perform_one({(bench.cta, BASE + 64)})
    assert barrier.phase == 1  # that was the MMA
    assert bench.launch.engine.perform_one({(bench.cta, BASE + 64)})
    assert barrier.phase == 2


def test_commit_to_a_generic_address_and_to_a_multicast_mask(bench):
    bench.set("%rd4", (1 << 48) + BASE + 64)
    bench.one("tcgen05.commit.cta_group::1.mbarrier::arrive::one.b64 [%rd4];")
    bench.drain()
    assert bench.cta.mbarriers.at(BASE + 64).phase == 1
    bench.set("%r10", BASE + 64)
    mask = bench.layout.register("%rs0", 16)
    for warp in bench.warps:
        warp.file32[mask] = 1
    bench.one(
        "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 "
        "[%r10], %rs0;"
    )
    bench.drain()
    assert bench.cta.mbarriers.at(BASE + 64).phase == 2


def test_commit_to_no_barrier(bench):
    with pytest.raises(Fault) as caught:
        bench.commit(address=BASE + 128)
    assert caught.value.name == "mbarrier-uninitialised"


def test_missing_fences_are_notes(bench):
    bench.set("%r0", 0x3F803F80)
    bench.run(STORE, 0)
    bench.finish(bench.run(WAIT_ST, 0))
    bench.one(MMA_TS, warp=4)
    assert set(bench.launch.notes) == {"tcgen05-missing-fence"}
    bench.commit(warp=4)
    bench.drain()
    bench.launch.notes.clear()
    bench.set("%r500", 256)
    bench.run(LOAD, 0)
    assert bench.launch.notes == ["tcgen05-missing-fence"]


@pytest.mark.parametrize("fenced", [False, True])
def test_a_copy_needs_the_fences_of_an_mma(bench, fenced):
    bench.set("%r0", 0x3F803F80)
    bench.run(STORE, 0)
    bench.finish(bench.run(WAIT_ST, 0))
    if fenced:
        bench.run(BEFORE, 0)
        bench.run(AFTER, 4)
    bench.one("tcgen05.cp.cta_group::1.128x128b [%r500], %rd0;", warp=4)
    assert set(bench.launch.notes) == (set() if fenced else {"tcgen05-missing-fence"})


def test_all_fences_leave_no_note(bench):
    bench.set("%r0", 0x3F803F80)
    bench.run(STORE, 0)
    bench.finish(bench.run(WAIT_ST, 0))
    bench.run(BEFORE, 0)
    bench.run(AFTER, 4)
    bench.one(MMA_TS, warp=4)
    bench.commit(warp=4)
    bench.drain()
    bench.run(AFTER, 0)
    bench.set("%r500", 256)
    bench.run(LOAD, 0)
    assert bench.launch.notes == []


def test_ranges_that_an_mma_reads_are_told_to_shared_memory(bench):
    bench.one(MMA, warp=4)
    read = set()
    for start, nbytes in bench.cta.shared.reads:
        read.update(range(start, start + nbytes))
    assert read == {*range(4096, 4096 + 128 * 32), *range(65536, 65536 + 64 * 32)}


def test_unknown_modifiers():
    for text in (
        "tcgen05.commit.cta_group::1.b64 [%r0];",
        "tcgen05.wait::ld.aligned;",
        "tcgen05.commit.cta_group::2.mbarrier::arrive::one.b64 [%rd0];",
    ):
        with pytest.raises(UnsupportedInstruction):
            Bench().bind(text)
