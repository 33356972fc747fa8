"""A module of somebody else's that cimports ours is built against the installed .pxd files."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

import cakert.runtime

CLIENT = """
# cython: language_level=3
from cakert.runtime.tensor cimport (
    DL_CPU, TensorView, device_text, dtype_name, is_packed, release_view, view_tensor,
)
from cakert.runtime.driver cimport check, ensure_init, enter_context, leave_context
from cakert.runtime.library cimport Kernel, Library
from cakert.runtime.memory cimport Workspace
from cuda.bindings cimport cydriver as cu


def look(obj):
    cdef TensorView view
    view_tensor(obj, NULL, &view)
    try:
        return (
            <size_t>view.data, view.ndim, bool(is_packed(&view)), view.device_type == DL_CPU,
            dtype_name(view.code, view.bits, view.lanes),
            device_text(view.device_type, view.device_id),
        )
    finally:
        release_view(&view)
"""

SETUP = """
import sys
from pathlib import Path
from Cython.Build import cythonize
from setuptools import Extension, setup
include = [entry + "/nvidia/cu13/include" for entry in sys.path] + [{runtime!r}]
module = Extension("client", ["client.pyx"], include_dirs=include, language="c++",
                   extra_compile_args=["-O0"])
setup(ext_modules=cythonize([module], include_path=[{root!r}]))
"""


def headers_of_the_bindings() -> bool:
    """Whether cuda.h is of the bindings' own release: others do not build (cuda-bindings' rule)."""
    release = tuple(int(part) for part in version("cuda-bindings").split(".")[:2])
    for entry in sys.path:
        header = Path(entry) / "nvidia" / "cu13" / "include" / "cuda.h"
        if header.is_file():
            (number,) = re.findall(r"^#define CUDA_VERSION (\d+)", header.read_text(), re.MULTILINE)
            return divmod(int(number) // 10, 100) == release
    return False


@pytest.fixture
def project_of_the_client(tmp_path):
    pytest.importorskip("Cython")
    runtime = Path(cakert.runtime.__file__).resolve().parent
    (tmp_path / "client.pyx").write_text(CLIENT)
    (tmp_path / "setup.py").write_text(
        SETUP.format(runtime=str(runtime), root=str(runtime.parents[1]))
    )
    return tmp_path


def execute(command: list[str], folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_client_is_translated_whatever_the_bindings(project_of_the_client):
    """The .pxd files are installed and consistent; this needs Cython alone."""
    root = Path(cakert.runtime.__file__).resolve().parents[2]
    execute(["-m", "cython", "--cplus", "-I", str(root), "client.pyx"], project_of_the_client)
    assert (project_of_the_client / "client.cpp").stat().st_size > 0


def test_a_client_builds_and_reads_tensors(project_of_the_client, monkeypatch):
    if not headers_of_the_bindings():
        pytest.skip("needs cuda.h of the installed cuda-bindings' release, as a build does")
    execute(["setup.py", "-q", "build_ext", "--inplace"], project_of_the_client)
    monkeypatch.syspath_prepend(str(project_of_the_client))
    import client

    array = np.random.default_rng().standard_normal((3, 4, 5)).astype(np.float16)
    address = array.ctypes.data
    assert client.look(array) == (address, 3, True, True, "float16", "the CPU")
    assert client.look(array[:, :2]) == (address, 3, False, True, "float16", "the CPU")
    assert client.look(array[:1, :2])[2], "the stride of an axis of extent 1 does not matter (F50)"
    assert client.look(array[:0, ::2])[2], "an empty tensor is packed"
    assert client.look(array[:, :, ::-1])[0] == address + 8
    assert not client.look(array.transpose(1, 0, 2))[2]
