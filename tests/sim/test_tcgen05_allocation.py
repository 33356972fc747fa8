from __future__ import annotations

import numpy as np
import pytest
from tcgen05_fakes import BASE, Bench

from cakert.sim.faults import Fault, UnsupportedInstruction

ALLOC = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r0], %r1;"
DEALLOC = "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r2, %r1;"
RELINQUISH = "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;"


def fault_of(bench: Bench, statement: str, **arguments) -> Fault:
    with pytest.raises(Fault) as caught:
        bench.run(statement, **arguments)
    return caught.value


def test_allocations_do_not_overlap_and_the_address_lands_in_shared_memory():
    bench = Bench()
    assert bench.alloc(256) == 0
    assert bench.alloc(128) == 256
    assert bench.alloc(32) == 384
    assert bench.alloc(32) == 416
    bench.set("%rd0", (1 << 48) + BASE + 8)
    bench.run("tcgen05.alloc.cta_group::1.sync.aligned.b32 [%rd0], 32;")
    assert bench.cta.shared.data[BASE + 8 : BASE + 12].view("<u4")[0] == 448


@pytest.mark.parametrize("columns", [0, 16, 48, 96, 1024])
def test_sizes_that_are_no_power_of_two_from_32_to_512(columns):
    bench = Bench()
    bench.set("%r0", BASE)
    bench.set("%r1", columns)
    bench.launch.ignore.add("tmem-alloc-size")  # no way to go on
    fault = fault_of(bench, ALLOC)
    assert fault.name == "tmem-alloc-size"
    assert "power of two" in fault.advice


def test_growing_allocations_and_allocation_after_relinquish():
    bench = Bench()
    bench.alloc(64)
    bench.set("%r0", BASE)
    bench.set("%r1", 128)
    assert fault_of(bench, ALLOC).name == "tmem-alloc-grows"
    bench.run(RELINQUISH)
    bench.set("%r1", 32)
    assert fault_of(bench, ALLOC).name == "tmem-alloc-after-relinquish"


def test_allocation_blocks_until_columns_are_freed():
    bench = Bench()
    base = bench.alloc(512)
    bench.set("%r0", BASE + 4)
    bench.set("%r1", 256)
    wait = bench.run(ALLOC, warp=1)
    assert not wait.ready()
    assert "512 at 0x0" in wait.describe()
    bench.set("%r2", base)
    bench.set("%r1", 512, warp=0)
    bench.run(DEALLOC)
    assert wait.ready()
    wait.finish()
    assert bench.memory.allocations[0].columns == 256


def test_double_free_wrong_address_wrong_size():
    bench = Bench()
    bench.alloc(64)
    second = bench.alloc(64)
    bench.set("%r1", 64)
    bench.set("%r2", second + 32)
    assert fault_of(bench, DEALLOC).name == "tmem-dealloc-range"
    bench.set("%r2", second)
    bench.set("%r1", 32)
    assert fault_of(bench, DEALLOC).name == "tmem-dealloc-range"
    bench.set("%r1", 64)
    bench.run(DEALLOC)
    assert fault_of(bench, DEALLOC).name == "tmem-double-free"


def test_leak_names_the_allocation():
    bench = Bench()
    bench.alloc(64)
    line = bench.line
    (check,) = bench.cta.at_exit
    with pytest.raises(Fault, match="64 columns at 0x0") as caught:
        check()
    assert caught.value.name == "tmem-leak"
    assert caught.value.where.line in (1, line, 10)
    bench.set("%r1", 64)
    bench.set("%r2", 0)
    bench.run(DEALLOC)
    check()


def test_fresh_columns_are_poison_and_unwritten_again():
    bench = Bench()
    bench.alloc(32)
    bench.memory.cells[:] = 7
    bench.memory.written[:] = True
    bench.set("%r1", 32)
    bench.set("%r2", 0)
    bench.run(DEALLOC)
    bench.alloc(32)
    assert (bench.memory.cells[:, :32] == 0xFFFFFFFF).all()
    assert not bench.memory.written[:, :32].any()
    assert np.isnan(bench.memory.cells[0, :1].view(np.float32))[0]


def test_part_of_a_warp_and_cta_pairs_are_refused():
    bench = Bench()
    bench.set("%r0", BASE)
    bench.set("%r1", 32)
    assert fault_of(bench, ALLOC, mask=1).name == "tcgen05-divergent-warp"
    with pytest.raises(UnsupportedInstruction, match="cta_group::2"):
        bench.bind(ALLOC.replace("::1", "::2"))
    for arch in ("sm_90a", "sm_100", "sm_120a"):
        with pytest.raises(UnsupportedInstruction, match=arch):
            Bench(arch=arch).bind(ALLOC)
