"""What lane ops give that see predicates, carries or other lanes, from the ISA's words.

An oracle takes a machine (test_lane_ops.Machine), the mask and a generator; it may replace sources
in the machine's buffers, and gives the expected buffers and the fields of the operation.
"""

from __future__ import annotations

import functools

import lane_numbers as ln
import numpy as np

POISON = 0xDEADBEEF


def predicate(machine, slot, negated=False):
    """Truths of the predicate in source `slot`."""
    value = int(machine.predicates[machine.in_rows[slot]])
    return [bool(value >> i & 1) != negated for i in range(32)]


def logic(fn, sources):
    def check(machine, mask, rng):
        flags = int(rng.integers(0, 1 << sources))
        inputs = [predicate(machine, i, bool(flags >> i & 1)) for i in range(sources)]
        return *machine.expected(mask, [list(map(fn, *inputs))]), {"flags": flags}

    return check


def set_predicate(machine, mask, rng):
    immediate = int(rng.integers(0, 2))
    return *machine.expected(mask, [[immediate] * 32]), {"immediate": immediate}


def select(machine, mask, rng):
    flags = int(rng.integers(0, 2))
    a, b = machine.sources[:2]
    p = predicate(machine, 2, bool(flags))
    result = [x if c else y for x, y, c in zip(a, b, p, strict=True)]
    return *machine.expected(mask, [result]), {"flags": flags}


def select_constant(machine, mask, rng):
    low, high = (int(x) for x in rng.integers(0, 2**32, 2))
    flags = int(rng.integers(0, 2))
    p = predicate(machine, 0, bool(flags))
    q = predicate(machine, 1) if machine.in_rows[1] >= 0 else [False] * 32
    result = [low * x | high * y for x, y in zip(p, q, strict=True)]
    return *machine.expected(mask, [result]), {"flags": flags, "immediate": low | high << 32}


def carry(bits, combine):
    """combine(a, b[, c], carry) is exact: what does not fit in `bits` carries (or borrows)."""

    def check(machine, mask, rng):
        use = int(rng.integers(0, 4))
        old = int(machine.predicates[0])
        totals = [
            combine(*lane, old >> i & 1 if use & 1 else 0)
            for i, lane in enumerate(zip(*machine.sources, strict=True))
        ]
        file, predicates = machine.expected(mask, [[t & ((1 << bits) - 1) for t in totals]])
        if use & 2:
            out = sum((t >> bits != 0) << i for i, t in enumerate(totals))
            predicates[0] = (old & ~mask) | (out & mask)
        return file, predicates, {"extra": use}

    return check


def signed(x, bits):
    return x - (1 << bits) if x >> (bits - 1) else x


def mad_high(bits, is_signed):
    def combine(a, b, c, carry_in):
        if is_signed:
            a, b = signed(a, bits), signed(b, bits)
        return ((a * b >> bits) & ((1 << bits) - 1)) + c + carry_in

    return carry(bits, combine)


def give_members(machine, slot, mask, rng):
    """Put membermasks into source `slot`: one for all, or one for each half of the warp."""
    everyone = [0xFFFFFFFF] * 32
    some = [(int(rng.integers(0, 2**32)) | mask) & 0xFFFFFFFF] * 32
    halves = [0xFFFF] * 16 + [0xFFFF0000] * 16
    members = (everyone, some, halves)[int(rng.integers(0, 3))]
    machine.file32[machine.in_rows[slot]] = members
    machine.sources[slot] = members
    return members


def groups(members, mask):
    """Sets of lanes that execute together, lowest lane first."""
    by_mask: dict[int, list[int]] = {}
    for lane in range(32):
        if mask >> lane & 1:
            by_mask.setdefault(members[lane], []).append(lane)
    return list(by_mask.values())


def replace(machine, slot, values):
    view = machine.file64 if machine.ins[slot] == "8" else machine.file32
    view[machine.in_rows[slot]] = values
    machine.sources[slot] = [int(v) for v in values]


def shuffle(mode):
    def check(machine, mask, rng):
        if rng.integers(0, 2):  # what compilers write: a clamp of 31 or 0, and segments
            width = int(rng.choice([32, 16, 8, 4]))
            low = 0 if mode == "up" else 31
            replace(machine, 1, np.full(32, int(rng.integers(0, 32))))
            replace(machine, 2, np.full(32, (32 - width) << 8 | low))
        members = give_members(machine, 3, mask, rng)
        a, b, c = machine.sources[:3]
        values, flags = [], []
        for lane in range(32):
            offset, clamp, segment = b[lane] & 31, c[lane] & 31, c[lane] >> 8 & 31
            last = lane & segment | clamp & ~segment & 31
            first = lane & segment
            source = {
                "up": lane - offset,
                "down": lane + offset,
                "bfly": lane ^ offset,
                "idx": first | offset & ~segment & 31,
            }[mode]
            valid = source >= last if mode == "up" else source <= last
            source = source if valid else lane
            there = mask >> source & members[lane] >> source & 1
            values.append(a[source] if there or source == lane else POISON)
            flags.append(valid)
        return *machine.expected(mask, [values, flags]), {}

    return check


def vote(decide):
    def check(machine, mask, rng):
        flags = int(rng.integers(0, 2))
        if rng.integers(0, 2):
            machine.predicates[machine.in_rows[0]] = int(rng.choice([0, 2**32 - 1]))
        votes = predicate(machine, 0, bool(flags))
        result = [0] * 32
        for group in groups(give_members(machine, 1, mask, rng), mask):
            for lane in group:
                result[lane] = decide([votes[i] for i in group], group)
        return *machine.expected(mask, [result]), {"flags": flags}

    return check


def few_values(machine, slot, rng):
    """Source values of which many are equal."""
    replace(machine, slot, rng.choice(np.array(machine.sources[slot][:3], np.uint64), 32))


def match_any(machine, mask, rng):
    few_values(machine, 0, rng)
    a = machine.sources[0]
    result = [0] * 32
    for group in groups(give_members(machine, 1, mask, rng), mask):
        for lane in group:
            result[lane] = sum(1 << i for i in group if a[i] == a[lane])
    return *machine.expected(mask, [result]), {}


def match_all(machine, mask, rng):
    few_values(machine, 0, rng)
    if rng.integers(0, 2):
        replace(machine, 0, np.full(32, machine.sources[0][0], np.uint64))
    a = machine.sources[0]
    result, equal = [0] * 32, [False] * 32
    for group in groups(give_members(machine, 1, mask, rng), mask):
        same = len({a[i] for i in group}) == 1
        for lane in group:
            result[lane] = sum(1 << i for i in group) if same else 0
            equal[lane] = same
    return *machine.expected(mask, [result, equal]), {}


def reduce(fn):
    def check(machine, mask, rng):
        a = machine.sources[0]
        result = [0] * 32
        for group in groups(give_members(machine, 1, mask, rng), mask):
            for lane in group:
                result[lane] = functools.reduce(fn, [a[i] for i in group]) & 0xFFFFFFFF
        return *machine.expected(mask, [result]), {}

    return check


def by_sign(fn):
    return lambda x, y: fn(x, y, key=lambda v: signed(v, 32))


def reduce_float(greater):
    def check(machine, mask, rng):
        if rng.integers(0, 2):
            normal = rng.normal(size=32).astype(np.float32)
            replace(machine, 0, normal.view(np.uint32))
        extra = int(rng.choice([0, 1, 4, 5]))
        numbers = [ln.decode(ln.F32, x) for x in machine.sources[0]]
        result = [0] * 32

        def fold(x, y):
            return ln.extremum(x, y, greater, nan=bool(extra & 1), absolute=bool(extra & 4))

        for group in groups(give_members(machine, 1, mask, rng), mask):
            members = [numbers[i] for i in group]
            value = functools.reduce(fold, members, members[0])
            for lane in group:
                result[lane] = ln.encode(ln.F32, value)
        return *machine.expected(mask, [result]), {"extra": extra}

    return check


def elect(machine, mask, rng):
    leader, chosen = [0] * 32, [False] * 32
    for group in groups(give_members(machine, 0, mask, rng), mask):
        for lane in group:
            leader[lane] = group[0]
        chosen[group[0]] = True
    return *machine.expected(mask, [leader, chosen]), {}


WARP_ORACLES = {
    "and.pred": logic(lambda a, b: a and b, 2),
    "or.pred": logic(lambda a, b: a or b, 2),
    "xor.pred": logic(lambda a, b: a != b, 2),
    "mov.pred": logic(lambda a: a, 1),
    "set.pred": set_predicate,
    "selp.b16": select,
    "selp.b32": select,
    "selp.b64": select,
    "select.constant": select_constant,
    "shfl.up": shuffle("up"),
    "shfl.down": shuffle("down"),
    "shfl.bfly": shuffle("bfly"),
    "shfl.idx": shuffle("idx"),
    "vote.all": vote(lambda v, g: all(v)),
    "vote.any": vote(lambda v, g: any(v)),
    "vote.uni": vote(lambda v, g: len(set(v)) == 1),
    "vote.ballot": vote(lambda v, g: sum(x << i for x, i in zip(v, g, strict=True))),
    "match.any.b32": match_any,
    "match.any.b64": match_any,
    "match.all.b32": match_all,
    "match.all.b64": match_all,
    "redux.add.b32": reduce(lambda x, y: x + y),
    "redux.min.u32": reduce(min),
    "redux.max.u32": reduce(max),
    "redux.min.s32": reduce(by_sign(min)),
    "redux.max.s32": reduce(by_sign(max)),
    "redux.and.b32": reduce(lambda x, y: x & y),
    "redux.or.b32": reduce(lambda x, y: x | y),
    "redux.xor.b32": reduce(lambda x, y: x ^ y),
    "redux.min.f32": reduce_float(greater=False),
    "redux.max.f32": reduce_float(greater=True),
    "elect": elect,
}
for _bits in (32, 64):
    WARP_ORACLES |= {
        f"add.carry.b{_bits}": carry(_bits, lambda a, b, c: a + b + c),
        f"sub.carry.b{_bits}": carry(_bits, lambda a, b, c: a - b - c),
        f"mad.lo.carry.b{_bits}": carry(
            _bits, lambda a, b, c, k, n=_bits: (a * b & ((1 << n) - 1)) + c + k
        ),
        f"mad.hi.carry.u{_bits}": mad_high(_bits, is_signed=False),
        f"mad.hi.carry.s{_bits}": mad_high(_bits, is_signed=True),
    }
