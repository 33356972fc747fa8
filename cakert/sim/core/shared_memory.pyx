"""Shared memory of a simulated CTA, with a shadow that knows what each byte went through.

The shadow holds, for each byte: whether anybody wrote it, who wrote it last through the generic
proxy and when, and how many asynchronous operations in flight will read or write it. From these
follow the checks that no GPU makes: reads of memory nobody wrote, generic writes that the
asynchronous proxy reads without a fence (PTX ISA "Async proxy"), and buffers that are reused
while a copy or an MMA still needs them.

A proxy fence counts if the writing thread executed it after its write, or if the warp that issues
the asynchronous operation did: the memory model asks for a fence along the causality path.
"""

import numpy as np

from cakert.sim.faults import Fault

RESERVED_BYTES = 1024

_FENCE_ADVICE = (
    "Execute fence.proxy.async after the writes (each writing thread, before the barrier that "
    "hands over to the issuing thread)."
)


cdef class ProxyClock:
    """When the threads of a cluster last fenced, on a clock of generic writes.

    Writers are numbered 1024 * rank + thread; the clock moves with every store instruction.
    """

    def __cinit__(self):
        threads = np.zeros(MOST_RANKS * CTA_THREADS, np.uint32)
        warps = np.zeros(MOST_RANKS * CTA_THREADS // 32, np.uint32)
        self.buffers = (threads, warps)
        self.thread_fence = pointer32(threads)
        self.warp_fence = pointer32(warps)
        self.now = 0


cdef class SharedMemory:
    """Shared memory of one CTA.

    Parameters
    ----------
    nbytes : int
        Static plus dynamic shared memory in bytes; it starts at address 1024.
    faults : callable, optional
        ``faults(name, message, where=, advice=)``: raises, or returns where the fault is ignored.
    rank : int
        Of the CTA in its cluster, below 16.
    clock : ProxyClock, optional
        Of its cluster.

    Attributes
    ----------
    data : numpy.ndarray of uint8
        Indexed by shared address; fresh memory is 0xFF bytes (NaN in every float type).
    size : int
        End of the window: 1024 + nbytes.
    """

    def __cinit__(
        self, Py_ssize_t nbytes, faults=None, *, Py_ssize_t rank=0, ProxyClock clock=None,
    ):
        cdef Py_ssize_t size = RESERVED_BYTES + nbytes
        self.size = size
        self.rank = rank
        self.clock = ProxyClock() if clock is None else clock
        self.faults = faults
        self.in_flight = {}
        self.owners = {}
        self.data = np.full(size, 0xFF, np.uint8)
        state = np.zeros(size, np.uint8)
        reading, writing, writer = (np.zeros(size, np.uint16) for _ in range(3))
        written_at = np.zeros(size, np.uint32)
        self.buffers = (state, reading, writing, writer, written_at)
        self.bytes = pointer8(self.data)
        self.state = pointer8(state)
        self.reading = pointer16(reading)
        self.writing = pointer16(writing)
        self.writer = pointer16(writer)
        self.written_at = pointer32(written_at)

    # --- the generic proxy ------------------------------------------------------------------

    cdef Conflict check_load(self, uint64_t address, uint32_t nbytes) noexcept nogil:
        cdef uint64_t i
        if address < RESERVED_BYTES_C or address > <uint64_t>self.size - nbytes:
            return OUT_OF_BOUNDS
        cdef uint8_t all_written = WRITTEN
        cdef uint16_t pending = 0
        for i in range(address, address + nbytes):
            all_written &= self.state[i]
            pending |= self.writing[i]
        if pending:
            return IN_FLIGHT
        return NO_CONFLICT if all_written else UNINITIALISED

    cdef Conflict check_store(self, uint64_t address, uint32_t nbytes) noexcept nogil:
        cdef uint64_t i
        if address < RESERVED_BYTES_C or address > <uint64_t>self.size - nbytes:
            return OUT_OF_BOUNDS
        cdef uint8_t reserved = 0
        cdef uint16_t pending = 0
        for i in range(address, address + nbytes):
            reserved |= self.state[i] & RESERVED
            pending |= self.reading[i] | self.writing[i]
        if reserved:
            return OVERWRITTEN
        return IN_FLIGHT if pending else NO_CONFLICT

    cdef void note_store(self, uint64_t address, uint32_t nbytes, uint32_t thread) noexcept nogil:
        cdef uint64_t i
        for i in range(address, address + nbytes):
            self.state[i] = (self.state[i] | WRITTEN | GENERIC) & ~COPIED
            self.writer[i] = <uint16_t>thread
            self.written_at[i] = self.clock.now

    def generic_read(self, addresses, threads, where):
        """Read bytes as threads of the CTA do.

        Parameters
        ----------
        addresses : (n,) int64
            Address of each byte.
        threads : (n,) int64 or int
            Linear thread that reads it.
        where : Where or callable
            Place in the kernel, for faults.

        Returns
        -------
        (n,) uint8
        """
        del threads  # the shadow has no readers; part of the interface for symmetry with writes
        cdef const int64_t[::1] places = np.ascontiguousarray(addresses, np.int64).reshape(-1)
        cdef Py_ssize_t i
        cdef Conflict conflict
        result = np.empty(places.shape[0], np.uint8)
        cdef uint8_t[::1] out = result
        for i in range(places.shape[0]):
            conflict = self.check_load(<uint64_t>places[i], 1)
            if conflict != NO_CONFLICT:
                self.explain(conflict, places[i], 1, False, where)
                if conflict == OUT_OF_BOUNDS:
                    out[i] = 0xFF
                    continue
            out[i] = self.bytes[places[i]]
        return result

    def generic_write(self, addresses, values, threads, where, bint copied=False, rank=None):
        """Write bytes as threads of the CTA do; arguments as in `generic_read`.

        Parameters
        ----------
        rank : int, optional
            Of the writing threads' CTA, where it is another one of the cluster.
        copied : bool
            The writer is a non-bulk cp.async: to leave out the proxy fence behind it is a fault of
            its own name, because compilers in wide use do.
        """
        cdef const int64_t[::1] places = np.ascontiguousarray(addresses, np.int64).reshape(-1)
        cdef const uint8_t[::1] data = np.ascontiguousarray(values, np.uint8).reshape(-1)
        cdef const int64_t[::1] who = np.ascontiguousarray(
            np.broadcast_to(np.asarray(threads, np.int64).reshape(-1), (places.shape[0],))
        )
        cdef Py_ssize_t i
        cdef Conflict conflict
        if data.shape[0] != places.shape[0]:
            raise ValueError(f"{places.shape[0]} addresses but {data.shape[0]} bytes")
        cdef int64_t first = CTA_THREADS * <int64_t>(self.rank if rank is None else rank)
        self.clock.now += 1
        for i in range(places.shape[0]):
            conflict = self.check_store(<uint64_t>places[i], 1)
            if conflict != NO_CONFLICT:
                self.explain(conflict, places[i], 1, True, where)
                if conflict == OUT_OF_BOUNDS:
                    continue
            self.bytes[places[i]] = data[i]
            self.note_store(<uint64_t>places[i], 1, <uint32_t>(first + who[i]))
            if copied:
                self.state[places[i]] |= COPIED

    def proxy_fence(self, warp, uint32_t mask):
        """Execute ``fence.proxy.async`` in the lanes of ``mask`` of a warp.

        For writes of other warps it counts as far as the warp has synchronised with them.
        """
        cdef Py_ssize_t first = CTA_THREADS * self.rank + 32 * <Py_ssize_t>warp.index
        cdef Py_ssize_t lane
        for lane in range(32):
            if (mask >> lane) & 1:
                self.clock.thread_fence[first + lane] = self.clock.now
        self.clock.warp_fence[first // 32] = warp.synchronised

    def now(self):
        """The cluster's clock of generic writes."""
        return self.clock.now

    # --- the asynchronous proxy -------------------------------------------------------------

    def async_read(self, addresses, where):
        """Read bytes through the asynchronous proxy.

        Parameters
        ----------
        addresses : (n,) int64, or (start, nbytes)
        where : Where
            The operation that reads; its warp is the one that issued it.

        Returns
        -------
        (n,) uint8
        """
        cdef const int64_t[::1] places
        cdef Py_ssize_t i
        cdef Py_ssize_t n
        cdef int64_t start = 0
        cdef int64_t at
        cdef Conflict conflict
        cdef bint dense = isinstance(addresses, tuple)
        cdef int64_t issuer = getattr(where, "warp", -1)
        if dense:
            start, n = addresses
        else:
            places = np.ascontiguousarray(addresses, np.int64).reshape(-1)
            n = places.shape[0]
        result = np.empty(n, np.uint8)
        cdef uint8_t[::1] out = result
        for i in range(n):
            at = start + i if dense else places[i]
            conflict = NO_CONFLICT
            if at < RESERVED_BYTES_C or at >= self.size:
                conflict = OUT_OF_BOUNDS
            elif not self.state[at] & WRITTEN:
                conflict = UNINITIALISED
            elif self.state[at] & GENERIC and self.unfenced(at, issuer):
                conflict = UNFENCED_COPY if self.state[at] & COPIED else UNFENCED
            if conflict != NO_CONFLICT:
                self.explain(conflict, at, 1, False, where)
                if conflict == OUT_OF_BOUNDS:
                    out[i] = 0xFF
                    continue
            out[i] = self.bytes[at]
        return result

    def async_write(self, addresses, values, where):
        """Write bytes through the asynchronous proxy; arguments as in `async_read`."""
        cdef const int64_t[::1] places
        cdef const uint8_t[::1] data = np.ascontiguousarray(values).view(np.uint8).reshape(-1)
        cdef Py_ssize_t i
        cdef Py_ssize_t n
        cdef int64_t start = 0
        cdef int64_t at
        cdef Conflict conflict
        cdef int64_t issuer = getattr(where, "warp", -1)
        cdef bint dense = isinstance(addresses, tuple)
        if dense:
            start, n = addresses
        else:
            places = np.ascontiguousarray(addresses, np.int64).reshape(-1)
            n = places.shape[0]
        if data.shape[0] != n:
            raise ValueError(f"{n} addresses but {data.shape[0]} bytes")
        for i in range(n):
            at = start + i if dense else places[i]
            if at < RESERVED_BYTES_C or at >= self.size:
                self.explain(OUT_OF_BOUNDS, at, 1, True, where)
                continue
            if self.state[at] & RESERVED:
                self.explain(OVERWRITTEN, at, 1, True, where)
            if self.state[at] & GENERIC and self.unfenced(at, issuer):
                conflict = UNFENCED_COPY if self.state[at] & COPIED else UNFENCED
                self.explain(conflict, at, 1, True, where)
            self.bytes[at] = data[i]
            self.state[at] = (self.state[at] | WRITTEN) & ~(GENERIC | COPIED)

    cdef bint unfenced(self, int64_t at, int64_t issuer) noexcept nogil:
        cdef uint32_t when = self.written_at[at]
        if self.clock.thread_fence[self.writer[at]] >= when:
            return False
        return issuer < 0 or self.clock.warp_fence[32 * self.rank + issuer] < when

    def begin_async(self, operation, reads, writes):
        """Mark the ranges ((start, nbytes), ...) that an operation in flight reads and writes.

        A range that another operation in flight writes, or a write over one that it reads, is
        the fault "shared-in-flight".
        """
        cdef int64_t start
        cdef int64_t nbytes
        cdef int64_t i
        cdef bint clash
        for ranges, is_write in ((reads, False), (writes, True)):
            for start, nbytes in ranges:
                if start < RESERVED_BYTES_C or start + nbytes > self.size:
                    self.explain(OUT_OF_BOUNDS, start, nbytes, is_write, operation.where)
                    continue
                clash = False
                for i in range(start, start + nbytes):
                    if self.writing[i] or (is_write and self.reading[i]):
                        clash = True
                        break
                if clash:
                    self.explain(IN_FLIGHT, i, 1, is_write, operation.where)
        self.in_flight[id(operation)] = (operation, tuple(reads), tuple(writes))
        self.count(reads, writes, 1)

    def end_async(self, operation):
        """Forget an operation that `begin_async` marked; unknown ones are ignored."""
        entry = self.in_flight.pop(id(operation), None)
        if entry is not None:
            self.count(entry[1], entry[2], -1)

    cdef count(self, reads, writes, int step):
        cdef int64_t start
        cdef int64_t nbytes
        cdef int64_t i
        for start, nbytes in reads:
            for i in range(max(start, 0), min(start + nbytes, self.size)):
                self.reading[i] += step
        for start, nbytes in writes:
            for i in range(max(start, 0), min(start + nbytes, self.size)):
                self.writing[i] += step

    # --- reservations and explanations ------------------------------------------------------

    def reserve(self, int64_t address, int64_t nbytes, owner):
        """Refuse data writes to a range from now on: an mbarrier lives there."""
        cdef int64_t i
        if address < RESERVED_BYTES_C or address + nbytes > self.size:
            self.explain(OUT_OF_BOUNDS, address, nbytes, True, None)
            return
        for i in range(address, address + nbytes):
            self.state[i] |= RESERVED
        self.owners[address] = (nbytes, owner)

    def release(self, int64_t address, int64_t nbytes):
        """Undo `reserve`; the bytes count as never written."""
        cdef int64_t i
        for i in range(max(address, 0), min(address + nbytes, self.size)):
            self.state[i] &= ~(RESERVED | WRITTEN | GENERIC | COPIED)
        self.owners.pop(address, None)

    cdef explain(
        self, Conflict conflict, uint64_t address, uint32_t nbytes, bint store, object where
    ):
        verb = "writes" if store else "reads"
        place = f"{verb} {nbytes} byte(s) of shared memory at {address:#x}"
        if conflict == OUT_OF_BOUNDS:
            name = "shared-out-of-bounds"
            message = f"{place}, outside [{RESERVED_BYTES:#x}, {self.size:#x})."
            advice = "Ask for enough dynamic shared memory, and check the index."
        elif conflict == UNINITIALISED:
            name = "uninitialised-shared"
            message = f"{place} that nobody wrote since the CTA started."
            advice = "Write it first, or wait for the copy that does."
        elif conflict == IN_FLIGHT:
            name = "shared-in-flight"
            message = f"{place} while {self.culprit(address, store)}."
            advice = "Wait for that operation's mbarrier, group or commit first."
        elif conflict == OVERWRITTEN:
            name = "mbarrier-overwritten"
            owner = next(
                (text for start, (size, text) in self.owners.items()
                 if start <= address < start + size), "an mbarrier")
            message = f"{place}, where {owner} lives."
            advice = "Use mbarrier.inval before the memory serves something else."
        else:
            by = "a cp.async of thread" if conflict == UNFENCED_COPY else "thread"
            name = "cp-async-unfenced" if conflict == UNFENCED_COPY else "missing-proxy-fence"
            writer = self.writer[address]
            peer = "" if writer // CTA_THREADS == self.rank else f" of CTA {writer // CTA_THREADS}"
            message = (
                f"{place} through the asynchronous proxy; {by} {writer % CTA_THREADS}{peer} wrote "
                "it through the generic proxy and no fence.proxy.async lies between."
            )
            advice = _FENCE_ADVICE
        if self.faults is None:
            raise Fault(name, message, where=where, advice=advice)
        self.faults(name, message, where=where, advice=advice)

    cdef culprit(self, uint64_t address, bint store):
        for operation, reads, writes in self.in_flight.values():
            for ranges, verb in ((writes, "write"), (reads, "read")):
                if verb == "read" and not store:
                    continue
                for start, nbytes in ranges:
                    if start <= address < start + nbytes:
                        where = operation.where
                        line = f" (line {where.line} `{where.text}`)" if where is not None else ""
                        return f"{operation.name}{line} in flight will {verb} it"
        return "an asynchronous operation in flight uses it"


cdef enum:
    RESERVED_BYTES_C = 1024
    CTA_THREADS = 1024
    MOST_RANKS = 16


cdef uint8_t* pointer8(object array) except NULL:
    cdef uint8_t[::1] view = array
    return &view[0]


cdef uint16_t* pointer16(object array) except NULL:
    cdef uint16_t[::1] view = array
    return &view[0]


cdef uint32_t* pointer32(object array) except NULL:
    cdef uint32_t[::1] view = array
    return &view[0]
