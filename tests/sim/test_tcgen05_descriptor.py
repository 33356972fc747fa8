from __future__ import annotations

import pytest
from tcgen05_fakes import Bench, idesc

from cakert.sim.faults import Fault
from cakert.sim.tcgen05.instruction_descriptor import DescriptorError, parse

# Evaluated with CUTLASS's make_instr_desc: M, N, A/B major -> bf16, f16.
KNOWN = [
    (128, 128, 0, 0x08200490, 0x08200010),
    (128, 128, 1, 0x08210490, 0x08210010),
    (128, 64, 1, 0x08110490, 0x08110010),
    (128, 96, 1, 0x08190490, 0x08190010),
    (64, 64, 0, 0x04100490, 0x04100010),
    (64, 128, 0, 0x04200490, 0x04200010),
    (64, 256, 1, 0x04410490, 0x04410010),
]


@pytest.mark.parametrize(("m", "n", "mn", "bf16", "f16"), KNOWN)
def test_words_of_shipped_kernels(m, n, mn, bf16, f16):
    for word, element in ((bf16, "bf16"), (f16, "f16")):
        descriptor = parse(word, "f16", False)
        assert (descriptor.m, descriptor.n, descriptor.k) == (m, n, 16)
        assert (descriptor.a, descriptor.b, descriptor.d) == (element, element, "f32")
        assert (descriptor.major_a, descriptor.major_b) == ("k", "mn" if mn else "k")


GOOD = idesc(128, 64)
WRONG = [
    (GOOD | 1, "f16", False, "sparsity selector"),
    (GOOD | 1 << 2, "f16", False, "sparsity"),
    (GOOD | 1 << 3, "f16", False, "saturate"),
    (GOOD | 1 << 6, "f16", False, r"reserved field \(bit 6\)"),
    (GOOD | 1 << 23, "f16", False, r"reserved field \(bit 23\)"),
    (GOOD | 1 << 29, "f16", False, r"reserved field \(bit 29\)"),
    (GOOD | 1 << 30, "f16", False, "maximum shift"),
    (idesc(128, 64, d=2), "f16", False, "D format"),
    (idesc(128, 64, d=0), "f16", False, "f16 with bf16"),
    (idesc(128, 64, a=2), "f16", False, "A format"),
    (idesc(128, 64, a=1, b=2), "f16", False, "B format"),
    (idesc(128, 64, a=0, b=1), "f16", False, "must agree"),
    (idesc(128, 64, a=1), "tf32", False, "A format"),
    (idesc(128, 64, a=2, d=0), "tf32", False, "D format"),
    (idesc(128, 64, a=2), "f8f6f4", False, "A format"),
    (idesc(128, 64, a=1, d=1), "i8", False, "D format"),
    (idesc(128, 64, a=1, d=2, negate_a=1), "i8", False, "negate A"),
    (idesc(32, 64), "f16", False, r"M \(bits 24-28\) is 32"),
    (idesc(256, 64), "f16", False, "M .* is 256"),
    (idesc(96, 64), "f16", True, "M .* is 96"),
    (idesc(128, 0), "f16", False, "N .* is 0"),
    (idesc(128, 264), "f16", False, "N .* is 264"),
    (idesc(64, 96), "f16", True, "N .* is 96"),
    (idesc(128, 40, a=1, d=2), "i8", False, "N .* is 40"),
]


@pytest.mark.parametrize(("word", "kind", "ws", "field"), WRONG)
def test_fields_that_no_instruction_allows(word, kind, ws, field):
    with pytest.raises(DescriptorError, match=field):
        parse(word, kind, ws)


def test_the_fault_names_the_word_and_the_instruction():
    bench = Bench()
    bench.alloc(64)
    bench.set("%r500", 0)
    bench.set("%r501", GOOD | 1 << 23)
    bench.set("%p0", False)
    with pytest.raises(Fault, match=r"kind::f16.*reserved field") as caught:
        bench.one("tcgen05.mma.cta_group::1.kind::f16 [%r500], %rd0, %rd1, %r501, %p0;")
    assert caught.value.name == "instruction-descriptor-invalid"


def test_narrow_formats_are_not_simulated():
    bench = Bench()
    bench.alloc(64)
    bench.set("%r500", 0)
    bench.set("%r501", idesc(128, 64, a=3))
    bench.set("%p0", False)
    with pytest.raises(Fault, match="e2m3"):
        bench.one("tcgen05.mma.cta_group::1.kind::f8f6f4 [%r500], %rd0, %rd1, %r501, %p0;")
