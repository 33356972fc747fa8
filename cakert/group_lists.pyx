"""The loops of `groups` that go over every entry of the row lists, without the GIL.

Lists are those of `planner.Pattern`: ascending and unique, entries past a row's count at most
``kv_blocks``. Which blocks two lists share is found by marks, one a KV block, that one list sets
and the other reads: nothing is sorted or compared, and no branch depends on the lists.
"""
cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t
from libc.stdlib cimport calloc, free, malloc

import numpy

cdef enum:
    CLASSES = 3

cdef uint32_t NO_ROW = 0xFFFFFFFF    # CAKE_VSA_NO_ROW

ctypedef fused Index:
    uint16_t
    uint32_t

# Membership of each class, in the order in which stages of equal keys stand.
cdef const uint8_t* MEMBERS = [3, 1, 2]


cdef int check(lists, counts, pairs, int64_t kv_blocks) except -1:
    """Hold the arguments to what the loops rely on: they index memory with them."""
    if lists.shape[0] != counts.shape[0]:
        raise ValueError(f"{lists.shape[0]} lists, but {counts.shape[0]} counts")
    if lists.size and lists.max() > kv_blocks:
        raise ValueError(f"entries must be at most {kv_blocks}, got {lists.max()}")
    if counts.size and (counts.min() < 0 or counts.max() > lists.shape[1]):
        raise ValueError(f"counts must be in [0, {lists.shape[1]}]")
    if pairs.shape[1] != 2:
        raise ValueError(f"a pair has two rows, got {pairs.shape[1]}")
    outside = (pairs >= lists.shape[0]) & (pairs != NO_ROW)
    if outside.any() or (pairs[:, 0] == NO_ROW).any():
        raise ValueError(f"rows of pairs must be in [0, {lists.shape[0]}), the first always a row")
    return 0


@cython.boundscheck(False)           # `check` has held every index to its bounds
def count_shared(
    const Index[:, ::1] lists not None, const int32_t[::1] counts not None,
    const uint32_t[:, ::1] pairs not None, uint32_t kv_blocks,
):
    """Blocks that both rows of a pair select: (pairs,) int32, 0 where there is one row only.

    Parameters
    ----------
    lists, counts
        Of the rows: (rows, width) uint16 or uint32, and (rows,) int32.
    pairs
        (pairs, 2) uint32: two rows, or one and 0xFFFFFFFF.
    kv_blocks
        No entry is larger.
    """
    check(lists.base, counts.base, pairs.base, kv_blocks)
    result = numpy.zeros(pairs.shape[0], numpy.int32)
    cdef int32_t[::1] shared = result
    cdef Py_ssize_t g, i
    cdef uint32_t a, b, stamp
    cdef const Index* row
    cdef int32_t found
    cdef uint32_t* marks = <uint32_t*>calloc(<size_t>kv_blocks + 1, sizeof(uint32_t))
    if marks == NULL:
        raise MemoryError
    with nogil:
        for g in range(pairs.shape[0]):
            a, b = pairs[g, 0], pairs[g, 1]
            if b == NO_ROW or counts[a] == 0 or counts[b] == 0:
                continue
            stamp = <uint32_t>(g + 1)
            row = &lists[a, 0]
            for i in range(counts[a]):
                marks[row[i]] = stamp
            row = &lists[b, 0]
            found = 0
            for i in range(counts[b]):
                found += marks[row[i]] == stamp
            shared[g] = found
    free(marks)
    return result


@cython.boundscheck(False)
def fill_stages(
    const Index[:, ::1] lists not None, const int32_t[::1] counts not None,
    const uint32_t[:, ::1] pairs not None, uint32_t kv_blocks, Py_ssize_t width,
):
    """Entries of the group record, in its order of stages (see `groups`).

    Parameters
    ----------
    lists, counts, pairs, kv_blocks
        As of `count_shared`.
    width
        Even: entries of the longest group.

    Returns
    -------
    blocks, members
        (pairs, width) of the type of ``lists``, and uint8: ``kv_blocks`` and 0 past a group's end.
    """
    check(lists.base, counts.base, pairs.base, kv_blocks)
    made = numpy.empty((pairs.shape[0], width), lists.base.dtype)
    bits = numpy.empty((pairs.shape[0], width), numpy.uint8)
    cdef Index[:, ::1] blocks = made
    cdef uint8_t[:, ::1] members = bits
    cdef Py_ssize_t g, i, end, most = lists.shape[1] + 1  # and the end of a half stage
    cdef uint32_t a, b
    cdef int32_t num_second
    cdef bint fits = True
    cdef Index* entries[CLASSES]
    cdef Py_ssize_t sizes[CLASSES]
    cdef uint8_t* marks = <uint8_t*>calloc(<size_t>kv_blocks + 1, 1)
    cdef Index* memory = <Index*>malloc(CLASSES * most * sizeof(Index))
    if marks == NULL or memory == NULL:
        free(marks)
        free(memory)
        raise MemoryError
    for i in range(CLASSES):
        entries[i] = memory + i * most
    with nogil:
        for g in range(pairs.shape[0]):
            a, b = pairs[g, 0], pairs[g, 1]
            num_second = 0
            if b == NO_ROW:
                b = a                             # whose list is not read again
            else:
                num_second = counts[b]
            classify(&lists[a, 0], counts[a], &lists[b, 0], num_second, marks, entries, sizes)
            end = 0
            for i in range(CLASSES):
                end += sizes[i] + sizes[i] % 2
            if end > width:
                fits = False
                break
            interleave(entries, sizes, <Index>kv_blocks, &blocks[g, 0], &members[g, 0])
            for i in range(end, width):
                blocks[g, i] = <Index>kv_blocks
                members[g, i] = 0
    free(marks)
    free(memory)
    if not fits:
        raise ValueError(f"a group has more than {width} entries")
    return made, bits


cdef void classify(
    const Index* first, Py_ssize_t num_first, const Index* second, Py_ssize_t num_second,
    uint8_t* marks, Index** entries, Py_ssize_t* sizes,
) noexcept nogil:
    """Deal the blocks of two lists to the classes of MEMBERS, ascending in each.

    Where the rows share an odd number of blocks and that makes one of them end in one half stage
    more than its length asks for, the last shared block is dealt to both. ``marks`` is zero before
    and after.
    """
    cdef Py_ssize_t i, both = 0, one = 0
    cdef uint8_t mark
    for i in range(num_first):
        marks[first[i]] = 1
    for i in range(num_second):
        mark = marks[second[i]] & 1
        marks[second[i]] <<= mark             # 2: of both rows
        entries[0][both] = second[i]
        both += mark
        entries[2][one] = second[i]
        one += 1 - mark
    sizes[0] = both
    sizes[2] = one
    one = 0
    for i in range(num_first):
        entries[1][one] = first[i]
        one += marks[first[i]] & 1
        marks[first[i]] = 0
    sizes[1] = one
    if both % 2 and (sizes[1] % 2 or sizes[2] % 2):
        both -= 1
        sizes[0] = both
        insert(entries[1], &sizes[1], entries[0][both])
        insert(entries[2], &sizes[2], entries[0][both])


cdef void insert(Index* ascending, Py_ssize_t* size, Index block) noexcept nogil:
    """Put a block in its place."""
    cdef Py_ssize_t i = size[0]
    while i > 0 and ascending[i - 1] > block:
        ascending[i] = ascending[i - 1]
        i -= 1
    ascending[i] = block
    size[0] += 1


cdef void interleave(
    Index** entries, const Py_ssize_t* sizes, Index none, Index* blocks, uint8_t* members
) noexcept nogil:
    """Write the stages of all classes by rising key: (k + 1/2) / n of stage k of a class of n."""
    cdef int64_t stages[CLASSES]
    cdef int64_t taken[CLASSES]
    cdef int64_t k, total = 0
    cdef int c, best
    for c in range(CLASSES):
        entries[c][sizes[c]] = none           # the second entry of a half stage
        stages[c] = (sizes[c] + 1) // 2
        taken[c] = 0
        total += stages[c]
    for _ in range(total):
        best = -1
        for c in range(CLASSES):
            if taken[c] < stages[c] and (
                best < 0
                or (2 * taken[c] + 1) * stages[best] < (2 * taken[best] + 1) * stages[c]
            ):
                best = c
        k = 2 * taken[best]
        taken[best] += 1
        blocks[0], blocks[1] = entries[best][k], entries[best][k + 1]
        members[0] = MEMBERS[best]
        members[1] = MEMBERS[best] if k + 1 < sizes[best] else 0
        blocks += 2
        members += 2
