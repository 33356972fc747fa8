"""The first look at an image: nothing that is no whole cubin reaches the driver (F33, F34)."""

from __future__ import annotations

import hashlib
import struct

import numpy as np
import pytest

from cakert.errors import CubinError
from cakert.runtime.image import check_image, check_sha256
from cakert.runtime.library import Library

HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
SECTION = struct.Struct("<IIQQQQIIQQ")


def elf(*, machine=190, ident=b"\x7fELF\x02\x01\x01", body=96, sections=3, **fields):
    """A file with `sections` sections, the last of which holds `body` bytes."""
    offset = HEADER.size + body
    values = {"section_offset": offset, "section_size": SECTION.size, "program_offset": 0}
    values.update(fields)
    data = HEADER.pack(
        ident.ljust(16, b"\0"), 2, machine, 1, 0, values["program_offset"],
        values["section_offset"], 0x5A055A, HEADER.size, 56, 0, values["section_size"], sections, 1,
    )  # fmt: skip
    data += np.random.default_rng().bytes(body)
    for index in range(sections):
        size = fields.get("last_bytes", body) if index == sections - 1 else 0
        data += SECTION.pack(0, 1, 0, 0, HEADER.size, size, 0, 0, 1, 0)
    return data


def fatbin(payload: int) -> bytes:
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, payload) + bytes(range(1, 101))


def test_whole_images_pass():
    check_image(elf(), "whole")
    check_image(fatbin(100), "whole")


def test_every_truncation_is_found():
    data = elf()
    for size in range(len(data)):
        with pytest.raises(CubinError, match="cut"):
            check_image(data[:size], "cut.cubin")
    for size in range(len(fatbin(100))):
        with pytest.raises(CubinError, match="cut"):
            check_image(fatbin(100)[:size], "cut.fatbin")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "empty"),
        (b"\x7fEL", "not a cubin"),
        (b"hello", "b'hello'"),
        (elf()[:64], "truncated"),
        (elf(section_offset=10**6), "truncated"),
        (elf(section_offset=1 << 63), "truncated"),
        (elf(last_bytes=10**6), "section 2 ends"),
        (elf(section_size=8), "section header"),
        (elf(section_offset=0), "no sections"),
        (elf(sections=0), "no sections"),
        (elf(machine=62), "machine 62"),
        (elf(ident=b"\x7fELF\x01\x01\x01"), "64-bit"),
        (elf(ident=b"\x7fELF\x02\x02\x01"), "little-endian"),
        (fatbin(101), "fatbin"),
        (b"//\n.version 9.0\n.target sm_90a\n.address_size 64\n", "PTX"),
    ],
)
def test_what_is_no_image(data, says, tmp_path):
    """A library refuses it by itself: this machine need not even have a driver."""
    path = tmp_path / "some.cubin"
    path.write_bytes(data)
    with pytest.raises(CubinError, match=f"some.cubin.*{says}"):
        Library(path)
    with pytest.raises(CubinError, match=says):
        Library(data)


def test_the_hash_is_compared_before_anything_is_loaded():
    data = elf()
    good = hashlib.sha256(data).hexdigest()
    check_sha256(data, good.upper(), "x")
    wrong = ("0" if good[0] != "0" else "1") + good[1:]
    flipped = bytearray(data)
    flipped[100] ^= 1
    for image, expected in ((data, wrong), (data, ""), (bytes(flipped), good)):
        with pytest.raises(CubinError, match="SHA-256") as caught:
            Library(image, sha256=expected)
        assert hashlib.sha256(image).hexdigest() in str(caught.value)
        assert expected in str(caught.value)


def test_what_is_neither_path_nor_bytes():
    with pytest.raises(TypeError, match=r"path_or_bytes must be .*int"):
        Library(5)
    with pytest.raises(FileNotFoundError):
        Library("/nowhere/at/all.cubin")
