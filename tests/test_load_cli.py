"""`cakert load`: the driver's word beside the file's, and plain reasons for what fails."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.fatbin_files import entry, fatbin
from helpers.stub import run_with_stub

from cakert.cli.load import Loader, images_of
from cakert.cli.main import main
from cakert.cubins import store
from cakert.inspect import inspect_bytes, inspect_file

sys.path.insert(0, str(Path(__file__).with_name("stub_driver")))
from tiny_cubin import tiny_cubin

KERNELS = {"mix": (8, 4, 8), "add": (8, 8, 4)}


def load(*arguments: object, **stub):
    """The command with the stub as its driver."""
    words = ["load", *map(str, arguments)]
    script = f"import sys; from cakert.cli.main import main; sys.exit(main({words!r}))"
    return run_with_stub(script, check=False, **stub)


def document(done) -> dict:
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout)


def assert_refused(done, *parts: str) -> None:
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("cakert: error: ")
    for part in parts:
        assert part in done.stderr, (part, done.stderr)
    assert "Traceback" not in done.stderr
    if done.trace.named("cuLibraryLoadData"):
        assert done.trace.leaks()["libraries"] == 0


@pytest.fixture
def image(tmp_path):
    path = tmp_path / "tiny.cubin"
    path.write_bytes(tiny_cubin(KERNELS, max_threads=512))
    return path


def test_every_kernel_is_loaded_and_nothing_launched(image):
    done = load(image)
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert "kernels: 2" in done.stdout and "cubin for sm_90" in done.stdout
    for name, size in {"add": 20, "mix": 24}.items():
        (row,) = [line for line in done.stdout.splitlines() if f"│ {name} " in line]
        assert "4 blocks of 512" in row and "sm_90" in row
        assert f"3: {size}" in row, "three parameters, of so many bytes together"
    assert len(done.trace.named("cuFuncLoad")) == 2
    assert not done.trace.named("cuLaunchKernelEx")
    assert done.trace.leaks()["libraries"] == 0


def test_json_has_both_sides(image):
    done = load(image, "--json", "--block", "128x2", "--shared", 50000)
    (found,) = document(done)["images"]
    assert found["loaded"] and found["fits"] and found["problem"] is None
    assert found["targets"] == ["sm_90"] and found["ptx_targets"] == []
    add, mix = found["kernels"]
    assert (add["name"], mix["name"]) == ("add", "mix")
    assert add["binary_version"] == "9.0" and add["loaded"]
    assert add["resources"]["parameters"] == {"file": [[0, 8], [8, 8], [16, 4]],
                                              "driver": [[0, 8], [8, 8], [16, 4]]}  # fmt: skip
    assert add["resources"]["max_threads"] == {"file": 512, "driver": 512}
    assert add["resources"]["registers"]["driver"] == 128
    assert add["occupancy"] == {"threads": 256, "blocks_per_sm": 4, "clusters": None}


def test_clusters_are_counted(tmp_path):
    path = tmp_path / "pair.cubin"
    path.write_bytes(tiny_cubin(KERNELS, max_threads=256, cluster=(2, 1, 1)))
    done = load(path)
    assert "8 blocks of 256; 528 clusters" in done.stdout and "2x1x1" in done.stdout
    other = load(path, "--cluster", 4)
    assert other.returncode == 0, "the kernel is loaded all the same"
    assert "no occupancy: cluster must be (2, 1, 1)" in other.stdout


def test_a_geometry_that_no_block_may_have(image):
    done = load(image, "--block", 1024)
    assert done.returncode == 0
    assert "no occupancy: block must have at most 512 threads" in done.stdout


@pytest.mark.parametrize("call", ["cuLibraryLoadData", "cuKernelGetFunction", "cuFuncLoad"])
@pytest.mark.parametrize("status", [200, 209, 218, 222])
def test_failures_in_plain_words(image, call, status):
    """F35: status, driver, toolkit and target of the file, device, and what to do."""
    from cakert.errors import STATUS_TABLE

    done = load(image, fail={call: status})
    facts = "(file: sm_90 by Cuda compilation tools, release 13.0, V13.0.88; driver for CUDA 13.0; "
    assert_refused(done, call, STATUS_TABLE[status][0], f"({status})", "not loaded", facts)
    assert "device: 9.0)" in done.stderr
    words = {200: "damaged", 209: "SHA-256", 218: "damaged", 222: "update the driver"}
    assert words[status] in done.stderr


def test_code_for_another_device(tmp_path):
    path = tmp_path / "blackwell.cubin"
    path.write_bytes(tiny_cubin(KERNELS, target="sm_100a"))
    done = load(path)
    assert_refused(done, "CUDA_ERROR_NO_BINARY_FOR_GPU", "sm_100a (compute capability 10.0 alone)",
                   "the device has compute capability 9.0", "build it for sm_90")  # fmt: skip
    assert "NOT LOADED" in done.stdout
    found = document(load(path, "--json"))["images"][0]
    assert not found["fits"] and not found["loaded"] and not found["kernels"]
    assert "10.0 alone" in found["problem"]


def test_a_driver_older_than_the_toolkit(image):
    done = load(image, driver=12080, fail={"cuLibraryLoadData": 200})
    assert_refused(done, "toolkit 13.0", "CUDA 12.8", "580 or newer")


def test_other_failures_have_the_hint_of_their_status(image):
    assert_refused(load(image, fail={"cuFuncLoad": 2}), "OUT_OF_MEMORY", "free tensors")


def test_one_kernel_that_fails_does_not_hide_the_other(image):
    done = load(image, "--json", fail="cuFuncLoad=2@1")
    kernels = document(done)["images"][0]["kernels"]
    assert done.returncode == 1
    assert [kernel["loaded"] for kernel in kernels] == [False, True]


def test_a_fatbin_without_code(tmp_path):
    path = tmp_path / "lto.fatbin"
    path.write_bytes(fatbin(entry("lto", bytes(64))))
    done = load(path, fail={"cuLibraryLoadData": 209})
    assert_refused(done, "it holds no kernel (file: neither a cubin nor PTX; driver for CUDA 13.0")


def test_names_cannot_steer_the_terminal(tmp_path):
    path = tmp_path / "escape.cubin"
    path.write_bytes(tiny_cubin({"k\x9b2Jred": (8,)}))
    done = load(path, fail="cuKernelGetAttribute=1@15")  # of those for the occupancy
    assert "no occupancy" in done.stdout and r"kernel k\x9b2Jred" in done.stdout
    assert "\x9b" not in done.stdout
    done = load(path, fail={"cuFuncLoad": 2})
    assert "\x9b" not in done.stdout + done.stderr


def test_the_second_device(image):
    options = {"devices": 2, "capability": [(8, 0), (9, 0)]}
    assert load(image, "--device", "cuda:1", **options).returncode == 0
    assert_refused(load(image, **options), "the device has compute capability 8.0")
    assert_refused(load(image, "--device", 2, **options), "--device cuda:2: must be in [0, 2)")


def test_all_that_is_asked_is_asked_of_the_device(image):
    """Also how many blocks and clusters fit there."""
    done = load(image, "--device", 1, "--cluster", 2, devices=2, env={"STUB_CUDA_SMS": "132;20"})
    assert done.returncode == 0, done.stderr
    assert "4 blocks of 512; 40 clusters" in done.stdout
    asked = done.trace.named("cuKernelGetAttribute", "cuKernelSetAttribute")
    assert asked and {call["device"] for call in asked} == {1}


def test_the_block_of_a_kernel_that_is_limited_twice(tmp_path):
    """By its bounds, and by what the driver makes of its registers."""
    loader = Loader(None, 13000, None)
    path = tmp_path / "k.cubin"
    path.write_bytes(tiny_cubin(KERNELS, max_threads=512))
    (record, _) = inspect_file(path).cubin.kernels
    for allowed, block in [(1024, 512), (512, 512), (384, 384)]:
        assert loader._own_block(record, SimpleNamespace(max_threads=allowed)) == (block,)


def test_each_fatbin_is_an_image_of_its_own():
    parts = [fatbin(entry("elf", tiny_cubin({name: (8,)}))) for name in ("first", "the_second")]
    data = b"".join(parts)
    images = images_of(data, inspect_bytes(data, "two.fatbin"))
    assert [image.data for image in images] == parts


def test_shipped_cubins_load():
    entry = store().find("cake_vsa_sm90_r64_d128_bf16", (9, 0))
    kernel = entry.kernels[0]
    done = load(store().root / entry.file, "--shared", kernel.shared_bytes)
    assert done.returncode == 0, done.stderr
    assert kernel.name in done.stdout


@pytest.mark.parametrize("size", [0, 3, 64, 1000])
def test_a_damaged_file_never_reaches_the_driver(image, size):
    image.write_bytes(image.read_bytes()[:size])
    done = load(image)
    assert_refused(done, str(image))
    assert not done.trace.named("cuLibraryLoadData")


def test_files_that_are_something_else(tmp_path, capsys):
    ptx = tmp_path / "kernel.ptx"
    ptx.write_text(".version 9.0\n.target sm_90\n.address_size 64\n")
    assert main(["load", str(ptx)]) == 1
    assert "PTX text" in capsys.readouterr().err
    assert main(["load", str(tmp_path)]) == 1
    assert "not a regular file" in capsys.readouterr().err
    assert main(["load", str(tmp_path / "none")]) == 1
    assert "No such file" in capsys.readouterr().err


def test_without_a_gpu_the_file_is_still_judged(image, capsys):
    no_device = load(image, fail={"cuInit": 100})
    assert_refused(no_device, "a GPU is needed to load a file", "sees no GPU", "cakert inspect")
    image.write_bytes(b"hello")
    broken = load(image, fail={"cuInit": 100})
    assert_refused(broken, "hello")


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--device", "-1"], "argument --device"),
        (["--device", "gpu"], "must be cuda:0"),
        (["--block", "0"], "must be in [1,"),
        (["--block", "1,2,3,4"], "one to three integers"),
        (["--shared", "-5"], "argument --shared"),
        (["--cluster", "two"], "one to three integers"),
    ],
)
def test_wrong_usage(options, word, capsys, image):
    with pytest.raises(SystemExit) as stopped:
        main(["load", str(image), *options])
    assert stopped.value.code == 2
    assert word in capsys.readouterr().err
