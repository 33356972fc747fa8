"""`cakert load` on a real driver: what it reports beside the files, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from helpers import cuda_tools

import cakert
from cakert.cli.main import main
from cakert.cubins import store
from cakert.inspect.fit import runs_on
from cakert.runtime import driver

DATA = Path(__file__).resolve().parent.parent / "inspect" / "data"


def load(capsys, path, *options) -> tuple[int, list[dict], str]:
    """Exit status, images and the line on stderr."""
    status = main(["load", str(path), "--json", *map(str, options)])
    shown = capsys.readouterr()
    return status, json.loads(shown.out)["images"], shown.err


def test_every_fitting_cubin_of_the_package_loads_as_its_file_says(capsys):
    fitting = store().fitting(driver.device_capability(0))
    assert fitting
    for entry in fitting:
        shared = entry.kernels[0].shared_bytes
        status, (image,), error = load(capsys, store().root / entry.file, "--shared", shared)
        assert status == 0 and image["fits"], error
        for kernel, known in zip(image["kernels"], entry.kernels, strict=True):
            for name in ("registers", "parameters", "cluster"):
                sides = kernel["resources"][name]
                assert sides["file"] == sides["driver"], (entry.file, name, sides)
            assert kernel["resources"]["local_bytes"]["driver"] == 0
            assert kernel["occupancy"]["threads"] == known.threads
            assert kernel["occupancy"]["blocks_per_sm"] >= 1


def test_a_cubin_for_another_gpu_is_refused_in_plain_words(capsys):
    capability = driver.device_capability(0)
    other = next(e for e in store().entries if not runs_on(e.target, capability))
    status, (image,), error = load(capsys, store().root / other.file)
    assert status == 1 and not image["fits"] and not image["loaded"]
    assert "CUDA_ERROR_NO_BINARY_FOR_GPU" in error
    assert other.target in error and f"{capability[0]}.{capability[1]}" in error


def test_the_image_that_the_driver_takes_of_a_fatbin(capsys):
    status, (image,), error = load(capsys, DATA / "kernels.fatbin")
    assert status == 0, error
    assert len(image["kernels"]) == 16
    for kernel in image["kernels"]:
        sides = kernel["resources"]
        assert sides["registers"]["file"] == sides["registers"]["driver"], kernel["name"]
        assert sides["parameters"]["file"] == sides["parameters"]["driver"], kernel["name"]
        assert sides["cluster"]["file"] == sides["cluster"]["driver"], kernel["name"]
    clustered = [one for one in image["kernels"] if one["resources"]["cluster"]["driver"]]
    assert clustered and all(one["occupancy"]["clusters"] >= 1 for one in clustered)


@pytest.mark.parametrize("name", ["abi7_sm_80.cubin", "abi7_sm_90a.cubin"])
def test_cubins_of_toolkit_12(capsys, name):
    status, (image,), error = load(capsys, DATA / name)
    target = name.removeprefix("abi7_").removesuffix(".cubin")
    assert (status == 0) == runs_on(target, driver.device_capability(0)), (image, error)


def test_code_to_be_linked_is_named_as_such(capsys, tmp_path):
    if reason := cuda_tools.why_no_compiler():
        pytest.skip(reason)
    source = tmp_path / "part.cu"
    source.write_text("__device__ int f(int); __global__ void k(int *x) { *x = f(*x); }\n")
    target = tmp_path / "part.cubin"
    major, minor = driver.device_capability(0)
    nvcc = [cuda_tools.find("nvcc"), f"-arch=sm_{major}{minor}", "-rdc=true", "-cubin"]
    cuda_tools.output(*nvcc, source, "-o", target)
    status, (image,), error = load(capsys, target)
    assert status == 1 and "to be linked" in error, (image, error)


def test_occupancy_is_what_the_driver_says():
    entry = store().find("cake_vsa_sm90_r64_d128_bf16", (9, 0))
    if entry is None or not runs_on(entry.target, driver.device_capability(0)):
        pytest.skip("the kernel with a known occupancy is for compute capability 9.0")
    kernel = cakert.Library(store().read(entry))["cake_vsa_sm90_r64_d128_bf16"]
    known = entry.kernels[0]
    # docs/kernels.md: two CTAs of it share an SM.
    assert kernel.occupancy(known.threads, known.shared_bytes).blocks_per_sm == 2
    sms = driver.device_multiprocessors(0)
    pairs = kernel.occupancy(known.threads, known.shared_bytes, cluster=2)
    assert 1 <= pairs.clusters <= sms


def test_a_kernel_that_demands_a_large_cluster(tmp_path):
    """16 blocks are not portable: who launches it needs to say nothing."""
    if reason := cuda_tools.why_no_compiler():
        pytest.skip(reason)
    major, minor = driver.device_capability(0)
    if major < 9:
        pytest.skip("clusters need compute capability 9.0")
    source = tmp_path / "wide.cu"
    source.write_text(
        'extern "C" __global__ void __cluster_dims__(16, 1, 1) wide(int *x)\n'
        "{ if (threadIdx.x == 0) x[blockIdx.x] = 3 * blockIdx.x + 1; }\n"
    )
    target = tmp_path / "wide.cubin"
    nvcc = [cuda_tools.find("nvcc"), f"-arch=sm_{major}{minor}", "-cubin"]
    cuda_tools.output(*nvcc, source, "-o", target)
    kernel = cakert.Library(target)["wide"]
    assert kernel.attributes().cluster == (16, 1, 1)
    assert kernel.occupancy(64).clusters >= 1
    out = cakert.DeviceArray.from_numpy(np.full(32, -1, np.int32))
    kernel.launch(out, grid=32, block=64)
    assert out.numpy().tolist() == [3 * block + 1 for block in range(32)]
