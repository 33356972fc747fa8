"""One warp of a simulated CTA: its registers, its paths, and the loop that runs it.

Lanes that branch apart become *paths*, each with its own program counter. The path with the lowest
counter runs first, which brings lanes together again where the compiler laid out the code after
the branches; an instruction that needs other lanes (``.aligned``, a membermask) holds a path until
they have come to it. So every lane makes progress by itself, as on GPUs since Volta (PTX ISA
"Independent thread scheduling"), and lanes converge where an instruction demands it.
"""
from libc.stdint cimport int8_t, int16_t
from libc.string cimport memcpy, memset

import numpy as np

from cakert.sim.core.code cimport (
    ACTIVE_MASK, ALIGNED, BRANCH, BRANCH_INDEXED, EXIT, GENERIC_SPACE, GLOBAL_SPACE, GUARDED,
    GUARD_NEGATED, HANDLER, LANE, LEADER, LOAD, LOCAL_SPACE, MEMBERS, NOTHING, PARAM_SPACE,
    SHARED_SPACE, SIGNED, STORE, SYNCHRONISES,
)
from cakert.sim.core.lane_ops cimport lane_functions
from cakert.sim.core.shared_memory cimport NO_CONFLICT, OUT_OF_BOUNDS, Conflict

from cakert.sim.core.specials import special_value
from cakert.sim.faults import Where

RUNNING, BLOCKED, EXITED = 0, 1, 2

cdef extern from *:
    int __builtin_popcount(unsigned int) noexcept nogil

cdef uint64_t WINDOW_MASK = (<uint64_t>1 << 48) - 1

cdef enum:
    WINDOW_SHIFT = 48
    RANK_SHIFT = 24
    OFFSET_MASK = 0xFFFFFF
    BANKS = 32
    # Operations of the budget that a Python handler counts for beside its own.
    HANDLER_COST = 49
    # Operations after which lanes that went apart take turns: one may wait for another.
    PATH_QUANTUM = 250

cdef class Warp:
    """Thirty-two lanes of a CTA.

    Parameters
    ----------
    cta : Cta
        With ``launch`` (``memory``, ``param_bytes``, ``fault``), ``shared``, ``cluster``,
        ``rank``, ``ctaid``.
    index : int
        Of the warp in its CTA.
    code : Code
    num_threads : int
        Threads of the CTA; lanes past it never start.

    Attributes
    ----------
    file32, file64 : numpy.ndarray
        The register file as rows of 32 lanes: uint32 and uint64 views of the same bytes.
    predicates : numpy.ndarray of uint32
        A mask of lanes each.
    live : int
        Mask of the lanes that have not exited.
    synchronised : int
        Clock of generic writes at its latest barrier or wait for one.
    counts, lanes : numpy.ndarray of uint64
        How often each operation was executed, and in how many lanes all told.
    """

    def __cinit__(self, cta, Py_ssize_t index, Code code, Py_ssize_t num_threads):
        cdef uint8_t[::1] file
        cdef uint32_t[::1] predicates
        cdef uint64_t[::1] counts
        cdef uint8_t[::1] bytes_
        cdef const uint8_t[::1] params
        self.cta = cta
        self.index = index
        self.code = code
        self.shared = cta.shared
        self.memory = cta.launch.memory
        self.first_thread = 1024 * cta.rank + 32 * index
        self.synchronised = 0

        # A row of 64 bits starts at a multiple of 256 bytes.
        self.file = np.array(code.template, np.uint8)
        self.file32 = self.file.view(np.uint32).reshape(-1, 32)
        self.file64 = self.file.view(np.uint64).reshape(-1, 32)
        file = self.file
        self.registers = &file[0]
        self.predicates = np.zeros(code.num_predicates + 1, np.uint32)
        predicates = self.predicates
        self.preds = &predicates[0]
        self.counts = np.zeros(code.count + 1, np.uint64)
        counts = self.counts
        self.executed = &counts[0]
        self.lanes = np.zeros(code.count + 1, np.uint64)
        counts = self.lanes
        self.executed_lanes = &counts[0]
        self.wavefronts = np.zeros(code.count + 1, np.uint64)
        counts = self.wavefronts
        self.extra_wavefronts = &counts[0]
        self.busy_array = np.zeros(len(self.file32) + 1, np.uint8)
        bytes_ = self.busy_array
        self.busy = &bytes_[0]
        self.busy_lines = {}
        self.local_array = np.full(32 * code.local_bytes + 1, 0xFF, np.uint8)
        bytes_ = self.local_array
        self.local = &bytes_[0]
        self.parameters = np.frombuffer(bytes(cta.launch.param_bytes) + b"\0", np.uint8)
        params = self.parameters
        self.params = &params[0]
        self.params_size = len(self.parameters) - 1

        threads = np.arange(32 * index, 32 * index + 32)
        for name, row in code.specials:
            self.file32[row] = special_value(cta, name, threads)
        cdef Py_ssize_t lanes = min(max(num_threads - 32 * index, 0), 32)
        self.live = <uint32_t>((<uint64_t>1 << lanes) - 1)
        self.num_paths = 1
        self.path_pc[0] = 0
        self.path_mask[0] = self.live
        self.path_state[0] = READY
        self.path_waits = [None] * 32
        self.pc = 0
        self.rotate = False
        if self.live == 0:
            self.num_paths = 0

    # --- running ----------------------------------------------------------------------------

    def run(self, int64_t budget):
        """Execute up to ``budget`` operations.

        Returns
        -------
        int
            RUNNING (the budget is used up), BLOCKED (no lane can go on) or EXITED.
        """
        cdef Op* ops = self.code.ops
        cdef Op* op
        cdef Py_ssize_t path
        cdef int32_t pc
        cdef uint32_t mask
        cdef uint32_t active
        cdef uint32_t taken
        cdef int64_t left = budget
        cdef int64_t chosen
        cdef bint keep
        while self.num_paths > 0:
            # After a slice that ran out, the lanes furthest ahead get one: a loop that polls what
            # they will write would otherwise keep them waiting for ever.
            keep = self.rotate
            chosen = left
            path = self.select()
            self.rotate = False
            if path < 0:
                return BLOCKED
            keep = keep or self.path_state[path] == GATHERING
            self.path_state[path] = READY
            pc = self.path_pc[path]
            mask = self.path_mask[path]
            while True:
                if left <= 0:
                    self.path_pc[path] = pc
                    self.path_mask[path] = mask
                    self.rotate = self.num_paths > 1
                    return RUNNING
                op = &ops[pc]
                self.pc = pc
                if self.num_paths > 1 and op.flags & (LEADER | ALIGNED | MEMBERS):
                    self.path_pc[path] = pc
                    path = self.merge(path)
                    mask = self.path_mask[path]
                    if chosen - left > PATH_QUANTUM and self.num_paths > 1:
                        self.rotate = True
                        break
                    if not keep and self.lower_ready(path):
                        break
                if op.flags & (ALIGNED | MEMBERS):
                    self.path_pc[path] = pc
                    if not self.gathered(path):
                        self.path_state[path] = GATHERING
                        break
                    if op.kind == NOTHING and self.num_paths > 1:
                        self.release_barrier(path)
                    keep = False
                active = mask
                if op.flags & GUARDED:
                    taken = self.preds[op.guard]
                    active &= ~taken if op.flags & GUARD_NEGATED else taken
                left -= 1
                self.executed[pc] += 1
                self.executed_lanes[pc] += __builtin_popcount(active)
                if op.flags & MEMBERS and active != 0:
                    self.check_members(op, active)
                if self.num_busy > 0 and active != 0 and op.touched_end > op.touched_begin:
                    check_busy(self, op)
                if active == 0:
                    pc += 1
                elif op.kind == LANE:
                    lane_functions[op.lane.function](&op.lane, self.registers, self.preds, active)
                    pc += 1
                elif op.kind == LOAD:
                    load(self, op, active)
                    pc += 1
                elif op.kind == STORE:
                    store(self, op, active)
                    pc += 1
                elif op.kind == BRANCH:
                    if active == mask:
                        pc = op.target
                    else:
                        self.path_pc[path] = pc + 1
                        self.path_mask[path] = mask & ~active
                        self.add(op.target, active, READY, None)
                        break
                elif op.kind == HANDLER:
                    self.path_pc[path] = pc
                    left -= HANDLER_COST
                    wait = self.code.handlers[pc](self, active)
                    if wait is None:
                        if op.flags & SYNCHRONISES:
                            self.synchronised = self.shared.clock.now
                        pc += 1
                    else:
                        if active != mask:
                            self.add(pc + 1, mask & ~active, READY, None)
                        self.path_mask[path] = active
                        self.path_state[path] = WAITING
                        self.path_waits[path] = wait
                        break
                elif op.kind == EXIT:
                    self.live &= ~active
                    if active == mask:
                        self.drop(path)
                    else:
                        self.path_pc[path] = pc + 1
                        self.path_mask[path] = mask & ~active
                    break
                elif op.kind == BRANCH_INDEXED:
                    self.branch_indexed(path, op, active)
                    break
                elif op.kind == ACTIVE_MASK:
                    put_active_mask(self, op, active)
                    pc += 1
                else:
                    pc += 1
        return EXITED

    def poll(self):
        """Look whether what blocked paths wait for has happened.

        Returns
        -------
        bool
            Whether the warp can go on.
        """
        cdef Py_ssize_t path
        for path in range(self.num_paths):
            if self.path_state[path] == WAITING:
                wait = self.path_waits[path]
                if wait.ready():
                    self.path_waits[path] = None
                    self.pc = self.path_pc[path]
                    if wait.finish is not None:
                        wait.finish()
                    if self.code.ops[self.path_pc[path]].flags & SYNCHRONISES:
                        self.synchronised = self.shared.clock.now
                    self.path_pc[path] += 1
                    self.path_state[path] = READY
        return self.num_paths > 0 and self.select() >= 0

    def waits(self):
        """What each path that cannot go on waits for.

        Returns
        -------
        list of (Wait or None, int, int)
            The wait (None: other lanes of the warp), line in the PTX text, and mask of lanes.
        """
        return [
            (
                self.path_waits[path],
                self.code.operations[self.path_pc[path]][1],
                self.path_mask[path],
            )
            for path in range(self.num_paths)
            if self.path_state[path] != READY
        ]

    def where(self):
        """The place of the operation that is being executed."""
        _, line, text = self.code.operations[self.pc]
        return Where(self.code.kernel, line, text, tuple(self.cta.ctaid), self.index)

    def mark_busy(self, rows32, int line):
        """Declare that an asynchronous instruction at ``line`` owns these registers."""
        cdef Py_ssize_t row
        for row in rows32:
            if not self.busy[row]:
                self.num_busy += 1
            self.busy[row] = 1
            self.busy_lines[row] = line

    def clear_busy(self, rows32):
        """End what `mark_busy` began."""
        cdef Py_ssize_t row
        for row in rows32:
            if self.busy[row]:
                self.num_busy -= 1
            self.busy[row] = 0

    # --- paths ------------------------------------------------------------------------------

    cdef Py_ssize_t select(self):
        """The path to run next, or -1: the lowest counter, the highest after a slice ran out."""
        cdef Py_ssize_t path
        cdef Py_ssize_t best = -1
        for path in range(self.num_paths):
            if self.path_state[path] == READY and (
                best < 0 or (self.path_pc[path] < self.path_pc[best]) != self.rotate
            ):
                best = path
        if best >= 0:
            return best
        for path in range(self.num_paths):
            # Lanes that others waited for may have exited meanwhile.
            if self.path_state[path] == GATHERING and self.gathered(path):
                return path
        return -1

    cdef bint gathered(self, Py_ssize_t path):
        """Whether all lanes that the path's instruction needs are on the path."""
        cdef Op* op = &self.code.ops[self.path_pc[path]]
        cdef uint32_t mask = self.path_mask[path]
        cdef uint32_t need = 0
        cdef uint32_t* members
        cdef Py_ssize_t lane
        cdef Py_ssize_t other
        if op.flags & ALIGNED:
            need = self.live
        else:
            members = <uint32_t*>(self.registers + 128 * <Py_ssize_t>op.members)
            for lane in range(32):
                if (mask >> lane) & 1:
                    need |= members[lane]
            need &= self.live
            if op.kind == NOTHING:
                # bar.warp.sync joins lanes wherever they execute one, not only at one place.
                for other in range(self.num_paths):
                    if other != path and self.at_warp_barrier(other):
                        mask |= self.path_mask[other]
        return need & ~mask == 0

    cdef bint at_warp_barrier(self, Py_ssize_t path):
        cdef Op* op = &self.code.ops[self.path_pc[path]]
        return (
            self.path_state[path] == GATHERING and op.kind == NOTHING and (op.flags & MEMBERS) != 0
        )

    cdef release_barrier(self, Py_ssize_t path):
        """Let the paths go on that wait at another bar.warp.sync for the lanes of this one."""
        cdef Py_ssize_t other
        cdef Py_ssize_t lane
        cdef uint32_t mask = self.path_mask[path]
        cdef uint32_t need = 0
        cdef Op* op = &self.code.ops[self.path_pc[path]]
        cdef uint32_t* members = <uint32_t*>(self.registers + 128 * <Py_ssize_t>op.members)
        for lane in range(32):
            if (mask >> lane) & 1:
                need |= members[lane]
        for other in range(self.num_paths):
            if other != path and self.at_warp_barrier(other) and self.path_mask[other] & need:
                self.path_pc[other] += 1
                self.path_state[other] = READY

    cdef int check_members(self, Op* op, uint32_t active) except -1:
        cdef uint32_t* members = <uint32_t*>(self.registers + 128 * <Py_ssize_t>op.members)
        cdef Py_ssize_t lane
        for lane in range(32):
            if (active >> lane) & 1 and not (members[lane] >> lane) & 1:
                self.cta.launch.fault(
                    "lane-outside-membermask",
                    f"lane {lane} executes it with the membermask {members[lane]:#010x}.",
                    where=self.where(),
                    advice="Every lane that executes the instruction must be in its mask.",
                )
                return 0
        return 0

    cdef Py_ssize_t merge(self, Py_ssize_t path):
        """Join the other paths that stand at the same instruction; the path's new number."""
        cdef Py_ssize_t other = 0
        cdef Py_ssize_t last
        while other < self.num_paths:
            if (
                other != path and self.path_pc[other] == self.path_pc[path]
                and self.path_state[other] != WAITING
            ):
                self.path_mask[path] |= self.path_mask[other]
                last = self.num_paths - 1
                self.drop(other)
                if path == last:
                    path = other
            else:
                other += 1
        return path

    cdef bint lower_ready(self, Py_ssize_t path):
        cdef Py_ssize_t other
        for other in range(self.num_paths):
            if self.path_state[other] == READY and self.path_pc[other] < self.path_pc[path]:
                return True
        return False

    cdef drop(self, Py_ssize_t path):
        cdef Py_ssize_t last = self.num_paths - 1
        self.path_pc[path] = self.path_pc[last]
        self.path_mask[path] = self.path_mask[last]
        self.path_state[path] = self.path_state[last]
        self.path_waits[path] = self.path_waits[last]
        self.path_waits[last] = None
        self.num_paths = last

    cdef Py_ssize_t add(self, int32_t pc, uint32_t mask, int32_t state, object wait) except -1:
        cdef Py_ssize_t path = self.num_paths
        if path >= 32:
            raise AssertionError("more paths than lanes")
        self.path_pc[path] = pc
        self.path_mask[path] = mask
        self.path_state[path] = state
        self.path_waits[path] = wait
        self.num_paths = path + 1
        return path

    cdef int branch_indexed(self, Py_ssize_t path, Op* op, uint32_t active) except -1:
        """Send each lane to the target that its index names (``brx.idx``)."""
        cdef uint32_t* index = <uint32_t*>(self.registers + 128 * <Py_ssize_t>op.address)
        cdef uint32_t rest = self.path_mask[path] & ~active
        cdef uint32_t group
        cdef Py_ssize_t lane
        cdef Py_ssize_t other
        cdef uint32_t value
        cdef bint first = True
        cdef int32_t target
        while active:
            lane = 0
            while not (active >> lane) & 1:
                lane += 1
            value = index[lane]
            if value >= <uint32_t>op.num_targets:
                self.cta.launch.fault(
                    "branch-out-of-range",
                    f"lane {lane} branches by index {value}; the list has {op.num_targets} labels.",
                    where=self.where(), advice="The index of brx.idx must be within the list.",
                )
                value = 0
            group = 0
            for other in range(lane, 32):
                if (active >> other) & 1 and index[other] == index[lane]:
                    group |= <uint32_t>1 << other
            active &= ~group
            target = self.code.targets[op.target + value]
            if first:
                self.path_pc[path] = target
                self.path_mask[path] = group
                first = False
            else:
                self.add(target, group, READY, None)
        if rest:
            self.add(<int32_t>(self.pc + 1), rest, READY, None)
        return 0


include "memory_access.pxi"
