"""The cubin store: what is shipped is sound, and nothing else passes for it."""

from __future__ import annotations

import json
import lzma
import random
import shutil
import struct
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cakert.cubins import CubinStore, check_image, describe_image, store
from cakert.errors import CubinError

TARGETS = ("sm_90", "sm_100a", "sm_103a")
E_VERSION, E_FLAGS, E_MACHINE, IDENT_VERSION = 20, 48, 18, 6


@pytest.fixture(scope="module")
def cubin() -> bytes:
    """A real cubin of the package, the smallest."""
    return min((store().read(entry) for entry in store().entries), key=len)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store of three shipped cubins, one a target, free to be damaged."""
    root = store().root
    manifest = json.loads((root / "manifest.json").read_text())
    by_target = {entry["target"]: entry for entry in manifest["entries"]}
    manifest["entries"] = [by_target[target] for target in TARGETS]
    for entry in manifest["entries"]:
        shutil.copy(root / entry["file"], tmp_path)
        shutil.copy(root / entry["file"].replace(".cubin", ".ptx.xz"), tmp_path)
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    return tmp_path


def edit(folder: Path, change) -> None:
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


# --- what is shipped ------------------------------------------------------------------------------


def test_every_shipped_cubin_is_the_one_of_the_manifest():
    for entry in store().entries:
        info = describe_image(store().read(entry), entry.file)
        assert info.target == entry.target
        assert set(info.kernels) == {kernel.name for kernel in entry.kernels}
        assert f"V{store().toolkit['version']}" in info.toolkit  # F39
        ptx = store().ptx(entry)
        assert f".target {entry.target}" in ptx
        assert all(f".entry {kernel.name}(" in ptx for kernel in entry.kernels)


def test_tensor_instructions_are_those_of_the_ptx():
    """What the build read in the machine code; ptxas may unroll a loop of mma.sync once more."""
    for entry in json.loads((store().root / "manifest.json").read_text())["entries"]:
        packed = (store().root / entry["file"].replace(".cubin", ".ptx.xz")).read_bytes()
        ptx = lzma.decompress(packed).decode()
        (kernel,) = entry["kernels"]
        if entry["family"] == "portable":
            assert list(kernel["tensor_instructions"]) == ["HMMA"]
            assert kernel["tensor_instructions"]["HMMA"] % ptx.count("mma.sync") == 0
        else:
            assert kernel["tensor_instructions"] == {"HGMMA": ptx.count("wgmma.mma_async")}


@pytest.mark.parametrize(
    ("family", "capabilities", "blocks", "head_dims"),
    [
        ("portable", ((9, 0), (10, 0), (10, 3)), (64, 128), (64, 96, 128)),
        ("sm90", ((9, 0),), (64, 128), (64, 96, 128)),
        ("sm90_group", ((9, 0),), (64,), (128,)),
        ("sm90_split", ((9, 0),), (64,), (64, 96, 128)),
    ],
)
def test_kernels_are_complete_and_spill_nothing(family, capabilities, blocks, head_dims):
    for block in blocks:
        for head_dim in head_dims:
            for dtype in ("fp16", "bf16"):
                name = f"cake_vsa_{family}_r{block}_d{head_dim}_{dtype}"
                for capability in capabilities:
                    entry = store().find(name, capability)
                    assert entry is not None, (name, capability)
                    kernel = entry.kernel(name)
                    assert (kernel.R, kernel.D, kernel.dtype) == (block, head_dim, dtype)
                    assert kernel.spill_loads == kernel.spill_stores == kernel.stack_bytes == 0
                    assert kernel.threads % 32 == 0
                    assert 0 < kernel.threads <= 1024
                    # Two GPUs differ here; 227 KiB is what a block may have on all three.
                    assert 0 < kernel.shared_bytes + kernel.static_shared_bytes <= 227 * 1024


def test_hopper_loads_both_its_targets():
    """e_flags are equal: which one a cubin is for stands in its note."""
    wanted = {"cake_vsa_portable_r64_d128_bf16": "sm_90", "cake_vsa_sm90_r64_d128_bf16": "sm_90a"}
    flags = set()
    for name, target in wanted.items():
        entry = store().find(name, (9, 0))
        assert entry.target == target
        assert store().find(name, (9, 1)) is None
        info = describe_image(store().read(entry), entry.file)
        assert info.target == target
        flags.add(info.flags)
    assert len(flags) == 1
    assert store().find("cake_vsa_sm90_r64_d128_bf16", (10, 0)) is None
    assert {entry.target for entry in store().fitting((9, 0))} == {"sm_90", "sm_90a"}


def test_store_is_read_once():
    assert store() is store()


def test_reading_from_many_threads_gives_the_same_bytes(folder):
    cubins = CubinStore(folder)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(cubins.read, cubins.entries * 16))
    assert results == [cubins.read(entry) for entry in cubins.entries] * 16


def test_reading_leaves_the_folder_alone(folder):
    before = {p.name: (p.stat().st_mtime_ns, p.stat().st_size) for p in folder.iterdir()}
    cubins = CubinStore(folder)
    for entry in cubins.entries:
        cubins.read(entry)
        cubins.ptx(entry)
    assert {p.name: (p.stat().st_mtime_ns, p.stat().st_size) for p in folder.iterdir()} == before


# --- which cubin for which device (F29, F30) ------------------------------------------------------


def with_targets(folder: Path, *targets: str) -> CubinStore:
    """A store whose manifest offers one kernel for the given targets (files are not read)."""

    def change(manifest):
        first = manifest["entries"][0]
        manifest["entries"] = [
            {**first, "file": f"k.{target}.cubin", "target": target} for target in targets
        ]

    edit(folder, change)
    return CubinStore(folder)


@pytest.mark.parametrize(
    ("capability", "offered", "expected"),
    [
        ((9, 0), ("sm_90", "sm_90a"), "sm_90a"),
        ((9, 0), ("sm_90",), "sm_90"),
        ((9, 0), ("sm_100a", "sm_103a"), None),
        ((10, 0), ("sm_100f", "sm_100a"), "sm_100a"),
        ((10, 0), ("sm_100f", "sm_103a"), "sm_100f"),
        ((10, 0), ("sm_103a", "sm_103f"), None),
        ((10, 3), ("sm_100a",), None),
        ((10, 3), ("sm_100a", "sm_103a"), "sm_103a"),
        ((10, 3), ("sm_100f", "sm_103f", "sm_103a"), "sm_103a"),
        ((10, 3), ("sm_100f", "sm_103f"), "sm_103f"),
        ((10, 3), ("sm_100f",), "sm_100f"),
    ],
)
def test_best_target_for_a_device(folder, capability, offered, expected):
    cubins = with_targets(folder, *offered)
    entry = cubins.find(cubins.entries[0].kernels[0].name, capability)
    assert (entry.target if entry else None) == expected


@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (11, 0), (12, 0), (12, 1), (9, 1)])
def test_other_devices_have_no_cubin(capability):
    assert capability not in store().capabilities
    assert not store().fitting(capability)
    for entry in store().entries:
        assert store().find(entry.kernels[0].name, capability) is None


def test_capabilities_follow_the_targets(folder):
    assert store().capabilities == ((9, 0), (10, 0), (10, 3))
    assert with_targets(folder, "sm_100f").capabilities == ((10, 0), (10, 3))
    assert with_targets(folder, "sm_100a").capabilities == ((10, 0),)
    assert with_targets(folder).capabilities == ()


def test_unknown_kernel_is_not_found():
    assert store().find("cake_vsa_portable_r32_d64_fp16", (9, 0)) is None
    with pytest.raises(KeyError, match="has no kernel 'other', only"):
        store().entries[0].kernel("other")


# --- the image (F31, F32, F33) --------------------------------------------------------------------


@pytest.mark.parametrize("version", [0x80, 0x81, 0x82])
def test_object_version_is_not_judged(cubin, version):
    changed = bytearray(cubin)
    struct.pack_into("<I", changed, E_VERSION, version)
    assert describe_image(bytes(changed)) == describe_image(cubin)


def test_ident_version_must_be_one(cubin):
    changed = bytearray(cubin)
    changed[IDENT_VERSION] = 2
    with pytest.raises(CubinError, match=r"mine\.cubin: .*expected ELF ident version 1, got 2"):
        check_image(bytes(changed), "mine.cubin")


@pytest.mark.parametrize("target", TARGETS)
def test_target_is_read_with_its_suffix(target):
    entry = next(entry for entry in store().entries if entry.target == target)
    assert describe_image(store().read(entry)).target == target


def test_unknown_architecture_is_not_guessed(cubin):
    changed = bytearray(cubin)
    struct.pack_into("<I", changed, E_FLAGS, 0x0600EE04)
    info = describe_image(bytes(changed))
    assert info.target == "unknown"
    assert info.flags == 0x0600EE04


def test_flags_that_contradict_the_note_are_unknown(cubin):
    flags = struct.unpack_from("<I", cubin, E_FLAGS)[0]
    changed = bytearray(cubin)
    struct.pack_into("<I", changed, E_FLAGS, flags & ~0xFF00 | 120 << 8)
    assert describe_image(bytes(changed)).target == "unknown"


def test_without_the_note_the_suffix_stays_open(cubin):
    # A renamed section is as good as none: the note is found by name.
    changed = cubin.replace(b".note.nv.tkinfo", b".note.nv.xxinfo")
    info = describe_image(changed)
    assert info.target == describe_image(cubin).target.rstrip("af")
    assert info.toolkit == "unknown"


def bad_images(cubin: bytes) -> dict[str, tuple[bytes, str]]:
    def patched(offset: int, fmt: str, value: int) -> bytes:
        changed = bytearray(cubin)
        struct.pack_into(fmt, changed, offset, value)
        return bytes(changed)

    section_table = struct.unpack_from("<Q", cubin, 40)[0]
    return {
        "empty": (b"", "the file is empty"),
        "3 bytes": (b"\x7fEL", "no ELF header"),
        "hello": (b"hello", "no ELF header, the file begins with b'hello'"),
        "short header": (cubin[:40], "40 bytes end inside the ELF header"),
        "header only": (cubin[:64], "lies beyond the file's 64 bytes"),
        "half": (cubin[: len(cubin) // 2], "lies beyond the file's"),
        "last byte": (cubin[:-1], "lies beyond the file's"),
        "section offset": (patched(section_table + 64 + 24, "<Q", 1 << 40), "section 1 at offset"),
        "section size": (patched(section_table + 64 + 32, "<Q", 1 << 63), "section 1 at offset"),
        "section table": (patched(40, "<Q", len(cubin) - 8), "section table at offset"),
        "section count": (patched(60, "<H", 0xFFFF), "section table at offset"),
        "no sections": (patched(60, "<H", 0), "no sections"),
        "section entry size": (patched(58, "<H", 40), "section header of 64 bytes, got 40"),
        "names index": (patched(62, "<H", 0xFFF0), "no string table for section names"),
        "program table": (patched(32, "<Q", 1 << 62), "program table at offset"),
        "machine": (patched(E_MACHINE, "<H", 62), "expected machine 190 (CUDA), got 62"),
        "32 bit": (patched(4, "<B", 1), "expected 64-bit little-endian ELF"),
        "PTX": (b"//\n// by hand\n.version 9.0\n.target sm_90\n", "this is PTX text"),
        "fatbin": (b"\x50\xed\x55\xba" + cubin, "this is a fatbin"),
    }


# Only the names of the cases are taken from this blank image.
BAD_IMAGES = tuple(bad_images(bytes(256)))


@pytest.mark.parametrize("case", BAD_IMAGES)
@pytest.mark.parametrize("function", [check_image, describe_image])
def test_bad_image_is_refused_with_file_and_reason(cubin, case, function):
    data, reason = bad_images(cubin)[case]
    with pytest.raises(CubinError) as caught:
        function(data, "some/where.cubin")
    assert str(caught.value).startswith("some/where.cubin: ")
    assert reason in str(caught.value)


@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.data_too_large])
@given(data=st.data())
def test_no_damage_gives_another_exception(cubin, data):
    """Whatever the bytes: a description or a CubinError, never a traceback of the reader."""
    changed = bytearray(cubin)
    # Bytes of headers and tables matter most; random places would mostly hit code.
    tables = st.one_of(
        st.integers(0, 63),
        st.integers(struct.unpack_from("<Q", cubin, 40)[0], len(cubin) - 1),
        st.integers(0, len(cubin) - 1),
    )
    for place, value in data.draw(st.lists(st.tuples(tables, st.integers(0, 255)), max_size=12)):
        changed[place] = value
    length = data.draw(st.one_of(st.just(len(changed)), st.integers(0, len(changed))))
    try:
        describe_image(bytes(changed[:length]), "damaged")
    except CubinError as problem:
        assert str(problem).startswith("damaged: ")


# --- the files against the manifest (F34) ---------------------------------------------------------


def flip(data: bytes) -> bytes:
    place = random.Random(len(data)).randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


@pytest.mark.parametrize(
    "damage",
    [flip, lambda data: data[:-1], lambda data: b"", lambda data: data + b"\n"],
    ids=["one bit", "cut", "empty", "longer"],
)
def test_damaged_cubin_is_refused(folder, damage):
    cubins = CubinStore(folder)
    for entry in cubins.entries:
        path = folder / entry.file
        path.write_bytes(damage(path.read_bytes()))
        with pytest.raises(CubinError) as caught:
            cubins.read(entry)
        text = str(caught.value)
        assert entry.file in text
        assert f"expected '{entry.sha256}', actual '" in text


def test_swapped_cubins_are_refused(folder):
    cubins = CubinStore(folder)
    first, second = (folder / entry.file for entry in cubins.entries[:2])
    one, two = first.read_bytes(), second.read_bytes()
    first.write_bytes(two)
    second.write_bytes(one)
    for entry in cubins.entries[:2]:
        with pytest.raises(CubinError, match=entry.file):
            cubins.read(entry)


def test_cubin_of_another_target_is_refused_even_with_its_hash(folder):
    cubins = CubinStore(folder)
    one, two = cubins.entries[:2]
    forged = replace(one, file=two.file, sha256=two.sha256)
    with pytest.raises(CubinError, match=f"expected target {one.target}.*actual {two.target}"):
        cubins.read(forged)


def test_cubin_without_a_kernel_of_the_manifest_is_refused(folder):
    cubins = CubinStore(folder)
    entry = cubins.entries[0]
    other = replace(entry, kernels=(replace(entry.kernels[0], name="cake_other"),))
    with pytest.raises(CubinError, match=r"expected kernels \['cake_other'\].*actual \['cake_vsa"):
        cubins.read(other)


def test_missing_cubin_is_refused(folder):
    cubins = CubinStore(folder)
    (folder / cubins.entries[0].file).unlink()
    with pytest.raises(CubinError, match=f"{cubins.entries[0].file}.*no such file"):
        cubins.read(cubins.entries[0])


def one_digit(digest: str) -> str:
    return digest[:17] + ("1" if digest[17] == "0" else "0") + digest[18:]


@pytest.mark.parametrize("key", ["sha256", "ptx_sha256"])
@pytest.mark.parametrize(
    "change",
    [
        lambda entry, key: entry.pop(key),
        lambda entry, key: entry.update({key: ""}),
        lambda entry, key: entry.update({key: None}),
        lambda entry, key: entry.update({key: one_digit(entry[key])}),
        lambda entry, key: entry.update({key: entry[key].upper()}),
    ],
    ids=["missing", "empty", "null", "one digit", "upper case"],
)
def test_wrong_hash_in_the_manifest_is_refused(folder, key, change):
    good = CubinStore(folder).entries[0]
    edit(folder, lambda manifest: change(manifest["entries"][0], key))
    cubins = CubinStore(folder)
    read, file = (cubins.read, good.file) if key == "sha256" else (cubins.ptx, good.ptx_file)
    with pytest.raises(CubinError) as caught:
        read(cubins.entries[0])
    assert file in str(caught.value)
    assert f"expected {getattr(cubins.entries[0], key)!r}" in str(caught.value)
    assert f"actual {getattr(good, key)!r}" in str(caught.value)


@pytest.mark.parametrize(
    "damage",
    [
        lambda packed: packed[:-20],
        lambda packed: b"",
        lambda packed: b"hello",
        lambda packed: lzma.compress(lzma.decompress(packed).replace(b"ret;", b"exit;")),
    ],
    ids=["cut", "empty", "not xz", "other text"],
)
def test_damaged_ptx_is_refused(folder, damage):
    cubins = CubinStore(folder)
    entry = cubins.entries[0]
    path = folder / entry.ptx_file
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CubinError, match=entry.ptx_file):
        cubins.ptx(entry)


# --- the manifest ---------------------------------------------------------------------------------


def test_missing_manifest(tmp_path):
    with pytest.raises(CubinError, match=r"manifest\.json: no manifest"):
        CubinStore(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '"x"', "nul", "\ufffe", "{}", "[" * 100_000])
def test_manifest_that_is_no_manifest(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text, encoding="utf-8")
    with pytest.raises(CubinError, match=r"manifest\.json: malformed manifest: "):
        CubinStore(tmp_path)


def change_entry(**values):
    return lambda manifest: manifest["entries"][0].update(values)


def change_kernel(**values):
    return lambda manifest: manifest["entries"][0]["kernels"][0].update(values)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: m.update(format=2), "format must be 1, got 2"),
        (lambda m: m.update(format="1"), "format must be int, got '1'"),
        (lambda m: m.update(entries={}), "entries must be list"),
        (lambda m: m.update(entries=[7]), "entry 0 must be an object, got int"),
        (lambda m: m.update(toolkit="13.0"), "toolkit must be dict"),
        (lambda m: m["toolkit"].update(build="a\x1b[1m"), "toolkit: build must be printable ASCII"),
        (change_entry(target="sm_" + "9" * 5000), "target must look like sm_90a"),
        (change_entry(file="-o.cubin"), "file must be a bare .cubin name"),
        (lambda m: m["toolkit"].pop("version"), "toolkit: version must be str, got None"),
        (change_entry(file="../k.cubin"), "file must be a bare .cubin name, got '../k.cubin'"),
        (change_entry(file="/etc/passwd"), "file must be a bare .cubin name"),
        (change_entry(file="k.so"), "file must be a bare .cubin name"),
        (change_entry(file=None), "file must be str, got None"),
        (change_entry(target="hopper"), "target must look like sm_90a, got 'hopper'"),
        (change_entry(kernels=[]), "kernels is empty"),
        (change_entry(kernels="k"), "kernels must be list"),
        (change_kernel(name=3), "name must be str, got 3"),
        (change_kernel(threads=-1), "threads must not be negative, got -1"),
        (change_kernel(threads=True), "threads must be int, got True"),
        (change_kernel(registers="96"), "registers must be int, got '96'"),
        (change_kernel(shared_bytes=1.5), "shared_bytes must be int, got 1.5"),
        (change_kernel(spill_loads=None), "spill_loads must be int, got None"),
        (change_kernel(R="64"), "R must be int, got '64'"),
        (lambda m: m["entries"].append(m["entries"][0]), "stands there twice"),
    ],
)
def test_malformed_manifest_names_file_and_place(folder, change, reason):
    edit(folder, change)
    with pytest.raises(CubinError) as caught:
        CubinStore(folder)
    assert str(folder / "manifest.json") in str(caught.value)
    assert reason in str(caught.value)


def test_one_kernel_in_two_files_of_a_target_is_refused(folder):
    edit(folder, lambda m: m["entries"].append({**m["entries"][0], "file": "other.cubin"}))
    with pytest.raises(CubinError, match=r"stands in both .* and other\.cubin"):
        CubinStore(folder)
