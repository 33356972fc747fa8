"""Groups of rows against brute force: who shares, in which order, and what the record says."""

from fractions import Fraction

import numpy as np
import pytest
from helpers.group_record import NO_ROW, rows_of_record, stages_of
from hypothesis import given, settings
from hypothesis import strategies as st

from cakert import group_lists
from cakert.groups import group_shape, plan_groups


class Case:
    """A random pattern: lists as Python lists, and as `planner.Pattern` has them."""

    def __init__(self, seed, kv_heads, group, q_blocks, kv_blocks, longest, kind, wide=False):
        rng = np.random.default_rng(seed)
        self.kv_heads, self.q_blocks, self.kv_blocks = kv_heads, q_blocks, kv_blocks
        self.heads = kv_heads * group
        self.capacity = longest = min(longest, kv_blocks)
        self.num_rows = rows = self.heads * q_blocks
        counts = np.full(rows, longest)
        if kind == "ragged":
            counts = rng.integers(0, longest + 1, rows)
        elif kind == "none":
            counts[:] = 0
        self.lists = [sorted(rng.permutation(kv_blocks)[:count].tolist()) for count in counts]
        if kind == "alike":  # all query heads, so that heads of a group share everything
            self.lists = self.lists[:q_blocks] * self.heads
        self.counts = np.array([len(row) for row in self.lists], np.int32)
        width = max(1, self.counts.max())
        self.blocks = np.full((rows, width), kv_blocks, np.uint32 if wide else np.uint16)
        for row, entries in zip(self.blocks, self.lists, strict=True):
            row[: len(entries)] = entries

    def plan(self, sms):
        return plan_groups(
            self.blocks, self.counts.reshape(self.heads, self.q_blocks), kv_blocks=self.kv_blocks,
            num_kv_heads=self.kv_heads, sms=sms, capacity=self.capacity,
        )  # fmt: skip

    def shape(self):
        return group_shape(
            num_qo_heads=self.heads, num_kv_heads=self.kv_heads, q_blocks=self.q_blocks,
            kv_blocks=self.kv_blocks, capacity=self.capacity,
        )  # fmt: skip

    def classes(self, pair):
        """Blocks by members; a row has no more half stages than its length asks for."""
        first, second = (set(self.lists[row]) if row != NO_ROW else set() for row in pair)
        both, first, second = first & second, first - second, second - first
        if len(both) % 2 and (len(first) % 2 or len(second) % 2):
            first.add(max(both))
            second.add(max(both))
            both.remove(max(both))
        return {3: both, 1: first, 2: second}

    def cost(self, pair):
        longer = max(len(self.lists[row]) for row in pair if row != NO_ROW)
        return longer + Fraction(sum(map(len, self.classes(pair).values())), 4)


cases = st.builds(
    Case,
    st.integers(0, 2**32 - 1),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 4),
    q_blocks=st.integers(1, 7),
    kv_blocks=st.integers(1, 40),
    longest=st.integers(1, 40),
    kind=st.sampled_from(["ragged", "ragged", "uniform", "alike", "none"]),
    wide=st.booleans(),
)
sm_counts = st.sampled_from([1, 2, 3, 5, 8, 200])


def pairs_of(made):
    return [tuple(pair) for pair in made.rows[:, :2].tolist()]


@settings(deadline=None)
@given(cases, sm_counts)
def test_every_row_reads_its_list(case, sms):
    made = case.plan(sms)
    groups, stride = case.shape()
    assert made.rows.shape == (groups, 8)
    assert made.counts.shape == (groups,)
    read = -(-max(1, made.counts.max()) // 64) * 64  # what kernels look at
    assert made.blocks.shape == made.members.shape == (groups, min(stride, read))
    assert made.blocks.shape[1] <= made.stride == stride
    assert stride % 2 == 0
    dtypes = [getattr(made, name).dtype for name in ("rows", "blocks", "members", "counts")]
    assert dtypes == [np.uint32, case.blocks.dtype, np.uint8, np.int32]
    assert all(getattr(made, n).flags.c_contiguous for n in ("rows", "blocks", "members", "counts"))
    for g, count in enumerate(made.counts):
        assert (made.blocks[g, count:] == case.kv_blocks).all()
        assert not made.members[g, count:].any()
    read = rows_of_record(
        made.rows, made.blocks, made.members, made.counts,
        num_rows=case.num_rows, kv_blocks=case.kv_blocks,
    )  # fmt: skip
    assert read == case.lists
    fetched = made.members != 0
    assert made.tiles == fetched.sum() == (made.blocks < case.kv_blocks).sum()
    # The same input gives the same record, wherever it lies.
    again = case.plan(sms)
    for name in ("rows", "blocks", "members", "counts"):
        assert np.array_equal(getattr(again, name), getattr(made, name))


@settings(deadline=None)
@given(cases, sm_counts)
def test_order_of_stages(case, sms):
    """Stage k of n of a class stands at (k + 1/2) / n; no row has two half stages."""
    made = case.plan(sms)
    for g, pair in enumerate(pairs_of(made)):
        keyed = []
        for rank, (bits, blocks) in enumerate(case.classes(pair).items()):
            blocks = sorted(blocks)
            n = (len(blocks) + 1) // 2
            for k in range(n):
                key = (k + Fraction(1, 2)) / n
                keyed.append((key, rank, bits, tuple(blocks[2 * k : 2 * k + 2])))
        expected = [(bits, chunk) for _, _, bits, chunk in sorted(keyed)]
        found = stages_of(made.blocks[g], made.members[g], made.counts[g], case.kv_blocks)
        assert found == expected
        for slot, row in enumerate(pair):
            stages = sum(bits >> slot & 1 for bits, _ in found)
            assert stages == (len(case.lists[row]) + 1) // 2 if row != NO_ROW else stages == 0


def candidates_of(case, kv_head):
    """The pairings of one KV head, as lists of pairs, the preferred one first."""
    group, q_blocks = case.heads // case.kv_heads, case.q_blocks

    def row(head, block):
        return (kv_head * group + head) * q_blocks + block

    def paired(rows):
        rows = [*rows, NO_ROW] if len(rows) % 2 else rows
        return list(zip(rows[::2], rows[1::2], strict=True))

    def neighbours(heads):
        even = q_blocks // 2 * 2
        pairs = [pair for h in heads for pair in paired([row(h, b) for b in range(even)])]
        return pairs + paired([row(h, b) for h in heads for b in range(even, q_blocks)])

    across = [(row(h, b), row(h + 1, b)) for h in range(0, group - 1, 2) for b in range(q_blocks)]
    across += neighbours([group - 1]) if group % 2 else []
    rows = [row(h, b) for h in range(group) for b in range(q_blocks)]
    falling = paired(sorted(rows, key=lambda r: -len(case.lists[r])))
    candidates = [across] if group > 1 else []
    candidates.append(neighbours(range(group)))
    if len({len(entries) for entries in case.lists}) > 1:
        candidates.append(falling)
    return candidates


def dealt(sequence, costs, sms):
    """Round after round, the costliest to the thread block with the least work so far."""
    if len(set(costs)) == 1:
        return sequence
    hands = [[] for _ in range(sms)]
    work = [0.0] * sms
    for start in range(0, len(sequence), sms):
        cards = sorted(range(start, min(start + sms, len(sequence))), key=lambda i: -costs[i])
        idle = sorted(range(sms), key=lambda block: work[block])
        for card, block in zip(cards, idle, strict=False):
            hands[block].append(sequence[card])
            work[block] += costs[card]
    # Those with a card more come first.
    hands.sort(key=lambda hand: -len(hand))
    rounds = range(len(hands[0]))
    return [hand[i] for i in rounds for hand in hands if i < len(hand)]


@settings(deadline=None)
@given(cases, sm_counts)
def test_the_cheapest_pairing_is_taken_in_falling_order(case, sms):
    sequence = []
    for kv_head in range(case.kv_heads):
        candidates = candidates_of(case, kv_head)
        best = min(candidates, key=lambda pairs: sum(case.cost(pair) for pair in pairs))
        sequence += sorted(best, key=lambda pair: -case.cost(pair))
    costs = [case.cost(pair) for pair in sequence]
    assert pairs_of(case.plan(sms)) == dealt(sequence, costs, sms)


@settings(deadline=None)
@given(cases, cases, sm_counts)
def test_shapes_alone_fix_the_memory(case, other, sms):
    """Another pattern of the same shapes needs no more groups, and no wider ones."""
    same = Case(
        1, case.kv_heads, case.heads // case.kv_heads, case.q_blocks, case.kv_blocks,
        case.capacity, "ragged",
    )  # fmt: skip
    a, b = case.plan(sms), same.plan(sms)
    assert (len(a.rows), a.stride) == (len(b.rows), b.stride) == case.shape()


def longest_group(kv_blocks, capacity):
    """Entries of the longest group that two rows can make, by trying all splits into classes."""
    longest = 0
    for both in range(capacity + 1):
        for first in range(capacity - both + 1):
            for second in range(min(capacity - both, kv_blocks - both - first) + 1):
                entries = [list(range(both + first)), [*range(both)]]
                entries[1] += range(both + first, both + first + second)
                blocks = np.full((2, capacity), kv_blocks, np.uint16)
                for row, blocks_of_row in zip(blocks, entries, strict=True):
                    row[: len(blocks_of_row)] = blocks_of_row
                made = plan_groups(
                    blocks, np.array([[len(e) for e in entries]], np.int32),
                    kv_blocks=kv_blocks, num_kv_heads=1, sms=2, capacity=capacity,
                )  # fmt: skip
                longest = max(longest, int(made.counts.max()))
                assert made.blocks.shape[1] <= made.stride
    return longest, made.stride


@pytest.mark.parametrize(
    ("kv_blocks", "capacity"), [(20, 1), (20, 2), (20, 3), (20, 4), (7, 7), (8, 8), (7, 4), (8, 5)]
)
def test_the_stride_is_just_enough(kv_blocks, capacity):
    longest, stride = longest_group(kv_blocks, capacity)
    assert longest == stride


def test_blocks_beyond_16_bits():
    case = Case(3, 1, 2, 3, 70_001, 5, "uniform", wide=True)
    case.lists[0][-1] = case.blocks[0, 4] = 70_000
    made = case.plan(2)
    assert made.blocks.dtype == np.uint32
    read = rows_of_record(
        made.rows, made.blocks, made.members, made.counts, num_rows=6, kv_blocks=70_001
    )
    assert read == case.lists


def test_heads_that_select_alike_share_everything():
    case = Case(0, 2, 2, 9, 30, 8, "alike")
    made = case.plan(4)
    assert made.tiles == case.counts.sum() // 2
    assert all(second - first == 9 for first, second in pairs_of(made))


def test_hostile_lists_stay_in_bounds():
    """A list that names blocks over and over, and arguments that do not fit together."""
    blocks = np.full((2, 300), 4, np.uint16)
    counts = np.array([300, 300], np.int32)
    pairs = np.array([[0, 1]], np.uint32)
    assert group_lists.count_shared(blocks, counts, pairs, 7).tolist() == [300]
    group_lists.fill_stages(blocks, counts, pairs, 7, 602)
    with pytest.raises(ValueError, match="a group has more than 4 entries"):
        group_lists.fill_stages(blocks, counts, pairs, 7, 4)
    for message, change in [
        ("entries must be at most 3", {"kv_blocks": 3}),
        (r"counts must be in \[0, 300\]", {"counts": counts + 1}),
        (r"counts must be in \[0, 300\]", {"counts": -counts}),
        ("2 lists, but 1 counts", {"counts": counts[:1]}),
        (r"rows of pairs must be in \[0, 2\)", {"pairs": pairs + 1}),
        ("the first always a row", {"pairs": pairs + np.uint32([NO_ROW, 0])}),
        ("a pair has two rows, got 1", {"pairs": pairs[:, :1].copy()}),
    ]:
        given = {"lists": blocks, "counts": counts, "pairs": pairs, "kv_blocks": 7} | change
        with pytest.raises(ValueError, match=message):
            group_lists.count_shared(**given)
        with pytest.raises(ValueError, match=message):
            group_lists.fill_stages(**given, width=602)
