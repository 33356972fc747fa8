"""Layouts of tensor copies by explicit loops over elements, from the text and tables of the ISA."""

from __future__ import annotations

import itertools

import numpy as np

# PTX ISA 5.5.7: which 16-byte chunk stands at each place of the lines of 128 bytes. The pattern
# starts at a multiple of its length in shared memory and repeats.
WIDTHS = {"none": 0, "32B": 32, "64B": 64} | dict.fromkeys(
    ["128B", "128B_ATOM_32B", "128B_ATOM_32B_FLIP_8B", "128B_ATOM_64B"], 128
)
TABLES = {
    "none": [[0, 1, 2, 3, 4, 5, 6, 7]],
    "32B": [[0, 1, 2, 3, 4, 5, 6, 7], [1, 0, 3, 2, 5, 4, 7, 6]],
    "64B": [
        [0, 1, 2, 3, 4, 5, 6, 7],
        [1, 0, 3, 2, 5, 4, 7, 6],
        [2, 3, 0, 1, 6, 7, 4, 5],
        [3, 2, 1, 0, 7, 6, 5, 4],
    ],
    "128B": [
        [0, 1, 2, 3, 4, 5, 6, 7],
        [1, 0, 3, 2, 5, 4, 7, 6],
        [2, 3, 0, 1, 6, 7, 4, 5],
        [3, 2, 1, 0, 7, 6, 5, 4],
        [4, 5, 6, 7, 0, 1, 2, 3],
        [5, 4, 7, 6, 1, 0, 3, 2],
        [6, 7, 4, 5, 2, 3, 0, 1],
        [7, 6, 5, 4, 3, 2, 1, 0],
    ],
    "128B_ATOM_32B": [
        [0, 1, 2, 3, 4, 5, 6, 7],
        [2, 3, 0, 1, 6, 7, 4, 5],
        [4, 5, 6, 7, 0, 1, 2, 3],
        [6, 7, 4, 5, 2, 3, 0, 1],
    ],
    "128B_ATOM_64B": [[0, 1, 2, 3, 4, 5, 6, 7], [4, 5, 6, 7, 0, 1, 2, 3]],
}


def swizzled(address, mode):
    """Place in shared memory of the byte that stands at ``address`` without a swizzle."""
    flip = mode == "128B_ATOM_32B_FLIP_8B"
    table = TABLES["128B_ATOM_32B" if flip else mode]
    line, byte = divmod(address, 128)
    chunk, inner = divmod(byte, 16)
    if flip and line % 2:
        inner = (inner + 8) % 16
    return 128 * line + 16 * table[line % len(table)].index(chunk) + inner


def elements(shape, box, coordinates, steps):
    """(position in the dense box, index into the array or None) of every element of a copy.

    ``shape`` and the index are NumPy's, outermost first; the others innermost first.
    """
    counts = [-(-extent // step) for extent, step in zip(box, steps, strict=True)]
    for position, place in enumerate(itertools.product(*(range(n) for n in reversed(counts)))):
        inner_first = place[::-1]
        at = [c + j * s for c, j, s in zip(coordinates, inner_first, steps, strict=True)]
        inside = all(0 <= x < n for x, n in zip(at, reversed(shape), strict=True))
        yield position, tuple(reversed(at)) if inside else None


def place_of(position, box, size, swizzle, start):
    """Place of an element of the box before the swizzle: narrow rows lie as far apart as it."""
    if swizzle == "none":
        return start + position * size
    row, column = divmod(position, box[0])
    return start + row * max(box[0] * size, WIDTHS[swizzle]) + column * size


def loaded(array, box, coordinates, steps, swizzle, start, fill):
    """{shared address: byte} after a load to ``start``."""
    memory = {}
    size = array.dtype.itemsize
    for position, index in elements(array.shape, box, coordinates, steps):
        value = np.asarray(fill if index is None else array[index], array.dtype)
        first = place_of(position, box, size, swizzle, start)
        for i, byte in enumerate(value.tobytes()):
            memory[swizzled(first + i, swizzle)] = byte
    return memory


def stored(array, shared, box, coordinates, steps, swizzle, start, update=None):
    """Copy of ``array`` after a store of the box at ``start`` of ``shared``."""
    result = array.copy()
    size = array.dtype.itemsize
    for position, index in elements(array.shape, box, coordinates, steps):
        if index is None:
            continue
        first = place_of(position, box, size, swizzle, start)
        data = bytes(shared[swizzled(first + i, swizzle)] for i in range(size))
        value = np.frombuffer(data, array.dtype)[0]
        result[index] = value if update is None else update(result[index], value)
    return result
