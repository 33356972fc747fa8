"""What an installation is: light to import, complete, and what the repository says it is."""

from __future__ import annotations

import ast
import fnmatch
import hashlib
import json
import re
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

import cakert
from cakert.cubins import store

PUBLIC = {
    "CubinError",
    "CudaError",
    "DeviceArray",
    "Kernel",
    "Launcher",
    "Library",
    "check_cake_vsa",
    "explain",
    "plan_cake_vsa",
    "run_cake_vsa",
    "update_cake_vsa",
}


def python(script: str, *flags: str) -> str:
    done = subprocess.run(
        [sys.executable, *flags, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_is_light_and_touches_no_driver():
    script = """
import sys
import cakert
heavy = {"torch", "jax", "cupy", "rich", "numpy", "elftools", "cuda.bindings"} & set(sys.modules)
assert not heavy, heavy
for name in cakert.__all__:
    getattr(cakert, name)
framework = {"torch", "jax", "cupy", "rich"} & set(sys.modules)
assert not framework, framework
from cakert.runtime import driver
assert not driver.initialised()
"""
    python(script)
    python(script, "-OO")


def test_public_names():
    assert set(cakert.__all__) >= PUBLIC
    assert set(dir(cakert)) >= PUBLIC
    for name in PUBLIC:
        assert getattr(cakert, name).__name__ == name
    assert issubclass(cakert.CudaError, RuntimeError)
    assert issubclass(cakert.CubinError, ValueError)
    with pytest.raises(AttributeError, match="module 'cakert' has no attribute 'nothing'"):
        cakert.nothing  # noqa: B018


@pytest.mark.parametrize("name", ["inspect.inspect_file", "reference.attention", "sim.Gpu"])
def test_what_pages_call_is_there_after_import_cakert(name):
    python(f"import cakert; cakert.{name}")


def test_version_is_the_one_of_the_project(project):
    text = (project / "pyproject.toml").read_text()
    assert re.search(r'^version = "([^"]+)"$', text, re.MULTILINE).group(1) == cakert.__version__
    assert metadata.version("cakert") == cakert.__version__


def test_command_is_installed():
    (script,) = metadata.entry_points(group="console_scripts", name="cakert")
    from cakert.cli.main import main

    assert script.load() is main


def test_no_framework_is_a_requirement():
    required = [r for r in metadata.requires("cakert") if "extra ==" not in r]
    names = {re.match(r"[\w-]+", requirement).group().lower() for requirement in required}
    assert names == {"cuda-bindings", "ml_dtypes", "numpy", "pyelftools", "rich"}


def test_typing_marker_is_there():
    assert (Path(cakert.__file__).parent / "py.typed").is_file()


# --- packaging (F65) ------------------------------------------------------------------------------


def literal(project: Path, name: str):
    """A constant of setup.py, without running it (it needs the build requirements)."""
    for node in ast.parse((project / "setup.py").read_text()).body:
        if isinstance(node, ast.Assign) and node.targets[0].id == name:
            return ast.literal_eval(node.value)
    raise AssertionError(f"setup.py has no {name}")


def test_every_file_of_the_store_is_package_data(project):
    patterns = literal(project, "PACKAGE_DATA")["cakert.cubins"]
    files = ["manifest.json"]
    files += [file for entry in store().entries for file in (entry.file, entry.ptx_file)]
    for file in files:
        assert (store().root / file).is_file()
        assert any(fnmatch.fnmatch(file, pattern) for pattern in patterns), file


def test_every_package_is_listed(project):
    # Below the installed package: the tests may run without the package's source tree.
    root = Path(cakert.__file__).parent
    found = {
        ".".join(["cakert", *folder.parent.relative_to(root).parts])
        for folder in root.rglob("__init__.py")
    }
    assert sorted(literal(project, "PACKAGES")) == sorted(found)


def test_kernel_sources_are_no_python_package(project):
    # An __init__.py there would hide the namespace package `cuda` of cuda.bindings.
    assert not list((project / "cuda").rglob("__init__.py"))


def test_store_is_small_enough_for_a_wheel():
    size = sum(path.stat().st_size for path in store().root.iterdir() if path.is_file())
    assert size < 24 * 1024 * 1024


@pytest.mark.full
def test_wheel_and_sdist_hold_every_cubin(project, tmp_path, monkeypatch):
    """Builds the sdist, from it the wheel, installs that alone, and starts from elsewhere."""
    # With it, the new environments would find the package that is tested here.
    monkeypatch.delenv("PYTHONPATH", raising=False)
    dist = tmp_path / "dist"

    def environment(name: str) -> Path:
        subprocess.run([sys.executable, "-m", "venv", str(tmp_path / name)], check=True)
        return tmp_path / name / "bin"

    def pip(folder: Path, *arguments: object) -> None:
        command = [folder / "python", "-m", "pip", "-q", *arguments]
        subprocess.run([*map(str, command)], check=True, cwd=tmp_path)

    builder = environment("builder")
    pyproject = (project / "pyproject.toml").read_text()
    requires = re.search(r"^requires = (\[.*?^\])", pyproject, re.DOTALL | re.MULTILINE)
    pip(builder, "install", *ast.literal_eval(requires.group(1)))
    script = "import sys; from setuptools import build_meta as b; b.build_sdist(sys.argv[1])"
    subprocess.run([builder / "python", "-c", script, str(dist)], cwd=project, check=True)
    (sdist,) = dist.glob("*.tar.gz")
    pip(builder, "wheel", "--no-deps", "--no-build-isolation", "-w", dist, sdist)
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        manifest = json.loads(archive.read("cakert/cubins/manifest.json"))
        assert manifest == json.loads((store().root / "manifest.json").read_text())
        for entry in manifest["entries"]:
            data = archive.read(f"cakert/cubins/{entry['file']}")
            assert hashlib.sha256(data).hexdigest() == entry["sha256"]
            archive.getinfo("cakert/cubins/" + entry["file"].replace(".cubin", ".ptx.xz"))

    empty = environment("empty")
    pip(empty, "install", wheel)
    for arguments in (["info"], ["verify"], ["demo", "--device", "cpu"]):
        done = subprocess.run(
            [empty / "cakert", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
