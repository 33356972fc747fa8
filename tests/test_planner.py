"""The planner against brute force, and its faults."""

import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cakert import planner
from cakert.planner import Faults

INT32 = np.iinfo(np.int32)


def strict() -> Faults:
    return Faults(strict=True)


def lenient() -> Faults:
    return Faults(strict=False)


def lists_of(pattern):
    """Row lists as Python lists, read only as far as the counts allow."""
    counts = pattern.row_counts.reshape(-1)
    assert len(counts) == len(pattern.row_blocks)
    return [row[:count].tolist() for row, count in zip(pattern.row_blocks, counts, strict=True)]


def check_invariants(pattern, heads, q_blocks, kv_blocks):
    """What holds for every pattern, wherever it comes from."""
    counts = pattern.row_counts
    assert counts.shape == (heads, q_blocks)
    assert counts.dtype == np.int32
    assert pattern.row_blocks.dtype == (np.uint16 if kv_blocks < 65536 else np.uint32)
    assert pattern.index_bytes == pattern.row_blocks.dtype.itemsize
    assert pattern.row_blocks.flags.c_contiguous
    assert pattern.row_blocks.shape == (heads * q_blocks, max(1, counts.max()))
    assert pattern.row_blocks.shape[1] <= pattern.capacity
    for row in lists_of(pattern):
        assert row == sorted(set(row))
        assert all(block < kv_blocks for block in row)
    padding = np.arange(pattern.row_blocks.shape[1]) >= counts.reshape(-1, 1)
    assert (pattern.row_blocks[padding] >= kv_blocks).all()
    assert pattern.max_selected == counts.max()
    assert pattern.uniform == (len(np.unique(counts)) == 1)

    order = pattern.tile_order.astype(np.int64)
    assert pattern.tile_order.dtype == np.uint32
    flat = counts.reshape(-1)
    expected = [
        head * q_blocks + block
        for head in range(heads)
        for block in sorted(range(q_blocks), key=lambda b, h=head: -int(counts[h, b]))
    ]
    assert order.tolist() == expected
    assert sorted(order.tolist()) == list(range(len(flat)))

    lists = lists_of(pattern)
    heads_lists = [lists[h * q_blocks : (h + 1) * q_blocks] for h in range(heads)]
    if all(other == heads_lists[0] for other in heads_lists):
        indptr, indices = pattern.shared
        assert indptr.dtype == indices.dtype == np.int32
        assert indptr.tolist() == [0, *np.cumsum([len(row) for row in heads_lists[0]])]
        assert indices.tolist() == [block for row in heads_lists[0] for block in row]
    else:
        assert pattern.shared is None


# ------------------------------------------------------------------------------- block masks

masks = st.tuples(
    st.integers(0, 2**32 - 1),  # seed
    st.sampled_from([(1, 1), (2, 1), (3, 1), (2, 2), (4, 2), (6, 3)]),  # query heads, KV heads
    st.integers(1, 9),
    st.integers(1, 40),
    st.sampled_from([0.0, 0.1, 0.5, 1.0]),
)


def random_mask(seed, heads, q_blocks, kv_blocks, density):
    rng = np.random.default_rng(seed)
    return rng, rng.random((heads, q_blocks, kv_blocks)) < density


@settings(deadline=None)
@given(masks, st.booleans(), st.sampled_from(["packed", "transposed", "reversed", "sliced"]))
def test_mask_equals_brute_force(case, as_bytes, layout):
    seed, (heads, kv_heads), q_blocks, kv_blocks, density = case
    rng, mask = random_mask(seed, kv_heads, q_blocks, kv_blocks, density)
    given_mask = mask
    if as_bytes:  # any non-zero byte selects
        given_mask = np.where(mask, rng.integers(1, 256, mask.shape), 0).astype(np.uint8)
    if layout == "transposed":
        given_mask = np.ascontiguousarray(given_mask.transpose(2, 0, 1)).transpose(1, 2, 0)
    elif layout == "reversed":
        given_mask = np.ascontiguousarray(given_mask[::-1, ::-1, ::-1])[::-1, ::-1, ::-1]
    elif layout == "sliced":
        wide = np.zeros((kv_heads, q_blocks, 2 * kv_blocks), given_mask.dtype)
        wide[..., ::2] = given_mask
        wide[..., 1::2] = ~mask
        given_mask = wide[..., ::2]
    faults = lenient()
    pattern = planner.from_mask(given_mask, num_qo_heads=heads, faults=faults)

    check_invariants(pattern, heads, q_blocks, kv_blocks)
    assert pattern.capacity == kv_blocks
    expected = [
        np.flatnonzero(mask[head // (heads // kv_heads), block]).tolist()
        for head in range(heads)
        for block in range(q_blocks)
    ]
    assert lists_of(pattern) == expected
    empty = ~mask.any(axis=-1)
    assert (faults.first is not None) == empty.any()
    if empty.any():
        with pytest.raises(ValueError, match="block_mask selects none") as error:
            planner.from_mask(given_mask, num_qo_heads=heads, faults=strict())
        head, block = np.argwhere(empty)[0]
        assert f"head {head}, query block {block}" in str(error.value)
        assert str(error.value) == faults.first


def test_mask_of_bools_with_foreign_bytes():
    # A bool that another library wrote may hold any non-zero byte.
    raw = np.array([[[0, 2, 255, 0, 1]], [[7, 0, 0, 0, 0]]], np.uint8)
    pattern = planner.from_mask(raw.view(np.bool_), num_qo_heads=2, faults=strict())
    assert lists_of(pattern) == [[1, 2, 4], [0]]


def test_mask_spanning_several_slabs(monkeypatch):
    rng = np.random.default_rng()
    mask = rng.random((3, 11, 17)) < 0.4
    whole = planner.from_mask(mask, num_qo_heads=3, faults=lenient())
    for cells in (1, 17, 18, 5 * 17):
        monkeypatch.setattr(planner, "_SLAB_CELLS", cells)
        split = planner.from_mask(mask, num_qo_heads=3, faults=lenient())
        assert np.array_equal(split.row_blocks, whole.row_blocks)
        assert np.array_equal(split.row_counts, whole.row_counts)


@pytest.mark.parametrize(("kv_blocks", "bytes_"), [(65535, 2), (65536, 4), (70001, 4)])
def test_index_width(kv_blocks, bytes_):
    mask = np.zeros((1, 2, kv_blocks), bool)
    mask[0, 0, [0, kv_blocks - 1]] = mask[0, 1, kv_blocks // 2] = True
    pattern = planner.from_mask(mask, num_qo_heads=1, faults=strict())
    assert pattern.index_bytes == bytes_
    check_invariants(pattern, 1, 2, kv_blocks)
    assert lists_of(pattern) == [[0, kv_blocks - 1], [kv_blocks // 2]]
    lists = np.array([[[kv_blocks - 1, 0], [kv_blocks // 2, -1]]], np.int32)
    q2k = planner.from_q2k(
        lists, np.array([[2, 1]], np.int32), kv_blocks=kv_blocks, faults=strict()
    )
    assert q2k.index_bytes == bytes_
    assert lists_of(q2k) == lists_of(pattern)


def test_rows_of_very_different_length():  # F7
    for kv_blocks in (8, 128):
        mask = np.zeros((2, 8, kv_blocks), bool)
        mask[0, 2, :5] = mask[0, 3, :8] = mask[1, 2, 7] = mask[1, 3, :8] = True
        mask[:, [0, 1, 4, 5, 6, 7], 0] = True
        pattern = planner.from_mask(mask, num_qo_heads=2, faults=strict())
        lists = lists_of(pattern)
        assert lists[2] == [0, 1, 2, 3, 4]
        assert lists[3] == list(range(8))
        assert lists[8 + 2] == [7]
        assert pattern.tile_order[:2].tolist() == [3, 2]
        assert pattern.tile_order[8] == 8 + 3


def test_order_of_equally_long_rows():
    # Long enough for numpy to use the sort that was asked for.
    rng = np.random.default_rng()
    counts = rng.integers(1, 4, (3, 500))
    mask = np.arange(7) < counts[..., None]
    pattern = planner.from_mask(mask, num_qo_heads=3, faults=strict())
    check_invariants(pattern, 3, 500, 7)
    uniform = planner.from_mask(mask[..., :1], num_qo_heads=3, faults=strict())
    assert np.array_equal(uniform.tile_order, np.arange(1500))


def test_eighty_blocks_in_one_row():  # F24
    rng = np.random.default_rng()
    mask = rng.random((1, 80, 80)) < 0.05
    mask[0, :, 3] = True
    mask[0, 41] = True
    pattern = planner.from_mask(mask, num_qo_heads=1, faults=strict())
    assert pattern.max_selected == 80
    assert lists_of(pattern)[41] == list(range(80))
    assert pattern.tile_order[0] == 41


# --------------------------------------------------------------------------------------- BSR


@settings(deadline=None)
@given(masks, st.sampled_from([np.int32, np.int64]), st.booleans())
def test_bsr_equals_brute_force(case, dtype, tidy):
    seed, (heads, _), q_blocks, kv_blocks, density = case
    rng, mask = random_mask(seed, 1, q_blocks, kv_blocks, density)
    mask = mask[0]
    mask[np.arange(q_blocks), rng.integers(0, kv_blocks, q_blocks)] = True
    rows = [np.flatnonzero(row) for row in mask]
    if not tidy:
        rows = [
            rng.permutation(np.concatenate((row, rng.choice(row, rng.integers(0, 4)))))
            for row in rows
        ]
    indptr = np.concatenate(([0], np.cumsum([len(row) for row in rows]))).astype(dtype)
    indices = np.concatenate(rows).astype(dtype)
    before = indptr.copy(), indices.copy()
    pattern = planner.from_bsr(
        indptr,
        indices,
        q_blocks=q_blocks,
        kv_blocks=kv_blocks,
        num_qo_heads=heads,
        faults=strict(),
    )
    assert np.array_equal(indptr, before[0])
    assert np.array_equal(indices, before[1])
    check_invariants(pattern, heads, q_blocks, kv_blocks)
    assert pattern.capacity == kv_blocks
    same = planner.from_mask(np.tile(mask, (heads, 1, 1)), num_qo_heads=heads, faults=strict())
    for name in ("row_blocks", "row_counts", "tile_order"):
        assert np.array_equal(getattr(pattern, name), getattr(same, name))
    for mine, theirs in zip(pattern.shared, same.shared, strict=True):
        assert np.array_equal(mine, theirs)


@pytest.mark.parametrize(
    ("indptr", "indices", "message"),
    [
        ([1, 2, 3], [0, 1, 2], r"indptr must start at 0, got 1"),
        ([0, 1, 2], [0, 1, 2], r"indptr must end at len\(indices\) = 3, got 2"),
        ([0, 1, 4], [0, 1, 2], r"indptr must end at len\(indices\) = 3, got 4"),
        ([0, 5, 3], [0, 1, 2], r"indptr must not fall, got 5 then 3 at query block 1"),
        ([0, -1, 3], [0, 1, 2], r"indptr must not fall, got 0 then -1 at query block 0"),
        ([0, 1, 3], [0, 4, 2], r"indices entries must be in \[0, NB\) = \[0, 4\), got 4 at query"),
        ([0, 1, 3], [0, 3, -1], r"got -1 at query block 1 \(position 2\)"),
        ([0, 0, 3], [0, 3, 1], r"indptr/indices selects none at query block 0"),
        ([0, 3, 3], [0, 3, 1], r"indptr/indices selects none at query block 1"),
        ([0, 0, 0], [], r"selects none at query block 0"),
    ],
)
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_bsr_faults(indptr, indices, message, dtype):  # F1, F15
    with pytest.raises(ValueError, match=message):
        planner.from_bsr(
            np.array(indptr, dtype),
            np.array(indices, dtype),
            q_blocks=2,
            kv_blocks=4,
            num_qo_heads=3,
            faults=strict(),
        )


# --------------------------------------------------------------------------------------- q2k


@st.composite
def q2k_cases(draw):
    heads = draw(st.integers(1, 3))
    q_blocks = draw(st.integers(1, 5))
    kv_blocks = draw(st.integers(1, 30))
    topk = draw(st.integers(1, kv_blocks))
    return np.random.default_rng(draw(st.integers(0, 2**32 - 1))), heads, q_blocks, kv_blocks, topk


JUNK = np.array([INT32.min, -1, 0, 1, INT32.max], np.int32)


@settings(deadline=None)
@given(q2k_cases(), st.booleans())
def test_q2k_equals_brute_force(case, ragged):
    rng, heads, q_blocks, kv_blocks, topk = case
    order = np.argsort(rng.random((heads, q_blocks, kv_blocks)), axis=-1)
    lists = order[..., :topk].astype(np.int32)
    num = np.full((heads, q_blocks), topk, np.int32)
    if ragged:
        num = rng.integers(1, topk + 1, num.shape).astype(np.int32)
        past = np.arange(topk) >= num[..., None]
        lists[past] = rng.choice(JUNK, past.sum())
    pattern = planner.from_q2k(lists, num, kv_blocks=kv_blocks, faults=strict())
    check_invariants(pattern, heads, q_blocks, kv_blocks)
    assert pattern.capacity == topk
    assert np.array_equal(pattern.row_counts, num)
    assert lists_of(pattern) == [
        sorted(order[h, b, : num[h, b]].tolist()) for h in range(heads) for b in range(q_blocks)
    ]


@settings(deadline=None)
@given(q2k_cases())
def test_q2k_repairs_whatever_it_is_given(case):
    rng, heads, q_blocks, kv_blocks, topk = case
    lists = rng.integers(-2, kv_blocks + 2, (heads, q_blocks, topk)).astype(np.int32)
    junk = rng.random(lists.shape) < 0.1
    lists[junk] = rng.choice(JUNK, junk.sum())
    num = rng.integers(-2, topk + 3, (heads, q_blocks)).astype(np.int32)
    expected = []
    sound = True
    for row, count in zip(lists.reshape(-1, topk), num.reshape(-1), strict=True):
        used = row[: min(max(int(count), 0), topk)].tolist()
        inside = [block for block in used if 0 <= block < kv_blocks]
        expected.append(sorted(set(inside)))
        sound &= 1 <= count <= topk and len(expected[-1]) == len(used)
    faults = lenient()
    pattern = planner.from_q2k(lists, num, kv_blocks=kv_blocks, faults=faults)
    check_invariants(pattern, heads, q_blocks, kv_blocks)
    assert lists_of(pattern) == expected
    assert (faults.first is None) == sound
    if not sound:
        with pytest.raises(ValueError) as error:
            planner.from_q2k(lists, num, kv_blocks=kv_blocks, faults=strict())
        assert str(error.value) == faults.first


def test_q2k_faults_in_order():  # F15, F23
    lists = np.array([[[0, 1, 2], [5, 1, 1]], [[0, 1, 2], [3, 0, 3]]], np.int32)
    num = np.array([[3, 3], [3, 4]], np.int32)

    def message():
        with pytest.raises(ValueError) as error:
            planner.from_q2k(lists, num, kv_blocks=4, faults=strict())
        return str(error.value)

    assert message() == (
        "q2k_num entries must be in [1, topk] = [1, 3], got 4 at head 1, query block 1"
    )
    num[1, 1] = 0
    assert "q2k_num entries must be in [1, topk] = [1, 3], got 0" in message()
    num[1, 1] = -5
    assert "got -5 at head 1, query block 1" in message()
    num[1, 1] = 3
    assert message() == (
        "active q2k_indices entries must be in [0, NB) = [0, 4), got 5 at head 0, query block 1, "
        "position 0"
    )
    lists[0, 1, 0] = -1
    assert "= [0, 4), got -1 at head 0, query block 1, position 0" in message()
    lists[0, 1, 0] = 2
    assert message() == (
        "a row of q2k_indices must name each block once, got block 1 twice at head 0, query block 1"
    )
    lists[0, 1, 0], lists[0, 1, 2] = 3, 0
    assert "got block 3 twice at head 1, query block 1" in message()
    num[1, 1] = 2  # the second 3 is past the count now
    pattern = planner.from_q2k(lists, num, kv_blocks=4, faults=strict())
    assert lists_of(pattern) == [[0, 1, 2], [0, 1, 3], [0, 1, 2], [0, 3]]


def test_a_clamped_count_never_reads_past_the_row():  # F23
    lists = np.array([[[2, 0], [1, 3]]], np.int32)
    faults = lenient()
    pattern = planner.from_q2k(
        lists, np.array([[INT32.max, 2]], np.int32), kv_blocks=4, faults=faults
    )
    assert lists_of(pattern) == [[0, 2], [1, 3]]
    assert "got 2147483647 at head 0, query block 0" in faults.first


# ------------------------------------------------------------------------------ kv_block_lens


@settings(deadline=None)
@given(
    st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-1, 66), min_size=1, max_size=8),
    st.sampled_from([np.int32, np.int64]),
)
def test_block_lens(values, dtype):
    lens = np.array(values, np.int64)
    if dtype is np.int32:
        lens = lens.clip(INT32.min, INT32.max).astype(np.int32)
    sound = all(1 <= int(length) <= 64 for length in lens)
    faults = lenient()
    result = planner.plan_block_lens(lens, block=64, faults=faults)
    assert result.dtype == np.int32
    assert result.tolist() == [min(max(int(length), 0), 64) for length in lens]
    assert not np.shares_memory(result, lens)
    assert (faults.first is None) == sound
    if not sound:
        with pytest.raises(ValueError) as error:
            planner.plan_block_lens(lens, block=64, faults=strict())
        assert str(error.value) == faults.first


@pytest.mark.parametrize("bad", [0, 65, -5])
def test_block_lens_message(bad):  # F23
    lens = np.random.default_rng().integers(1, 65, 6)
    lens[4] = bad
    message = rf"kv_block_lens entries must be in \[1, C\] = \[1, 64\], got {bad} at KV block 4"
    with pytest.raises(ValueError, match=message):
        planner.plan_block_lens(lens, block=64, faults=strict())


# ------------------------------------------------------------------------------ cost


def random_topk_mask(rng, heads, blocks, topk):
    mask = np.zeros((heads, blocks, blocks), bool)
    keys = rng.random((heads, blocks, blocks), dtype=np.float32)
    np.put_along_axis(mask, np.argpartition(keys, topk, axis=-1)[..., :topk], True, axis=-1)
    return mask


@pytest.mark.parametrize("shape", ["7x1713 top-64", "7x1713 25 %", "16x128 50 %"])
def test_a_mask_is_planned_fast(shape):
    rng = np.random.default_rng()
    if shape == "7x1713 top-64":
        mask = random_topk_mask(rng, 7, 1713, 64)
    elif shape == "7x1713 25 %":
        mask = rng.random((7, 1713, 1713), dtype=np.float32) < 0.25
    else:
        mask = rng.random((16, 128, 128)) < 0.5
    best = np.inf
    for _ in range(5):
        # Processor time: the other tests share the machine. Measured: 20, 23 and 0.5 ms.
        start = time.process_time()
        pattern = planner.from_mask(mask, num_qo_heads=len(mask), faults=strict())
        best = min(best, time.process_time() - start)
    assert np.array_equal(pattern.row_counts, mask.sum(axis=-1))
    assert best < 0.1


def peak_bytes(function):
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@settings(deadline=None)
@given(st.booleans())
def test_bsr_needs_little_memory(tidy):  # F28
    blocks, per_row = 1500, 8
    rng = np.random.default_rng()
    keys = rng.random((blocks, blocks), dtype=np.float32)
    rows = np.argpartition(keys, per_row, axis=1)[:, :per_row]
    indices = (np.sort(rows, axis=1) if tidy else rows).reshape(-1)
    indptr = np.arange(blocks + 1) * per_row

    def plan():
        planner.from_bsr(
            indptr,
            indices,
            q_blocks=blocks,
            kv_blocks=blocks,
            num_qo_heads=1,
            faults=strict(),
        )

    # Below a byte a cell: a dense mask was never there.
    assert peak_bytes(plan) < blocks * blocks


def test_a_mask_needs_little_memory():
    mask = np.random.default_rng().random((2, 1500, 1500)) < 0.25
    peak = peak_bytes(lambda: planner.from_mask(mask, num_qo_heads=2, faults=strict()))
    assert peak < 4 * mask.size
