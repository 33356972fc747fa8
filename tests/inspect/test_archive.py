"""Static libraries: members with fatbins are found, and no size is taken on trust."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.fatbin_files import archive, entry, fatbin, host_file

from cakert.cubins import store
from cakert.errors import CubinError
from cakert.inspect import inspect_bytes
from cakert.inspect.archive import read_members

FATBIN = (Path(__file__).with_name("data") / "kernels.fatbin").read_bytes()


def cubin() -> bytes:
    return min((store().read(one) for one in store().entries), key=len)


def library(rng) -> tuple[bytes, dict[str, bytes]]:
    members = {
        "first.o": host_file({".nv_fatbin": fatbin(entry("elf", cubin()))}),
        "notes.txt": rng.bytes(int(rng.integers(1, 50))),
        "without.o": host_file({".text": b"code"}),
        "a name of more than fifteen bytes.o": host_file({"__nv_relfatbin": FATBIN}),
        "a second name of more than fifteen.o": rng.bytes(7),
    }
    return archive(members), members


def test_members_and_their_bytes(rng):
    data, members = library(rng)
    found = read_members(data)
    assert [member.name for member in found] == list(members)
    for member in found:
        assert data[member.offset : member.offset + member.size] == members[member.name]


def test_fatbins_of_all_members(rng):
    data, _ = library(rng)
    file = inspect_bytes(data, "lib.a")
    assert file.kind == "archive" and file.cubin is None
    assert [one.member for one in file.fatbins] == [
        "first.o",
        "a name of more than fifteen bytes.o",
    ]
    assert [one.section for one in file.fatbins] == [".nv_fatbin", "__nv_relfatbin"]
    for one in file.fatbins:
        assert data[one.offset : one.offset + 4] == b"\x50\xed\x55\xba", "offsets are the file's"
        assert one.member in one.place
    assert [len(one.entries) for one in file.fatbins] == [1, 4]
    alone = inspect_bytes(FATBIN, "alone").fatbins[0]
    assert file.fatbins[1].entries == alone.entries


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"!<arch>\n", "no member has a section"),
        (archive({"a.txt": b"text"}), "no member has a section"),
        (b"!<thin>\n", "thin archive"),
        (b"!<arch>\nshort", "no header of a member at offset 8"),
        (archive({"a.o": b"1234"})[:-2], "4 bytes, 2 are left"),
        (archive({"a.o": b"1234"}, a=b"9999999999"), "9999999999 bytes"),
        (archive({"a.o": b"1234"}, a=b"-4"), "a size of b'-4"),
        (archive({"a.o": b"1234"}, a=b""), "a size of b'  "),
        (archive({"a.o": b"1234"}).replace(b"a.o/", b"/99 "), "not in the table of names"),
    ],
)
def test_what_is_malformed(data, reason):
    with pytest.raises(CubinError, match=r"^lib\.a: not a usable archive: ") as raised:
        inspect_bytes(data, "lib.a")
    assert reason in str(raised.value)


def test_members_do_not_share_a_large_name():
    """Each would hold a copy of it: a small file must not become gigabytes."""
    fits = archive({"a" * 1000 + ".o": b"1234"})
    assert read_members(fits)[0].name == "a" * 1000 + ".o"
    data = archive({"a" * 1100 + ".o": b"1234"})
    with pytest.raises(CubinError, match="or has more than 1024 bytes"):
        inspect_bytes(data, "lib.a")


def test_a_damaged_member_is_named():
    broken = host_file({".nv_fatbin": fatbin(entry("elf", cubin()))[:-100]})
    with pytest.raises(CubinError, match=r"lib\.a\(bad\.o\): .*\.nv_fatbin"):
        inspect_bytes(archive({"bad.o": broken}), "lib.a")
    hostile = archive({"\x1b[2J.o": broken})
    with pytest.raises(CubinError) as raised:
        inspect_bytes(hostile, "lib.a")
    assert str(raised.value).isprintable()
