"""Inspecting files: what is found in good ones, and what bad ones are told (F31, F32, F33)."""

from __future__ import annotations

import random
import re
import struct
import sys
import time
import tracemalloc
from pathlib import Path

import pytest
from helpers.fatbin_files import entry, fatbin, host_file

from cakert.cubins import store
from cakert.errors import CubinError
from cakert.inspect import ConstantBank, Parameter, compare, inspect_bytes, inspect_file
from cakert.inspect.compression import LARGEST_IMAGE
from cakert.inspect.demangle import demangle

DATA = Path(__file__).with_name("data")
PTX = b"""//
.version 9.0
.target sm_90a
.address_size 64
.visible .entry scale(
.param .u64 p
){ret;}
"""


@pytest.fixture(scope="module")
def cubin() -> bytes:
    """A cubin of the package, the smallest."""
    return min((store().read(entry) for entry in store().entries), key=len)


def short_name(name: str) -> str:
    """ "plain", "calls", "templated<f>": enough to tell the kernels of kernels.cu apart."""
    found = re.fullmatch(r"_Z(\d+)(\w+)", name)
    if found is None:
        return name
    size = int(found[1])
    template = re.match(r"I(\w)E", found[2][size:])
    return found[2][:size] + (f"<{template[1]}>" if template else "")


def kernels_of(target: str) -> dict[str, object]:
    for found in inspect_file(DATA / "kernels.fatbin").cubins:
        if found.target == target:
            return {short_name(kernel.name): kernel for kernel in found.kernels}
    raise AssertionError(target)


# --- what is found --------------------------------------------------------------------------------


def test_fatbin_of_nvcc():
    file = inspect_file(DATA / "kernels.fatbin")
    assert file.kind == "fatbin"
    (container,) = file.fatbins
    assert (container.section, container.offset, container.size) == ("", 0, file.size)
    assert [(e.kind, e.arch, e.compression) for e in container.entries] == [
        ("elf", "sm_80", "zstd"),
        ("elf", "sm_90a", "zstd"),
        ("elf", "sm_100f", "zstd"),
        ("ptx", "compute_90", "zstd"),
    ]
    assert [found.target for found in file.cubins] == ["sm_80", "sm_90a", "sm_100f"]
    ptx = container.entries[3].ptx
    assert (ptx.version, ptx.target) == ("9.0", "sm_90")
    assert set(ptx.kernels) == {kernel.name for kernel in file.cubins[1].kernels}


def test_kernels_are_as_their_source_says():
    """Numbers that follow from kernels.cu by hand, not from another tool."""
    for target in ("sm_80", "sm_90a", "sm_100f"):
        reserved = 0 if target == "sm_80" else 1024
        kernels = kernels_of(target)
        assert len(kernels) == 16
        assert kernels["plain"].parameters == (
            Parameter(0, 0, 8), Parameter(1, 8, 4), Parameter(2, 12, 4)
        )  # fmt: skip
        assert kernels["no_parameters"].parameters == ()
        assert kernels["no_parameters"].parameter_bytes == 0
        large = kernels["large_parameters"]
        assert large.parameters == (
            Parameter(0, 0, 6000), Parameter(1, 6000, 4), Parameter(2, 6004, 12)
        )  # fmt: skip
        assert large.parameter_bytes == 6016
        floats = kernels["templated<f>"]
        assert floats.shared_bytes == 400 + reserved
        assert (floats.max_threads, floats.barriers) == ((256, 1, 1), 1)
        assert kernels["templated<d>"].shared_bytes == 800 + reserved
        assert kernels["local_array"].frame_bytes == 400
        assert kernels["named_barriers"].barriers == 8  # numbers 0 to 7
        assert kernels["few_registers"].max_registers == 32
        assert kernels["few_registers"].registers <= 32
        assert kernels["full_block"].max_threads == (1024, 1, 1)
        clustered = target != "sm_80"
        assert kernels["in_clusters"].cluster == ((2, 1, 1) if clustered else None)
        assert kernels["small_clusters"].max_cluster == (8 if clustered else None)
        assert kernels["fixed_block"].required_threads == ((64, 2, 1) if clustered else None)
        assert kernels["fixed_block"].cluster == ((2, 2, 1) if clustered else None)
    for found in inspect_file(DATA / "kernels.fatbin").cubins:
        assert ConstantBank(3, 160) in found.constant_banks  # float table[40]
        # counters[10], started, and the text of printf with its NUL
        assert found.global_bytes == 40 + 4 + 4


def test_shipped_cubins_are_described_alike():
    for entry_ in store().entries:
        file = inspect_file(store().root / entry_.file)
        assert file.kind == "cubin"
        assert file.cubins == (file.cubin,)
        assert file.cubin.target == entry_.target
        assert {k.name for k in file.cubin.kernels} == {k.name for k in entry_.kernels}
        for kernel in file.cubin.kernels:
            recorded = entry_.kernel(kernel.name)
            assert kernel.registers == recorded.registers
            assert kernel.required_threads in (None, (recorded.threads, 1, 1))


@pytest.mark.parametrize("method", ["none", "lz4", "zstd"])
def test_compression_does_not_matter(cubin, method):
    written = fatbin(
        entry("elf", cubin, arch=90, suffix="a", method=method, file_name=b"source.cu"),
        entry("ptx", PTX, arch=90, suffix="a", method=method),
    )
    file = inspect_bytes(written, "x.fatbin")
    elf, ptx = file.fatbins[0].entries
    assert elf.cubin == inspect_bytes(cubin, "x.cubin").cubin
    assert (elf.compression, elf.size, elf.file_name) == (method, len(cubin), "source.cu")
    assert (ptx.arch, ptx.size, ptx.ptx.kernels) == ("compute_90a", len(PTX), ("scale",))
    assert (elf.stored_size < elf.size) == (method != "none")


def test_other_images_are_listed_and_not_read():
    (found,) = inspect_bytes(fatbin(entry("lto", b"\x01" * 32)), "x").fatbins[0].entries
    assert (found.kind, found.arch, found.size) == ("lto", "compute_90", 32)
    (found,) = inspect_bytes(fatbin(entry("lto", bytes(32), kind=99)), "x").fatbins[0].entries
    assert found.kind == "unknown"


def test_host_file_with_several_fatbins(cubin):
    one = fatbin(entry("elf", cubin))
    two = fatbin(entry("ptx", PTX), entry("elf", cubin, method="zstd"))
    sections = {".text": b"\x90" * 16, ".nv_fatbin": one + two, "__nv_relfatbin": bytes(8) + two}
    data = host_file(sections)
    file = inspect_bytes(data, "x.o")
    assert file.kind == "host"
    assert [(f.section, len(f.entries)) for f in file.fatbins] == [
        (".nv_fatbin", 1), (".nv_fatbin", 2), ("__nv_relfatbin", 2)
    ]  # fmt: skip
    for found in file.fatbins:
        assert data[found.offset : found.offset + 4] == b"\x50\xed\x55\xba"
    assert len(file.cubins) == 3


def test_names():
    pytest.importorskip("demangle")
    assert demangle("plain") == "plain"
    assert demangle("_Z5scalePfi") == "scale(float*, int)"
    assert demangle("_ZNotAName") is None
    assert demangle("_Z" + "P" * 100_000 + "i") is None
    names = {kernel.demangled for kernel in kernels_of("sm_90a").values()}
    assert "mixed_parameters(double*, short, char, unsigned long long, int)" in names
    assert "void templated<float>(float*, shapes::Row<float, 3>, int)" in names


def nested_name(levels: int) -> str:
    """Every level of a template names the level before twice."""
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    name = "_Z1f1aIiiE"
    for level in range(levels):
        name += f"S_IS{digits[level]}_S{digits[level]}_E"
    return name


def test_name_that_stands_for_terabytes():
    pytest.importorskip("demangle")
    assert demangle(nested_name(1)) == "f(a<int, int>, a<a<int, int>, a<int, int> >)"
    assert 100_000 > len(demangle(nested_name(10))) > 30_000
    tracemalloc.start()
    begin = time.process_time()
    assert demangle(nested_name(36)) is None  # 370 bytes
    spent = time.process_time() - begin
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert spent < 1
    assert peak < 32 << 20


# --- comparing two builds -------------------------------------------------------------------------


def test_comparison_names_what_changed(cubin):
    before = inspect_file(DATA / "kernels.fatbin")
    same = compare(before, before)
    assert len(same.changes) == 48
    assert {change.status for change in same.changes} == {"same"}
    only = inspect_bytes(cubin, "x.cubin")
    changes = compare(before, only).changes
    assert [change.status for change in changes].count("removed") == 48
    assert [change.kernel for change in changes if change.status == "added"] == [
        only.cubin.kernels[0].name
    ]


def test_comparison_across_targets_is_by_name():
    first, second = (
        inspect_file(store().root / f"vsa_portable_r64_d64_bf16.{target}.cubin")
        for target in ("sm_90", "sm_100a")
    )
    (change,) = compare(first, second).changes
    assert (change.status, change.target) == ("changed", "sm_90 -> sm_100a")
    old, new = first.cubin.kernels[0], second.cubin.kernels[0]
    assert change.fields["registers"] == (old.registers, new.registers)
    assert "parameters" not in change.fields


# --- odd but sound (F31, F32) ---------------------------------------------------------------------


def patched(data: bytes, offset: int, layout: str, value: int) -> bytes:
    changed = bytearray(data)
    struct.pack_into(layout, changed, offset, value)
    return bytes(changed)


@pytest.mark.parametrize("version", [0x80, 0x81, 0x82])
def test_object_version_is_not_judged(cubin, version):
    changed = patched(cubin, 20, "<I", version)
    assert inspect_bytes(changed, "x").cubin == inspect_bytes(cubin, "x").cubin


def test_unknown_target_keeps_the_raw_flags(cubin):
    found = inspect_bytes(patched(cubin, 48, "<I", 0x0600EE04), "x").cubin
    assert (found.target, found.flags) == ("unknown", 0x0600EE04)
    assert found.kernels == inspect_bytes(cubin, "x").cubin.kernels


def test_unknown_number_is_known_where_note_and_flags_agree(cubin):
    """A target that came after this package: sm_107a."""
    path = store().root / "vsa_portable_r64_d64_bf16.sm_100a.cubin"
    changed = path.read_bytes().replace(b"-arch sm_100a", b"-arch sm_107a")
    flags = struct.unpack_from("<I", changed, 48)[0]
    assert inspect_bytes(changed, "x").cubin.target == "unknown"  # the flags still say 100
    changed = patched(changed, 48, "<I", flags & ~0xFF00 | 107 << 8)
    assert inspect_bytes(changed, "x").cubin.target == "sm_107a"


@pytest.mark.parametrize("target", ["sm_80", "sm_86", "sm_90a"])
def test_cubins_of_abi_7(target):
    data = (DATA / f"abi7_{target}.cubin").read_bytes()
    found = inspect_bytes(data, "x").cubin
    assert (found.target, found.toolkit, found.abi_version) == (target, "release 12.8", 7)
    for kernel, real in zip(found.kernels, (8, 4), strict=True):
        assert kernel.name.startswith(f"_ZN3old5scaleI{'d' if real == 8 else 'f'}E")
        assert kernel.shared_bytes == 64 * real + (1024 if target == "sm_90a" else 0)
        assert (kernel.stack_bytes, kernel.barriers) == (32 * real, 1)
        assert kernel.max_threads == (192, 1, 1)
    flags = struct.unpack_from("<I", data, 48)[0]
    unknown = inspect_bytes(patched(data, 48, "<I", flags & ~0xFF | 0xEE), "x").cubin
    assert unknown.target == "unknown"


def test_registers_without_their_attribute():
    """Before sm_90 the section header has them too; later nothing else does, and it is said."""
    for target, expected in (("sm_80", (32, 33)), ("sm_90a", (None, None))):
        data = (DATA / f"abi7_{target}.cubin").read_bytes()
        changed = data.replace(b"\x04\x2f\x08\x00", b"\x04\xfe\x08\x00")
        kernels = inspect_bytes(changed, "x").cubin.kernels
        assert tuple(kernel.registers for kernel in kernels) == expected


# --- no usable file (F33) -------------------------------------------------------------------------


def refused(data: bytes, *words: str) -> None:
    with pytest.raises(CubinError) as caught:
        inspect_bytes(data, "some/where.bin")
    text = str(caught.value)
    assert text.startswith("some/where.bin: ")
    assert "\n" not in text
    for word in words:
        assert word in text


def foreign_files() -> dict[str, bytes]:
    """A hundred files that are no cubin."""
    ours = (DATA / "kernels.fatbin").read_bytes()
    cubin = store().read(store().entries[0])
    files = {
        "empty": b"",
        "3 bytes": b"\x7fEL",
        "hello": b"hello",
        "PTX": PTX,
        "PNG": b"\x89PNG\r\n\x1a\n" + bytes(100),
        "zip": b"PK\x03\x04" + bytes(100),
        "gzip": b"\x1f\x8b\x08" + bytes(100),
        "xz": b"\xfd7zXZ\x00" + bytes(100),
        "archive": b"!<arch>\n" + bytes(100),
        "zeros": bytes(4096),
        "Mach-O": b"\xcf\xfa\xed\xfe" + bytes(100),
        "PE": b"MZ" + bytes(200),
        "bitcode": b"BC\xc0\xde" + bytes(100),
        "script": b"#!/bin/sh\nexit 0\n",
        "JSON": b'{"schema": 1}\n',
        "UTF-16": "Text".encode("utf-16"),
        "ELF magic": b"\x7fELF",
        "32-bit ELF": b"\x7fELF\x01\x01\x01" + bytes(80),
        "big-endian ELF": b"\x7fELF\x02\x02\x01" + bytes(80),
        "host without GPU code": host_file({".text": bytes(16)}),
        "host with zeros": host_file({".nv_fatbin": bytes(64)}),
        "host with garbage": host_file({".nv_fatbin": b"garbage!" * 8}),
        "no CUDA": host_file({".text.kernel": bytes(128)}, machine=183),
    }
    for length in (1, 8, 17, 40, 63, 64, 200, len(cubin) // 2, len(cubin) - 1):
        files[f"cubin of {length}"] = cubin[:length]
    for length in (4, 15, 16, 17, 40, 79, 80, 81, 1000, len(ours) - 1, len(ours) - 9):
        files[f"fatbin of {length}"] = ours[:length]
    rng = random.Random(5)
    while len(files) < 100:
        files[f"noise {len(files)}"] = rng.randbytes(rng.randrange(1, 3000))
    return files


FOREIGN = foreign_files()


@pytest.mark.parametrize("case", FOREIGN)
def test_foreign_file_is_refused(case):
    assert len(FOREIGN) == 100
    refused(FOREIGN[case])


def test_reasons():
    refused(FOREIGN["empty"], "the file is empty")
    refused(FOREIGN["PTX"], "this is PTX text")
    refused(FOREIGN["hello"], "no ELF header", "b'hello'")
    refused(FOREIGN["host without GPU code"], "no section .nv_fatbin or __nv_relfatbin")
    refused(FOREIGN["host with zeros"], "nothing but zeros")
    refused(FOREIGN["fatbin of 1000"], "the fatbin at offset 0", "1000 are left")


LIES = {
    "version": ({"version": 0x100}, "expected version 0x101"),
    "header size": ({"header_size": 16}, "64 bytes or more"),
    "header beyond": ({"header_size": 1 << 31}, "are left"),
    "size": ({"size": 1 << 40}, "are left"),
    "compressed size": ({"compressed_size": 1 << 30}, "compressed bytes in"),
    "too large": ({"decompressed_size": LARGEST_IMAGE + 1}, "more than the limit of 300000000"),
    "impossible": (
        {"decompressed_size": 290_000_000, "compressed_size": 500},
        "cannot hold the 290000000 bytes",
    ),
    "larger": ({"decompressed_size": 50_000}, "bytes promised"),
    "smaller": ({"decompressed_size": 100}, ""),
    "nothing": ({"decompressed_size": 0}, "0 bytes promised"),
    "cut": ({"compressed_size": 500}, ""),
    "two compressions": ({"flags": 1 << 13 | 1 << 15}, "two compressions"),
    "two suffixes": ({"flags": 1 << 15 | 3 << 20}, "two suffixes"),
    "name": ({"name_offset": 60, "name_size": 99}, "file name lies beyond"),
    "kind": ({"kind": 1}, "no PTX"),
}


@pytest.mark.parametrize("case", LIES)
def test_lie_in_a_fatbin_is_refused(cubin, case):
    lies, reason = LIES[case]
    refused(fatbin(entry("elf", cubin, method="zstd", **lies)), "entry 0 of the fatbin", reason)


@pytest.mark.parametrize("method", ["zstd", "lz4"])
def test_size_that_is_not_the_promised_one(cubin, method):
    for size in (len(cubin) - 1, len(cubin) + 1):
        refused(fatbin(entry("elf", cubin, method=method, decompressed_size=size)), "entry 0")


def test_wrong_compression_is_refused(cubin):
    packed = entry("elf", cubin, method="zstd", flags=1 << 13)
    refused(fatbin(packed), "not valid LZ4")
    packed = entry("elf", cubin, method="lz4", flags=1 << 15)
    refused(fatbin(packed), "not valid zstd")


def test_garbage_between_fatbins_is_refused(cubin):
    one = fatbin(entry("elf", cubin))
    refused(one + b"garbage", "the fatbin at offset")
    assert len(inspect_bytes(one + bytes(40) + one, "x").fatbins) == 2


def test_bad_cubin_in_a_fatbin_names_both():
    refused(fatbin(entry("elf", b"\x7fELF" + bytes(100))), "entry 0 of the fatbin at offset 0")


@pytest.mark.parametrize(("method", "package"), [("zstd", "zstandard"), ("lz4", "lz4.block")])
def test_missing_package_is_named(cubin, monkeypatch, method, package):
    data = fatbin(entry("elf", cubin, method=method))
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError) as caught:
        inspect_bytes(data, "x.fatbin")
    assert "x.fatbin: entry 0" in str(caught.value)
    reason = f"compressed with {method}; to read it: pip install 'cakert[inspect]'"
    assert reason in str(caught.value)


def test_without_demangler_names_stay_open(monkeypatch):
    monkeypatch.setitem(sys.modules, "demangle", None)
    kernels = inspect_file(DATA / "kernels.fatbin").cubins[0].kernels
    assert {kernel.demangled for kernel in kernels} == {None, "plain"}


def test_device_and_folder_are_no_files(tmp_path):
    for path in (tmp_path, Path("/dev/zero")):
        with pytest.raises(CubinError, match="not a regular file"):
            inspect_file(path)
    with pytest.raises(FileNotFoundError):
        inspect_file(tmp_path / "missing")
