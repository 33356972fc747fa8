"""Damaged files: a result or one CubinError, at once and in little memory.

Every mutant follows from its seed: CAKERT_SEED repeats a run, the failure names the mutant.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import resource
import struct
import time
import tracemalloc
from collections import Counter
from pathlib import Path

import pytest
from helpers.fatbin_files import archive, entry, fatbin, host_file

from cakert.cli.inspect import show_file
from cakert.cubins import store
from cakert.cubins.elf import read_sections
from cakert.errors import CubinError
from cakert.inspect import as_json, inspect_bytes
from cakert.inspect.compression import decompress

DATA = Path(__file__).with_name("data")
# The process may use this much more at its peak, whatever the mutants promise.
MEMORY_LIMIT = 300 << 20
TRACED_LIMIT = 32 << 20


def bases() -> dict[str, bytes]:
    """Sound files of every kind."""
    packed = (DATA / "kernels.fatbin").read_bytes()
    single = min((store().read(one) for one in store().entries), key=len)
    cubins = {}
    at = 16
    for name in ("sm_80", "sm_90a", "sm_100f"):
        header = struct.unpack_from("<HHIQIIHHIIIQQQ", packed, at)
        start = at + header[2]
        cubins[name] = decompress("zstd", packed[start : start + header[4]], header[-1])
        at = start + header[3]
    plain = fatbin(entry("elf", single), entry("elf", cubins["sm_80"], method="lz4"))
    host = host_file({".nv_fatbin": plain + plain, "__nv_relfatbin": packed})
    return {
        "single": single,
        "ABI 7": (DATA / "abi7_sm_80.cubin").read_bytes(),
        **cubins,
        "zstd": packed,
        "plain and lz4": plain,
        "host": host,
        "archive": archive({"a.o": host, "a long name of a member.o": host_file({".text": b"x"})}),
    }


BASES = bases()
WORDS = (0, 1, 2, 3, 7, 8, 0x7F, 0xFF, 0x100, 0x7FFF, 0xFFFF, 1 << 20, (1 << 31) - 1, 1 << 31,
         (1 << 32) - 1, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)  # fmt: skip


def places(data: bytes) -> list[tuple[str, int, int]]:
    """Kind, offset and size of the parts of a file that are worth damaging."""
    if data[:8] == b"!<arch>\n":
        member = data.index(b"a.o/")
        return [("index", 8, 60), ("member", member, 60), ("its ELF header", member + 60, 64)]
    if data[:4] != b"\x7fELF":
        return [("fatbin header", 0, 16), ("entry header", 16, 120)]
    table, count = struct.unpack_from("<Q", data, 40)[0], struct.unpack_from("<H", data, 60)[0]
    found = [("ELF header", 0, 64), ("section table", table, 64 * count)]
    for section in read_sections(data):
        if section.type == 2:
            found.append(("symbol table", section.offset, section.size))
        elif section.name.startswith(".nv.info"):
            found.append((".nv.info", section.offset, section.size))
        elif section.type == 3:
            found.append(("names", section.offset, section.size))
        elif section.name in (".note.nv.tkinfo", ".nv_fatbin", "__nv_relfatbin"):
            found.append((section.name, section.offset, min(section.size, 256)))
    return [place for place in found if place[2]]


PLACES = {name: places(data) for name, data in BASES.items()}


def mutant(seed: str) -> tuple[str, bytes]:
    """What was done, and the damaged file."""
    rng = random.Random(seed)
    name = rng.choice(list(BASES))
    data = bytearray(BASES[name])
    done = []
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        kinds = sorted({kind for kind, _, _ in PLACES[name]})
        kind = rng.choice([*kinds, "cut", "anywhere"])
        done.append(kind)
        if kind == "cut":
            del data[rng.randrange(len(data) + 1) :]
            break
        spans = [(start, size) for what, start, size in PLACES[name] if what == kind]
        start, size = rng.choice(spans) if spans else (0, len(data))
        for _ in range(rng.choice((1, 1, 2, 8))):
            width, layout = rng.choice(((1, "<B"), (2, "<H"), (4, "<I"), (8, "<Q")))
            # Fields are aligned: a whole word at a multiple of its size damages one of them.
            at = start + rng.randrange(size) // width * width
            near = len(data) + rng.randrange(-9, 9)
            word = rng.choice((rng.choice(WORDS), near, rng.getrandbits(64)))
            if at + width <= len(data):
                struct.pack_into(layout, data, at, word % (1 << 8 * width))
    return f"{name}: {', '.join(done)}", bytes(data)


def outcome(seed: str) -> str:
    """ "refused" or "read"; anything else is a failure of the test."""
    what, data = mutant(seed)
    begin = time.process_time()  # not of the clock on the wall: others use this machine too
    try:
        file = inspect_bytes(data, "damaged")
    except CubinError as problem:
        text = str(problem)
        assert text.startswith(("damaged: ", "damaged(")), (seed, what, text)
        assert text.isprintable(), (seed, what, text)
        result = "refused"
    except Exception as problem:
        raise AssertionError(f"mutant {seed!r} ({what}) gave {problem!r}") from problem
    else:
        json.loads(json.dumps(as_json([file])))
        with contextlib.redirect_stdout(io.StringIO()) as shown:
            show_file(file)
        assert "\x1b" not in shown.getvalue(), (seed, what)
        result = "read"
    spent = time.process_time() - begin
    assert spent < 1, f"mutant {seed!r} ({what}) took {spent:.1f} s"
    return result


@pytest.fixture(scope="module")
def seed() -> str:
    return os.environ.get("CAKERT_SEED", str(random.SystemRandom().randrange(1 << 32)))


def run(seed: str, count: int) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    results = Counter(outcome(f"{seed}/{number}") for number in range(count))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown * 1024 < MEMORY_LIMIT, f"CAKERT_SEED={seed}: {grown} KiB more than before"
    # Both must happen often, else the damage is too small or too coarse to find anything.
    assert min(results["refused"], results["read"]) > count // 10, (seed, results)


def test_sound_files_are_read():
    for name, data in BASES.items():
        assert inspect_bytes(data, name).cubins
        assert len(PLACES[name]) >= 2
    kinds = {kind for found in PLACES.values() for kind, _, _ in found}
    assert {"ELF header", "section table", "symbol table", ".nv.info", "fatbin header", "index",
            "entry header", ".note.nv.tkinfo", ".nv_fatbin", "member"} <= kinds  # fmt: skip


def test_damaged_files(seed):
    run(seed, 300)


@pytest.mark.full
def test_many_damaged_files(seed):
    run(seed, 5000)


def test_memory_of_damaged_files(seed):
    """What is allocated at the peak, counted: a promise that is followed would show at once."""
    for number in range(60):
        what, data = mutant(f"{seed}/{number}")
        tracemalloc.start()
        try:
            with contextlib.suppress(CubinError):
                inspect_bytes(data, "damaged")
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < TRACED_LIMIT, f"CAKERT_SEED={seed}, mutant {number} ({what}): {peak} bytes"


@pytest.mark.parametrize("method", ["zstd", "lz4"])
def test_promises_are_not_allocated(method):
    """Sizes that an entry's header may promise, up to what a word holds."""
    image = BASES["single"]
    for size in (1, 1000, len(image) + 1, 1 << 20, 1 << 27, 299_999_999, 1 << 31, (1 << 64) - 1):
        data = fatbin(entry("elf", image, method=method, decompressed_size=size))
        tracemalloc.start()
        try:
            with pytest.raises(CubinError):
                inspect_bytes(data, "lie")
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < TRACED_LIMIT, (size, peak)


@pytest.mark.parametrize("part", ["fatbins", "entries"])
def test_many_small_parts_take_linear_time(part):
    """Copying what follows each of them would be 10 GB."""
    tiny = entry("lto", b"")
    if part == "fatbins":
        data = (fatbin(tiny) + bytes(8)) * 20_000
    else:
        data = fatbin(tiny * 20_000)
    begin = time.process_time()
    found = inspect_bytes(data, "tiny").fatbins
    assert sum(len(one.entries) for one in found) == 20_000
    assert time.process_time() - begin < 1


def test_text_of_nothing_but_lines_takes_linear_time():
    data = fatbin(entry("ptx", b"\n" * 200_000))
    begin = time.process_time()
    with pytest.raises(CubinError, match="no PTX"):
        inspect_bytes(data, "lines")
    assert time.process_time() - begin < 1


LAYOUT = "<IIQQQQIIQQ"  # Elf64_Shdr


def with_sections(names: bytes, others: list[bytes], machine: int = 190) -> bytes:
    """An ELF file of a section for `names` and these other section headers."""
    counts = (64, 56, 0, 64, len(others) + 2, 1)
    head = struct.pack("<16sHHIQQQI6H", b"\x7fELF\x02\x01\x01\x41\x08" + bytes(7), 2, machine, 1, 0,
                       0, 64 + len(names), 0x6005A04, *counts)  # fmt: skip
    table = bytes(64) + struct.pack(LAYOUT, 1, 3, 0, 0, 64, len(names), 0, 0, 1, 0)
    return head + names + table + b"".join(others)


def test_overlapping_sections_are_refused_at_once():
    """60,000 kernels whose attributes are all the same megabyte: read one by one, an hour."""
    names, starts = bytearray(b"\0.shstrtab\0"), []
    for number in range(60_000):
        starts.append(len(names))
        names += b".nv.info.%d\0" % number
    others = [
        struct.pack(LAYOUT, start, 0x70000000, 0, 0, 64, len(names), 0, 0, 4, 0) for start in starts
    ]
    data = with_sections(bytes(names), others)
    begin = time.process_time()
    with pytest.raises(CubinError, match=r"its \.nv\.info sections overlap"):
        inspect_bytes(data, "overlapping")
    assert time.process_time() - begin < 2


@pytest.mark.parametrize("machine", [62, 190])
def test_overlapping_names_are_refused_at_once(machine):
    """60,000 sections with the same long name: 4 GB of names."""
    names = b"\0" + b"n" * 100_000 + b"\0"
    one = struct.pack(LAYOUT, 1, 1, 0, 0, 64, 0, 0, 0, 4, 0)
    data = with_sections(names, [one] * 60_000, machine)
    tracemalloc.start()
    begin = time.process_time()
    with pytest.raises(CubinError, match="its section names overlap"):
        inspect_bytes(data, "overlapping")
    spent = time.process_time() - begin
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert spent < 2
    assert peak < 2 * TRACED_LIMIT
