"""A reader of the group record, entry by entry; it asserts what a kernel relies on."""

from __future__ import annotations

from typing import Any

__all__ = ["NO_ROW", "rows_of_record", "stages_of"]

NO_ROW = 0xFFFFFFFF


def stages_of(
    blocks: Any, members: Any, count: int, kv_blocks: int
) -> list[tuple[int, tuple[int, ...]]]:
    """The stages of one group, each as its members and its one or two blocks."""
    blocks, members = blocks[:count].tolist(), members[:count].tolist()
    assert count % 2 == 0
    stages = []
    for i in range(0, count, 2):
        assert members[i] in (1, 2, 3)
        assert blocks[i] < kv_blocks
        if members[i + 1] == 0:
            assert blocks[i + 1] == kv_blocks
            stages.append((members[i], (blocks[i],)))
        else:
            assert members[i + 1] == members[i]
            assert blocks[i] < blocks[i + 1] < kv_blocks
            stages.append((members[i], (blocks[i], blocks[i + 1])))
    return stages


def rows_of_record(
    rows: Any, blocks: Any, members: Any, counts: Any, *, num_rows: int, kv_blocks: int
) -> list[list[int]]:
    """The list that each row attends to, ascending; every row must stand in one group."""
    lists: dict[int, list[int]] = {}
    for g, count in enumerate(counts.tolist()):
        first, second, *others = rows[g].tolist()
        assert first != NO_ROW
        assert set(others) == {NO_ROW}
        assert first != second
        selected = {first: [], second: []}
        for bits, found in stages_of(blocks[g], members[g], count, kv_blocks):
            for slot, row in enumerate((first, second)):
                if bits >> slot & 1:
                    assert row != NO_ROW
                    selected[row] += found
        selected.pop(NO_ROW, None)
        assert not lists.keys() & selected.keys()
        lists |= selected
    assert sorted(lists) == list(range(num_rows))
    for row in lists.values():
        assert len(set(row)) == len(row), "a block is taken twice"
    return [sorted(lists[row]) for row in range(num_rows)]
