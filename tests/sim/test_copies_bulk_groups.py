"""Bulk async-groups: per thread, reads before writes, oldest first."""

import numpy as np
import pytest
from copies_fakes import PARAM_BASE, Bench
from test_copies_tma_load import map_of, random_array
from test_copies_tma_store import store_text

from cakert.sim.faults import Fault, UnsupportedInstruction

COMMIT = "cp.async.bulk.commit_group;"
STORE = "cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r1], 64;"


def wait(bench, count, read=False, **options):
    return bench.issue(f"cp.async.bulk.wait_group{'.read' if read else ''} {count};", **options)


def make(schedule="lazy"):
    bench = Bench(schedule=schedule)
    array = np.zeros(4096, np.uint8)
    bench.write_shared(2048, np.arange(1, 2049, dtype=np.uint32).view(np.uint8))
    return bench, array, bench.lend(array)


def store(bench, address, slot, **options):
    bench.issue(STORE, rd1=address + 64 * slot, r1=2048 + 64 * slot, **options)


def test_eager_groups_are_complete_at_once():
    bench, array, address = make("eager")
    store(bench, address, 0)
    bench.issue(COMMIT)
    assert wait(bench, 0) is None
    np.testing.assert_array_equal(array[:64], bench.read_shared(2048, 64))
    assert bench.launch.counters == {"bulk-bytes": 64}


def test_reads_complete_before_writes():
    bench, array, address = make()
    store(bench, address, 0)
    bench.issue(COMMIT)
    read, written = wait(bench, 0, read=True), wait(bench, 0)
    assert not read.ready() and not written.ready()
    assert "cp.async.bulk.global" in written.describe() and "line" in written.describe()
    assert bench.launch.engine.perform_one()
    assert read.ready() and not written.ready()
    assert not array.any()
    # The source may be overwritten now, and the old data still arrives.
    bench.shared.generic_write(np.arange(2048, 2112), np.zeros(64, np.uint8), 0, None)
    bench.launch.engine.drain()
    assert written.ready()
    assert array[:64].view(np.uint32).tolist() == list(range(1, 17))


def test_the_source_is_in_use_until_it_has_been_read():
    bench, _, address = make()
    store(bench, address, 0)
    with pytest.raises(Fault, match="shared-in-flight"):
        bench.shared.generic_write(np.array([2050]), np.zeros(1, np.uint8), 0, None)


def test_the_newest_groups_may_stay_pending():
    bench, _, address = make()
    for slot in range(3):
        store(bench, address, slot)
        bench.issue(COMMIT)
    one, two, three = (wait(bench, n) for n in (2, 1, 0))
    assert wait(bench, 3) is None
    engine = bench.launch.engine
    oldest = [operation for operation in engine.pending() if operation.reads == ((2048, 64),)]
    assert len(oldest) == 1
    # Lazy completes the youngest first: its read, then its write.
    for _ in range(4):
        engine.perform_one()
    assert not one.ready() and not two.ready() and not three.ready()
    engine.drain()
    assert one.ready() and two.ready() and three.ready()


def test_a_transfer_belongs_to_the_group_that_was_open_when_it_was_issued():
    bench, _, address = make()
    for slot in range(2):
        store(bench, address, slot)
        bench.issue(COMMIT)
    oldest, both = wait(bench, 1), wait(bench, 0)
    # Only what the wait of the oldest group asks for: its read, then its write.
    while not oldest.ready():
        assert bench.launch.engine.perform_one(set(oldest.needs()))
    assert not both.ready()
    assert len(bench.launch.engine) == 1
    assert wait(bench, 1) is None


def test_uncommitted_copies_and_other_threads_are_not_waited_for():
    bench, _, address = make()
    store(bench, address, 0)
    assert wait(bench, 0) is None
    bench.issue(COMMIT)
    assert wait(bench, 0, mask=2) is None
    assert wait(bench, 0, warp=1) is None
    assert wait(bench, 0) is not None
    assert wait(bench, 0, mask=3) is not None


def test_an_empty_group_counts():
    bench, _, address = make()
    store(bench, address, 0)
    bench.issue(COMMIT)
    bench.issue(COMMIT)
    assert wait(bench, 1) is not None
    assert wait(bench, 2) is None


def test_tensor_stores_join_the_groups():
    array = random_array((8, 32), np.float32)
    bench = Bench(schedule="lazy")
    bench.launch.param_bytes = map_of(bench.lend(array), array, (32, 2)).to_bytes()
    bench.write_shared(2048, np.ones(64, np.float32))
    bench.issue(store_text(2), rd1=PARAM_BASE, r1=2048, r2=0, r3=3)
    bench.issue(COMMIT)
    blocked = wait(bench, 0)
    assert not blocked.ready()
    bench.launch.engine.drain()
    assert blocked.ready() and (array[3:5] == 1).all()


def test_the_count_is_a_constant():
    with pytest.raises(UnsupportedInstruction, match=r"line \d+: .*constant"):
        Bench().bind("cp.async.bulk.wait_group %r1;")
