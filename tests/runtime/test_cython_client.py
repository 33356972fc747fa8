"""A module of somebody else's that cimports ours is built against the installed .pxd files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import cakert.runtime
import numpy as np

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


def test_a_client_builds_and_reads_tensors(tmp_path, monkeypatch):
    runtime = Path(cakert.runtime.__file__).resolve().parent
    (tmp_path / "client.pyx").write_text(CLIENT)
    (tmp_path / "setup.py").write_text(
        SETUP.format(runtime=str(runtime), root=str(runtime.parents[1]))
    )
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    monkeypatch.syspath_prepend(str(tmp_path))
    import client

    array = np.random.default_rng().standard_normal((3, 4, 5)).astype(np.float16)
    address = array.ctypes.data
    assert client.look(array) == (address, 3, True, True, "float16", "the CPU")
    assert client.look(array[:, :2]) == (address, 3, False, True, "float16", "the CPU")
    assert client.look(array[:1, :2])[2], "the stride of an axis of extent 1 does not matter (F50)"
    assert client.look(array[:0, ::2])[2], "an empty tensor is packed"
    assert client.look(array[:, :, ::-1])[0] == address + 8
    assert not client.look(array.transpose(1, 0, 2))[2]
