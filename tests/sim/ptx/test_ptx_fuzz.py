"""Whatever the text: a Module or a PtxError that names a line, never another exception."""

from __future__ import annotations

import re

from hypothesis import example, given, settings
from hypothesis import strategies as st
from ptx_writer import kernel

from cakert.sim.faults import PtxError
from cakert.sim.ptx import read
from cakert.sim.ptx.model import Module

TEXT = kernel(
    """
.shared .align 8 .b8 buffer[64];
@!%p1 mbarrier.try_wait.parity.shared::cta.b64 %p2, [buffer+8], %r1, 0x989680;
{
.reg .pred done;
WAIT: @done bra DONE;
bra.uni WAIT;
DONE:
}
cp.async.bulk.tensor.2d.shared::cta.global.tile [%r1], [%rd1, {%r2, -1}], [%rd2+-16];
elect.sync _|%p3, (1 << 4) - 1 ? ~0 : WARP_SZ;
$L__T: .branchtargets $L__A, $L__B;
brx.idx %r3, $L__T;
$L__A: fma.rn.f32 %f1, %f2, 0f3F800000, 1.5;
$L__B: { .param .b32 arg; call (arg), vprintf, (%r1, arg), proto; }
proto: .callprototype (.param .b32 _) _ (.param .b64 _);
.pragma "nounroll";
.loc 1 2 3
mov.u32 %r4, %ctaid.x; // comment
mov.b64 {%r1, %r2}, %rd3; /* another */
""",
    """.extern .shared .align 16 .b8 smem[];
.const .align 4 .b16 table[2][3] = {{1, 2}, {-3, 0x4U, 017}};
.global .f64 pi = 3.25;
.extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);
.func helper(.param .b32 a) .noreturn { ret; }
.section .debug_info { .b8 1 }
""",
    ".param .align 64 .b8 map[128], .param .u64 .ptr .global .align 16 out",
)
PIECES = re.findall(r"\s+|[\w$%]+|\W", TEXT)
# Shares of each construct rather than of its length.
WORDS = sorted(set(PIECES) | {"/*", "*/", '"', "::", "..", "0f", "9" * 30, "\0", "\u00b5", "\x85"})


def check(text: str) -> None:
    try:
        assert isinstance(read(text), Module)
    except PtxError as problem:
        line = re.match(r"line (\d+): .", str(problem))
        assert line
        assert 1 <= int(line[1]) <= text.count("\n") + 1


def test_the_text_itself_is_read():
    assert len(read(TEXT).functions["toy"].body) == 11


def test_every_truncation():
    for end in range(len(TEXT)):
        check(TEXT[:end])


def test_every_piece_left_out_or_doubled():
    for index, piece in enumerate(PIECES):
        check("".join(PIECES[:index] + PIECES[index + 1 :]))
        check("".join([*PIECES[:index], piece, *PIECES[index:]]))


EDITS = st.lists(
    st.tuples(
        st.integers(0, len(PIECES) - 1), st.sampled_from(["put", "set", "cut"]),
        st.sampled_from(WORDS),
    ),
    min_size=1,
    max_size=6,
)  # fmt: skip


@settings(max_examples=600, deadline=None)
@given(EDITS)
def test_edited_text(edits):
    pieces = list(PIECES)
    for at, what, word in edits:
        at %= len(pieces)
        if what == "put":
            pieces.insert(at, word)
        elif what == "set":
            pieces[at] = word
        else:
            del pieces[at : at + 3]
    check("".join(pieces))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=60))
def test_words_in_any_order(words):
    check(kernel("".join(words)))
    check(kernel("", " ".join(words)))


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=80))
@example("\r\n\f\v\x00")
def test_any_text(text):
    check(text)
    check(kernel(text))
