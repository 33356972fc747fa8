"""Loads, stores and register checks of a warp; part of warp.pyx."""


cdef int check_busy(Warp warp, Op* op) except -1:
    """Refuse an operation that touches a register of an asynchronous instruction in flight."""
    cdef int32_t i
    cdef int32_t row
    for i in range(op.touched_begin, op.touched_end):
        row = warp.code.touched[i]
        if warp.busy[row]:
            warp.cta.launch.fault(
                "register-in-flight",
                f"touches a register that the asynchronous instruction at line "
                f"{warp.busy_lines[row]} still owns.",
                where=warp.where(),
                advice="Wait for it first (wgmma.wait_group, tcgen05.wait::ld).",
            )
            return 0
    return 0


cdef int put_active_mask(Warp warp, Op* op, uint32_t active) except -1:
    cdef uint32_t* row = <uint32_t*>(warp.registers + 128 * <Py_ssize_t>op.rows[0])
    cdef Py_ssize_t lane
    for lane in range(32):
        if (active >> lane) & 1:
            row[lane] = active
    return 0


cdef inline uint64_t address_of(Warp warp, Op* op, Py_ssize_t lane) noexcept nogil:
    if op.address_bits == 64:
        return (<uint64_t*>(warp.registers + 256 * <Py_ssize_t>op.address))[lane] + op.offset
    return <uint32_t>(
        (<uint32_t*>(warp.registers + 128 * <Py_ssize_t>op.address))[lane] + <uint32_t>op.offset
    )


cdef inline bint outside(uint64_t address, uint64_t nbytes, uint64_t size) noexcept nogil:
    """Whether [address, address + nbytes) is not within [0, size); the sum may wrap."""
    return nbytes > size or address > size - nbytes


cdef int fault_at(Warp warp, str name, str message, str advice, Py_ssize_t lane) except -1:
    warp.cta.launch.fault(
        name, f"lane {lane} {message}", where=warp.where(), advice=advice
    )
    return 0


cdef SharedMemory shared_of(Warp warp, uint64_t* address, Py_ssize_t lane):
    """The memory that a shared address means; strips the rank of the CTA from the address."""
    cdef uint64_t rank = address[0] >> RANK_SHIFT
    if rank == 0:
        return warp.shared
    address[0] &= OFFSET_MASK
    cluster = warp.cta.cluster
    if rank - 1 >= len(cluster):
        fault_at(
            warp, "shared-out-of-bounds",
            f"addresses shared memory of CTA rank {rank - 1}; the cluster has {len(cluster)}.",
            "Addresses of other CTAs come from mapa.", lane,
        )
        return None
    if cluster[rank - 1].exited:
        fault_at(
            warp, "cluster-exit",
            f"reaches into shared memory of CTA rank {rank - 1}, which has exited.",
            "End with barrier.cluster.arrive and .wait before any CTA of the cluster exits.", lane,
        )
        return None
    return cluster[rank - 1].shared


cdef uint8_t* locate(
    Warp warp, Op* op, uint64_t address, uint32_t nbytes, bint write, Py_ssize_t lane
) except? NULL:
    """Host memory behind an access after all checks; NULL where an ignored fault skips it."""
    cdef int space = op.space
    cdef SharedMemory shared
    cdef Conflict conflict
    cdef uint8_t* found
    if address % nbytes != 0:
        fault_at(
            warp, "misaligned-address", f"accesses {nbytes} bytes at {address:#x}.",
            "Accesses must be aligned to their size, vectors to the whole vector.", lane,
        )
    if space == GENERIC_SPACE:
        if address >> WINDOW_SHIFT == 1:
            space = SHARED_SPACE
            address &= WINDOW_MASK
        elif address >> WINDOW_SHIFT == 2:
            space = LOCAL_SPACE
            address &= WINDOW_MASK
        elif address >> WINDOW_SHIFT == 3:
            space = PARAM_SPACE
            address &= WINDOW_MASK
        else:
            space = GLOBAL_SPACE
    if space == GLOBAL_SPACE:
        found = warp.memory.resolve(address, nbytes, write)
        if found == NULL:
            fault_at(
                warp, "global-out-of-bounds", warp.memory.explain(address, nbytes, write),
                "Check the index, and that the tensor is as large as the kernel assumes.", lane,
            )
        return found
    if space == SHARED_SPACE:
        shared = shared_of(warp, &address, lane)
        if shared is None:
            return NULL
        if write:
            conflict = shared.check_store(address, nbytes)
        else:
            conflict = shared.check_load(address, nbytes)
        if conflict != NO_CONFLICT:
            shared.explain(conflict, address, nbytes, write, warp.where())
            if conflict == OUT_OF_BOUNDS:
                return NULL
        if write:
            shared.note_store(address, nbytes, warp.first_thread + <uint32_t>lane)
        return shared.bytes + address
    if space == LOCAL_SPACE:
        if outside(address, nbytes, warp.code.local_bytes):
            fault_at(
                warp, "local-out-of-bounds",
                f"accesses {nbytes} byte(s) at {address:#x} of {warp.code.local_bytes} bytes of "
                "local memory.", "Check the index of the local array.", lane,
            )
            return NULL
        return warp.local + lane * warp.code.local_bytes + address
    if write or outside(address, nbytes, warp.params_size):
        fault_at(
            warp, "param-out-of-bounds",
            f"{'writes' if write else 'reads'} {nbytes} byte(s) at {address:#x} of "
            f"{warp.params_size} bytes of parameters.",
            "Parameters are read-only; check the size of the struct.", lane,
        )
        return NULL
    return <uint8_t*>(warp.params + address)


cdef inline void put_register(
    Warp warp, Op* op, int row, Py_ssize_t lane, const uint8_t* source
) noexcept nogil:
    cdef uint64_t value = 0
    memcpy(&value, source, op.width)
    if op.flags & SIGNED:
        if op.width == 1:
            value = <uint64_t><int64_t><int8_t>value
        elif op.width == 2:
            value = <uint64_t><int64_t><int16_t>value
        elif op.width == 4:
            value = <uint64_t><int64_t><int32_t>value
    if op.register_bits == 64:
        (<uint64_t*>(warp.registers + 256 * <Py_ssize_t>row))[lane] = value
    elif op.register_bits == 32:
        (<uint32_t*>(warp.registers + 128 * <Py_ssize_t>row))[lane] = <uint32_t>value
    else:
        (<uint32_t*>(warp.registers + 128 * <Py_ssize_t>row))[lane] = <uint16_t>value


cdef int load(Warp warp, Op* op, uint32_t mask) except -1:
    cdef Py_ssize_t lane
    cdef int i
    cdef uint8_t* source
    cdef uint32_t nbytes = <uint32_t>op.width * op.vector
    if op.space == SHARED_SPACE:
        count_wavefronts(warp, op, mask)
    for lane in range(32):
        if not (mask >> lane) & 1:
            continue
        source = locate(warp, op, address_of(warp, op, lane), nbytes, False, lane)
        if source == NULL:
            continue
        for i in range(op.vector):
            if op.rows[i] >= 0:
                put_register(warp, op, op.rows[i], lane, source + i * op.width)
    return 0


cdef int store(Warp warp, Op* op, uint32_t mask) except -1:
    cdef Py_ssize_t lane
    cdef int i
    cdef uint8_t* target
    cdef uint32_t nbytes = <uint32_t>op.width * op.vector
    cdef Py_ssize_t row_bytes = 256 if op.register_bits == 64 else 128
    cdef Py_ssize_t lane_bytes = 8 if op.register_bits == 64 else 4
    if op.space == SHARED_SPACE:
        count_wavefronts(warp, op, mask)
    warp.shared.clock.now += 1
    for lane in range(32):
        if not (mask >> lane) & 1:
            continue
        target = locate(warp, op, address_of(warp, op, lane), nbytes, True, lane)
        if target == NULL:
            continue
        for i in range(op.vector):
            memcpy(
                target + i * op.width,
                warp.registers + row_bytes * op.rows[i] + lane_bytes * lane, op.width,
            )
    return 0


cdef int count_wavefronts(Warp warp, Op* op, uint32_t mask) noexcept nogil:
    """Count the passes of a shared-memory access beyond the fewest that its bytes need.

    Lanes are served in groups of as many as move 128 bytes; within a group each bank (4 bytes
    wide) gives one word a pass, and lanes that want the same word share it.
    """
    cdef uint32_t nbytes = <uint32_t>op.width * op.vector
    cdef Py_ssize_t group = 32 if nbytes <= 4 else 128 // nbytes
    cdef Py_ssize_t words = 1 if nbytes <= 4 else nbytes // 4
    cdef uint32_t seen[32][32]
    cdef int depth[BANKS]
    cdef Py_ssize_t start
    cdef Py_ssize_t lane
    cdef Py_ssize_t word
    cdef int passes
    cdef int i
    cdef uint32_t value
    cdef int bank
    start = 0
    while start < 32:
        memset(depth, 0, sizeof(depth))
        passes = 0
        for lane in range(start, start + group):
            if not (mask >> lane) & 1:
                continue
            for word in range(words):
                value = <uint32_t>(address_of(warp, op, lane) >> 2) + <uint32_t>word
                bank = value % BANKS
                for i in range(depth[bank]):
                    if seen[bank][i] == value:
                        break
                else:
                    seen[bank][depth[bank]] = value
                    depth[bank] += 1
                    if depth[bank] > passes:
                        passes = depth[bank]
        if passes > 1:
            warp.extra_wavefronts[warp.pc] += passes - 1
        start += group
    return 0
