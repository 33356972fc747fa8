"""A decoded kernel: what the run loop of a warp executes."""
from cpython.mem cimport PyMem_Calloc, PyMem_Free

KINDS = {
    "lane": LANE,
    "branch": BRANCH,
    "branch-indexed": BRANCH_INDEXED,
    "exit": EXIT,
    "nothing": NOTHING,
    "load": LOAD,
    "store": STORE,
    "handler": HANDLER,
    "active-mask": ACTIVE_MASK,
}
SPACES = {
    "generic": GENERIC_SPACE,
    "global": GLOBAL_SPACE,
    "shared": SHARED_SPACE,
    "local": LOCAL_SPACE,
    "param": PARAM_SPACE,
}


cdef class Code:
    """A kernel in the form that warps run.

    Parameters
    ----------
    kernel : str
    operations : list of dict
        One a operation, with the fields of `Op` by name (kinds and spaces as words), plus
        "mnemonic", "line", "text", "handler", "touched" (rows of 32-bit registers) and "targets"
        (operations that an indexed branch may go to).
    template : numpy.ndarray of uint8
        Initial register file: poison, with constants in place.
    specials : list of (str, int)
        Special registers and the rows (of 32 bits) that hold them.
    num_predicates, local_bytes : int
    properties : dict
        Static shared memory, parameter layout, directives: see `cakert.sim.decode.binder.decode`.
    """

    def __cinit__(
        self, str kernel, list operations, template, list specials, *, Py_ssize_t num_predicates,
        Py_ssize_t local_bytes, dict properties,
    ):
        cdef Py_ssize_t i
        cdef Py_ssize_t num_touched = sum(len(entry.get("touched", ())) for entry in operations)
        cdef Py_ssize_t num_targets = sum(len(entry.get("targets", ())) for entry in operations)
        self.kernel = kernel
        self.template = template
        self.specials = specials
        self.num_predicates = num_predicates
        self.local_bytes = local_bytes
        self.properties = properties
        self.operations = [(e["mnemonic"], e["line"], e["text"]) for e in operations]
        self.handlers = [e.get("handler") for e in operations]
        self.count = len(operations)
        self.ops = <Op*>PyMem_Calloc(max(self.count, 1), sizeof(Op))
        self.touched = <int32_t*>PyMem_Calloc(num_touched + 1, sizeof(int32_t))
        self.targets = <int32_t*>PyMem_Calloc(num_targets + 1, sizeof(int32_t))
        if self.ops == NULL or self.touched == NULL or self.targets == NULL:
            raise MemoryError()
        cdef int32_t touched = 0
        cdef int32_t targets = 0
        cdef Op* op
        for i in range(self.count):
            entry = operations[i]
            op = &self.ops[i]
            op.kind = KINDS[entry["kind"]]
            op.flags = flags_of(entry)
            op.space = SPACES[entry.get("space", "generic")]
            op.width = entry.get("width", 0)
            op.vector = entry.get("vector", 0)
            op.register_bits = entry.get("register_bits", 32)
            op.address_bits = entry.get("address_bits", 64)
            op.guard = entry.get("guard", 0)
            op.members = entry.get("members", 0)
            op.address = entry.get("address", 0)
            op.offset = entry.get("offset", 0)
            for j, row in enumerate(entry.get("rows", ())):
                op.rows[j] = row
            op.touched_begin = touched
            for row in entry.get("touched", ()):
                self.touched[touched] = row
                touched += 1
            op.touched_end = touched
            op.target = entry.get("target", 0)
            if op.kind == BRANCH_INDEXED:
                op.target = targets
                op.num_targets = len(entry["targets"])
                for target in entry["targets"]:
                    self.targets[targets] = target
                    targets += 1
            if op.kind == LANE:
                op.lane.function = entry["function"]
                op.lane.extra = entry.get("extra", 0)
                op.lane.flags = entry.get("lane_flags", 0)
                op.lane.immediate = entry.get("immediate", 0)
                for j, row in enumerate(entry["lane_rows"]):
                    op.lane.row[j] = row

    def __dealloc__(self):
        PyMem_Free(self.ops)
        PyMem_Free(self.touched)
        PyMem_Free(self.targets)


cdef uint8_t flags_of(dict entry) except? 255:
    cdef uint8_t flags = 0
    if entry.get("leader"):
        flags |= LEADER
    if entry.get("aligned"):
        flags |= ALIGNED
    if "members" in entry:
        flags |= MEMBERS
    if "guard" in entry:
        flags |= GUARDED
        if entry.get("guard_negated"):
            flags |= GUARD_NEGATED
    if entry.get("signed"):
        flags |= SIGNED
    if entry.get("synchronises"):
        flags |= SYNCHRONISES
    return flags
