"""The grammar of ``--arg``: what is read, what is refused, and that text and value are inverses."""

from __future__ import annotations

import math
import string

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cakert.cli.argument_specs import (
    DTYPES,
    FLOATS,
    ArraySpec,
    BytesSpec,
    FileRef,
    ScalarSpec,
    name_all,
    parse,
    rounded,
)

LIMITS = {
    "i8": (-(2**7), 2**7 - 1), "u8": (0, 2**8 - 1), "i16": (-(2**15), 2**15 - 1),
    "u16": (0, 2**16 - 1), "i32": (-(2**31), 2**31 - 1), "u32": (0, 2**32 - 1),
    "i64": (-(2**63), 2**63 - 1), "u64": (0, 2**64 - 1), "bool": (0, 1),
}  # fmt: skip


# --- what is read ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("f32[1024]=rand", ArraySpec("", "f32", (1024,), "rand")),
        ("q:bf16[64x128]=randn", ArraySpec("q", "bf16", (64, 128), "randn")),
        ("i8[2x3x4]=rand:-5:5", ArraySpec("", "i8", (2, 3, 4), (-5, 5))),
        ("u64[1]=rand:0:0x10000000000000000", ArraySpec("", "u64", (1,), (0, 2**64))),
        ("f64[3]=rand:-1e3:.5", ArraySpec("", "f64", (3,), (-1000.0, 0.5))),
        ("f16[4]=NaN", ArraySpec("", "f16", (4,), "nan")),
        ("f16[4]=-Inf", ArraySpec("", "f16", (4,), -math.inf)),
        ("u8[4]=0xff", ArraySpec("", "u8", (4,), 255)),
        ("bool[4]=true", ArraySpec("", "bool", (4,), 1)),
        ("x_1:i32[7]=@a:b.npy", ArraySpec("x_1", "i32", (7,), FileRef("a:b.npy"))),
        ("f32[7]=@d/r.npz:out", ArraySpec("", "f32", (7,), FileRef("d/r.npz", "out"))),
        ("i32=7", ScalarSpec("", "i32", 7)),
        ("n:u16=007", ScalarSpec("n", "u16", 7)),
        ("i64=-0x8000000000000000", ScalarSpec("", "i64", -(2**63))),
        ("f32=0x1.8p-1", ScalarSpec("", "f32", 0.75)),
        ("f32=inf", ScalarSpec("", "f32", math.inf)),
        ("bool=false", ScalarSpec("", "bool", 0)),
        ("p:bytes=00fFa1", BytesSpec("p", b"\x00\xff\xa1")),
        ("bytes=@p.bin", BytesSpec("", FileRef("p.bin"))),
        ("bytes=@=.bin", BytesSpec("", FileRef("=.bin"))),
    ],
)
def test_what_is_read(text, spec):
    assert parse(text) == spec
    assert parse(str(spec)) == spec


def test_every_type_and_its_limits():
    assert set(LIMITS) | set(FLOATS) == set(DTYPES)
    for dtype, (low, high) in LIMITS.items():
        assert parse(f"{dtype}={low}").value == low
        assert parse(f"{dtype}[2]={high}").initial == high
        for beyond in (low - 1, high + 1):
            for text in (f"{dtype}={beyond}", f"{dtype}[2]={beyond}"):
                with pytest.raises(ValueError, match=rf"in \[{low}, {high}\], got {beyond}"):
                    parse(text)
        assert parse(f"{dtype}[2]=rand:{low}:{high + 1}").initial == (low, high + 1)
        with pytest.raises(ValueError, match="must be in"):
            parse(f"{dtype}[2]=rand:{low}:{high + 2}")


@pytest.mark.parametrize(
    ("dtype", "largest"), [("f16", 65504.0), ("bf16", 3.3895e38), ("f32", 3.4028e38)]
)
def test_floats_overflow_by_rounding_only(dtype, largest):
    assert math.isfinite(rounded(dtype, largest))
    parse(f"{dtype}={largest}")
    for text in (f"{dtype}={largest * 1.01}", f"{dtype}[3]=-{largest * 1.01}"):
        with pytest.raises(ValueError, match=rf"a value of {dtype} must be in .*inf or nan"):
            parse(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "without a '='"),
        ("f32", "without a '='"),
        ("=1", "NAME:DTYPE"),
        ("f32[4", "without a '='"),
        ("f32[4=1", "NAME:DTYPE"),
        ("f32]4[=1", "NAME:DTYPE"),
        ("float=1", "one of f16, bf16, f32"),
        ("F32=1", "one of f16, bf16, f32"),
        ("f32[]=1", "a shape must be integers"),
        ("f32[4,4]=1", "a shape must be integers"),
        ("f32[4x]=1", "a shape must be integers"),
        ("f32[-4]=1", "a shape must be integers"),
        ("f32[\u0664]=1", "a shape must be integers"),
        ("f32[4x0]=1", "at least 1"),
        ("f32[999999999999999999]=1", "at most 140737488355328 bytes"),
        ("f32[4]=", "an initial value must be one of zeros"),
        ("f32[4]=sand", "an initial value must be one of zeros"),
        ("f32[4]=rand:1", "must be rand:LOW:HIGH"),
        ("f32[4]=rand:2:1", "LOW below HIGH"),
        ("f32[4]=rand:1:1", "LOW below HIGH"),
        ("f32[4]=rand:0:inf", "LOW below HIGH"),
        ("f64[4]=rand:-1e308:1e308", "LOW below HIGH"),
        ("f32[4]=rand:nan:1", "LOW below HIGH"),
        ("i32[4]=rand:0:1.5", "must be an integer, got '1.5'"),
        ("i32[4]=randn", "for i32 write rand:LOW:HIGH"),
        ("u8[4]=nan", "for u8 write a number"),
        ("i32[4]=1.5", "must be an integer, got '1.5'"),
        ("i32=seven", "must be an integer, got 'seven'"),
        ("i32=", "must be an integer"),
        ("i32=inf", "must be an integer"),
        ("f32=seven", "must be a number, got 'seven'"),
        ("f64=1e999", "must be a number, got '1e999'"),
        ("f64=0x1p99999", "must be a number"),
        ("i64=" + "9" * 5000, "must be an integer"),
        ("u64[2]=" + "9" * 5000, "must be an integer"),
        ("i64=0x" + "f" * 5000, "must be an integer, got '0xfff"),
        ("i8[2]=rand:0:0x" + "f" * 5000, "must be an integer, got '0xfff"),
        ("f32=\u0661", "must be a number"),
        ("i32[2]=1\u0662", "must be an integer"),
        ("u64[2]=" + "9" * 4000, "..."),
        ("x" * 4000, "without a '='"),
        ("x" * 4000 + "-:i32=1", "a name must be letters"),
        ("x" * 4000 + "=1", "a type must be"),
        ("f32[" + "4" * 4000 + "]=1", "a shape must be integers"),
        ("bool=yes", "must be an integer, got 'yes'"),
        ("f32[4]=@", "the name of a file"),
        ("f32[4]=@a\0b", "the name of a file"),
        ("bytes=", "pairs of hexadecimal digits"),
        ("bytes=0", "pairs of hexadecimal digits"),
        ("bytes=zz", "pairs of hexadecimal digits"),
        ("bytes[4]=00", "bytes have no shape"),
        ("bytes=" + "00" * 32765, "at most 32764"),
        ("1x:i32=1", "a name must be letters"),
        ("a:b:i32=1", "a name must be letters"),
        (":i32=1", "a name must be letters"),
        ("\u00e4:i32=1", "a name must be letters"),
        ("__cakert__:i32=1", "two underscores"),
    ],
)  # fmt: skip
def test_what_is_refused(text, reason):
    with pytest.raises(ValueError, match=r".") as caught:
        parse(text)
    assert reason in str(caught.value)
    assert len(str(caught.value)) < 500


def test_names():
    specs = [parse(text) for text in ("i32=1", "n:i32=2", "f32[2]=rand")]
    assert name_all(specs) == ["arg0", "n", "arg2"]
    with pytest.raises(ValueError, match="arguments 1 and 2 are both named 'n'"):
        name_all([parse("i32=1"), parse("n:i32=1"), parse("n:f32=1")])
    with pytest.raises(ValueError, match="arguments 0 and 1 are both named 'arg1'"):
        name_all([parse("arg1:i32=1"), parse("i32=1")])


# --- inverses -------------------------------------------------------------------------------------

LETTERS = string.ascii_letters
NAMES = st.just("") | st.builds(
    lambda first, rest: first + rest,
    st.sampled_from(LETTERS),
    st.text(LETTERS + string.digits + "_", max_size=8),
)
PATHS = st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=12
).filter(lambda path: ".npz:" not in path)
FILES = st.builds(FileRef, PATHS) | st.builds(FileRef, PATHS.map(lambda path: f"{path}.npz"), PATHS)


@st.composite
def numbers(draw, dtype):
    if dtype in LIMITS:
        return draw(st.integers(*LIMITS[dtype]))
    width = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64}[dtype]
    return draw(st.floats(width=width, allow_nan=False))


@st.composite
def specs(draw):
    name = draw(NAMES)
    kind = draw(st.sampled_from(["array", "scalar", "bytes"]))
    if kind == "bytes":
        return BytesSpec(name, draw(st.binary(min_size=1, max_size=40) | st.builds(FileRef, PATHS)))
    dtype = draw(st.sampled_from(list(DTYPES)))
    if kind == "scalar":
        return ScalarSpec(name, dtype, draw(numbers(dtype)))
    shape = tuple(draw(st.lists(st.integers(1, 99), min_size=1, max_size=4)))
    words = ["zeros", "ones", "iota", "rand", *(["randn", "nan"] if dtype in FLOATS else [])]
    bounds = st.tuples(numbers(dtype), numbers(dtype)).filter(
        lambda pair: pair[0] < pair[1] and math.isfinite(pair[1] - pair[0])
    )
    return ArraySpec(
        name, dtype, shape, draw(st.sampled_from(words) | numbers(dtype) | bounds | FILES)
    )


@settings(deadline=None)
@given(specs())
def test_text_and_value_are_inverses(spec):
    assert parse(str(spec)) == spec


@settings(deadline=None)
@given(st.text(max_size=40))
@example("f32[1]=0x")
@example("i32=0x_1")
@example("f32[1]=nan_")
def test_any_text_is_read_or_refused_with_a_sentence(text):
    try:
        spec = parse(text)
    except ValueError as problem:
        assert str(problem)
    else:
        assert parse(str(spec)) == spec or "nan" in str(spec)


@settings(deadline=None)
@given(specs(), st.data())
def test_a_changed_character_is_read_or_refused(spec, data):
    text = str(spec)
    at = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.sampled_from(":=[]x@.-+0e9 "))
    test_any_text_is_read_or_refused_with_a_sentence.hypothesis.inner_test(
        text[:at] + other + text[at + 1 :]
    )
