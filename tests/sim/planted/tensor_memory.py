"""tcgen05 on sm_100a: D (128 x 16) = A (128 x 64) @ B (16 x 64).T in tensor memory."""

from __future__ import annotations

from planted.record import Planted
from planted.snippets import bulk_load, fill, init, leader, wait
from planted.tiles import images, product, tile_bytes

M, N = 128, 16
IMAGE_BYTES = tile_bytes(M) + tile_bytes(N)
# PTX ISA 9.7.16.4.1: 128-byte swizzle, 8-row groups 1024 bytes apart, constant in bits 46 to 48.
DESCRIPTOR = 2 << 61 | 1 << 46 | 1024 >> 4 << 32
# bf16 x bf16 -> f32, K-major, M and N (PTX ISA 9.7.16.4.2).
INSTRUCTION = 0x490 | N // 8 << 17 | M // 16 << 24
STEPS = 4
COLUMNS = 32

VALUES = ", ".join(f"%r{16 + i}" for i in range(N))


def allocate(mark: str = "") -> str:
    """Warp 0 allocates; all read the address, and barriers 0 to 2 take one arrival."""
    return (
        f"""
    .reg .b32 tmem, mylanes;
    setp.ne.u32 %p3, warp, 0;
    @%p3 bra ALLOCATED;
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [slot], {COLUMNS}; {mark}
    tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
ALLOCATED:
"""
        + init(1, 1, 1)
        + """
    ld.shared.u32 tmem, [slot];
    shl.b32 mylanes, warp, 21;
    add.u32 mylanes, tmem, mylanes;      // of this warp's quarter
"""
    )


def operands(fence_mark: str = "") -> str:
    """Fill A and B by generic stores."""
    return (
        fill(IMAGE_BYTES, 128)
        + f"""
    fence.proxy.async.shared::cta; {fence_mark}
    bar.sync 0;
"""
    )


def multiply(
    *,
    mark: str = "",
    constant: str | None = None,
    word: str | None = None,
    b_offset: str | None = None,
    first: str = "setp.ne.u32 %p5, thread, thread;",
    commit_mark: str = "",
    steps: int = STEPS,
) -> str:
    """Thread 0 issues four steps of K = 16 and a commit to barrier 0; ``mark`` on the first."""
    issue = "tcgen05.mma.cta_group::1.kind::f16 [tmem], %rd12, %rd13, %r13, %p5;"
    later = f"""
    setp.eq.u32 %p5, thread, thread;
    add.s64 %rd12, %rd12, 2;
    add.s64 %rd13, %rd13, 2;
    {issue}
"""
    return f"""
    shr.u32 %r12, ring, 4;
    cvt.u64.u32 %rd12, %r12;
    {constant or f"mov.b64 %rd11, {DESCRIPTOR};"}
    or.b64 %rd12, %rd12, %rd11;
    {b_offset or f"add.s64 %rd13, %rd12, {tile_bytes(M) >> 4};"}
    {word or f"mov.u32 %r13, {INSTRUCTION:#x};"}
    setp.ne.u32 %p4, thread, 0;
    @%p4 bra ISSUED;
    {first}
    {issue} {mark}
{later * (steps - 1)}
    tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [bar]; {commit_mark}
ISSUED:
"""


SYNC = "    bar.sync 0;\n"
AFTER = "    tcgen05.fence::after_thread_sync;\n"
DONE = wait(0, 0) + AFTER


def load(mark: str = "", wait_mark: str = "", address: str = "mylanes") -> str:
    """Each thread loads its row of D."""
    return f"""
    tcgen05.ld.sync.aligned.32x32b.x16.b32 {{{VALUES}}}, [{address}]; {mark}
    tcgen05.wait::ld.sync.aligned; {wait_mark}
"""


STORE = """
    mul.wide.u32 %rd14, thread, 64;
    add.s64 %rd14, out, %rd14;
""" + "".join(
    f"    st.global.v4.b32 [%rd14+{4 * i}], {{%r{16 + i}, %r{17 + i}, %r{18 + i}, %r{19 + i}}};\n"
    for i in range(0, N, 4)
)


def free(mark: str = "") -> str:
    """All are done, and warp 0 frees."""
    return f"""
    tcgen05.fence::before_thread_sync;
    bar.sync 0;
    @%p3 bra FREED;
    tcgen05.dealloc.cta_group::1.sync.aligned.b32 tmem, {COLUMNS}; {mark}
FREED:
"""


def planted(name: str, fault: str, body: str, *more, **options) -> Planted:
    """A record with the launch of these kernels."""
    return Planted(
        name,
        fault,
        body,
        *more,
        **{
            "threads": 128,
            "shared": IMAGE_BYTES,
            "source": images(M, N),
            "expected": product(M, N, 16 * STEPS),
            **options,
        },
    )


STORE_TENSOR = "    tcgen05.st.sync.aligned.32x32b.x16.b32 [mylanes], {" + VALUES + "}; "

FAULTS = [
    planted(
        "tcgen05_ld_before_the_commit",
        "tmem-in-flight",
        allocate()
        + operands()
        + multiply(mark="//&")
        + SYNC
        + wait(0, 0, "//+")
        + AFTER
        + load("//!")
        + STORE
        + wait(0, 0)
        + free(),
        ("lazy", "random"),
    ),
    planted(
        "tcgen05_mma_without_commit",
        "tcgen05-uncommitted",
        allocate()
        + operands()
        + multiply(mark="//&", commit_mark="//+")
        + SYNC
        + wait(0, 0, "//+")
        + AFTER
        + load("//!")
        + STORE
        + free(),
    ),
    planted(
        "tcgen05_commit_by_another_thread",
        "tcgen05-uncommitted",
        allocate()
        + operands()
        + multiply(mark="//&")
        .replace(
            "    tcgen05.commit",
            "ISSUED: bar.warp.sync 0xffffffff; //-\n"
            "    setp.ne.u32 %p4, thread, 1; //-\n"
            "    @%p4 bra COMMITTED; //-\n"
            "    tcgen05.commit",
        )
        .replace("ISSUED:\n", "ISSUED: //+\nCOMMITTED:\n")
        + SYNC
        + DONE
        + load("//!")
        + STORE
        + free(),
    ),
    planted(
        "tcgen05_mma_before_the_operands_are_there",
        "shared-in-flight",
        allocate()
        + leader(bulk_load(IMAGE_BYTES, 1, mark="//&"), "LOADED")
        + wait(1, 0, "//+")
        + multiply(mark="//!")
        + wait(1, 0)
        + DONE
        + load()
        + STORE
        + free(),
        ("lazy",),
    ),
    planted(
        "accumulator_overwritten_before_it_is_read",
        "tmem-in-flight",
        allocate()
        + operands()
        + multiply()
        + DONE
        + load(wait_mark="//+").replace("]; ", "]; //+")
        + "    tcgen05.fence::before_thread_sync;\n"
        + SYNC
        + AFTER
        + multiply(mark="//&").replace("ISSUED", "ISSUED_AGAIN")
        + "    bar.sync 0; //-\n"
        + load("//-!", "//-")
        + STORE
        + wait(0, 1)
        + free(),
        ("lazy",),
    ),
    planted(
        "tcgen05_without_wait_ld",
        "tcgen05-missing-wait-ld",
        allocate()
        + operands()
        + multiply()
        + DONE
        + load("//&", "//+")
        + "".join(f"    mov.b32 %r{32 + i}, 0;\n" for i in range(N))
        + STORE_TENSOR.replace(VALUES, ", ".join(f"%r{32 + i}" for i in range(N)))
        + "//!\n"
        + """
    tcgen05.wait::st.sync.aligned;
"""
        + STORE
        + free(),
        is_note=True,
    ),
    planted(
        "tcgen05_without_wait_st",
        "tmem-store-in-flight",
        allocate()
        + operands()
        + multiply()
        + DONE
        + load()
        + STORE_TENSOR
        + "//&\n"
        + """
    tcgen05.wait::st.sync.aligned; //+
"""
        + load("//!")
        + STORE
        + free(),
    ),
    planted(
        "tcgen05_without_proxy_fence",
        "missing-proxy-fence",
        allocate() + operands("//+") + multiply(mark="//!") + DONE + load() + STORE + free(),
        says=("generic proxy",),
    ),
    planted(
        "copy_into_a_slot_that_tcgen05_reads",
        "shared-in-flight",
        allocate()
        + leader(bulk_load(IMAGE_BYTES, 1), "LOADED")
        + wait(1, 0)
        + multiply(mark="//&")
        + wait(0, 0, "//+")
        + leader(bulk_load(IMAGE_BYTES, 2, offset=IMAGE_BYTES, mark="//!"), "REFILLED")
        + wait(2, 0)
        + DONE
        + load()
        + STORE
        + free(),
        ("lazy",),
        source=images(M, N, 2),
    ),
    planted(
        "tensor_memory_leak",
        "tmem-leak",
        allocate("//!") + operands() + multiply() + DONE + load() + STORE + free("//+"),
    ),
    planted(
        "tensor_memory_freed_twice",
        "tmem-double-free",
        allocate()
        + operands()
        + multiply()
        + DONE
        + load()
        + STORE
        + free("//&").replace(
            "FREED:",
            "    tcgen05.dealloc.cta_group::1.sync.aligned.b32 tmem, 32; //-!\nFREED:",
        ),
    ),
    planted(
        "tensor_memory_columns_out_of_bounds",
        "tmem-out-of-bounds",
        allocate()
        + operands()
        + multiply()
        + DONE
        + """
    add.u32 mylanes, mylanes, 24; //-
"""
        + load("//!")
        + STORE
        + free(),
        says=("columns 24..39", "32 columns at 0x0"),
    ),
    planted(
        "tensor_memory_of_another_warp",
        "tmem-wrong-warp",
        allocate()
        + operands()
        + multiply()
        + DONE
        + """
    mov.u32 mylanes, tmem; //-
"""
        + load("//!")
        + STORE
        + free(),
        says=("reaches lanes",),
    ),
    planted(
        "tcgen05_accumulates_on_nothing",
        "tmem-uninitialised",
        allocate()
        + operands()
        + multiply(
            mark="//!",
            first="setp.eq.u32 %p5, thread, thread; //-\n    setp.ne.u32 %p5, thread, thread; //+",
        )
        + DONE
        + load()
        + STORE
        + free(),
    ),
    planted(
        "mma_issued_by_two_lanes",
        "tcgen05-mma-multiple-lanes",
        allocate()
        + operands()
        + multiply(mark="//!").replace(
            "setp.ne.u32 %p4, thread, 0;",
            "setp.gt.u32 %p4, thread, 1; //-\n    setp.ne.u32 %p4, thread, 0; //+",
        )
        + DONE
        + load()
        + STORE
        + free(),
    ),
    planted(
        "tensor_memory_freed_under_an_mma",
        "tmem-in-flight",
        allocate()
        + operands()
        + multiply()
        + DONE
        + load()
        + STORE
        + "    tcgen05.fence::before_thread_sync;\n"
        + SYNC
        + AFTER
        + multiply(mark="//&").replace("ISSUED", "ISSUED_AGAIN")
        + wait(0, 1, "//+")
        + free("//!"),
        ("lazy",),
    ),
]
