"""Which image of a file is taken, and which kernel is meant."""

from __future__ import annotations

import hashlib
import lzma
from pathlib import Path

import pytest

from cakert.cli.kernel_files import (
    choose,
    find_kernel,
    ptx_beside,
    read_images,
    targets_text,
)
from cakert.errors import CubinError
from cakert.inspect.fit import runs_on

FATBIN = Path(__file__).resolve().parents[1] / "inspect" / "data" / "kernels.fatbin"
REVERSE = "_Z7reverseI13__nv_bfloat16EvPT_PKS1_6Window"
PTX = b".version 9.0\n.target sm_90\n.address_size 64\n.visible .entry one()\n{\n ret;\n}\n"


def test_images_of_each_kind_of_file(kernels):
    (cubin,) = read_images(kernels / "run_kernels.cubin")
    assert (cubin.kind, cubin.target, set(cubin.kernels)) == ("cubin", "sm_90", {REVERSE, "axpy"})
    assert cubin.read() == (kernels / "run_kernels.cubin").read_bytes()
    text = (kernels / "run_kernels.ptx").read_bytes()
    packed = kernels / "packed.ptx.xz"
    packed.write_bytes(lzma.compress(text))
    for path in (kernels / "run_kernels.ptx", packed):
        (ptx,) = read_images(path)
        assert (ptx.kind, ptx.target, set(ptx.kernels)) == ("ptx", "sm_90", set(cubin.kernels))
        assert ptx.read() == text
        assert ptx.place == str(path)


def test_images_of_a_fatbin_are_whole(tmp_path, kernels):
    pytest.importorskip("zstandard")
    pytest.importorskip("lz4")
    from helpers.fatbin_files import entry, fatbin, host_file

    cubin = (kernels / "run_kernels.cubin").read_bytes()
    text = (kernels / "run_kernels.ptx").read_bytes()
    parts = fatbin(
        entry("elf", cubin, method="zstd", file_name=b"a.cu"),
        entry("lto", b"\1" * 40),
        entry("ptx", text, method="lz4"),
    )
    more = fatbin(entry("ptx", text + bytes(3), arch=80), entry("elf", cubin, method="lz4"))
    (tmp_path / "x.fatbin").write_bytes(parts + bytes(24) + more)
    (tmp_path / "x.o").write_bytes(host_file({".nv_fatbin": parts, "__nv_relfatbin": more}))
    for name in ("x.fatbin", "x.o"):
        images = read_images(tmp_path / name)
        assert [image.kind for image in images] == ["cubin", "ptx", "ptx", "cubin"]
        assert [image.read() for image in images] == [cubin, text, text, cubin]
        places = [image.place.removeprefix(str(tmp_path / name)) for image in images]
        assert places == [", image 1 (sm_90)", ", image 3 (compute_90)",
                          ", image 4 (compute_80)", ", image 5 (sm_90)"]  # fmt: skip


def test_the_best_image_that_fits_is_taken():
    pytest.importorskip("zstandard")
    images = read_images(FATBIN)
    assert targets_text(images) == "cubins for sm_100f, sm_80, sm_90a; PTX for sm_90"
    cubins = tuple(image for image in images if image.kind == "cubin")
    for capability, target in [((8, 6), "sm_80"), ((9, 0), "sm_90a"), ((10, 3), "sm_100f")]:
        fitting = tuple(image for image in cubins if runs_on(image.target, capability))
        image, symbol = choose(fitting, "_Z8rec", FATBIN)
        assert (image.target, symbol) == (target, "_Z8recursesPi")


def test_the_first_of_equals_is_taken(tmp_path):
    pytest.importorskip("zstandard")
    pytest.importorskip("lz4")
    from helpers.fatbin_files import entry, fatbin

    older, newer = PTX.replace(b"sm_90", b"sm_80"), PTX.replace(b"sm_90", b"sm_90a")
    path = tmp_path / "x.fatbin"
    path.write_bytes(fatbin(*(entry("ptx", text) for text in (older, newer, newer, PTX))))
    image, _ = choose(read_images(path), None, path)
    assert image.place == f"{path}, image 2 (compute_90)"


# --- kernels --------------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", ["axpy", "ax", "a"])
def test_a_kernel_by_its_symbol_or_its_beginning(wanted):
    assert find_kernel([REVERSE, "axpy"], wanted, Path("f")) == "axpy"


@pytest.mark.parametrize(
    "wanted",
    [
        REVERSE,
        "_Z7rev",
        "void reverse<__nv_bfloat16>(__nv_bfloat16*, __nv_bfloat16 const*, Window)",
        "void rev",
        "reverse<__nv_bfloat16>",
        "reverse",
    ],
)
def test_a_kernel_by_its_cpp_name(wanted):
    if not wanted.startswith("_Z"):
        pytest.importorskip("demangle")
    assert find_kernel([REVERSE, "axpy"], wanted, Path("f")) == REVERSE


def test_an_exact_symbol_goes_before_a_beginning():
    assert find_kernel(["scale_rows", "scale"], "scale", Path("f")) == "scale"


def test_no_kernel_or_several():
    names = ["scale_rows", "scale_columns", "add"]
    assert find_kernel(["add"], None, Path("f")) == "add"
    for wanted, reason in [
        ("scale", "f: 'scale' names 2 kernels: scale_rows; scale_columns"),
        ("sub", "f: there is no kernel 'sub'; there are: scale_rows; scale_columns; add"),
        ("", "f: there is no kernel ''; there are: scale_rows; scale_columns; add"),
        ("add2", "f: there is no kernel 'add2'"),
        (None, "f: there are 3 kernels, name one of them: scale_rows; scale_columns; add"),
    ]:
        with pytest.raises(ValueError, match=r"^f: ") as caught:
            find_kernel(names, wanted, Path("f"))
        assert str(caught.value).startswith(reason)
    with pytest.raises(ValueError, match="there is no kernel in it"):
        find_kernel([], "add", Path("f"))


def test_many_kernels_are_not_all_listed():
    names = [f"k{number}\x1b" for number in range(100)]
    with pytest.raises(ValueError, match="and 80 more") as caught:
        find_kernel(names, None, Path("f"))
    assert "\x1b" not in str(caught.value)


# --- files that are none --------------------------------------------------------------------------


def test_ptx_beside_a_cubin(kernels):
    cubin = kernels / "run_kernels.cubin"
    assert ptx_beside(cubin).place == str(kernels / "run_kernels.ptx")
    text = (kernels / "run_kernels.ptx").rename(kernels / "elsewhere").read_bytes()
    assert ptx_beside(cubin) is None
    (kernels / "run_kernels.ptx.xz").write_bytes(lzma.compress(text))
    assert ptx_beside(cubin).read() == text


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("x.ptx", b"", "the file is empty"),
        ("x.ptx", b"hello", "no ELF header"),
        ("x.ptx", b"// .version and .target\n", "no PTX"),
        ("x.ptx.xz", lzma.compress(PTX)[:-20], "not valid xz: truncated"),
        ("x.ptx.xz", lzma.compress(PTX)[:30] + bytes(60), "not valid xz"),
        ("x.ptx.xz", lzma.compress(b"hello"), "no PTX"),
        ("x.cubin", b"\x7fELF.version.target", "truncated"),
    ],
)
def test_files_that_are_no_kernels(name, data, reason, tmp_path):
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(CubinError) as caught:
        read_images(path)
    assert str(path) in str(caught.value)
    assert reason in str(caught.value) or name == "x.cubin"


def test_xz_does_not_fill_the_memory(tmp_path, monkeypatch):
    path = tmp_path / "x.ptx.xz"
    path.write_bytes(lzma.compress(PTX + bytes(1 << 20)))
    monkeypatch.setattr("cakert.cli.kernel_files.LARGEST_IMAGE", 1 << 20)
    with pytest.raises(CubinError, match="not valid xz"):
        read_images(path)


def test_places_that_are_no_files(tmp_path):
    for place in (tmp_path, Path("/dev/zero")):
        with pytest.raises(CubinError, match="not a regular file"):
            read_images(place)
    with pytest.raises(FileNotFoundError):
        read_images(tmp_path / "none")


def test_committed_kernels_belong_together(kernels):
    """The cubin is that of the PTX: where ptxas 13.0.88 is found, it makes the same bytes."""
    from helpers import cuda_tools

    if reason := cuda_tools.why_no_compiler():
        pytest.skip(reason)
    if "V13.0.88" not in cuda_tools.output(cuda_tools.find("ptxas"), "--version"):
        pytest.skip("another release of ptxas")
    made = kernels / "made.cubin"
    ptx = kernels / "run_kernels.ptx"
    cuda_tools.output(cuda_tools.find("ptxas"), "-arch=sm_90", ptx, "-o", made)
    digests = [hashlib.sha256(path.read_bytes()).hexdigest()
               for path in (made, kernels / "run_kernels.cubin")]  # fmt: skip
    assert digests[0] == digests[1]
