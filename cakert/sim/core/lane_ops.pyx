# distutils: extra_compile_args = -ffp-contract=off -fno-trapping-math -fno-math-errno
"""Operations on the 32 lanes of a warp, by name.

The arithmetic is C++ in the headers beside this file: ``lane_map.h`` says how a function on one
lane becomes one on 32, ``lane_table.h`` lists them all. Results do not depend on the compiler's
freedom with floating point: products and sums are never contracted (first line). Nobody looks at
exception flags or errno, and loops that need not keep them become vector code.
"""
from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memset

cdef extern from "lane_table.h" nogil:
    ctypedef struct LaneEntry:
        const char* name
        const char* signature
        LaneFunction base
        LaneFunction wide
    enum:
        NUM_LANE_FUNCTIONS
    const LaneEntry* LANE_ENTRIES
    bint wide_lanes_supported()

cdef LaneFunction base_table[NUM_LANE_FUNCTIONS]
cdef LaneFunction wide_table[NUM_LANE_FUNCTIONS]

# Whether this CPU runs the form that is compiled for AVX2 and FMA.
HAS_WIDE = wide_lanes_supported()

# Name of an operation -> its index in the table of C functions.
LANE_FUNCTIONS = {}
# Name -> kinds of its rows, destinations first ("8:44", "p?:44?"): a digit is a register of that
# many bytes (8: a row of 256 bytes; else one of 128), p a predicate, ? one that may be absent (-1).
LANE_SIGNATURES = {}

cdef Py_ssize_t _entry
for _entry in range(NUM_LANE_FUNCTIONS):
    base_table[_entry] = LANE_ENTRIES[_entry].base
    wide_table[_entry] = LANE_ENTRIES[_entry].wide
    LANE_FUNCTIONS[LANE_ENTRIES[_entry].name.decode()] = _entry
    LANE_SIGNATURES[LANE_ENTRIES[_entry].name.decode()] = LANE_ENTRIES[_entry].signature.decode()
assert len(LANE_FUNCTIONS) == NUM_LANE_FUNCTIONS, "two lane ops have one name"

lane_functions = &wide_table[0] if HAS_WIDE else &base_table[0]


def apply(
    str name, file, predicates, rows, mask, *, int extra=0, int flags=0, immediate=0, wide=None,
):
    """Execute one operation, as the run loop does; for tests.

    Parameters
    ----------
    name : str
        A key of ``LANE_FUNCTIONS``.
    file : contiguous array of uint8
        Register buffer.
    predicates : contiguous array of uint32
        Masks of lanes; 0 is the carry.
    rows : sequence of int
        One a character of the signature.
    mask : int
        Lanes that execute.
    extra, flags, immediate : int
        The fields of ``LaneOp`` (lane_ops.h).
    wide : bool, optional
        The form for AVX2 and FMA or the one for any CPU; by default what kernels run.

    Raises
    ------
    ValueError
        A row is out of range, or the CPU lacks what `wide` asks for.
    """
    cdef LaneOp op
    cdef uint8_t[::1] file_view = file
    cdef uint32_t[::1] predicate_view = predicates
    cdef bint use_wide = HAS_WIDE if wide is None else wide
    cdef int slot = 0
    cdef str signature = LANE_SIGNATURES[name]
    memset(&op, 0, sizeof(LaneOp))
    kinds = signature.replace(":", "")
    if len(rows) != len(kinds):
        raise ValueError(f"{name}: expected rows for {signature!r}, got {rows!r}")
    if use_wide and not HAS_WIDE:
        raise ValueError("this CPU lacks the instructions of the wide form")
    for kind, row in zip(kinds, rows, strict=True):
        if kind in "p?":
            limit = predicate_view.shape[0]
            least = -1 if kind == "?" else 0
        else:
            limit = file_view.shape[0] // (256 if kind == "8" else 128)
            least = 0
        if not least <= row < limit:
            raise ValueError(f"{name}: row {row!r} of kind {kind!r} is not in [{least}, {limit})")
        op.row[slot] = row
        slot += 1
    op.function = LANE_FUNCTIONS[name]
    op.extra = extra
    op.flags = flags
    op.immediate = immediate
    cdef LaneFunction function = base_table[op.function]
    if use_wide:
        function = wide_table[op.function]
    function(&op, &file_view[0], &predicate_view[0], <uint32_t>mask)
