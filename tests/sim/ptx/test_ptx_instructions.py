"""Statements of a body: mnemonics, operands of every form, scopes, guards, tables."""

from __future__ import annotations

import math
import struct

import pytest
from ptx_writer import HEADER, kernel

from cakert.sim.faults import PtxError
from cakert.sim.ptx import read
from cakert.sim.ptx.model import (
    Address,
    Immediate,
    LabelRef,
    NotPredicate,
    Pair,
    Register,
    Sink,
    Special,
    Symbol,
    Variable,
    Vector,
)

R1, R2 = Register("%r1", "b32"), Register("%r2", "b32")
RD1, P1, P2 = Register("%rd1", "b64"), Register("%p1", "pred"), Register("%p2", "pred")


def toy(body: str, module: str = "", parameters: str = ""):
    return read(kernel(body, module, parameters)).functions["toy"]


def operand(text: str, module: str = ""):
    """The first operand of an instruction."""
    return toy(f"op {text};", module).body[0].operands[0]


@pytest.mark.parametrize(
    "mnemonic",
    [
        "ret",
        "mul24.lo.s32",
        "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64",
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes",
        "tcgen05.mma.cta_group::1.kind::f16.collector::a::fill",
        "tcgen05.cp.cta_group::1.64x128b.warpx2::02_13.b8x16.b6x16_p32",
        "ld.global.L2::128B.v4.b32",
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16",
    ],
)
def test_mnemonics_are_split_at_dots(mnemonic):
    instruction = toy(f"{mnemonic} %r1;").body[0]
    assert (instruction.opcode, *instruction.modifiers) == tuple(mnemonic.split("."))
    assert instruction.name == mnemonic
    assert instruction.operands == (R1,)


def test_detached_modifiers_and_instructions_over_lines():
    text = "  @!%p1 tcgen05.mma .cta_group::1 .kind::f16 // first\n [%r1], /* x; */ %rd1,\n\t1;"
    instruction = toy(text).body[0]
    assert instruction.name == "tcgen05.mma.cta_group::1.kind::f16"
    assert instruction.text == "@!%p1 tcgen05.mma .cta_group::1 .kind::f16 [%r1], %rd1, 1"
    assert (instruction.guard, instruction.guard_negated) == (P1, True)
    assert instruction.operands == (Address(R1), RD1, Immediate(1))
    assert instruction.line == 12


@pytest.mark.parametrize(
    "text, expected",
    [
        ("%r1", R1),
        ("_", Sink()),
        ("%tid.x", Special("%tid.x")),
        ("%tid", Special("%tid")),
        ("%laneid", Special("%laneid")),
        ("%clock64", Special("%clock64")),
        ("%envreg3", Special("%envreg3")),
        ("%pm7_64", Special("%pm7_64")),
        ("%dynamic_smem_size", Special("%dynamic_smem_size")),
        ("%cluster_ctarank", Special("%cluster_ctarank")),
        ("%cluster_nctaid.y", Special("%cluster_nctaid.y")),
        ("%is_explicit_cluster", Special("%is_explicit_cluster")),
        ("%lanemask_lt", Special("%lanemask_lt")),
        ("!%p1", NotPredicate(P1)),
        ("%r1|%p1", Pair(R1, P1)),
        ("_|%p1", Pair(Sink(), P1)),
        ("%p1|_", Pair(P1, Sink())),
        ("{%r1, %r2}|%p1", Pair(Vector((R1, R2)), P1)),
        ("{%r1}", Vector((R1,))),
        ("{ %r1 , _, -1 }", Vector((R1, Sink(), Immediate(2**64 - 1)))),
        ("{0f3F800000}", Vector((Immediate(0x3F800000, "f32"),))),
        ("[%rd1]", Address(RD1)),
        ("[ %rd1 + 16 ]", Address(RD1, 16)),
        ("[%rd1+-16]", Address(RD1, -16)),
        ("[%rd1-16]", Address(RD1, -16)),
        ("[%rd1+0xfffffffffffffff0]", Address(RD1, -16)),
        ("[%rd1+4*WARP_SZ]", Address(RD1, 128)),
        ("[sym]", Address(Symbol("sym"))),
        ("[sym+8+-4]", Address(Symbol("sym"), 4)),
        ("[64]", Address(Immediate(64))),
        ("[%rd1, {%r1, %r2}]", Address(RD1, 0, Vector((R1, R2)))),
        ("[sym+64, {0}]", Address(Symbol("sym"), 64, Vector((Immediate(0),)))),
        ("sym", Symbol("sym")),
        ("sym+4", Symbol("sym", 4)),
        ("sym-4", Symbol("sym", -4)),
    ],
)  # fmt: skip
def test_operands(text, expected):
    assert operand(text, ".global .b32 sym[100];") == expected


def bits64(value: float) -> int:
    return struct.unpack(">Q", struct.pack(">d", value))[0]


@pytest.mark.parametrize(
    "text, value, kind",
    [
        ("-1", 2**64 - 1, "int"),
        ("0", 0, "int"),
        ("0xFFFFFFFFU", 0xFFFFFFFF, "int"),
        ("0Xff", 255, "int"),
        ("017", 15, "int"),
        ("0b1011", 11, "int"),
        ("10U", 10, "int"),
        ("18446744073709551615", 2**64 - 1, "int"),
        ("-9223372036854775808", 2**63, "int"),
        ("WARP_SZ", 32, "int"),
        ("(1 << 4 | 3)", 19, "int"),
        ("(7 % 3 - 2 * -3)", 7, "int"),
        ("(-7 / 2)", 2**64 - 3, "int"),
        ("(-7 % 2)", 2**64 - 1, "int"),
        ("(-1 < 0)", 1, "int"),
        ("(-1 < 0U)", 0, "int"),
        ("(-16 >> 2)", 2**64 - 4, "int"),
        ("((.u64)-16 >> 60)", 15, "int"),
        ("(1 ? 2 : 3) + 1", 3, "int"),
        ("(0 || 2 && !0)", 1, "int"),
        ("~0 ^ 0xf", 2**64 - 16, "int"),
        ("1 << 64", 0, "int"),
        ("(10 >= 9) + (1 != 1) + (4 == 4)", 2, "int"),
        ("0f3F800000", 0x3F800000, "f32"),
        ("0Fff800001", 0xFF800001, "f32"),
        ("0d7FF0000000000001", 0x7FF0000000000001, "f64"),
        ("1.5", bits64(1.5), "f64"),
        ("-.5", bits64(-0.5), "f64"),
        ("1.", bits64(1.0), "f64"),
        ("25e-1", bits64(2.5), "f64"),
        ("(1.5 + 2.0 * 0.25)", bits64(2.0), "f64"),
    ],
)
def test_constants(text, value, kind):
    assert operand(text) == Immediate(value, kind)


def test_declared_registers_hide_special_registers():
    body = toy("op %laneid; { .reg .b32 %laneid; op %laneid; } op %laneid;").body
    assert [each.operands[0] for each in body[:3]] == [
        Special("%laneid"),
        Register("%laneid@1", "b32"),
        Special("%laneid"),
    ]


def test_register_ranges_and_lists():
    function = toy(".reg .f32 a, b<2>, %b1<3>, c;\nop a, b1, %b12, c, %r19;")
    operands = function.body[0].operands
    assert [(each.name, each.type) for each in operands] == [
        ("a", "f32"),
        ("b1", "f32"),
        ("%b12", "f32"),
        ("c", "f32"),
        ("%r19", "b32"),
    ]
    assert set(function.registers) == {"a", "b1", "%b12", "c", "%r19"}
    for name in ("b2", "%r20", "%r01", "%r", "%b13", "%r" + "9" * 5000):
        with pytest.raises(PtxError, match=r"^line 13: .*not declared"):
            toy(f".reg .f32 b<2>, %b1<3>;\nop {name};")


def test_inner_scopes_shadow_registers_labels_and_variables():
    function = toy(
        """
        .reg .pred p;
        .param .b32 x;
        op p, x;
        {
        .reg .pred p;
        .reg .b32 t<2>;
        .param .b64 x;
        WAIT: @p bra DONE;
        bra WAIT;
        DONE: op p, x, t1;
        }
        {
        WAIT:
        @p bra DONE;
        { DONE: bra WAIT; bra DONE; }
        bra END;
        }
        WAIT: bra WAIT;
        DONE:
        op p, x;
        END:
        """
    )
    jumps = [each.operands[0].name for each in function.body if each.opcode == "bra"]
    assert jumps == ["DONE@1", "WAIT@1", "DONE", "WAIT@2", "DONE@3", "END", "WAIT"]
    assert [each.guard.name for each in function.body if each.guard] == ["p@1", "p"]
    ops = [each.operands for each in function.body if each.opcode == "op"]
    outer = (Register("p", "pred"), Symbol("x"))
    inner = (Register("p@1", "pred"), Symbol("x@1"), Register("t1@1", "b32"))
    assert ops == [outer, inner, outer]
    assert {name: function.body[at].text for name, at in function.labels.items()} == {
        "WAIT@1": "@p bra DONE",
        "DONE@1": "op p, x, t1",
        "WAIT@2": "@p bra DONE",
        "DONE@3": "bra WAIT",
        "WAIT": "bra WAIT",
        "DONE": "op p, x",
        "END": "ret",
    }
    assert [each.name for each in function.variables] == ["x", "x@1"]


def test_labels_in_a_row_and_at_the_end():
    function = read(f"{HEADER}.entry e() {{ $L__A: B:C: ret; END: }}").functions["e"]
    assert function.labels == {"$L__A": 0, "B": 0, "C": 0, "END": 1}


def test_an_inner_name_ends_with_its_scope():
    for body in ("{ .reg .b32 a; }\nop a;", "{ X: ret; }\nop X;", "op a;\n.reg .b32 a;"):
        with pytest.raises(PtxError, match="is not declared"):
            toy(body)


def test_branch_tables():
    function = toy(
        "brx.idx %r1, $table;\n$table: .branchtargets $A,\n $B, $A;\n"
        "{ $B: ret; T: .branchtargets $A, $B; brx.idx %r1, T; }\n$A: ret; $B: ret;"
    )
    assert function.branch_targets == {"$table": ("$A", "$B", "$A"), "T@1": ("$A", "$B@1")}
    assert function.body[0].operands == (R1, LabelRef("$table"))
    assert set(function.labels) == {"$A", "$B", "$B@1"}
    with pytest.raises(PtxError, match=r"line 13: '\$T' is no label of code"):
        toy("$T: .branchtargets $A;\n$U: .branchtargets $T; $A: ret;")


def test_calls_keep_their_operands():
    function = toy(
        "{ .param .b64 param0; .param .align 8 .b8 retval0[16];\n"
        "st.param.b64 [param0], %rd1;\n"
        "call.uni (retval0), vprintf, (param0, %r1);\n"
        "call (retval0), %rd1, (param0), proto;\n"
        "proto : .callprototype (.param .align 8 .b8 _[16]) _ (.param .b64 _, .reg .b32 _);\n"
        "call helper; call helper, (); }",
        ".extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);\n.func helper;\n",
    )
    calls = [each.operands for each in function.body if each.opcode == "call"]
    result, argument = Vector((Symbol("retval0@1"),)), Symbol("param0@1")
    assert calls == [
        (result, Symbol("vprintf"), Vector((argument, R1))),
        (result, RD1, Vector((argument,)), LabelRef("proto@1")),
        (Symbol("helper"),),
        (Symbol("helper"), Vector(())),
    ]
    assert function.variables == (
        Variable("param0@1", "param", "b64", 8, 8),
        Variable("retval0@1", "param", "b8", 8, 16),
    )


def test_debug_lines_and_pragmas_are_read_past():
    body = toy(
        '.loc 1 17 5, function_name $L__info_string0, inlined_at 1 8 5\n.pragma "nounroll";\n'
        '\t.loc\t1 2 3 // x.py:2:3; {\nop %r1;\n.pragma "a", "b";'
    ).body
    assert [each.text for each in body] == ["op %r1", "ret"]
    assert body[0].line == 15


@pytest.mark.parametrize(
    "body, message",
    [
        ("\nmov.b32 %r1, %r99;", "line 13: register '%r99' is not declared"),
        ("mov.b32 %r1, %tid.q;", "line 12: register '%tid.q' is not declared"),
        ("mov.b32 %r1, nowhere;", "line 12: 'nowhere' is not declared"),
        ("mov.b32 %r1 %r2;", "line 12: expected ',' or ';', found '%r2'"),
        ("mov.b32 %r1,;", "line 12: expected an operand, found ';'"),
        ("mov.b32 %r1, %r2", "line 13: expected ',' or ';', found 'ret'"),
        ("ld.b32 %r1, [%rd1;", "line 12: expected '\\]', found ';'"),
        ("ld.b32 %r1, [%rd1+%r2];", "line 12: expected a constant, found '%r2'"),
        ("ld.b32 %r1, [%rd1, %r2];", "line 12: expected '{' of the coordinates, found '%r2'"),
        ("ld.b32 %r1, [%tid.x];", "line 12: expected a register or a variable"),
        ("op {%r1, {%r2}};", "line 12: expected '}' of the list, found '{'"),
        ("op {%r1; ", "line 12: expected '}' of the list, found ';'"),
        ("op {};", "line 12: expected an operand, found '}'"),
        ("op !%r1;", "line 12: '%r1' is no predicate register"),
        ("@%r1 op;", "line 12: '%r1' is no predicate register"),
        ("@%p1 {op;}", "line 12: expected '}' of the list, found ';'"),
        ("@%p1 @%p2 op;", "line 12: expected an instruction, found '@'"),
        (";", "line 12: expected an instruction, a label or a directive, found ';'"),
        ("%r1 = 4;", "line 12: expected an instruction, found '%r1'"),
        ("a::b.c %r1;", "line 12: expected an instruction, found 'a::b.c'"),
        (".alias a, b;", "line 12: directive .alias is not known in a function"),
        (".reg .v4 .f32 v;", "line 12: registers of type .v4 are not supported"),
        (".reg .b32 a;\n.reg .b32 a;", "line 13: 'a' is declared twice in its scope"),
        (".reg .b32 %r3;", "line 12: '%r3' is declared twice in its scope"),
        (".reg .b32 %r<3>;", "line 12: '%r<...>' is declared twice in its scope"),
        (".reg .b32 a<b>;", "line 12: expected a number of registers, found 'b'"),
        ("X: ret;\nX: ret;", "line 13: label 'X' stands twice in its scope"),
        (".reg .b32 X;\nX: ret;", "line 12: 'X' is declared twice in its scope"),
        ("{ ret;", "line 14: expected '}' of the body of line 6, found the end of the text"),
        ("op 08;", "line 12: 08 is no octal number"),
        ("op 0x1FFFFFFFFFFFFFFFF;", "line 12: 0x1F+ does not fit 64 bits"),
        ("op 12ab;", "line 12: '12ab' is no number"),
        ("op (1 / 0);", "line 12: a division by zero"),
        ("op 1e999;", "line 12: 1e999 is too large for a double"),
        ("op " + "9" * 10000 + ";", "line 12: a number of 10000 digits"),
        ("op " + "(" * 5000 + "1;", "line 12: a constant expression nested deeper than"),
        ("op " + "-" * 5000 + "1;", "line 12: a constant expression nested deeper than"),
        ("{" * 5000, "line 12: scopes nested deeper than"),
        ("op /* ", "line 12: a comment /\\* without its \\*/"),
        ('.pragma "x', "line 12: a string without its closing quote"),
        ("op \u0663;", "line 12: unexpected character"),
        ("op %r1 .loc 3;", "line 12: .loc has to begin its line"),
    ],
)
def test_errors_name_their_line(body, message):
    with pytest.raises(PtxError, match="^" + message):
        toy(body)


def test_nan_payload_is_kept():
    assert math.isnan(struct.unpack(">f", bytes.fromhex("7FC12345"))[0])
    assert operand("0f7FC12345").bits == 0x7FC12345
