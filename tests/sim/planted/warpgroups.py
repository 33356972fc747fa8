"""wgmma on sm_90a: D (64 x 8) = A (64 x 64) @ B (8 x 64).T by one warpgroup."""

from __future__ import annotations

from planted.record import Planted
from planted.snippets import bulk_load, fill, init, leader, wait
from planted.tiles import images, product, tile_bytes, warpgroup_fragment

M, N = 64, 8
IMAGE_BYTES = tile_bytes(M) + tile_bytes(N)
# 128-byte swizzle, 8-row groups 1024 bytes apart (PTX ISA 9.7.15.5.1.2.2).
DESCRIPTOR = 1 << 62 | 1024 >> 4 << 32
STEPS = 4

SYNC = """
    fence.proxy.async.shared::cta; {mark}
    bar.sync 0;
"""


def descriptors(constant: str | None = None) -> str:
    """Build the descriptors of A and B in %rd12 and %rd13."""
    return f"""
    shr.u32 %r12, ring, 4;
    cvt.u64.u32 %rd12, %r12;
    {constant or f"mov.b64 %rd11, {DESCRIPTOR};"}
    or.b64 %rd12, %rd12, %rd11;
    add.s64 %rd13, %rd12, {tile_bytes(M) >> 4};
"""


def multiply(mark: str = "", *, second: str = "", advance: str | None = None) -> str:
    """Four steps of K = 16; marks on the first and the second."""
    return "".join(
        f"""
    wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {mark if i == 0 else second * (i == 1)}
        {{%f0, %f1, %f2, %f3}}, %rd12, %rd13, {int(i > 0)}, 1, 1, 0, 0;
{advance or "    add.s64 %rd12, %rd12, 2;"}
    add.s64 %rd13, %rd13, 2;
"""
        for i in range(STEPS)
    )


STORE = """
    mul.wide.u32 %rd14, thread, 16;
    add.s64 %rd14, out, %rd14;
    st.global.v4.f32 [%rd14], {%f0, %f1, %f2, %f3};
"""
FENCE = "    wgmma.fence.sync.aligned;\n"
COMMIT = "    wgmma.commit_group.sync.aligned;\n"
WAIT = "    wgmma.wait_group.sync.aligned 0;\n"


def _planted(name, fault, body, *more, **options):
    return Planted(
        name,
        fault,
        body,
        *more,
        **{
            "threads": 128,
            "target": "sm_90a",
            "directives": ".maxntid 128, 1, 1",
            "shared": IMAGE_BYTES,
            "source": images(M, N),
            "expected": lambda source: warpgroup_fragment(product(M, N, 64)(source)),
            **options,
        },
    )


# A of the first step in registers: row lane % 16 of the warp's rows, half lane / 16 of K.
A_REGISTERS = """
    and.b32 %r20, lane, 15;
    shl.b32 %r21, warp, 4;
    add.u32 %r20, %r20, %r21;
    shl.b32 %r20, %r20, 7;
    shr.u32 %r21, lane, 4;
    and.b32 %r22, lane, 7;
    xor.b32 %r21, %r21, %r22;
    shl.b32 %r21, %r21, 4;
    add.u32 %r20, %r20, %r21;
    add.u32 %r20, %r20, ring;
    ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r24, %r25, %r26, %r27}, [%r20];
"""
MULTIPLY_REGISTERS = """
    wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 //!
        {%f0, %f1, %f2, %f3}, {%r24, %r25, %r26, %r27}, %rd13, 0, 1, 1, 0;
"""

FAULTS = [
    _planted(
        "wgmma_without_wait_group",
        "register-in-flight",
        fill(IMAGE_BYTES, 128)
        + SYNC.format(mark="")
        + descriptors()
        + FENCE
        + multiply("//&")
        + COMMIT
        + WAIT.replace(";", "; //+")
        + STORE.replace("%f3};", "%f3}; //!"),
    ),
    _planted(
        "wgmma_without_proxy_fence",
        "missing-proxy-fence",
        fill(IMAGE_BYTES, 128)
        + SYNC.format(mark="//+")
        + descriptors()
        + FENCE
        + multiply("//!")
        + COMMIT
        + WAIT
        + STORE,
        says=("generic proxy",),
    ),
    _planted(
        "wgmma_without_fence",
        "wgmma-no-fence",
        fill(IMAGE_BYTES, 128)
        + SYNC.format(mark="")
        + descriptors()
        + FENCE.replace(";", "; //+")
        + multiply("//!")
        + COMMIT
        + WAIT
        + STORE,
    ),
    _planted(
        "wgmma_descriptor_advanced_by_a_row",
        "descriptor-invalid",
        fill(IMAGE_BYTES, 128)
        + SYNC.format(mark="")
        + descriptors()
        + FENCE
        + multiply(
            second="//!",
            advance="    add.s64 %rd12, %rd12, 8; //-\n    add.s64 %rd12, %rd12, 2; //+",
        )
        + COMMIT
        + WAIT
        + STORE,
        says=("row 1 of its 128-byte swizzle pattern",),
    ),
    _planted(
        "wgmma_descriptor_of_blackwell",
        "descriptor-invalid",
        fill(IMAGE_BYTES, 128)
        + SYNC.format(mark="")
        + descriptors(
            f"mov.b64 %rd11, {1 << 46 | 2 << 61 | 1024 >> 4 << 32}; //-\n"
            f"    mov.b64 %rd11, {DESCRIPTOR}; //+"
        )
        + FENCE
        + multiply("//!")
        + COMMIT
        + WAIT
        + STORE,
        says=("reserved bits 46-48",),
    ),
    _planted(
        "wgmma_before_the_operands_are_there",
        "shared-in-flight",
        init(1)
        + leader(bulk_load(IMAGE_BYTES, mark="//&"), "ISSUED")
        + "    bar.sync 0;\n"
        + wait(0, 0, "//+")
        + descriptors()
        + FENCE
        + multiply("//!")
        + COMMIT
        + wait(0, 0)
        + WAIT
        + STORE,
        ("lazy", "random"),
    ),
    _planted(
        "copy_into_a_slot_that_wgmma_reads",
        "shared-in-flight",
        init(1, 1)
        + leader(bulk_load(IMAGE_BYTES), "ISSUED")
        + wait(0, 0)
        + descriptors()
        + FENCE
        + multiply("//&")
        + COMMIT
        + WAIT.replace(";", "; //+")
        + """
    bar.sync 0;
"""
        + leader(bulk_load(IMAGE_BYTES, 1, offset=IMAGE_BYTES, mark="//!"), "REFILLED")
        + WAIT.replace(";", "; //-")
        + wait(1, 0)
        + STORE,
        ("lazy",),
        source=images(M, N, 2),
    ),
    _planted(
        "wgmma_of_a_warp_that_went_another_way",
        "wgmma-diverged",
        fill(IMAGE_BYTES, 128)
        + SYNC.format(mark="")
        + descriptors()
        + FENCE
        + """
    setp.eq.u32 %p6, warp, 2;
    @%p6 bra APART; //-
"""
        + multiply("//!&")
        + """
    bra TOGETHER;
APART:
"""
        + multiply("//!&")
        + "TOGETHER:\n"
        + COMMIT
        + WAIT
        + STORE,
    ),
    _planted(
        "registers_of_wgmma_overwritten",
        "wgmma-operand-overwritten",
        fill(IMAGE_BYTES, 128)
        + SYNC.format(mark="")
        + descriptors()
        + A_REGISTERS
        + FENCE
        + MULTIPLY_REGISTERS
        + COMMIT
        + "    mov.b32 %r25, 0; //-\n"
        + WAIT
        + "    mov.b32 %r25, 0; //+\n"
        + STORE,
        ("lazy", "random"),
        expected=lambda source: warpgroup_fragment(product(M, N, 16)(source)),
        says=("register 1 of A",),
    ),
]
