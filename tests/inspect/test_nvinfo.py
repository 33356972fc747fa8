"""The reader of .nv.info: any bytes give attributes or a ValueError, and written ones come back."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cakert.inspect import Parameter, nvinfo
from cakert.inspect.nvinfo import Attribute, read_attributes, read_parameter


def written(attributes: list[Attribute]) -> bytes:
    data = b""
    for one in attributes:
        data += struct.pack("<BBH", one.format, one.code, one.value)
        data += one.data + bytes(-len(one.data) % 4)
    return data


@st.composite
def attribute(draw) -> Attribute:
    code = draw(st.integers(0, 255))
    kind = draw(st.sampled_from([nvinfo.NVAL, nvinfo.BVAL, nvinfo.HVAL, nvinfo.SVAL]))
    if kind == nvinfo.SVAL:
        data = draw(st.binary(max_size=40))
        return Attribute(kind, code, len(data), data)
    largest = 0xFF if kind == nvinfo.BVAL else 0xFFFF
    return Attribute(kind, code, draw(st.integers(0, largest)), b"")


@given(st.lists(attribute(), max_size=20))
def test_what_is_written_is_read(attributes):
    assert list(read_attributes(written(attributes))) == attributes


@given(st.binary(max_size=300))
def test_any_bytes_give_attributes_or_a_reason(data):
    try:
        found = list(read_attributes(data))
    except ValueError as problem:
        assert "attribute" in str(problem)
        return
    # All of the bytes are accounted for, so nothing was read beyond them.
    sizes = [4 + (len(one.data) + 3) // 4 * 4 for one in found]
    assert sum(sizes) - 3 <= len(data) <= sum(sizes)


@given(st.lists(attribute(), min_size=1, max_size=8), st.data())
def test_cut_sections_are_refused_or_whole(attributes, data):
    whole = written(attributes)
    cut = data.draw(st.integers(0, len(whole)))
    try:
        found = list(read_attributes(whole[:cut]))
    except ValueError:
        return
    assert found == attributes[: len(found)]


@given(st.integers(0, 0xFFFF), st.integers(0, 0xFFFF), st.integers(0, (1 << 14) - 1))
def test_parameter(ordinal, offset, size):
    expected = Parameter(ordinal, offset, size)
    for code, word in ((nvinfo.KPARAM_INFO, size << 18 | 0x1F000), (nvinfo.KPARAM_INFO_V2, size)):
        data = struct.pack("<IHHI", 0, ordinal, offset, word)
        assert read_parameter(Attribute(nvinfo.SVAL, code, 12, data)) == expected


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x04\x2f\x08", "ends inside the attribute at offset 0"),
        (b"\x04\x2f\x08\x00" + bytes(7), "0x2f at offset 0 has 8 bytes, 7 are left"),
        (b"\x01\x35\x00\x00\x07\x10\x00\x00", "0x10 at offset 4 has unknown format 7"),
    ],
)
def test_reasons(data, reason):
    with pytest.raises(ValueError, match=reason):
        list(read_attributes(data))


def test_size_of_a_known_attribute_is_checked():
    for one in (Attribute(nvinfo.SVAL, nvinfo.REGCOUNT, 4, bytes(4)),
                Attribute(nvinfo.HVAL, nvinfo.REGCOUNT, 4, b"")):  # fmt: skip
        with pytest.raises(ValueError, match="EIATTR_REGCOUNT: expected 8 bytes"):
            one.words(2)
