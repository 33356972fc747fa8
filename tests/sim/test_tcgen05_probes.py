"""Every tcgen05 form that nvcc assembles binds, or is refused with its line and reason."""

from __future__ import annotations

from tcgen05_fakes import Bench

from cakert.sim.faults import UnsupportedInstruction

COMMON = """
tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r3], %r2;
tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r12, 32;
tcgen05.mma.cta_group::1.kind::f16 [%r1], %rd1, %rd2, %r3, !%p1;
tcgen05.mma.cta_group::1.kind::f16 [%r1], [%r2], %rd2, %r3, {%r5, %r6, %r7, %r8}, %p1;
tcgen05.mma.cta_group::1.kind::f16 [%r1], %rd1, %rd2, %r3, {%r5, %r6, %r7, %r8}, %p1, 4;
tcgen05.mma.cta_group::1.kind::f16.collector::a::discard [%r1], [%r2], %rd2, %r3, %p1;
tcgen05.mma.ws.cta_group::1.kind::f16.collector::b3::lastuse [%r1], [%r2], %rd2, %r3, %p1, %rd3;
tcgen05.mma.cta_group::1.kind::tf32 [%r1], %rd1, %rd2, %r3, %p1;
tcgen05.mma.cta_group::1.kind::f8f6f4 [%r1], [%r2], %rd2, %r3, %p1;
tcgen05.ld.sync.aligned.16x32bx2.x2.pack::16b.b32 {%r0, %r1}, [%r2], 64;
tcgen05.st.sync.aligned.16x32bx2.x2.unpack::16b.b32 [%r2], 64, {%r0, %r1};
tcgen05.commit.cta_group::1.mbarrier::arrive::one.b64 [%rd1];
tcgen05.cp.cta_group::1.4x256b [%r1], %rd1;
tcgen05.fence::before_thread_sync;
tcgen05.fence::after_thread_sync;
tcgen05.wait::ld.sync.aligned;
tcgen05.wait::st.sync.aligned;
"""
ONLY = {
    "tcgen05.mma.cta_group::1.kind::i8 [%r1], %rd1, %rd2, %r3, %p1;": {"sm_100a"},
    "tcgen05.ld.red.sync.aligned.16x32bx2.x2.max.u32 {%r0, %r1}, %r4, [%r1], 16;": {"sm_103a"},
    "tcgen05.mma.cta_group::2.kind::f16 [%r1], %rd1, %rd2, %r3, %p1;": set(),
    "tcgen05.shift.cta_group::1.down [%r1];": set(),
}


def binds(text: str, arch: str) -> bool:
    try:
        Bench(arch=arch).bind(text)
    except UnsupportedInstruction as problem:
        assert str(problem).startswith("line ")
        return False
    return True


def test_forms_and_targets():
    for arch in ("sm_100a", "sm_100f", "sm_103a", "sm_103f"):
        for text in COMMON.strip().splitlines():
            assert binds(text, arch), (text, arch)
    for text, targets in ONLY.items():
        assert {arch for arch in ("sm_100a", "sm_103a") if binds(text, arch)} == targets, text
    for text in COMMON.strip().splitlines():
        assert not binds(text, "sm_90a")
