"""tcgen05.cp: rows of shared memory to lanes (PTX ISA 9.7.16.9.1)."""

from __future__ import annotations

import numpy as np
import pytest
from tcgen05_fakes import FULL, Bench, put_k_major, sdesc

from cakert.sim.faults import Fault, UnsupportedInstruction

SHAPES = {
    "128x256b": (128, 32),
    "128x128b": (128, 16),
    "4x256b": (4, 32),
    "64x128b.warpx2::02_13": (64, 16),
    "64x128b.warpx2::01_23": (64, 16),
    "32x128b.warpx4": (32, 16),
}


def lanes_of(shape: str, row: int) -> list[int]:
    """Lanes that receive a row."""
    if shape.startswith("128"):
        return [row]
    if shape == "4x256b":
        return [32 * row]
    if shape.endswith("02_13"):  # warps 0 and 2 receive rows 0..31, warps 1 and 3 the rest
        return [row + 32 * warp - 32 * (row // 32) for warp in ((0, 2), (1, 3))[row // 32]]
    if shape.endswith("01_23"):
        return [row % 32 + 32 * warp for warp in ((0, 1), (2, 3))[row // 32]]
    return [row + 32 * warp for warp in range(4)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("schedule", ["eager", "lazy"])
def test_where_rows_land(shape, schedule):
    rows, nbytes = SHAPES[shape]
    bench = Bench(schedule)
    bench.alloc(64)
    before = bench.fill()
    data = np.random.default_rng(0).integers(0, 256, (rows, nbytes), np.uint8)
    bench.set("%rd0", put_k_major(bench.cta.shared, 4096, data))
    base = 31 << 16 if shape == "4x256b" else 0
    bench.set("%r0", base | 12)
    bench.barrier()
    bench.one(f"tcgen05.cp.cta_group::1.{shape} [%r0], %rd0;")
    bench.commit()
    bench.drain()
    expected = before.copy()
    for row in range(rows):
        for lane in lanes_of(shape, row):
            for column in range(nbytes // 4):
                word = int.from_bytes(data[row, 4 * column : 4 * column + 4].tobytes(), "little")
                expected[lane + (base >> 16), 12 + column] = word
    assert (bench.memory.cells == expected).all()
    assert bench.cta.mbarriers.at(1024 + 64).phase == 1


def test_the_source_is_told_to_shared_memory():
    bench = Bench("lazy")
    bench.alloc(64)
    data = np.random.default_rng(0).integers(1, 256, (64, 16), np.uint8)
    bench.set("%rd0", put_k_major(bench.cta.shared, 4096, data))
    bench.set("%r0", 12)
    bench.one("tcgen05.cp.cta_group::1.64x128b.warpx2::02_13 [%r0], %rd0;")
    assert bench.cta.shared.reads == [(4096, 64 * 16)]


def test_swizzled_source():
    bench = Bench()
    bench.alloc(64)
    bench.fill()
    data = np.random.default_rng(0).integers(0, 256, (128, 128), np.uint8)
    for row in range(128):
        for chunk in range(8):
            place = 4096 + row * 128 + (chunk ^ row % 8) * 16
            bench.cta.shared.data[place : place + 16] = data[row, 16 * chunk : 16 * chunk + 16]
    bench.set("%rd0", sdesc(4096 + 32, lbo=16, sbo=1024, swizzle=2))
    bench.set("%r0", 0)
    bench.one("tcgen05.cp.cta_group::1.128x256b [%r0], %rd0;")
    assert (bench.memory.cells[:, :8].view(np.uint8) == data[:, 32:64]).all()


def test_faults_and_refusals():
    bench = Bench()
    bench.alloc(32)
    bench.set("%rd0", sdesc(4096, lbo=2048, sbo=128))
    bench.set("%r0", 16 << 16)
    with pytest.raises(Fault) as caught:
        bench.one("tcgen05.cp.cta_group::1.128x128b [%r0], %rd0;")
    assert caught.value.name == "tmem-misaligned"
    assert caught.value.advice == "It must start at lane 0."
    bench.set("%r0", 30)
    with pytest.raises(Fault) as caught:
        bench.one("tcgen05.cp.cta_group::1.128x128b [%r0], %rd0;")
    assert caught.value.name == "tmem-out-of-bounds"
    bench.set("%r0", 0)
    with pytest.raises(Fault) as caught:
        bench.run("tcgen05.cp.cta_group::1.128x128b [%r0], %rd0;", mask=FULL)
    assert caught.value.name == "tcgen05-cp-multiple-lanes"
    for text in (
        "tcgen05.cp.cta_group::1.64x128b [%r0], %rd0;",
        "tcgen05.cp.cta_group::1.32x128b.warpx2::02_13 [%r0], %rd0;",
        "tcgen05.cp.cta_group::1.128x256b.b8x16.b4x16_p64 [%r0], %rd0;",
        "tcgen05.shift.cta_group::1.down [%r0];",
    ):
        with pytest.raises(UnsupportedInstruction):
            bench.bind(text)
