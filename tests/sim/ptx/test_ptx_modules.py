"""What stands outside of bodies: header, variables, parameters, directives, device functions."""

from __future__ import annotations

import struct

import pytest
from ptx_writer import HEADER, kernel

from cakert.sim.faults import PtxError
from cakert.sim.ptx import read
from cakert.sim.ptx.model import Variable


def variable(text: str) -> Variable:
    (found,) = read(f"{HEADER}{text}\n").variables.values()
    return found


def test_header_with_several_targets_and_options():
    module = read("//\n/* a\nb */ .version 8.7\n.target sm_90a, debug\n.address_size 64\n")
    assert (module.version, module.target) == ((8, 7), "sm_90a")
    assert (module.variables, module.functions) == ({}, {})
    assert read(".version 7.0 .target texmode_independent, sm_80, sm_90").target == "sm_80"


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "line 1: expected .version, found the end of the text"),
        (".target sm_90a", "line 1: expected .version, found '.target'"),
        (".version 9\n", "line 1: expected a version such as 9.0, found '9'"),
        (".version 6.4\n.target sm_70", "line 1: PTX ISA 6.4 is not one of 7.0 to 9.x"),
        (".version 9.0\n.address_size 64", "line 2: expected .target"),
        (".version 9.0\n.target debug", "line 2: no architecture in .target"),
        (".version 9.0\n.target gfx90", "line 2: target 'gfx90' is not known"),
        (".version 9.0\n.target sm_90\n.address_size 32", "line 3: expected 64"),
        (f"{HEADER}.alias a, b;", "line 4: directive .alias is not known in a module"),
        (f"{HEADER}\n\n.visible .reg .b32 a;", "line 6: directive .reg is not known in a module"),
        (f"{HEADER}global .b32 a;", "line 4: expected a directive, found 'global'"),
    ],
)
def test_header_errors(text, message):
    with pytest.raises(PtxError, match="^" + message):
        read(text)


@pytest.mark.parametrize(
    "text, expected",
    [
        (".extern .shared .align 1024 .b8 s[];", ("s", "shared", "b8", 1024, 0, None, True)),
        (".visible .global .b32 x;", ("x", "global", "b32", 4, 4, None, False)),
        (".weak .const .align 8 .f64 x;", ("x", "const", "f64", 8, 8, None, False)),
        (".common .global .b64 x[3][5];", ("x", "global", "b64", 8, 120, None, False)),
        (".shared .v4 .f32 x[2*2];", ("x", "shared", "f32", 16, 64, None, False)),
        (".global .attribute(.managed) .b8 x;", ("x", "global", "b8", 1, 1, None, False)),
        (".global .u16 x = 0xFFFE;", ("x", "global", "u16", 2, 2, b"\xfe\xff", False)),
        (".global .u8 x[4] = {300, -1};", ("x", "global", "u8", 1, 4, b"\x2c\xff", False)),
        (".global .b8 x[] = {1, 2, 3};", ("x", "global", "b8", 1, 3, b"\1\2\3", False)),
        (".global .b8 x[4] = {};", ("x", "global", "b8", 1, 4, b"", False)),
        (
            ".const .b8 x[3][3] = {{1, 2}, {}, {3}};",
            ("x", "const", "b8", 1, 9, b"\1\2\0\0\0\0\3", False),
        ),
        (
            ".const .b16 x[][2] = {{1, 2}, {3}};",
            ("x", "const", "b16", 2, 8, b"\1\0\2\0\3\0\0\0", False),
        ),
        (
            ".const .f32 x[3] = {0f3FC00000, 2.5, 0d3FE0000000000000};",
            ("x", "const", "f32", 4, 12, struct.pack("<3f", 1.5, 2.5, 0.5), False),
        ),
        (
            ".global .f64 x[2] = {0f3FC00000, -2.5};",
            ("x", "global", "f64", 8, 16, struct.pack("<2d", 1.5, -2.5), False),
        ),
        (".global .b32 x = 0f7FC12345;", ("x", "global", "b32", 4, 4, b"\x45\x23\xc1\x7f", False)),
        (
            ".global .v2 .b8 x[2] = {{1, 2}, {3, 4}};",
            ("x", "global", "b8", 2, 4, b"\1\2\3\4", False),
        ),
        (".global .b128 x = -2;", ("x", "global", "b128", 16, 16, b"\xfe" + b"\xff" * 15, False)),
    ],
)
def test_variables(text, expected):
    assert variable(text) == Variable(*expected)


@pytest.mark.parametrize(
    "text, message",
    [
        (".global .u64 p = other;", r"an address \('other'\) as an initial value"),
        (".global .u64 p[2] = {0, generic(other)};", r"an address \('generic'\)"),
        (".global .b8 p[2] = {1, 2, 3};", "more than 2 initial values"),
        (".global .b8 p[2] = 5;", "expected '{' of an array's initial value"),
        (".global .b8 p[2] = {1, };", "expected a constant, found '}'"),
        (".global .f32 p = 1;", "a .f32 needs a floating-point initial value"),
        (".global .f32 p = 1e300;", "1e.300 is too large for .f32"),
        (".global .b16 p = 0f00000000;", "a floating-point number as the initial value of a .b16"),
        (".global .f16 p = 1.0;", "no initial value is allowed for type .f16"),
        (".shared .b8 p = 1;", "a .shared variable cannot have an initial value"),
        (".shared .b8 p[];", "array 'p' needs a size"),
        (".shared .b8 p[0];", "an array size of 0"),
        (".shared .b8 p[1.5];", "expected an array size, found a floating-point number"),
        (".shared .b8 p[1099511627776][1099511627776];", "'p' of [0-9]+ bytes"),
        (".global .b8 p[2][1073741824] = {{1}, {2}};", "an initial value of more than 64 MiB"),
        (".global .align 3 .b8 p;", "an alignment of 3: no power of two"),
        (".global .texref p;", "a variable of type .texref is not supported"),
        (".global .pred p;", "a variable of type .pred is not supported"),
        (".global .b8 p, p;", "'p' is declared twice"),
        (".global .b8 p.x;", "expected a name, found 'p.x'"),
        (".global .b8 p[1]" + "[1]" * 1000 + ";", "an array of more than 16 dimensions"),
    ],
)
def test_variable_errors(text, message):
    with pytest.raises(PtxError, match="^line 4: " + message):
        read(HEADER + text)


def test_lists_and_a_definition_after_its_extern_declaration():
    module = read(f"{HEADER}.global .b32 a, b[4];\n.extern .const .b8 c[];\n.const .b8 c[7];\n")
    assert [(each.name, each.size) for each in module.variables.values()] == [
        ("a", 4),
        ("b", 16),
        ("c", 7),
    ]
    assert not module.variables["c"].extern


def test_parameters():
    text = kernel(
        "ld.param.b64 %rd1, [d];",
        parameters=".param .align 64 .b8 a[128], .param .u64 .ptr .global .align 16 b,\n"
        ".param .u64 .ptr .align 1 c, .param .u64 .ptr .shared d, .param .f32 e,"
        ".param .v4 .b32 f, .param .u16 g[3]",
    )
    assert read(text).functions["toy"].parameters == (
        Variable("a", "param", "b8", 64, 128),
        Variable("b", "param", "u64", 8, 8),
        Variable("c", "param", "u64", 8, 8),
        Variable("d", "param", "u64", 8, 8),
        Variable("e", "param", "f32", 4, 4),
        Variable("f", "param", "b32", 16, 16),
        Variable("g", "param", "u16", 2, 6),
    )


def test_performance_directives():
    text = f"""{HEADER}
    .visible .entry one() .maxntid 128 .minnctapersm 3 .maxnreg 168 .pragma "x"; {{ ret; }}
    .weak .entry two .reqntid 8, 4 .explicitcluster .reqnctapercluster 2, 1, 1
    .maxclusterrank 8 .noreturn {{ ret; }}
    .entry three (.param .b32 a) {{ }}
    """
    functions = read(text).functions
    assert functions["one"].directives == {
        "maxntid": (128, 1, 1),
        "minnctapersm": (3,),
        "maxnreg": (168,),
    }
    assert functions["two"].directives == {
        "reqntid": (8, 4, 1),
        "explicitcluster": (),
        "reqnctapercluster": (2, 1, 1),
        "maxclusterrank": (8,),
        "noreturn": (),
    }
    assert (functions["one"].line, functions["two"].line) == (5, 6)
    assert (functions["three"].body, functions["three"].directives) == ((), {})


@pytest.mark.parametrize(
    "text, message",
    [
        (".entry e() .maxntid 1 .maxntid 1 { }", "directive .maxntid stands twice"),
        (".entry e() .maxntid { }", "expected a number for .maxntid"),
        (".entry e() .fastmath { }", "directive .fastmath is not known at a kernel"),
        (".entry e();", "expected '{' of the kernel's body, found ';'"),
        (".entry e(.reg .b32 a) { }", "expected .param, found '.reg'"),
        (".entry e(.param .b32 a, .param .b32 a) { }", "parameter 'a' is declared twice"),
        (".entry e(.param .b8 a[]) { }", "parameter 'a' needs a size"),
        (".entry e() { } .entry e() { }", "'e' is declared twice"),
        (".entry e(.param .b32 a) { .reg .b32 a; }", "'a' is declared twice in its scope"),
        (".func f( { }", "expected '\\)' for the '\\(' on line 4"),
        (".func f() { { }", "expected '}' for the '{' on line 4, found the end of the text"),
    ],
)
def test_function_errors(text, message):
    with pytest.raises(PtxError, match="^line 4: " + message):
        read(HEADER + text)


def test_device_functions_and_debug_sections_are_read_past():
    text = f"""{HEADER}
    .extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b) ;
    .visible .func (.param .align 8 .b8 out[16]) twice(.param .b32 a, .reg .b32 b)
    .noreturn .pragma "x"; .maxnreg 8
    {{ .reg .b32 %r<4>; {{ X: mov.b32 {{%r1, %r2}}, nothing; }} ret; }}
    .func plain {{ }}
    .file 1 "a;{{.cu"
    .pragma "y";
    .entry e() {{ call plain; $L__func_end0: }}
    .section .debug_abbrev {{
    .b8 1                                   // }} Abbreviation Code
    .b32 $L__tmp1-$L__tmp0
    $L__info: .b64 $L__func_end0
    }}
    .section .debug_loc {{ }}
    """
    module = read(text)
    assert list(module.functions) == ["e"]
    assert module.functions["e"].labels == {"$L__func_end0": 1}
