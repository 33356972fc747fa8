"""Which forms bind and which are refused, as ptxas does, and prefetches."""

import numpy as np
import pytest
from copies_fakes import PARAM_BASE, Bench
from test_copies_tma_load import map_of, random_array

from cakert.sim.copies import INSTRUCTIONS
from cakert.sim.faults import Fault, UnsupportedInstruction

TX = "mbarrier::complete_tx::bytes"
MAP = "[%rd1, {%r3,%r4}]"
FIVE = "[%rd1, {%r3,%r4,%r5,%r6,%r7}]"

EVERYWHERE = [
    f"cp.async.bulk.tensor.2d.shared::cluster.global.tile.{TX} [%r1], {MAP}, [%r2];",
    f"cp.async.bulk.tensor.2d.shared::cta.global.{TX}.tile [%r1], {MAP}, [%r2];",
    f"cp.async.bulk.tensor.2d.tile.shared::cta.global.{TX} [%r1], {MAP}, [%r2];",
    f"cp.async.bulk.tensor.2d.shared::cta.global.{TX}.L2::cache_hint [%r1], {MAP}, [%r2], %rd2;",
    f"cp.async.bulk.tensor.2d.shared::cluster.global.{TX}.multicast::cluster.L2::cache_hint "
    f"[%r1], {MAP}, [%r2], %rs1, %rd2;",
    f"cp.async.bulk.tensor.5d.shared::cta.global.{TX} [%r1], {FIVE}, [%r2];",
    f"cp.async.bulk.tensor.2d.global.shared::cta.bulk_group.L2::cache_hint {MAP}, [%r1], %rd2;",
    f"cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group {MAP}, [%r1];",
    f"cp.reduce.async.bulk.tensor.2d.global.shared::cta.inc.bulk_group.L2::cache_hint "
    f"{MAP}, [%r1], %rd2;",
    f"cp.async.bulk.prefetch.tensor.2d.L2.global.tile {MAP};",
    f"cp.async.bulk.prefetch.tensor.2d.L2.global.L2::cache_hint {MAP}, %rd2;",
    "cp.async.bulk.prefetch.L2.global.L2::cache_hint [%rd1], 16, %rd2;",
    "prefetch.tensormap [%rd1];",
    "prefetch.const.tensormap [%rd1];",
    "prefetch.param.tensormap [map];",
    "prefetch.L1 [%rd1];",
    "prefetch.global.L2::evict_last [%rd1];",
    "prefetchu.L1 [%rd1];",
    "cp.async.bulk.wait_group.read 3;",
    "cp.async.mbarrier.arrive.shared.noinc.b64 [%r1];",
]

BLACKWELL = [
    f"cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.{TX} [%r1], {FIVE}, [%r2];",
    f"cp.async.bulk.tensor.2d.shared::cluster.global.tile::gather4.{TX}.multicast::cluster "
    f"[%r1], {FIVE}, [%r2], %rs1;",
    f"cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group {FIVE}, [%r1];",
    f"cp.async.bulk.tensor.2d.shared::cta.global.{TX}.cta_group::1 [%r1], {MAP}, [%r2];",
    f"cp.async.bulk.tensor.2d.shared::cluster.global.{TX}.cta_group::2.multicast::cluster "
    f"[%r1], {MAP}, [%r2], %rs1;",
    f"cp.async.bulk.prefetch.tensor.2d.L2.global.tile::gather4 {FIVE};",
    "cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint.cp_mask "
    "[%rd1], [%r1], 16, %rd2, %rs1;",
    "st.bulk.weak.shared::cta [%r1], %rd1, 0;",
    "st.bulk.weak [%rd1], 64, 0;",
]

NOWHERE = [
    # Completion mechanisms the wrong way round.
    f"cp.async.bulk.tensor.2d.shared::cta.global.bulk_group [%r1], {MAP}, [%r2];",
    f"cp.async.bulk.tensor.2d.global.shared::cta.{TX} {MAP}, [%r1];",
    f"cp.async.bulk.tensor.2d.shared::cta.global [%r1], {MAP}, [%r2];",
    # Multicast to one's own CTA; too many or too few coordinates, operands or dimensions.
    f"cp.async.bulk.tensor.2d.shared::cta.global.{TX}.multicast::cluster "
    f"[%r1], {MAP}, [%r2], %rs1;",
    f"cp.async.bulk.tensor.3d.shared::cta.global.{TX} [%r1], {MAP}, [%r2];",
    f"cp.async.bulk.tensor.6d.shared::cta.global.{TX} [%r1], {MAP}, [%r2];",
    f"cp.async.bulk.tensor.2d.shared::cta.global.{TX} [%r1], {MAP}, [%r2], %rd2;",
    f"cp.async.bulk.tensor.2d.shared::cta.global.{TX} [%r1], [%rd1], [%r2];",
    f"cp.async.bulk.tensor.3d.shared::cta.global.tile::gather4.{TX} [%r1], {FIVE}, [%r2];",
    # im2col is not simulated.
    f"cp.async.bulk.tensor.3d.shared::cta.global.im2col.{TX} [%r1], {MAP}, [%r2], {{%rs1}};",
    f"cp.async.bulk.shared.global.{TX} [%r1], [%rd1], 16, [%r2];",
    f"cp.async.bulk.shared::cluster.shared::cta.{TX}.L2::cache_hint [%r1], [%r1], 16, [%r2], %rd2;",
    f"cp.async.bulk.shared::cta.shared::cta.{TX} [%r1], [%r1], 16, [%r2];",
    "cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r1];",
    "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f16 [%rd1], [%r1], 16;",
    "cp.reduce.async.bulk.global.shared::cta.bulk_group.min.noftz.f16 [%rd1], [%r1], 16;",
    "cp.reduce.async.bulk.global.shared::cta.bulk_group.min.f32 [%rd1], [%r1], 16;",
    "cp.reduce.async.bulk.global.shared::cta.bulk_group.inc.s32 [%rd1], [%r1], 16;",
    f"cp.reduce.async.bulk.shared::cluster.shared::cta.{TX}.add.f32 [%r1], [%r1], 16, [%r2];",
    f"cp.reduce.async.bulk.shared::cluster.shared::cta.{TX}.and.b64 [%r1], [%r1], 16, [%r2];",
    f"st.async.weak.shared::cluster.{TX}.v4.b64 [%r1], {{%rd1,%rd2,%rd3,%rd4}}, [%r2];",
    f"st.async.weak.shared::cluster.{TX}.b16 [%r1], %rs1, [%r2];",
    "st.async.release.gpu.global.b32 [%rd1], %r1;",
    f"red.async.relaxed.cluster.shared::cluster.{TX}.add.b32 [%r1], %r3, [%r2];",
    f"red.async.relaxed.cluster.shared::cluster.{TX}.min.u64 [%r1], %rd3, [%r2];",
    "st.bulk.weak.shared::cta [%r1], %rd1, 1;",
    "cp.async.ca.shared.global.L2::32B [%r1], [%rd1], 16;",
    "cp.async.ca.shared.global [%r1], [%rd1];",
    "prefetch.shared.L1 [%rd1];",
    "prefetch.tensormap.L1 [%rd1];",
    "prefetchu.L2 [%rd1];",
]


@pytest.mark.parametrize("text", EVERYWHERE)
@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a", "sm_103a"])
def test_forms_that_bind(text, arch):
    assert callable(Bench(arch=arch).bind(text)[0])


@pytest.mark.parametrize("text", BLACKWELL)
def test_forms_of_sm_100(text):
    for arch in ("sm_100a", "sm_103a"):
        assert callable(Bench(arch=arch).bind(text)[0])
    with pytest.raises(UnsupportedInstruction, match=r"^line 11: .*sm_100 or later, not sm_90a"):
        Bench(arch="sm_90a").bind(text)


@pytest.mark.parametrize("text", NOWHERE)
def test_forms_that_are_refused(text):
    with pytest.raises(UnsupportedInstruction, match=r"^line 11: `"):
        Bench().bind(text)


def test_the_table_names_every_family():
    assert {
        "cp.async.bulk.tensor",
        "cp.reduce.async.bulk.tensor",
        "cp.async.bulk.prefetch.tensor",
        "cp.async.bulk",
        "cp.reduce.async.bulk",
        "cp.async.bulk.prefetch",
        "cp.async.bulk.commit_group",
        "cp.async.bulk.wait_group",
        "cp.async",
        "cp.async.commit_group",
        "cp.async.wait_group",
        "cp.async.wait_all",
        "cp.async.mbarrier.arrive",
        "st.async",
        "red.async",
        "st.bulk",
        "prefetch",
        "prefetchu",
    } == set(INSTRUCTIONS)


def test_prefetches_of_maps_check_them():
    array = random_array((8, 32), np.float32)
    bench = Bench()
    bench.launch.param_bytes = map_of(bench.lend(array), array, (32, 2)).to_bytes()
    before = bench.shared.data.copy()
    bench.issue("prefetch.param.tensormap [map];")
    bench.issue("prefetch.tensormap [%rd1];", rd1=PARAM_BASE)
    text = f"cp.async.bulk.prefetch.tensor.2d.L2.global.tile {MAP};"
    bench.issue(text, rd1=PARAM_BASE, r3=0, r4=5)
    np.testing.assert_array_equal(bench.shared.data, before)
    bench.launch.param_bytes = bytes(128)
    for broken in ("prefetch.param.tensormap [map];", "prefetch.tensormap [%rd1];", text):
        registers = {} if "[map]" in broken else {"rd1": PARAM_BASE}
        with pytest.raises(Fault, match="tensor-map-invalid"):
            bench.issue(broken, **registers)
