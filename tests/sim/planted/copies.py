"""Copies that nobody waits for, that the asynchronous proxy cannot see, or that outlive a CTA."""

from __future__ import annotations

import numpy as np

from planted.record import Planted, first_words
from planted.snippets import READ_BACK, bulk_load, init, leader, wait

BOX = (8, 32)


def _box_of_source(gpu, source, out):
    del out
    return gpu.tensor_map(source.reshape(*BOX), box=BOX)


def _box_of_out(gpu, source, out):
    del source
    return gpu.tensor_map(out.reshape(*BOX), box=BOX)


# The copy is under way before any warp goes on.
SYNC = "    bar.sync 0;\n"
STORE_WORD = """
    ld.global.u32 %r0, [from];
    st.shared.u32 [mine], %r0;
"""


def _one_of_two(name: str, waited: int) -> Planted:
    """Two copies on two barriers, of which only one is waited for."""
    return Planted(
        name,
        "shared-in-flight",
        init(1, 1)
        + leader(
            bulk_load(512, 0, mark="//&" if waited else "")
            + bulk_load(512, 1, offset=512, to=512, mark="" if waited else "//&"),
            "ISSUED",
        )
        + SYNC
        + wait(waited, 0)
        + wait(1 - waited, 0, "//+")
        + f"""
    ld.shared.u32 %r0, [mine+{512 * waited}];
    ld.shared.u32 %r1, [mine+{512 * (1 - waited)}]; //!
    mad.lo.u32 %r0, %r0, 3, %r1;
    st.global.u32 [to], %r0;
""",
        ("lazy", "random"),
        threads=128,
        expected=lambda source: (
            source[128 * waited :][:128] * 3 + source[128 * (1 - waited) :][:128]
        ),
    )


FAULTS = [
    _one_of_two("younger_of_two_copies_without_wait", 0),
    _one_of_two("older_of_two_copies_without_wait", 1),
    Planted(
        "tma_box_without_wait",
        "shared-in-flight",
        init(1)
        + leader(
            """
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 1024;
    cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes //&
        [ring], [map0, {0, 0}], [bar];
""",
            "ISSUED",
        )
        + SYNC
        + wait(0, 0, "//+")
        + """
    ld.shared.u32 %r0, [mine]; //!
    st.global.u32 [to], %r0;
""",
        ("lazy", "random"),
        threads=256,
        expected=first_words(256),
        maps=(_box_of_source,),
    ),
    Planted(
        "bulk_copy_without_wait",
        "shared-in-flight",
        init(1)
        + leader(bulk_load(512, mark="//&"), "ISSUED")
        + SYNC
        + wait(0, 0, "//+")
        + """
    ld.shared.u32 %r0, [mine]; //!
    st.global.u32 [to], %r0;
""",
        ("lazy", "random"),
        threads=128,
        expected=first_words(128),
    ),
    Planted(
        "bulk_copy_tested_once",
        "shared-in-flight",
        init(1)
        + leader(bulk_load(512, mark="//&"), "ISSUED")
        + SYNC
        + """
TEST:
    mbarrier.test_wait.parity.shared::cta.b64 %p1, [bar], 0;
    @!%p1 bra TEST; //+
    ld.shared.u32 %r0, [mine]; //!
    st.global.u32 [to], %r0;
""",
        ("lazy", "random"),
        threads=128,
        expected=first_words(128),
    ),
    Planted(
        "full_barrier_that_expects_no_bytes",
        "shared-in-flight",
        init(1)
        + leader(
            """
    mbarrier.arrive.shared::cta.b64 _, [bar]; //-
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 512; //+
    cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes //&
        [ring], [in], 512, [bar];
""",
            "ISSUED",
        )
        + SYNC
        + wait(0, 0)
        + """
    ld.shared.u32 %r0, [mine]; //!
    st.global.u32 [to], %r0;
""",
        ("lazy", "random"),
        threads=128,
        expected=first_words(128),
    ),
    Planted(
        "slot_refilled_before_all_have_read_it",
        "shared-in-flight",
        init(1, 1)
        + leader(bulk_load(512), "ISSUED")
        + wait(0, 0)
        + """
    bar.sync 0; //-
    ld.shared.u32 %r0, [mine]; //+
    bar.sync 0; //+
"""
        + leader(bulk_load(512, 1, offset=512, mark="//&"), "REFILLED")
        + """
    bar.sync 0; //-
    ld.shared.u32 %r0, [mine]; //-!
    st.global.u32 [to], %r0;
"""
        + wait(1, 0),
        ("lazy",),
        threads=128,
        expected=first_words(128),
    ),
    Planted(
        "cp_async_without_wait",
        "shared-in-flight",
        """
    cp.async.ca.shared.global [mine], [from], 4; //&
    cp.async.commit_group;
    cp.async.wait_group 0; //+
    ld.shared.u32 %r0, [mine]; //!
    st.global.u32 [to], %r0;
""",
        ("lazy", "random"),
    ),
    Planted(
        "cp_async_waits_for_the_wrong_group",
        "shared-in-flight",
        """
    cp.async.ca.shared.global [mine], [from], 4;
    cp.async.commit_group;
    cp.async.ca.shared.global [mine+128], [from+128], 4; //&
    cp.async.commit_group;
    cp.async.wait_group 1; //-
    cp.async.wait_group 0; //+
    ld.shared.u32 %r0, [mine+128]; //!
    st.global.u32 [to], %r0;
""",
        ("lazy", "random"),
        expected=lambda source: source[32:64],
    ),
    Planted(
        "tma_store_without_proxy_fence",
        "missing-proxy-fence",
        STORE_WORD
        + """
    fence.proxy.async.shared::cta; //+
    bar.sync 0;
"""
        + leader(
            """
    cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [map0, {0, 0}], [ring]; //!
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
""",
            "STORED",
        ),
        threads=256,
        expected=first_words(256),
        maps=(_box_of_out,),
        says=("generic proxy",),
    ),
    Planted(
        "bulk_store_without_proxy_fence",
        "missing-proxy-fence",
        STORE_WORD
        + """
    fence.proxy.async.shared::cta; //+
    bar.sync 0;
"""
        + leader(
            """
    cp.async.bulk.global.shared::cta.bulk_group [out], [ring], 512; //!
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
""",
            "STORED",
        ),
        threads=128,
        expected=first_words(128),
        says=("generic proxy",),
    ),
    Planted(
        "bulk_store_before_other_warps_wrote",
        "uninitialised-shared",
        STORE_WORD
        + """
    fence.proxy.async.shared::cta;
    bar.sync 0; //+
"""
        + leader(
            """
    cp.async.bulk.global.shared::cta.bulk_group [out], [ring], 512; //!
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
""",
            "STORED",
        ),
        ("eager", "random"),
        threads=128,
        expected=first_words(128),
    ),
    Planted(
        "bulk_copy_of_a_size_that_is_no_multiple_of_16",
        "bulk-misaligned",
        init(1)
        + leader(
            """
    mov.u32 %r8, 508; //-
    mov.u32 %r8, 512; //+
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 512;
    cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes //!
        [ring], [in], %r8, [bar];
""",
            "ISSUED",
        )
        + wait(0, 0)
        + READ_BACK,
        threads=128,
        expected=first_words(128),
    ),
    Planted(
        "tma_box_off_its_alignment",
        "tma-misaligned",
        init(1)
        + leader(
            """
    add.u32 ring, ring, 64; //-
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 1024;
    cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes //!
        [ring], [map0, {0, 0}], [bar];
""",
            "ISSUED",
        )
        + wait(0, 0)
        + READ_BACK,
        threads=256,
        expected=first_words(256),
        maps=(_box_of_source,),
    ),
    Planted(
        "proxy_fence_before_the_write",
        "missing-proxy-fence",
        """
    ld.global.u32 %r0, [from];
    fence.proxy.async.shared::cta; //-
    st.shared.u32 [mine], %r0;
    fence.proxy.async.shared::cta; //+
    bar.sync 0;
"""
        + leader(
            """
    cp.async.bulk.global.shared::cta.bulk_group [out], [ring], 512; //!
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
""",
            "STORED",
        ),
        threads=128,
        expected=first_words(128),
    ),
    Planted(
        "buffer_overwritten_under_a_store",
        "shared-in-flight",
        STORE_WORD
        + """
    fence.proxy.async.shared::cta;
    bar.sync 0;
"""
        + leader(
            """
    cp.async.bulk.global.shared::cta.bulk_group [out], [ring], 512; //&
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group.read 0; //+
""",
            "STORED",
        )
        + """
    bar.sync 0;
    st.shared.u32 [mine], 0; //!
"""
        + leader(
            """
    cp.async.bulk.wait_group 0;
""",
            "WRITTEN",
        ),
        ("lazy", "random"),
        threads=128,
        expected=first_words(128),
    ),
    Planted(
        "slot_of_a_copy_overwritten_by_a_store",
        "shared-in-flight",
        init(1)
        + leader(bulk_load(512, mark="//&"), "ISSUED")
        + SYNC
        + wait(0, 0, "//+")
        + """
    st.shared.u32 [mine], thread; //!
"""
        + wait(0, 0)
        + """
    ld.shared.u32 %r0, [mine];
    ld.global.u32 %r1, [from];
    add.u32 %r0, %r0, %r1;
    st.global.u32 [to], %r0;
""",
        ("lazy", "random"),
        threads=128,
        expected=lambda source: source[:128] + np.arange(128, dtype="u4"),
    ),
    Planted(
        "cta_exits_under_a_load",
        "async-write-after-exit",
        init(1)
        + leader(bulk_load(512, mark="//!"), "ISSUED")
        + wait(0, 0, "//+")
        + """
    ld.global.u32 %r0, [from];
    st.global.u32 [to], %r0;
""",
        ("lazy", "random"),
        threads=128,
        expected=first_words(128),
    ),
    Planted(
        "cta_exits_under_a_store",
        "async-read-after-exit",
        STORE_WORD
        + """
    fence.proxy.async.shared::cta;
    bar.sync 0;
"""
        + leader(
            """
    cp.async.bulk.global.shared::cta.bulk_group [out], [ring], 512; //!
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group.read 0; //+
""",
            "STORED",
        ),
        ("lazy", "random"),
        threads=128,
        expected=first_words(128),
        is_note=True,
    ),
    Planted(
        "phase_not_flipped_on_second_use",
        "shared-in-flight",
        init(1)
        + """
    mov.u32 %r8, 0;                      // parity
    mov.u32 %r9, 0;                      // tile
    mov.u32 %r10, 0;                     // sum
TILE:
"""
        + leader(
            """
    mul.wide.u32 %rd8, %r9, 512;
    add.s64 %rd8, in, %rd8;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 512;
    cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes //&
        [ring], [%rd8], 512, [bar];
""",
            "ISSUED",
        )
        + wait(0, "%r8")
        + """
    xor.b32 %r8, %r8, 1; //+
    ld.shared.u32 %r11, [mine]; //!
    mad.lo.u32 %r10, %r10, 3, %r11;
    bar.sync 0;
    add.u32 %r9, %r9, 1;
    setp.lt.u32 %p2, %r9, 2;
    @%p2 bra TILE;
    st.global.u32 [to], %r10;
""",
        ("lazy", "random"),
        threads=128,
        expected=lambda source: source[:128] * 3 + source[128:],
    ),
    Planted(
        "full_barrier_with_the_wrong_parity",
        "shared-in-flight",
        init(1)
        + leader(bulk_load(512, mark="//&"), "ISSUED")
        + SYNC
        + wait(0, 1, "//-")
        + wait(0, 0, "//+")
        + READ_BACK.replace("[mine];", "[mine]; //!"),
        ("lazy", "random"),
        threads=128,
        expected=first_words(128),
    ),
]
