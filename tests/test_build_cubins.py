"""The cubin build tool: what it reads, what it refuses, and that its bytes are reproducible."""

from __future__ import annotations

import json
import lzma
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import build_cubins
import cubin_manifest
import cubin_toolchain
import pytest
from cubin_toolchain import (
    BuildError,
    find_toolchain,
    parse_ptxas,
    ptx_geometry,
    serialised_wgmma,
)
from cubin_variants import VARIANTS, KernelSpec, Variant

from cakert.cubins import CubinStore, store

SOURCE = """
#include <stdint.h>
#include "scale.cuh"
extern "C" __constant__ uint32_t toy_geometry[2] = {THREADS, SHARED};
static __device__ float table[3] = {1.5f, 2.5f, 3.5f};
extern "C" __global__ void __launch_bounds__(THREADS) toy(float *out, const float *in) {
  __shared__ float staged[THREADS];
  staged[threadIdx.x] = in[threadIdx.x] * kScale + table[threadIdx.x % 3];
  __syncthreads();
  out[threadIdx.x] = staged[THREADS - 1 - threadIdx.x];
}
"""
# An array indexed by data lives in local memory: a stack frame.
SPILLING = """
#include <stdint.h>
extern "C" __constant__ uint32_t toy_geometry[2] = {THREADS, SHARED};
extern "C" __global__ void toy(int *out, const int *in) {
  int held[64];
  for (int i = 0; i < 64; ++i) held[i] = in[i * 7];
  for (int i = 0; i < 64; ++i) held[in[i] & 63] += held[in[i + 1] & 63];
  out[threadIdx.x] = held[in[threadIdx.x] & 63];
}
"""
# Its accumulators are used while an instruction that owns them may still run.
SERIALISED = """
#include <stdint.h>
extern "C" __constant__ uint32_t toy_geometry[2] = {THREADS, SHARED};
extern "C" __global__ void __launch_bounds__(THREADS) toy(float *out, uint64_t a, uint64_t b) {
  float d[4] = {out[0], out[1], out[2], out[3]};
  for (int i = 0; i < 8; ++i) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(a + i), "l"(b));
    d[0] += 1.0f;
  }
  asm volatile("wgmma.commit_group.sync.aligned;\\nwgmma.wait_group.sync.aligned 0;");
  out[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}
"""


def toy(targets=("sm_90", "sm_100a"), threads=128, shared=66048, stem="toy_small") -> Variant:
    return Variant(
        family="toy",
        stem=stem,
        source="cuda/toy.cu",
        defines=(f"THREADS={threads}", f"SHARED={shared}"),
        targets=targets,
        kernels=(KernelSpec("toy", R=64, D=None, dtype="fp16"),),
    )


def make_root(folder: Path, source: str = SOURCE) -> Path:
    (folder / "cuda").mkdir(parents=True)
    (folder / "cuda" / "toy.cu").write_text(source)
    (folder / "cuda" / "scale.cuh").write_text("constexpr float kScale = 0.75f;\n")
    (folder / "cuda" / "notes.txt").write_text("not a source\n")
    return folder


@pytest.fixture(scope="module")
def toolchain() -> cubin_toolchain.Toolchain:
    found = find_toolchain()
    if found is None:
        pytest.skip("no nvcc on PATH, in CUDA_HOME or from the wheels of the extra [cubins]")
    return found


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_root(tmp_path / "project")


# --- reading nvcc, PTX and ptxas ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("declaration", "expected"),
    [
        (".const .align 4 .b8 k_geometry[8] = {128, 0, 0, 0, 0, 0, 1};", (128, 65536)),
        (".const .align 4 .b8 k_geometry[8] = {0, 1, 0, 0, 0, 128, 1};", (256, 98304)),
        (".const .align 4 .b8 k_geometry[8] = {96};", (96, 0)),
        (".visible .const .align 4 .b8 k_geometry[8] = {128, 0, 0, 0, 4};", (128, 4)),
        (".const .align 4 .u32 k_geometry[2] = {384, 231424};", (384, 231424)),
        (".global .align 4 .b32 k_geometry[2] = {384, 0x100};", (384, 256)),
        (".const .align 4 .b8 k_geometry[8];", (0, 0)),
    ],
)
def test_geometry_is_read_from_ptx(declaration, expected):
    ptx = f".target sm_90\n\n{declaration}\n.visible .entry k(\n)\n"
    assert ptx_geometry(ptx) == {"k": expected}


def test_geometry_of_another_length_is_refused():
    with pytest.raises(BuildError, match="k_geometry: expected 2 words, got 3"):
        ptx_geometry(".const .align 4 .b8 k_geometry[12] = {128};")


PTXAS_TEXT = """\
ptxas info    : 28 bytes gmem, 16 bytes cmem[4], 8 bytes cmem[3]
ptxas info    : Compiling entry function 'one' for 'sm_90'
ptxas info    : Function properties for one
    96 bytes stack frame, 64 bytes spill stores, 92 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 96 bytes cumulative stack size, 1152 bytes smem
ptxas info    : Compile time = 53.0 ms
ptxas info    : Compiling entry function 'two' for 'sm_90'
ptxas warning : Potential Performance Loss: wgmma.mma_async instructions are serialized
ptxas info    : Function properties for two
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers
ptxas info    : Function properties for _Z6calleei
    8 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
"""


def test_resources_are_read_from_ptxas():
    used, properties, warnings = parse_ptxas(PTXAS_TEXT)
    assert used == {"one": (255, 1152), "two": (40, 0)}
    assert properties == {"one": (96, 64, 92), "two": (0, 0, 0), "_Z6calleei": (8, 0, 0)}
    assert warnings == [
        "ptxas warning : Potential Performance Loss: wgmma.mma_async instructions are serialized"
    ]


def test_serialised_wgmma_is_found():
    lines = [
        "ptxas info    : (C7511) Potential Performance Loss: wgmma.mma_async instructions are "
        "serialized due to insufficient register resources for the wgmma pipeline in function 'k'",
        "ptxas info    : (C7517) warpgroup.wait is injected in around line 39 by compiler",
        "ptxas info    : (C7520) Potential Performance Loss: something new",
        "ptxas warning : Potential Performance Loss: wgmma.mma_async instructions are serialized",
    ]
    others = ["ptxas info    : (C7509) of another kind", "ptxas info    : Used 75112 registers"]
    assert serialised_wgmma("\n".join([*others, *lines])) == tuple(lines)
    assert serialised_wgmma(PTXAS_TEXT.replace("wgmma", "")) == ()


def test_version_is_read_from_nvcc():
    text = "Cuda compilation tools, release 13.0, V13.0.88\nBuild cuda_13.0.r13.0/compiler.3_0\n"
    version = cubin_toolchain.assembler.Version("13.0", "13.0.88", "cuda_13.0.r13.0/compiler.3_0")
    assert cubin_toolchain.assembler.parse_version(text) == version
    with pytest.raises(BuildError, match="unknown form"):
        cubin_toolchain.assembler.parse_version("nvcc: not today")


def test_toolkit_folder_without_compiler_is_refused(tmp_path):
    with pytest.raises(BuildError, match="no bin/nvcc and bin/ptxas there"):
        find_toolchain(tmp_path)


def test_variants_are_distinct():
    files = [f"{v.stem}.{target}" for v in VARIANTS for target in v.targets]
    assert len(set(files)) == len(files)
    kernels = [kernel.name for variant in VARIANTS for kernel in variant.kernels]
    assert len(set(kernels)) == len(kernels)
    assert sum(v.family == "portable" for v in VARIANTS) == 2 * 3 * 2
    portable = [v.targets for v in VARIANTS if v.family == "portable"]
    assert set(portable) == {("sm_90", "sm_100a", "sm_103a")}
    assert [v.targets for v in VARIANTS if v.family == "sm90"] == [("sm_90a",)] * 12
    assert [v.targets for v in VARIANTS if v.family == "sm90_group"] == [("sm_90a",)] * 2
    assert [v.targets for v in VARIANTS if v.family == "sm90_split"] == [("sm_90a",)] * 6


# --- the repository itself ------------------------------------------------------------------------


def quick_check(tools: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # -S: no site-packages, so that anything but the standard library would fail.
    return subprocess.run(
        [sys.executable, "-S", str(tools / "build_cubins.py"), "--check", "--quick", *arguments],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@pytest.fixture
def bare_tools(project, tmp_path) -> Path:
    """The tools beside the one file of the package that they load: nothing built or installed."""
    tools = tmp_path / "bare" / "tools"
    tools.mkdir(parents=True)
    for script in (project / "tools").glob("*.py"):
        shutil.copy(script, tools)
    cubins = tmp_path / "bare" / "cakert" / "cubins"
    cubins.mkdir(parents=True)
    shutil.copy(store().root / "assembler.py", cubins)
    return tools


def test_what_is_committed_comes_from_what_is_committed(project, bare_tools):
    start = time.perf_counter()
    done = quick_check(bare_tools, "--out", str(store().root), "--root", str(project))
    assert done.returncode == 0, done.stdout + done.stderr
    assert time.perf_counter() - start < 5
    assert not any(word in done.stdout for word in ("stale", "mismatch", "error"))


@pytest.mark.full
def test_committed_cubins_are_rebuilt_byte_for_byte(project, toolchain, capsys):
    folder = str(store().root)
    assert build_cubins.main(["--check", "--root", str(project), "--out", folder]) == 0
    assert "identical bytes" in capsys.readouterr().out


# --- building -------------------------------------------------------------------------------------


def build(toolchain, root: Path, variants, **options) -> Path:
    folder = root / "cakert" / "cubins"
    build_cubins.build(toolchain, root, folder, variants, jobs=2, **options)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_build_writes_cubins_ptx_and_manifest(toolchain, root, capsys):
    other = toy(targets=("sm_103a",), threads=96, shared=0, stem="toy_other")
    variants = [toy(), replace(other, kernels=(KernelSpec("toy"),))]
    folder = build(toolchain, root, variants)
    names = ["toy_other.sm_103a", "toy_small.sm_100a", "toy_small.sm_90"]
    assert sorted(contents(folder)) == sorted(
        ["manifest.json", *(f"{n}.cubin" for n in names), *(f"{n}.ptx.xz" for n in names)]
    )
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["toolkit"] == toolchain.identity
    assert sorted(manifest["sources"]) == ["cuda/scale.cuh", "cuda/toy.cu"]
    assert [entry["file"] for entry in manifest["entries"]] == [f"{n}.cubin" for n in names]
    for entry in manifest["entries"]:
        assert entry["sha256"] == cubin_manifest.sha256((folder / entry["file"]).read_bytes())
        text = lzma.decompress((folder / cubin_manifest.ptx_name(entry["file"])).read_bytes())
        assert entry["ptx_sha256"] == cubin_manifest.sha256(text)
        assert f".target {entry['target']}\n".encode() in text
        (kernel,) = entry["kernels"]
        small = entry["file"].startswith("toy_small")
        expected = ("toy", 128, 66048, 512) if small else ("toy", 96, 0, 384)
        found = [kernel[key] for key in ("name", "threads", "shared_bytes", "static_shared_bytes")]
        assert tuple(found) == expected
        assert (kernel["R"], kernel["D"]) == ((64, None) if small else (None, None))
        assert 0 < kernel["registers"] < 64
        assert kernel["spill_loads"] == kernel["spill_stores"] == kernel["stack_bytes"] == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("[")]
    assert lines[-1].startswith("[3/3] ")  # plain progress: this is no terminal
    assert build_cubins.check(root, folder, variants, quick=True) == []


def test_store_reads_what_the_tool_writes(toolchain, root):
    cubins = CubinStore(build(toolchain, root, [toy()]))
    for capability, target in (((9, 0), "sm_90"), ((10, 0), "sm_100a")):
        entry = cubins.find("toy", capability)
        assert entry.target == target
        assert cubins.read(entry)[:4] == b"\x7fELF"
        assert ".entry toy(" in cubins.ptx(entry)
        assert entry.kernel("toy").shared_bytes == 66048


def test_bytes_do_not_depend_on_the_folder(toolchain, tmp_path, monkeypatch):
    first = make_root(tmp_path / "a")
    second = make_root(tmp_path / "somewhere" / "quite different" / "b")
    monkeypatch.chdir(tmp_path)
    one = contents(build(toolchain, first, [toy()]))
    monkeypatch.chdir(second)
    assert contents(build(toolchain, second, [toy()])) == one


def test_rebuild_changes_no_file(toolchain, root):
    folder = build(toolchain, root, [toy()])
    before = contents(folder)
    # The same text packed otherwise, as another liblzma might: it may stay as it is.
    packed = folder / "toy_small.sm_90.ptx.xz"
    packed.write_bytes(lzma.compress(lzma.decompress(packed.read_bytes()), preset=0))
    kept = packed.read_bytes()
    build(toolchain, root, [toy()])
    assert contents(folder) == {**before, packed.name: kept}


def test_full_build_removes_what_no_variant_gives(toolchain, root):
    folder = build(toolchain, root, [toy()])
    (folder / "__init__.py").write_text("")
    build(toolchain, root, [toy(targets=("sm_90",))])
    assert sorted(contents(folder)) == [
        "__init__.py",
        "manifest.json",
        "toy_small.sm_90.cubin",
        "toy_small.sm_90.ptx.xz",
    ]


def test_partial_build_writes_no_manifest(toolchain, root, tmp_path, capsys):
    out = tmp_path / "out"
    command = ["--root", str(root), "--only", "*.sm_90", "--out", str(out)]
    assert build_cubins.main(command, [toy()]) == 0
    assert sorted(contents(out)) == ["toy_small.sm_90.cubin", "toy_small.sm_90.ptx.xz"]
    assert build_cubins.main([*command[:3], "sm_80*", *command[4:]], [toy()]) == 1
    assert "--only 'sm_80*' matches none" in capsys.readouterr().err


def test_spills_fail_the_build_unless_allowed(toolchain, tmp_path):
    root = make_root(tmp_path / "project", SPILLING)
    with pytest.raises(BuildError, match=r"stack frame[^\n]*\n  toy_small.sm_90: toy"):
        build(toolchain, root, [toy()])
    assert not (root / "cakert").exists()
    folder = build(toolchain, root, [toy()], allow_spills=True)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert all(entry["kernels"][0]["stack_bytes"] >= 256 for entry in manifest["entries"])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"kernels": (KernelSpec("other"),)}, r"expected the kernels \['other'\], got \['toy'\]"),
        ({"kernels": (KernelSpec("toy"), KernelSpec("b"))}, r"expected the kernels \['b', 'toy'\]"),
        ({"source": "cuda/absent.cu"}, "no source cuda/absent.cu"),
        ({"defines": ("THREADS=128",)}, "nvcc failed with status"),
        ({"defines": ("THREADS=1025", "SHARED=0")}, "(nvcc|ptxas) failed|not 1 to 1024"),
        ({"targets": ("sm_1",)}, "nvcc failed with status"),
    ],
)
def test_wrong_variant_is_refused(toolchain, root, change, reason):
    with pytest.raises(BuildError, match=reason):
        build(toolchain, root, [replace(toy(), **change)])
    assert not (root / "cakert").exists()


def test_kernel_without_geometry_is_refused(toolchain, tmp_path):
    root = make_root(tmp_path / "project", SOURCE.replace("toy_geometry", "other_geometry"))
    with pytest.raises(BuildError, match="no constant toy_geometry"):
        build(toolchain, root, [toy()])


def test_serialised_wgmma_is_refused(toolchain, tmp_path):
    root = make_root(tmp_path / "project", SERIALISED)
    with pytest.raises(BuildError, match=r"serialises wgmma(.|\n)*toy_small\.sm_90a: .*\(C75"):
        build(toolchain, root, [toy(targets=("sm_90a",))], allow_spills=True)
    assert not (root / "cakert").exists()


def test_kernel_is_built_for_its_own_targets_only(toolchain, root):
    with pytest.raises(BuildError, match=r"not written for sm_103a, only for \('sm_90',"):
        cubin_toolchain.build_variant(toolchain, root, toy(), "sm_103a")


def test_source_that_changes_meanwhile_is_refused(toolchain, root, monkeypatch):
    def build_and_edit(*arguments):
        result = cubin_toolchain.build_variant(*arguments)
        (root / "cuda" / "scale.cuh").write_text("constexpr float kScale = 0.5f;\n")
        return result

    monkeypatch.setattr(build_cubins, "build_variant", build_and_edit)
    with pytest.raises(BuildError, match="changed during the build"):
        build(toolchain, root, [toy(targets=("sm_90",))])
    assert not (root / "cakert").exists()


# --- checking -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fake_store(tmp_path_factory) -> tuple[Path, list[Variant]]:
    """A project with a consistent store whose bytes no compiler made."""
    root = make_root(tmp_path_factory.mktemp("fake") / "project")
    variants = [toy(), toy(targets=("sm_103a",), stem="toy_other")]
    folder = root / "cakert" / "cubins"
    results = []
    for variant in variants:
        for target in variant.targets:
            resources = cubin_toolchain.KernelResources("toy", 128, 66048, 512, 18, 0, 0, 0, {})
            text = f"PTX of {variant.stem} for {target}".encode()
            built = cubin_toolchain.Built(text, os.urandom(512), (resources,), (), ())
            results.append((variant, target, built))
    nowhere = Path("/none")
    version = cubin_toolchain.assembler.Version("1.0", "1.0.1", "cuda_1")
    toolchain = cubin_toolchain.Toolchain(nowhere, nowhere, version, "test")
    build_cubins.write_files(folder, results)
    manifest = cubin_manifest.make_manifest(
        toolchain,
        cubin_manifest.source_hashes(root),
        [cubin_manifest.make_entry(*result) for result in results],
    )
    cubin_manifest.write_atomic(folder / "manifest.json", cubin_manifest.dump(manifest))
    return root, variants


@pytest.fixture
def checked(fake_store, tmp_path):
    """A copy of that project to damage, and a function that checks it."""
    root, variants = fake_store
    copy = tmp_path / "project"
    shutil.copytree(root, copy)

    def check() -> list[str]:
        return build_cubins.check(copy, copy / "cakert" / "cubins", variants, quick=True)

    return copy, check


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def swap(one: Path, two: Path) -> None:
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)


def edit_manifest(folder: Path, change) -> None:
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


SMALL, OTHER = "toy_small.sm_90.cubin", "toy_other.sm_103a.cubin"
DAMAGE = {
    "source changed": (lambda c, s: flip(c / "toy.cu"), "stale: source cuda/toy.cu: manifest"),
    "header changed": (lambda c, s: flip(c / "scale.cuh"), "stale: source cuda/scale.cuh"),
    "source added": (
        lambda c, s: (c / "new.cuh").write_text("int a;"),
        "stale: source cuda/new.cuh is on disk but not in the manifest",
    ),
    "source removed": (
        lambda c, s: (c / "scale.cuh").unlink(),
        "stale: source cuda/scale.cuh is in the manifest but not on disk",
    ),
    "cubin flipped": (lambda c, s: flip(s / SMALL), f"mismatch: file {SMALL}: manifest"),
    "cubin cut": (
        lambda c, s: (s / SMALL).write_bytes((s / SMALL).read_bytes()[:-1]),
        f"mismatch: file {SMALL}: manifest",
    ),
    "cubin missing": (lambda c, s: (s / SMALL).unlink(), f"mismatch: file {SMALL} is in the"),
    "cubins swapped": (lambda c, s: swap(s / SMALL, s / OTHER), f"mismatch: file {OTHER}:"),
    "cubin added": (
        lambda c, s: (s / "extra.sm_90.cubin").write_bytes(b"x"),
        "mismatch: file extra.sm_90.cubin is on disk but not in the manifest",
    ),
    "PTX cut": (
        lambda c, s: (s / "toy_small.sm_90.ptx.xz").write_bytes(b"\xfd7zXZ"),
        "mismatch: file toy_small.sm_90.ptx.xz is not valid xz",
    ),
    "PTX of another": (
        lambda c, s: swap(s / "toy_small.sm_90.ptx.xz", s / "toy_small.sm_100a.ptx.xz"),
        "mismatch: file toy_small.sm_90.ptx.xz: manifest",
    ),
    "PTX missing": (
        lambda c, s: (s / "toy_other.sm_103a.ptx.xz").unlink(),
        "mismatch: file toy_other.sm_103a.ptx.xz is in the manifest but not on disk",
    ),
    "entry dropped": (
        lambda c, s: edit_manifest(s, lambda m: m["entries"].pop(0)),
        f"stale: {OTHER} is missing from the manifest",
    ),
    "other macros": (
        lambda c, s: edit_manifest(s, lambda m: m["entries"][0].update(defines=["THREADS=64"])),
        f"stale: {OTHER} is missing from the manifest or built otherwise",
    ),
    "unknown entry": (
        lambda c, s: edit_manifest(
            s, lambda m: m["entries"].append({**m["entries"][0], "file": "z.sm_90.cubin"})
        ),
        "stale: z.sm_90.cubin is in the manifest but no variant gives it",
    ),
    "other flags": (
        lambda c, s: edit_manifest(s, lambda m: m["flags"]["nvcc"].append("-lineinfo")),
        "stale: flags: manifest",
    ),
    "hash missing": (
        lambda c, s: edit_manifest(s, lambda m: m["entries"][0].pop("sha256")),
        "malformed: KeyError 'sha256'",
    ),
    "no JSON": (lambda c, s: (s / "manifest.json").write_text("{"), "cannot be read"),
    "a list": (lambda c, s: (s / "manifest.json").write_text("[]"), "is not a manifest of format"),
    "no manifest": (lambda c, s: (s / "manifest.json").unlink(), "error: no manifest at"),
}


def test_consistent_store_passes(checked):
    _, check = checked
    assert check() == []


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_named(checked, case):
    root, check = checked
    damage, expected = DAMAGE[case]
    damage(root / "cuda", root / "cakert" / "cubins")
    problems = check()
    assert any(expected in line for line in problems), problems
    assert all(line.startswith(("stale: ", "mismatch: ", "error: ")) for line in problems)


def test_check_before_the_first_build(tmp_path, bare_tools):
    root = make_root(tmp_path / "project")
    done = quick_check(bare_tools, "--root", str(root))
    assert done.returncode == 1
    assert done.stdout.startswith("error: no manifest at ")
    assert "Traceback" not in done.stderr


def test_check_without_nvcc_says_so(checked, fake_store, monkeypatch, capsys):
    root, _ = checked
    monkeypatch.setattr(build_cubins, "find_toolchain", lambda *_: None)
    assert build_cubins.main(["--check", "--root", str(root)], fake_store[1]) == 0
    assert "no nvcc found, so nothing was rebuilt" in capsys.readouterr().out
    flip(root / "cakert" / "cubins" / SMALL)
    assert build_cubins.main(["--check", "--root", str(root)], fake_store[1]) == 1


def test_check_with_another_nvcc_says_so(checked, fake_store, toolchain, capsys):
    root, _ = checked
    assert build_cubins.main(["--check", "--root", str(root)], fake_store[1]) == 0
    out = capsys.readouterr().out
    assert toolchain.version.build in out
    assert "cuda_1, so nothing was rebuilt" in out


def test_check_rebuilds_with_the_recorded_nvcc(toolchain, root, capsys):
    folder = build(toolchain, root, [toy()])
    command = ["--check", "--root", str(root), "--jobs", "2"]
    assert build_cubins.main(command, [toy()]) == 0
    assert "2 cubins rebuilt" in capsys.readouterr().out
    # A store that is consistent in itself, but whose cubin does not come from the source.
    path = folder / "toy_small.sm_90.cubin"
    flip(path)
    digest = cubin_manifest.sha256(path.read_bytes())
    edit_manifest(folder, lambda manifest: manifest["entries"][1].update(sha256=digest))
    assert build_cubins.main(["--quick", *command], [toy()]) == 0
    assert build_cubins.main(command, [toy()]) == 1
    assert "mismatch: toy_small.sm_90.cubin: rebuilt sha256 is " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--quick"], "--quick goes with --check"),
        (["--check", "--only", "*"], "--check takes neither"),
        (["--only", "*"], "--only needs --out"),
        (["--jobs", "0"], "--jobs must be at least 1, got 0"),
    ],
)
def test_wrong_usage(arguments, reason, capsys):
    with pytest.raises(SystemExit) as caught:
        build_cubins.main(arguments)
    assert caught.value.code == 2
    assert reason in capsys.readouterr().err


def test_no_compiler_at_all_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr(build_cubins, "find_toolchain", lambda *_: None)
    assert build_cubins.main([]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "pip install '.[cubins]'" in error
