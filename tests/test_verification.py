"""`cakert verify`: every kind of damage is found and named, and the PTX gives the bytes again."""

from __future__ import annotations

import contextlib
import json
import lzma
import os
import pty
import random
import re
import shutil
import stat
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

import cakert
from cakert.cli.main import main
from cakert.cubins import store
from cakert.cubins.assembler import (
    PTXAS_FLAGS,
    BuildError,
    find_assembler,
    ptx_compiler,
    ptx_geometry,
    ptx_kernels,
    ptx_target,
    tool_folders,
)
from cakert.cubins.packed import LARGEST_PTX, unpack
from cakert.verification import KINDS, rebuild, verify

TARGETS = ("sm_90", "sm_90a", "sm_100a")
E_FLAGS = 48


@pytest.fixture
def rng() -> random.Random:
    """Fresh numbers in every run; the seed is printed with a failure, CAKERT_SEED repeats it."""
    seed = int(os.environ.get("CAKERT_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"CAKERT_SEED={seed}")
    return random.Random(seed)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The smallest shipped cubin of each of three targets, with a manifest, free to be damaged."""
    root = store().root
    manifest = json.loads((root / "manifest.json").read_text())
    picked = [
        min(
            (entry for entry in manifest["entries"] if entry["target"] == target),
            key=lambda entry: (root / entry["file"]).stat().st_size,
        )
        for target in TARGETS
    ]
    manifest["entries"] = picked
    result = tmp_path / "cubins"
    result.mkdir()
    for entry in picked:
        for name in (entry["file"], ptx_of(entry["file"])):
            shutil.copy(root / name, result)
    (result / "manifest.json").write_text(json.dumps(manifest))
    return result


def ptx_of(file: str) -> str:
    return file.replace(".cubin", ".ptx.xz")


def edit(folder: Path, change) -> None:
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def files(folder: Path) -> list[str]:
    return [e["file"] for e in json.loads((folder / "manifest.json").read_text())["entries"]]


def found(folder: Path) -> dict[tuple[str, str], str]:
    """Text by file and kind; several of a kind joined."""
    result: dict[tuple[str, str], str] = {}
    for finding in verify(folder).findings:
        assert finding.kind in KINDS
        key = (finding.file, finding.kind)
        result[key] = "; ".join(filter(None, [result.get(key), finding.text]))
    return result


# --- what is shipped ------------------------------------------------------------------------------


def test_installation_is_as_the_manifest_says(project):
    verification = verify(store().root)
    assert verification.passed, verification.findings
    assert [cubin.file for cubin in verification.cubins] == [e.file for e in store().entries]
    version = store().toolkit["version"]
    for cubin in verification.cubins:  # F39: compiler and assembler of every cubin
        assert cubin.compiler == f"release {store().toolkit['release']}, V{version}"
        assert cubin.assembler == f"Cuda compilation tools, {cubin.compiler}"
        assert cubin.rebuilt is None
    # ... and the extra `cubins` pins them.
    text = (project / "pyproject.toml").read_text()
    for package in ("nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-crt"):
        assert f'"{package}=={version}"' in text


def test_a_sound_folder_passes(folder):
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}
    verification = verify(folder)
    assert verification.passed
    assert [cubin.target for cubin in verification.cubins] == list(TARGETS)
    after = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}
    assert after == before


# --- the manifest and its files (F34) -------------------------------------------------------------


def wrong_digit(good: str, rng: random.Random) -> str:
    place = rng.randrange(len(good))
    return good[:place] + format((int(good[place], 16) + 1) % 16, "x") + good[place + 1 :]


@pytest.mark.parametrize("key", ["sha256", "ptx_sha256"])
@pytest.mark.parametrize(
    "change",
    [
        lambda good, rng: None,
        lambda good, rng: "",
        wrong_digit,
        lambda good, rng: good.upper() + "0",
        lambda good, rng: good[:-1],
    ],
    ids=["missing", "empty", "one digit", "other", "short"],
)
def test_wrong_hash_of_the_manifest(folder, key, change, rng):
    file = files(folder)[1]
    good = json.loads((folder / "manifest.json").read_text())["entries"][1][key]
    bad = change(good, rng)

    def apply(manifest):
        if bad is None:
            del manifest["entries"][1][key]
        else:
            manifest["entries"][1][key] = bad

    edit(folder, apply)
    results = found(folder)
    name = file if key == "sha256" else ptx_of(file)
    assert list(results) == [(name, "hash")]
    text = results[name, "hash"]
    assert f"expected {(bad or '')!r} (manifest), actual {good!r}" in text
    assert ("no valid hash" in text) == (not re.fullmatch(r"[0-9a-f]{64}", bad or ""))


def test_flipped_byte_of_a_cubin(folder, rng):
    for file in files(folder):
        path = folder / file
        data = bytearray(path.read_bytes())
        place = rng.randrange(len(data))
        data[place] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        text = found(folder)[file, "hash"]
        good = next(e for e in store().entries if e.file == file).sha256
        assert f"expected {good!r} (manifest), actual '" in text
        assert f"({len(data)} bytes)" in text


def test_every_finding_is_reported_not_only_the_first(folder):
    one, two, three = files(folder)
    (folder / one).unlink()
    (folder / ptx_of(one)).write_bytes(b"")
    data = (folder / two).read_bytes()
    (folder / two).write_bytes(data[: len(data) // 2])
    (folder / ptx_of(three)).unlink()
    (folder / "vsa_old.sm_90.cubin").write_bytes(data)
    (folder / "._partial.cubin.x8z").write_bytes(b"")
    edit(folder, lambda m: m["entries"].append({"file": "../outside.cubin"}))
    edit(folder, lambda m: m["entries"].append({**m["entries"][2], "target": 90}))
    results = found(folder)
    assert "no such file" in results.pop((one, "missing"))
    assert "not valid xz" in results.pop((ptx_of(one), "ptx"))
    assert f"({len(data) // 2} bytes)" in results.pop((two, "hash"))
    assert "truncated" in results.pop((two, "image"))
    results.pop((ptx_of(three), "missing"))
    text = results.pop(("manifest.json", "manifest"))
    assert "bare .cubin name" in text
    assert "target must be str, got 90" in text
    assert not results  # a stray cannot be told while entries are malformed
    edit(folder, lambda m: m.update(entries=m["entries"][:3]))
    strays = {file for file, kind in found(folder) if kind == "stray"}
    assert strays == {"vsa_old.sm_90.cubin", "._partial.cubin.x8z"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "no manifest"),
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[3]", "must be an object"),
        ('{"format": 2}', "format must be 1, got 2"),
        ('{"format": 1}', "toolkit must be dict"),
    ],
)
def test_manifest_that_is_none(folder, text, reason):
    (folder / "manifest.json").unlink()
    if text is not None:
        (folder / "manifest.json").write_text(text)
    verification = verify(folder)
    ((finding,), cubins) = (verification.findings, verification.cubins)
    assert (finding.file, finding.kind) == ("manifest.json", "manifest")
    assert reason in finding.text
    assert str(folder) not in finding.text
    assert cubins == ()
    assert verification.manifest is None


def test_file_twice_and_kernel_twice(folder):
    one, two, _ = files(folder)

    def change(manifest):
        first, second = manifest["entries"][:2]
        manifest["entries"] += [first, {**second, "target": "sm_90", "file": "copy.cubin"}]
        first["kernels"] += [{**second["kernels"][0]}]

    edit(folder, change)
    shutil.copy(folder / two, folder / "copy.cubin")
    shutil.copy(folder / ptx_of(two), folder / "copy.ptx.xz")
    results = found(folder)
    assert f"{one} stands there twice" in results["manifest.json", "manifest"]
    assert f"for sm_90 stands in {one} as well" in results["copy.cubin", "duplicate"]
    assert "expected 'sm_90' (manifest), actual 'sm_90a'" in results["copy.cubin", "target"]


def test_other_kinds_of_file(folder, tmp_path):
    one, two, three = files(folder)
    for file in (one, ptx_of(two)):
        (folder / file).unlink()
    os.mkfifo(folder / one)
    (folder / ptx_of(two)).mkdir()
    with (folder / three).open("r+b") as file:
        file.truncate((256 << 20) + 1)  # sparse: no disk is used
    results = found(folder)
    assert "regular file" in results[one, "unreadable"]
    assert "regular file" in results[ptx_of(two), "unreadable"]
    assert "at most 268435456 bytes" in results[three, "unreadable"]
    (folder / "manifest.json").unlink()
    os.mkfifo(folder / "manifest.json")
    assert list(found(folder)) == [("manifest.json", "unreadable")]
    (folder / "manifest.json").unlink()
    (folder / "manifest.json").write_text("[" + "[]," * 350_000 + "0]")  # parsed: 30 times that
    assert "at most 1048576 bytes" in found(folder)["manifest.json", "unreadable"]
    with pytest.raises(NotADirectoryError, match="no such folder"):
        verify(tmp_path / "nowhere")


# --- a cubin and its entry ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "step", "kind", "where"),
    [
        ("registers", 1, "registers", "cubin"),
        ("registers", -8, "registers", "cubin"),
        ("static_shared_bytes", 16, "static shared bytes", "cubin"),
        ("stack_bytes", 8, "stack bytes", "cubin"),
        ("spill_stores", 4, "4 spilled bytes", "cubin"),
        ("spill_loads", 12, "12 spilled bytes", "cubin"),
        ("threads", 32, "threads", "both"),
        ("threads", -32, "threads", "ptx"),
        ("shared_bytes", -1024, "dynamic shared bytes", "ptx"),
    ],
)
def test_resources_that_are_not_those_of_the_file(folder, key, step, kind, where):
    file = files(folder)[1]
    kernel = json.loads((folder / "manifest.json").read_text())["entries"][1]["kernels"][0]
    edit(folder, lambda m: m["entries"][1]["kernels"][0].update({key: kernel[key] + step}))
    results = found(folder)
    names = {"cubin": [file], "ptx": [ptx_of(file)], "both": [file, ptx_of(file)]}[where]
    assert list(results) == [(name, "resources") for name in names]
    for text in results.values():
        assert kind in text
        assert kernel["name"] in text


def test_names_target_and_toolkit(folder):
    one, two, three = files(folder)
    edit(folder, lambda m: m["entries"][0]["kernels"][0].update(name="cake_other"))
    edit(folder, lambda m: m["entries"][1].update(target="sm_90"))
    edit(folder, lambda m: m["toolkit"].update(version="13.0.99"))
    results = found(folder)
    assert "expected ['cake_other'] (manifest), actual ['cake_vsa" in results[one, "kernels"]
    assert "expected ['cake_other'] (manifest)" in results[ptx_of(one), "kernels"]
    assert "no constant cake_other_geometry" in results[ptx_of(one), "ptx"]
    assert "expected 'sm_90' (manifest), actual 'sm_90a'" in results[two, "target"]
    assert "expected 'sm_90' (manifest), actual 'sm_90a'" in results[ptx_of(two), "target"]
    for file in (three, ptx_of(three)):
        assert "V13.0.99' (manifest), actual '" in results[file, "toolkit"]
    assert (three, "target") not in results


def test_unknown_target_shows_its_flags(folder):
    file = files(folder)[0]
    data = bytearray((folder / file).read_bytes())
    struct.pack_into("<I", data, E_FLAGS, 0x0600EE04)
    (folder / file).write_bytes(data)
    assert "actual 'unknown' (e_flags 0x0600ee04)" in found(folder)[file, "target"]


# --- PTX ------------------------------------------------------------------------------------------


def change_ptx(folder: Path, file: str, change) -> None:
    path = folder / ptx_of(file)
    path.write_bytes(lzma.compress(change(lzma.decompress(path.read_bytes())), preset=0))


@pytest.mark.parametrize(
    ("change", "kind", "reason"),
    [
        (lambda t: t.replace(b".target sm_90a", b".target sm_90"), "target", "actual 'sm_90'"),
        (lambda t: t.replace(b".target", b"//target"), "target", "actual None"),
        (lambda t: t.replace(b".entry ", b".func "), "kernels", "actual []"),
        (lambda t: t.replace(b"_geometry[8]", b"_geometry[9]"), "ptx", "expected 2 words"),
        (lambda t: t.replace(b"_geometry[8] = {", b"_geometry[8] = {x,"), "ptx", "invalid literal"),
        (lambda t: t.replace(b"release 13.0", b"release 12.9"), "toolkit", "release 12.9"),
        (lambda t: b"\xff" + t, "ptx", "codec can't decode"),
    ],
)
def test_changed_ptx(folder, change, kind, reason):
    file = files(folder)[1]
    change_ptx(folder, file, change)
    results = found(folder)
    assert reason in results[ptx_of(file), kind]
    # Undecodable text has no hash that could be compared.
    assert ((ptx_of(file), "hash") in results) == (reason != "codec can't decode")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda packed: packed[:-30], "inside the stream"),
        (lambda packed: packed + b"\0\0\0\0more", "8 bytes behind its end"),
        (lambda packed: packed + lzma.compress(b"more"), "bytes behind its end"),
        (lambda packed: b"hello, PTX", "not valid xz"),
        (lambda packed: lzma.compress(bytes(LARGEST_PTX + 1), preset=0), "more than 67108864"),
    ],
)  # fmt: skip
def test_ptx_is_unpacked_within_bounds(folder, change, reason):
    file = ptx_of(files(folder)[0])
    (folder / file).write_bytes(change((folder / file).read_bytes()))
    assert reason in found(folder)[file, "ptx"]


def test_unpacking_gives_what_was_packed(rng):
    data = rng.randbytes(rng.randrange(1, 200_000))
    assert unpack(lzma.compress(data)) == data
    with pytest.raises(ValueError, match="Memory usage limit"):
        unpack(lzma.compress(data, filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 28}]))


def test_words_of_ptx():
    assert ptx_target("//\n.version 9.0\n.target sm_103a, debug\n") == "sm_103a"
    assert ptx_target("// .target sm_90\n") is None
    assert ptx_compiler("//\n// Cuda compilation tools, release 13.1, V13.1.2\n") == (
        "release 13.1, V13.1.2"
    )
    assert ptx_compiler(".version 9.0\n") is None


@pytest.mark.parametrize(
    "text",
    ["\n", ".visible ", " ", ".global .b8 a_geometry[8] = {\n", "\n.visible\n\n", "a_geometry"],
)
def test_words_of_ptx_are_found_in_linear_time(text):
    """A folder is data that nobody vouches for; a minute for 40 kB is what it once took."""
    ptx = text * (4_000_000 // len(text))
    start = time.perf_counter()
    assert ptx_target(ptx) is None
    assert ptx_kernels(ptx) == []
    assert ptx_geometry(ptx) == {}
    assert time.perf_counter() - start < 20


# --- assembling again -----------------------------------------------------------------------------


def fake_toolkit(
    folder: Path, cubins: Path, *, version: str | None = None, build: str | None = None,
    other: bool = False, fail: bool = False,
) -> Path:  # fmt: skip
    """A toolkit whose ptxas looks the answer up, if it is called as it must be."""
    toolkit = store().toolkit
    script = f"""#!{sys.executable}
import os, pathlib, sys
if sys.argv[1:] == ["--version"]:
    print("Cuda compilation tools, release 13.0, V{version or toolkit["version"]}")
    print("Build {build or toolkit["build"]}")
    sys.exit()
arch, verbose, dash_o, cubin, ptx = sys.argv[1:]
stem = cubin.removesuffix(".cubin")
assert (verbose, dash_o, ptx) == ("-v", "-o", stem + ".ptx")
assert arch == "-arch=" + stem.rpartition(".")[2]
assert os.listdir() == [ptx] and ".entry" in pathlib.Path(ptx).read_text()
if {fail}:
    print("ptxas fatal : no")
    sys.exit(255)
data = (pathlib.Path({str(cubins)!r}) / cubin).read_bytes()
pathlib.Path(cubin).write_bytes(data + b"!" * {other})
"""
    path = folder / "bin" / "ptxas"
    path.parent.mkdir(parents=True)
    path.write_text(script)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return folder


def test_rebuilding_gives_the_same_bytes(folder, tmp_path):
    assembler = find_assembler(store().toolkit, fake_toolkit(tmp_path / "cuda", folder))
    assert (assembler.origin, assembler.version.identity) == ("--toolkit", store().toolkit)
    steps = []
    before = verify(folder)
    after = rebuild(before, assembler, jobs=2, progress=lambda *step: steps.append(step))
    assert after.passed
    assert [cubin.rebuilt for cubin in after.cubins] == [True] * 3
    assert steps == [(1, 3), (2, 3), (3, 3)]


def test_rebuilding_finds_other_bytes(folder, tmp_path):
    other = find_assembler(store().toolkit, fake_toolkit(tmp_path / "a", folder, other=True))
    after = rebuild(verify(folder), other)
    assert [cubin.rebuilt for cubin in after.cubins] == [False] * 3
    assert {finding.kind for finding in after.findings} == {"rebuild"}
    for finding, entry in zip(after.findings, files(folder), strict=True):
        assert finding.file == entry
        assert re.search(r"expected '[0-9a-f]{64}' .*, actual '[0-9a-f]{64}'", finding.text)
    failing = find_assembler(store().toolkit, fake_toolkit(tmp_path / "b", folder, fail=True))
    after = rebuild(verify(folder), failing)
    assert all("ptxas fatal : no" in finding.text for finding in after.findings)
    assert len(after.findings) == 3


def test_rebuilding_leaves_out_what_is_broken_already(folder, tmp_path):
    one, two, three = files(folder)
    (folder / one).unlink()
    change_ptx(folder, two, lambda text: text + b"\n")
    assembler = find_assembler(store().toolkit, fake_toolkit(tmp_path / "cuda", folder))
    after = rebuild(verify(folder), assembler)
    assert [cubin.rebuilt for cubin in after.cubins] == [None, None, True]
    assert {(f.file, f.kind) for f in after.findings} == {(one, "missing"), (ptx_of(two), "hash")}
    assert after.cubins[2].file == three


def test_other_flags_are_refused(folder, tmp_path):
    edit(folder, lambda m: m["flags"].update(ptxas=["-v", "-O1"]))
    assembler = find_assembler(store().toolkit, fake_toolkit(tmp_path / "cuda", folder))
    with pytest.raises(BuildError, match=r"flags \['-v', '-O1'\], this cakert assembles with"):
        rebuild(verify(folder), assembler)
    assert store().root  # the shipped ones have ours
    manifest = json.loads((store().root / "manifest.json").read_text())
    assert tuple(manifest["flags"]["ptxas"]) == PTXAS_FLAGS


def test_ptxas_of_another_version_is_refused(folder, tmp_path, monkeypatch):
    toolkit = store().toolkit
    for name in ("CUDA_HOME", "CUDA_PATH", "PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sysconfig.get_path", lambda key: str(tmp_path / key))
    pip = f"pip install nvidia-cuda-nvcc=={toolkit['version']}"
    with pytest.raises(BuildError, match="found none on PATH, in CUDA_HOME") as caught:
        find_assembler(toolkit)
    assert pip in str(caught.value)
    newer = fake_toolkit(tmp_path / "newer", folder, version="13.5.37", build="cuda_13.5/c.1")
    with pytest.raises(BuildError, match=r"of version 13\.5\.37 \(cuda_13\.5/c\.1\)") as caught:
        find_assembler(toolkit, newer)
    assert pip in str(caught.value)
    assert f"assembled by ptxas {toolkit['version']} ({toolkit['build']})" in str(caught.value)
    with pytest.raises(BuildError, match="found none in"):
        find_assembler(toolkit, tmp_path)
    # The right one wins, wherever it stands; another build of the same version does not.
    monkeypatch.setenv("CUDA_HOME", str(newer))
    monkeypatch.setenv("CUDA_PATH", str(fake_toolkit(tmp_path / "b", folder, build="other")))
    with pytest.raises(BuildError, match=r"\(CUDA_HOME\).*\(CUDA_PATH\)"):
        find_assembler(toolkit)
    fake_toolkit(tmp_path / "purelib" / "nvidia" / "cu13", folder)
    assert find_assembler(toolkit).origin == "wheels"
    monkeypatch.setenv("PATH", str(fake_toolkit(tmp_path / "p", folder) / "bin"))
    assert find_assembler(toolkit).origin == "PATH"


def test_real_ptxas_gives_the_shipped_bytes(folder):
    """One cubin here; `cakert verify --rebuild` takes them all."""
    if not tool_folders(None, "ptxas"):
        pytest.skip("no ptxas on PATH, in CUDA_HOME or CUDA_PATH, or from pip")
    try:
        assembler = find_assembler(store().toolkit)
    except BuildError as problem:
        pytest.skip(str(problem))
    edit(folder, lambda m: m.update(entries=m["entries"][:1]))
    for path in folder.iterdir():
        if path.name not in ("manifest.json", files(folder)[0], ptx_of(files(folder)[0])):
            path.unlink()
    after = rebuild(verify(folder), assembler)
    assert after.passed, after.findings
    assert [cubin.rebuilt for cubin in after.cubins] == [True]


# --- the command ----------------------------------------------------------------------------------


def test_command_on_a_sound_folder(folder, capsys):
    assert main(["verify", str(folder)]) == 0
    text = capsys.readouterr().out
    assert text.count("\n") == 1
    assert f"3 cubins with 3 kernels in {folder}" in text
    assert "all as in the manifest" in text
    assert main(["verify", "--all"]) == 0
    text = capsys.readouterr().out
    for entry in store().entries:  # F39
        row = next(line for line in text.splitlines() if f" {entry.file} " in line)
        made = f"release {store().toolkit['release']}, V{store().toolkit['version']}"
        assert row.count(made) == 2
        assert entry.target in row


def test_command_on_a_damaged_folder(folder, capsys):
    one, two, _ = files(folder)
    (folder / one).unlink()
    (folder / "stray\x1b[31m.cubin").write_bytes(b"")
    edit(folder, lambda m: m["entries"][1].update(sha256=""))
    assert main(["verify", str(folder)]) == 1
    shown = capsys.readouterr()
    assert shown.err == ""
    assert "files with findings: 3" in shown.out
    assert re.search(rf"{two} .*hash: sha256: expected ''", shown.out)
    assert r"stray\x1b[31m.cubin" in shown.out
    assert "\x1b" not in shown.out
    assert "3 findings in 3 files" in shown.out
    assert main(["verify", str(folder / one)]) == 1
    assert capsys.readouterr().err.endswith(f"{one}: no such folder\n")


def test_json_has_the_documented_fields(folder, tmp_path, capsys, project):
    toolkit = fake_toolkit(tmp_path / "cuda", folder)
    edit(folder, lambda m: m["entries"][1].update(sha256=""))
    arguments = ["verify", str(folder), "--json", "--rebuild", "--toolkit", str(toolkit)]
    assert main([*arguments, "--jobs", "1"]) == 1
    document = json.loads(capsys.readouterr().out)
    text = (project / "docs" / "doctor.md").read_text()
    text = text[text.index("### JSON of verify") :]
    fields = set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))
    (finding,) = document["findings"]
    every = document.keys() | finding.keys() | document["cubins"][0].keys()
    assert every == fields
    assert (document["schema"], document["passed"]) == (1, False)
    assert document["toolkit"] == store().toolkit
    assert document["rebuilt_with"] == {**store().toolkit, "ptxas": str(toolkit / "bin" / "ptxas")}
    assert [cubin["rebuilt"] for cubin in document["cubins"]] == [True] * 3
    assert (finding["file"], finding["kind"]) == (files(folder)[1], "hash")


def test_rebuild_on_the_command_line(folder, tmp_path, capsys):
    toolkit = fake_toolkit(tmp_path / "cuda", folder)
    assert main(["verify", str(folder), "--rebuild", "--toolkit", str(toolkit)]) == 0
    assert "3 of 3 assembled again with" in capsys.readouterr().out
    old = fake_toolkit(tmp_path / "old", folder, version="12.9.86")
    assert main(["verify", str(folder), "--rebuild", "--toolkit", str(old)]) == 1
    shown = capsys.readouterr()
    assert shown.err.startswith("cakert: error: the cubins were assembled by ptxas 13.0")
    assert shown.err.count("\n") == 1
    assert "12.9.86" in shown.err


def test_progress_and_colours_on_a_terminal_only(folder, tmp_path):
    toolkit = fake_toolkit(tmp_path / "cuda", folder)
    command = [sys.executable, "-m", "cakert.cli", "verify", str(folder), "--rebuild"]
    command += ["--toolkit", str(toolkit), "--jobs", "1"]
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"}
    env.pop("NO_COLOR", None)
    ours, theirs = pty.openpty()
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=theirs, env=env) as process:
        os.close(theirs)
        text = b""
        # The other end reports an error once it is closed.
        with contextlib.suppress(OSError):
            while part := os.read(ours, 1 << 16):
                text += part
        os.close(ours)
    assert process.returncode == 0
    assert b"assembling" in text
    assert b"3/3" in text
    assert b"\x1b[" in text
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "assembling" not in done.stdout
    assert "\x1b" not in done.stdout


def test_name_of_a_folder_cannot_steer_a_terminal(tmp_path, capsys):
    (tmp_path / "a\x1b[31m\udcff").mkdir()
    assert main(["verify", str(tmp_path / "a\x1b[31m\udcff")]) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert "a\\x1b[31m\\udcff: 1 findings" in last


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--jobs", "0"], "argument --jobs: must be at least 1, got 0"),
        (["--jobs", "x"], "argument --jobs: must be a positive integer, got 'x'"),
        (["--toolkit", "/usr"], "argument --toolkit: goes with --rebuild"),
        (["a", "b"], "unrecognized arguments: b"),
    ],
)
def test_wrong_usage(arguments, reason, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["verify", *arguments])
    assert caught.value.code == 2
    assert reason in capsys.readouterr().err


def test_docs_name_every_kind(project):
    text = (project / "docs" / "doctor.md").read_text()
    table = text[text.index("| kind of finding |") :].partition("\n\n")[0]
    assert tuple(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == KINDS


# --- many processes, a folder that nobody may write (F38) -----------------------------------------

PLAN = """
import numpy as np
from cakert import plan_cake_vsa, sim
from cakert.cli.main import main
mask = np.random.default_rng({seed}).random((2, 3, 3)) < 0.5
mask[..., 0] = True
shape = dict(M=192, N=192, R=64, C=64, num_qo_heads=2, num_kv_heads=2, head_dim=64)
with sim.device("sm_90a") as device:
    options = dict(q_data_type="float16", sm_scale=None, device=device)
    plan = plan_cake_vsa(None, None, mask, None, None, None, **shape, **options)
assert plan["row_counts"].sum() == mask.sum()
raise SystemExit(main(["verify"]))
"""


def tree(folder: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.stat().st_size)
        for path in folder.rglob("*")
    }


def test_processes_at_once_on_a_folder_that_is_read_only(tmp_path, rng):
    """There is no cache: nothing is compiled or unpacked at run time, and nothing is written."""
    package = tmp_path / "installed" / "cakert"
    shutil.copytree(
        Path(cakert.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__")
    )
    home = tmp_path / "home"
    (home / ".cache" / "cakert").mkdir(parents=True)
    (home / ".cache" / "cakert" / "empty").write_bytes(b"")
    folders = [*package.rglob("*"), package]
    for path in folders:
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = tree(tmp_path)
    places = {name: str(home) for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME")}
    env = {**os.environ, **places, "PYTHONPATH": str(package.parent), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            # -B: bytecode is Python's own, and root may write anywhere.
            [sys.executable, "-B", "-c", PLAN.format(seed=rng.randrange(1 << 30))],
            env=env, cwd=home, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for _ in range(8)
    ]  # fmt: skip
    texts = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 8, texts
    assert all(f"in {package / 'cubins'}" in text for text in texts)
    assert tree(tmp_path) == before
    for path in folders:
        path.chmod(0o755)
