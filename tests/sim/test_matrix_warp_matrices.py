import numpy as np
import pytest
from matrix_fakes import FULL, Machine, at, registers, vec

from cakert.sim.faults import Fault, UnsupportedInstruction
from cakert.sim.ptx.model import Register

BASE = 1024
COUNTS = {1: "x1", 2: "x2", 4: "x4"}
ADDRESS = Register("%p", "b32")
WIDE = Register("%pw", "b64")


def rows_of(count, rng):
    """Row addresses in a random order, 16 bytes each; the lanes that do not count get rubbish."""
    addresses = np.full(32, 0xFFFFFFF1, np.uint64)
    addresses[: 8 * count] = BASE + 16 * rng.permutation(8 * count)
    return addresses


def fill(machine, rng, nbytes=512):
    data = rng.integers(0, 256, nbytes, np.uint8)
    machine.cta.shared.generic_write(np.arange(BASE, BASE + nbytes), data, 0, None)


def matrices(machine, addresses, count):
    """(count, 8, 8) uint16 as the row addresses say."""
    data = machine.cta.shared.data
    return np.array(
        [
            [data[int(a) : int(a) + 16].view(np.uint16) for a in addresses[8 * i : 8 * i + 8]]
            for i in range(count)
        ]
    )


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize("space", [".shared", ".shared::cta", ""])
def test_ldmatrix(count, trans, space):
    rng = np.random.default_rng(count)
    machine = Machine()
    d = registers("d", count)
    pointer = ADDRESS if space else WIDE
    handler = machine.bind(
        f"ldmatrix.sync.aligned.m8n8.{COUNTS[count]}{trans}{space}.b16", vec(d), at(pointer, 0)
    )
    (warp,) = machine.start(shared_bytes=512)
    fill(machine, rng)
    addresses = rows_of(count, rng)
    warp.set(pointer, addresses if space else addresses + np.uint64(1 << 48))
    handler(warp, FULL)
    held = warp.get(d)
    expected = matrices(machine, addresses, count)
    for i in range(count):
        for lane in range(32):
            # PTX ISA: row lane / 4, elements 2 (lane % 4) and the next; of columns with .trans
            first, second = (
                (expected[i, lane // 4, 2 * (lane % 4)], expected[i, lane // 4, 2 * (lane % 4) + 1])
                if not trans
                else (
                    expected[i, 2 * (lane % 4), lane // 4],
                    expected[i, 2 * (lane % 4) + 1, lane // 4],
                )
            )
            assert held[i, lane] == int(first) | int(second) << 16


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("trans", ["", ".trans"])
def test_stmatrix(count, trans):
    rng = np.random.default_rng(count)
    machine = Machine()
    s = registers("s", count)
    handler = machine.bind(
        f"stmatrix.sync.aligned.m8n8.{COUNTS[count]}{trans}.shared.b16", at(ADDRESS), vec(s)
    )
    (warp,) = machine.start(shared_bytes=512)
    words = rng.integers(0, 1 << 32, (count, 32), np.uint32)
    for register, lanes in zip(s, words, strict=True):
        warp.set(register, lanes)
    addresses = rows_of(count, rng)
    warp.set(ADDRESS, addresses)
    handler(warp, FULL)
    stored = matrices(machine, addresses, count)
    for i in range(count):
        for lane in range(32):
            low, high = int(words[i, lane]) & 0xFFFF, int(words[i, lane]) >> 16
            row, pair = lane // 4, 2 * (lane % 4)
            if trans:
                assert (stored[i, pair, row], stored[i, pair + 1, row]) == (low, high)
            else:
                assert (stored[i, row, pair], stored[i, row, pair + 1]) == (low, high)


def test_stores_count_for_the_thread_that_holds_the_element():
    machine = Machine()
    (s,) = registers("s", 1)
    handler = machine.bind("stmatrix.sync.aligned.m8n8.x1.shared.b16", at(ADDRESS), vec([s]))
    (warp,) = machine.start(shared_bytes=128)
    warp.set(s, np.arange(32))
    warp.set(ADDRESS, BASE + 16 * (np.arange(32, dtype=np.uint64) % 8))
    handler(warp, FULL)
    shared = machine.cta.shared

    class Elsewhere:
        warp = -1

    with pytest.raises(Fault, match=r"missing-proxy-fence.*thread 9 "):
        shared.async_read((BASE + 36, 4), Elsewhere)
    shared.proxy_fence(warp, 1 << 9)
    assert list(shared.async_read((BASE + 36, 4), Elsewhere)) == [9, 0, 0, 0]


def test_movmatrix_transposes():
    rng = np.random.default_rng(3)
    machine = Machine()
    d, s = registers("r", 2)
    handler = machine.bind("movmatrix.sync.aligned.m8n8.trans.b16", d, s)
    in_place = machine.bind("movmatrix.sync.aligned.m8n8.trans.b16", s, s)
    (warp,) = machine.start()
    tile = rng.integers(0, 65536, (8, 8), np.uint16)
    words = tile.view(np.uint32).reshape(32)
    warp.set(s, words)
    handler(warp, FULL)
    in_place(warp, FULL)
    for register in (d, s):
        assert (warp.get([register])[0].view(np.uint16).reshape(8, 8) == tile.T).all()


def load(nbytes=512, **kwargs):
    machine = Machine()
    d = registers("d", 4)
    handler = machine.bind("ldmatrix.sync.aligned.m8n8.x4.shared.b16", vec(d), at(ADDRESS))
    (warp,) = machine.start(shared_bytes=nbytes, **kwargs)
    return machine, warp, handler, d


def test_faults_of_a_load():
    machine, warp, handler, d = load()
    plain = BASE + 16 * np.arange(32, dtype=np.uint64)
    warp.set(ADDRESS, plain)
    with pytest.raises(Fault, match="uninitialised-shared"):
        handler(warp, FULL)
    fill(machine, np.random.default_rng(0))
    handler(warp, FULL)
    with pytest.raises(Fault, match="partial-warp"):
        handler(warp, 0xFFFF)
    bad = plain.copy()
    bad[17] += 8
    warp.set(ADDRESS, bad)
    with pytest.raises(Fault, match=r"misaligned-address.*lane 17"):
        handler(warp, FULL)
    bad[17] = BASE + 512
    warp.set(ADDRESS, bad)
    with pytest.raises(Fault, match="shared-out-of-bounds"):
        handler(warp, FULL)
    machine.launch.ignore = {"shared-out-of-bounds"}
    handler(warp, FULL)
    # Row 1 of matrix 2 lies outside; the lanes 4 to 7 hold it.
    assert (warp.get(d)[2, 4:8] == FULL).all()
    assert (warp.get(d)[2, 8:] != FULL).any()


def test_cluster_address_of_the_cta_itself_is_accepted_and_of_another_refused():
    machine, warp, handler, d = load()
    fill(machine, np.random.default_rng(0))
    plain = BASE + 16 * np.arange(32, dtype=np.uint64)
    warp.set(ADDRESS, plain)
    handler(warp, FULL)
    expected = warp.get(d)
    warp.set(ADDRESS, plain | np.uint64(1 << 24))
    warp.file32[[warp.row(r) for r in d]] = 0
    handler(warp, FULL)
    assert (warp.get(d) == expected).all()
    warp.set(ADDRESS, plain | np.uint64(2 << 24))
    with pytest.raises(Fault, match="not-shared"):
        handler(warp, FULL)


@pytest.mark.parametrize(
    "name",
    [
        "ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8",
        "ldmatrix.sync.aligned.m8n8.x3.shared.b16",
        "ldmatrix.sync.aligned.m8n8.shared.b16",
        "ldmatrix.sync.aligned.m8n8.x1.shared::cluster.b16",
        "ldmatrix.aligned.m8n8.x1.shared.b16",
        "ldmatrix.sync.aligned.m8n8.x1.shared.weak.b16",
    ],
)
def test_unknown_forms_are_named(name):
    with pytest.raises(UnsupportedInstruction, match="line 7"):
        Machine().bind(name, vec(registers("d", 1)), at(ADDRESS))
