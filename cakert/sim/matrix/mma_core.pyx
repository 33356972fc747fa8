"""The hot warp-level matrix instructions on the register file: mma.sync, ldmatrix, stmatrix.

Register files are (rows, 32) uint32. Layouts: see fragments.py; rounding: see formats.py.
"""
from libc.math cimport rint
from libc.stdint cimport INT32_MAX, INT32_MIN, int32_t, int64_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from cakert.sim.core.shared_memory cimport NO_CONFLICT, OUT_OF_BOUNDS, Conflict, SharedMemory

cdef enum Input:
    IN_F16
    IN_BF16
    IN_TF32
    IN_TABLE

cdef enum Output:
    OUT_F32
    OUT_F16
    OUT_S32
    OUT_S32_SATURATED

_INPUTS = {"f16": IN_F16, "bf16": IN_BF16, "tf32": IN_TF32, "table": IN_TABLE}
_OUTPUTS = {
    "f32": OUT_F32, "f16": OUT_F16, "s32": OUT_S32, "s32-saturated": OUT_S32_SATURATED
}
_PER_REGISTER = {"f16": 2, "bf16": 2, "tf32": 1, "table": 4}


cdef inline double from_f32_bits(uint32_t bits) noexcept nogil:
    cdef float value
    memcpy(&value, &bits, 4)
    return value


cdef inline double from_f16_bits(uint32_t half) noexcept nogil:
    # The exponent is moved into place as an integer and corrected by an exact multiplication,
    # which also normalises subnormals.
    cdef uint32_t magnitude = half & 0x7FFF
    cdef uint64_t wide = <uint64_t>magnitude << 42
    cdef double value
    if magnitude >= 0x7C00:
        wide |= <uint64_t>0x7FF << 52
        memcpy(&value, &wide, 8)
    else:
        memcpy(&value, &wide, 8)
        value *= 2.0 ** 1008
    return -value if half & 0x8000 else value


cdef inline uint32_t to_f32_bits(double value) noexcept nogil:
    cdef float narrow = <float>value
    cdef uint32_t bits
    if value != value:
        return 0x7FFFFFFF
    memcpy(&bits, &narrow, 4)
    return bits


cdef inline uint32_t to_f16_bits(double value) noexcept nogil:
    cdef uint64_t bits
    cdef uint64_t rest
    cdef uint32_t sign
    cdef uint32_t half
    cdef double magnitude
    if value != value:
        return 0x7FFF
    memcpy(&bits, &value, 8)
    sign = <uint32_t>(bits >> 48) & 0x8000
    bits = bits << 1 >> 1
    memcpy(&magnitude, &bits, 8)
    if magnitude >= 65520.0:
        return sign | 0x7C00
    if magnitude < 2.0 ** -14:
        # Units of the last place of a subnormal; 1024 of them are the smallest normal number.
        return sign | <uint32_t>rint(magnitude * 2.0 ** 24)
    half = <uint32_t>((bits >> 42) - (<uint64_t>1008 << 10))
    rest = bits & ((<uint64_t>1 << 42) - 1)
    if rest > (<uint64_t>1 << 41) or (rest == (<uint64_t>1 << 41) and half & 1):
        half += 1
    return sign | half


cdef enum:
    # Above the shared::cta window: a cluster or a generic address.
    WINDOW_END = 1 << 24


cdef class WarpMma:
    """One bound ``mma.sync.aligned.m16n8kK.row.col``.

    Parameters
    ----------
    inputs : str
        "f16", "bf16", "tf32", or "table" for 8-bit types.
    output : str
        "f32", "f16", "s32" or "s32-saturated": type of C and D.
    d, a, b, c : sequence of int
        Rows of the register file. A has 4 or 2, B half as many; C and D have 2 for f16, else 4.
    table_a, table_b : (256,) float64, optional
        Values of the 8-bit types of A and B.
    """

    cdef Input inputs
    cdef Output output
    cdef int per_register
    cdef int num_a
    cdef int depth
    cdef Py_ssize_t last_row
    cdef Py_ssize_t d[4]
    cdef Py_ssize_t a[4]
    cdef Py_ssize_t b[2]
    cdef Py_ssize_t c[4]
    cdef double table_a[256]
    cdef double table_b[256]

    def __cinit__(self, str inputs, str output, d, a, b, c, table_a=None, table_b=None):
        cdef int i
        self.inputs = _INPUTS[inputs]
        self.output = _OUTPUTS[output]
        self.per_register = _PER_REGISTER[inputs]
        self.num_a = len(a)
        self.depth = 2 * self.per_register * self.num_a
        num_c = 2 if output == "f16" else 4
        if self.num_a not in (2, 4) or len(b) * 2 != self.num_a:
            raise ValueError(f"expected 4 + 2 or 2 + 1 registers of A + B, got {len(a)} + {len(b)}")
        if len(c) != num_c or len(d) != num_c:
            raise ValueError(f"expected {num_c} registers of C and D, got {len(c)} and {len(d)}")
        rows = [*d, *a, *b, *c]
        if min(rows) < 0:
            raise ValueError("rows of the register file are not negative")
        self.last_row = max(rows)
        for i in range(num_c):
            self.d[i] = d[i]
            self.c[i] = c[i]
        for i in range(self.num_a):
            self.a[i] = a[i]
        for i in range(self.num_a // 2):
            self.b[i] = b[i]
        if inputs == "table":
            for i in range(256):
                self.table_a[i] = table_a[i]
                self.table_b[i] = table_b[i]

    def run(self, uint32_t[:, ::1] file):
        """Execute it for a warp whose 32 lanes are all active."""
        if file.shape[1] != 32 or file.shape[0] <= self.last_row:
            raise ValueError("the register file does not have the rows of this instruction")
        self.execute(&file[0, 0])

    cdef void execute(self, uint32_t* file) noexcept nogil:
        cdef double a[16][32]
        cdef double b[32][8]
        cdef double sums[16][8]
        cdef double values[4]
        cdef double scale
        cdef uint32_t word
        cdef int lane, register, i, row, column, k, group, member
        cdef int per = self.per_register
        for register in range(self.num_a):
            for lane in range(32):
                group = lane >> 2
                member = lane & 3
                self.unpack(file[self.a[register] * 32 + lane], self.table_a, values)
                row = group + 8 * (register & 1)
                k = per * member + 4 * per * (register >> 1)
                for i in range(per):
                    a[row][k + i] = values[i]
        for register in range(self.num_a // 2):
            for lane in range(32):
                group = lane >> 2
                member = lane & 3
                self.unpack(file[self.b[register] * 32 + lane], self.table_b, values)
                k = per * member + 4 * per * register
                for i in range(per):
                    b[k + i][group] = values[i]
        for row in range(16):
            for column in range(8):
                sums[row][column] = 0
            for k in range(self.depth):
                scale = a[row][k]
                for column in range(8):
                    sums[row][column] += scale * b[k][column]
        for lane in range(32):
            column = 2 * (lane & 3)
            for i in range(2):
                row = (lane >> 2) + 8 * i
                if self.output == OUT_F16:
                    word = file[self.c[i] * 32 + lane]
                    file[self.d[i] * 32 + lane] = (
                        to_f16_bits(sums[row][column] + from_f16_bits(word & 0xFFFF))
                        | to_f16_bits(sums[row][column + 1] + from_f16_bits(word >> 16)) << 16
                    )
                else:
                    self.finish(file, 2 * i, lane, sums[row][column])
                    self.finish(file, 2 * i + 1, lane, sums[row][column + 1])

    cdef inline void unpack(self, uint32_t word, double* table, double* values) noexcept nogil:
        if self.inputs == IN_BF16:
            values[0] = from_f32_bits(word << 16)
            values[1] = from_f32_bits(word >> 16 << 16)
        elif self.inputs == IN_F16:
            values[0] = from_f16_bits(word & 0xFFFF)
            values[1] = from_f16_bits(word >> 16)
        elif self.inputs == IN_TF32:
            values[0] = from_f32_bits(word >> 13 << 13)
        else:
            values[0] = table[word & 0xFF]
            values[1] = table[(word >> 8) & 0xFF]
            values[2] = table[(word >> 16) & 0xFF]
            values[3] = table[word >> 24]

    cdef inline void finish(self, uint32_t* file, int index, int lane, double total) noexcept nogil:
        cdef uint32_t word = file[self.c[index] * 32 + lane]
        cdef int64_t exact
        if self.output == OUT_F32:
            word = to_f32_bits(total + from_f32_bits(word))
        else:
            exact = <int64_t>total + <int32_t>word
            if self.output == OUT_S32_SATURATED:
                exact = max(min(exact, <int64_t>INT32_MAX), <int64_t>INT32_MIN)
            word = <uint32_t>exact
        file[self.d[index] * 32 + lane] = word


def load_matrices(
    SharedMemory shared,
    uint32_t[:, ::1] file,
    const int64_t[::1] rows,
    const uint64_t[::1] addresses,
    bint trans,
    where,
):
    """Execute ``ldmatrix.m8n8`` for a whole warp.

    Parameters
    ----------
    shared : SharedMemory
    file : (rows, 32) uint32
    rows : (1 or 2 or 4,) int64
        Destination registers, one a matrix.
    addresses : (32,) uint64
        Shared address of row i of matrix j in lane 8j + i.
    trans : bool
    where : callable
        Place in the kernel, for faults.

    Returns
    -------
    bool
        False, and nothing was loaded, if an address is not a multiple of 16 or lies beyond the
        shared::cta window.
    """
    cdef Py_ssize_t count = rows.shape[0]
    cdef Py_ssize_t matrix, lane
    cdef uint16_t tile[8][8]
    cdef uint64_t address
    cdef uint32_t* destination
    cdef Conflict conflict
    cdef int row, group, pair
    if addresses.shape[0] != 32 or file.shape[1] != 32:
        raise ValueError("a warp has 32 lanes")
    for lane in range(8 * count):
        if addresses[lane] >= WINDOW_END or addresses[lane] & 15:
            return False
    for matrix in range(count):
        for row in range(8):
            address = addresses[8 * matrix + row]
            conflict = shared.check_load(address, 16)
            if conflict != NO_CONFLICT:
                shared.explain(conflict, address, 16, False, where())
                if conflict == OUT_OF_BOUNDS:
                    for pair in range(8):
                        tile[row][pair] = 0xFFFF
                    continue
            memcpy(&tile[row][0], shared.bytes + address, 16)
        destination = &file[rows[matrix], 0]
        if not trans:
            # The bytes of row i, in order, are the registers of lanes 4i to 4i + 3.
            memcpy(destination, &tile[0][0], 128)
            continue
        for lane in range(32):
            group = <int>lane >> 2
            pair = 2 * (<int>lane & 3)
            destination[lane] = tile[pair][group] | <uint32_t>tile[pair + 1][group] << 16
    return True


def store_matrices(
    SharedMemory shared,
    const uint32_t[:, ::1] file,
    const int64_t[::1] rows,
    const uint64_t[::1] addresses,
    bint trans,
    uint32_t first_thread,
    where,
):
    """Execute ``stmatrix.m8n8`` for a whole warp; arguments as in `load_matrices`.

    The bytes count as written by the thread that holds the element: thread `first_thread` + lane.
    """
    cdef Py_ssize_t count = rows.shape[0]
    cdef Py_ssize_t matrix, lane
    cdef uint64_t address
    cdef uint64_t at
    cdef uint32_t word
    cdef uint16_t half
    cdef Conflict conflict
    cdef int row, column, index
    cdef bint skip[8]
    if addresses.shape[0] != 32 or file.shape[1] != 32:
        raise ValueError("a warp has 32 lanes")
    for lane in range(8 * count):
        if addresses[lane] >= WINDOW_END or addresses[lane] & 15:
            return False
    shared.clock.now += 1
    cdef uint32_t writer = 1024 * <uint32_t>shared.rank + <uint32_t>first_thread
    for matrix in range(count):
        for row in range(8):
            address = addresses[8 * matrix + row]
            conflict = shared.check_store(address, 16)
            skip[row] = False
            if conflict != NO_CONFLICT:
                shared.explain(conflict, address, 16, True, where())
                skip[row] = conflict == OUT_OF_BOUNDS
        for lane in range(32):
            word = file[rows[matrix], lane]
            for index in range(2):
                row = lane >> 2
                column = 2 * (lane & 3) + index
                if trans:
                    row, column = column, row
                if skip[row]:
                    continue
                half = <uint16_t>(word >> (16 * index))
                at = addresses[8 * matrix + row] + 2 * column
                memcpy(shared.bytes + at, &half, 2)
                shared.note_store(at, 2, writer + <uint32_t>lane)
    return True


def move_matrix(uint32_t[:, ::1] file, Py_ssize_t destination, Py_ssize_t source):
    """Execute ``movmatrix.m8n8.trans.b16``: transpose an 8 x 8 matrix held by the warp."""
    cdef uint16_t tile[8][8]
    cdef int lane, group, pair
    if file.shape[1] != 32:
        raise ValueError("a warp has 32 lanes")
    for lane in range(32):
        tile[lane >> 2][2 * (lane & 3)] = <uint16_t>(file[source, lane] & 0xFFFF)
        tile[lane >> 2][2 * (lane & 3) + 1] = <uint16_t>(file[source, lane] >> 16)
    for lane in range(32):
        group = lane >> 2
        pair = 2 * (lane & 3)
        file[destination, lane] = tile[pair][group] | <uint32_t>tile[pair + 1][group] << 16
