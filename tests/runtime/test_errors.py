"""The exceptions: what they say, and that they survive the way between processes."""

from __future__ import annotations

import pickle

import pytest

from cakert.errors import STATUS_TABLE, CubinError, CudaError


@pytest.mark.parametrize("status", sorted(STATUS_TABLE))
def test_every_known_status_names_itself_and_says_what_to_do(status):
    name, meaning, hint = STATUS_TABLE[status]
    error = CudaError(status, call="cuSomeCall", detail="7 bytes on cuda:1")
    assert (error.status, error.name, error.hint) == (status, name, hint)
    for part in (name, str(status), meaning, hint, "cuSomeCall", "7 bytes on cuda:1"):
        assert part in str(error)


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (2, "free tensors"), (3, "use spawn"), (35, "580"), (100, "nvidia-smi"), (200, "SHA-256"),
        (209, "cakert info"), (218, "cubin"), (222, "580"), (700, "compute-sanitizer"),
        (900, "before the capture"), (999, "nvidia-smi"),
    ],
)  # fmt: skip
def test_hints(status, says):
    assert says in CudaError(status).hint


def test_a_status_out_of_the_table_keeps_the_drivers_name():
    assert "CUDA_ERROR_OF_TOMORROW (4242)" in str(CudaError(4242, "CUDA_ERROR_OF_TOMORROW"))
    unnamed = CudaError(4242)
    assert "4242" in str(unnamed)
    assert unnamed.hint == ""


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_cuda_errors_are_pickled_whole(protocol):
    error = CudaError(719, "CUDA_ERROR_LAUNCH_FAILED", "cuLaunchKernelEx", "kernel k")
    again = pickle.loads(pickle.dumps(error, protocol))
    assert type(again) is CudaError
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def test_the_bases_that_callers_catch():
    assert issubclass(CudaError, RuntimeError)
    assert issubclass(CubinError, ValueError)
