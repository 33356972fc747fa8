# Included by vsa_launch.pyx: what a run does with views of its tensors that needs no plan.
import sys

from libc.stdint cimport int64_t, uint64_t

from cakert.runtime.tensor cimport TensorView

from cakert import arrays

cdef enum:
    Q = 0
    K = 1
    V = 2
    OUT = 3
    LSE = 4
    NUM_TENSORS = 5
    NUM_MAPS = 4                     # q, k, v and out: lse is written element by element

cdef tuple NAMES = ("q", "k", "v", "out", "lse")


cdef void set_addresses(
    CakeVsaParams* params, const TensorView* views, bint with_lse
) noexcept nogil:
    params.q = views[Q].data
    params.k = views[K].data
    params.v = views[V].data
    params.out = views[OUT].data
    params.lse = <float*>views[LSE].data if with_lse else NULL


cdef tuple axes(const int64_t* values, int ndim):
    return tuple([values[axis] for axis in range(ndim)])


cdef int refuse_grad(int which) except -1:
    # Only torch gives the attribute this meaning, and only while grad is recorded.
    torch = sys.modules.get("torch")
    if torch is not None and torch.is_grad_enabled():
        raise RuntimeError(
            f"{NAMES[which]} requires grad, and run_cake_vsa is forward only: detach the tensor or "
            "call under torch.no_grad()"
        )
    return 0


cdef int refuse_read_only(int which, object tensor, const TensorView* view) except -1:
    # JAX exports its immutable arrays without the read-only flag. A borrowed view is never JAX's.
    if view.readonly or (view.owner != NULL and arrays.framework_of(tensor) == "jax"):
        raise ValueError(f"{NAMES[which]} is read-only: it must be writable memory")
    return 0


cdef uint64_t num_bytes(const TensorView* view) noexcept nogil:
    cdef uint64_t count = view.bits // 8
    cdef int axis
    for axis in range(view.ndim):
        count *= <uint64_t>view.shape[axis]
    return count


cdef int refuse_overlap(int output, int other, const TensorView* views) except -1:
    cdef uint64_t a = <uint64_t>views[output].data
    cdef uint64_t b = <uint64_t>views[other].data
    if a < b + num_bytes(&views[other]) and b < a + num_bytes(&views[output]):
        raise ValueError(
            f"{NAMES[output]} overlaps {NAMES[other]}: it must have memory of its own"
        )
    return 0
