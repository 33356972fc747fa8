"""Imports go down the list of docs/architecture.md, and importing the package costs nothing."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import cakert

PACKAGE = Path(cakert.__file__).parent

# Top first: a module may import from later lines only, and from its own line.
LAYERS = [
    ["cakert.cli", "cakert.__main__"],
    ["cakert.explanation"],
    ["cakert.vsa"],
    ["cakert.vsa_device"],
    ["cakert.vsa_launch"],
    ["cakert.vsa_params"],
    ["cakert.validation"],
    ["cakert.planner"],
    ["cakert.groups"],
    ["cakert.group_lists"],
    ["cakert.routes"],
    ["cakert.reference"],
    ["cakert.arrays"],
    ["cakert.verification"],
    ["cakert.inspect"],
    ["cakert.cubins"],
    ["cakert.sim"],
    ["cakert.runtime"],
    ["cakert.errors"],
]
NUMPY_ONLY = ("cakert.planner", "cakert.groups", "cakert.routes", "cakert.errors")
FRAMEWORKS = {"torch", "jax", "cupy"}
MODULES = ("inspect", "reference", "sim")  # public names of cakert that are modules


def layer_of(module):
    """Number of the line that a module stands on; None for what is not ours."""
    for number, names in enumerate(LAYERS):
        if any(module == name or module.startswith(name + ".") for name in names):
            return number
    assert not module.startswith("cakert."), f"{module} is in no layer"
    return None


def from_import(base, names):
    """What ``from base import names`` needs: modules, or the package for its public names."""
    if base not in ("cakert", "cakert.inspect", "cakert.runtime"):
        return [base]
    return [
        base if name in cakert.__all__ and name not in MODULES else f"{base}.{name}"
        for name in names
    ]


def module_name(path):
    relative = path.relative_to(PACKAGE.parent).with_suffix("")
    parts = [part for part in relative.parts if part != "__init__"]
    return ".".join(parts)


def imports_of_python(text, module, is_package):
    """Modules that a Python source imports, but for type checking."""
    tree = ast.parse(text)
    guarded = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            guarded.update(id(child) for child in ast.walk(node))
    for node in ast.walk(tree):
        if id(node) in guarded:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".")
                keep = len(parents) - node.level + is_package
                base = ".".join([*parents[:keep], *filter(None, [base])])
            yield from from_import(base, [alias.name for alias in node.names])


CYTHON_IMPORT = re.compile(
    r"^\s*(?:from\s+([\w.]+)\s+c?import\s+(.+)|c?import\s+([\w.]+))", re.MULTILINE
)


def imports_of_cython(text):
    for base, names, plain in CYTHON_IMPORT.findall(text):
        if plain:
            yield plain
        else:
            yield from from_import(base, re.findall(r"\w+", names))


SOURCES = sorted(path for path in PACKAGE.rglob("*") if path.suffix in (".py", ".pyx", ".pxd"))


def imports(path):
    text = path.read_text()
    if path.suffix == ".py":
        return set(imports_of_python(text, module_name(path), path.name == "__init__.py"))
    return set(imports_of_cython(text))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path):
    module = module_name(path)
    mine = layer_of(module)
    for target in imports(path):
        theirs = layer_of(target)
        if target == "cakert":
            assert module.startswith("cakert.cli"), "the public names are for people's doors"
        elif mine is not None and theirs is not None:
            assert mine <= theirs, f"{module} imports {target}, which stands above it"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_source_imports_a_framework(path):
    found = {target.partition(".")[0] for target in imports(path)} & FRAMEWORKS
    assert not found, "frameworks are reached through sys.modules"


def test_the_planner_needs_numpy_only():
    for name in NUMPY_ONLY:
        path = PACKAGE / (name.partition(".")[2] + ".py")
        roots = {target.partition(".")[0] for target in imports(path)} - {"cakert"}
        assert roots <= {"numpy", *sys.stdlib_module_names}, name


SIMULATOR = [path for path in SOURCES if module_name(path).startswith("cakert.sim")]


def test_the_simulator_is_there():
    assert "cakert.sim.gpu" in map(module_name, SIMULATOR)


@pytest.mark.parametrize("path", SIMULATOR, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_the_simulator_stands_alone(path):
    """It knows neither attention nor the driver, and needs numpy and ml_dtypes only."""
    allowed = {"numpy", "ml_dtypes", "cpython", "cython", "libc", *sys.stdlib_module_names}
    if path.name == "report_view.py":
        allowed.add("rich")  # its tables, for a terminal
    for target in imports(path):
        ours = target == "cakert.sim" or target.startswith("cakert.sim.")
        assert ours or target.partition(".")[0] in allowed, target


# As in docs/architecture.md; the package's __init__ gives the names of all of them.
INSPECT = [
    ["json_form"],
    ["comparison", "files", "fit"],
    ["fatbin", "archive"],
    ["compression", "cubin"],
    ["nvinfo", "demangle", "sass"],
    ["records"],
]


def test_inspecting_goes_one_way_too():
    line = {f"cakert.inspect.{name}": at for at, names in enumerate(INSPECT) for name in names}
    files = [path for path in SOURCES if module_name(path).startswith("cakert.inspect.")]
    assert {module_name(path) for path in files} == line.keys()
    for path in files:
        for target in imports(path):
            if target.startswith("cakert.inspect"):
                assert line[module_name(path)] < line[target], f"{path.name} imports {target}"


def test_the_parsers_see_imports():
    text = (
        "import numpy as np\nfrom cakert import arrays\nfrom . import planner\n"
        "def f():\n    from cakert.runtime import driver\n"
        "if TYPE_CHECKING:\n    import torch\n"
    )
    assert set(imports_of_python(text, "cakert.vsa", False)) == {
        "numpy",
        "cakert.arrays",
        "cakert.planner",
        "cakert.runtime.driver",
    }
    cython = "from cuda.bindings cimport cydriver as cu\nfrom cakert cimport vsa\n  import torch\n"
    assert set(imports_of_cython(cython)) == {
        "cuda.bindings",
        "cakert.vsa",
        "torch",
    }


def run(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()


def test_import_brings_no_framework_and_no_driver():
    code = """
import sys, cakert
names = ["torch", "jax", "cupy", "numpy", "cuda", "rich", "elftools"]
print([name for name in names if name in sys.modules])
for name in cakert.__all__:
    getattr(cakert, name)
print([name for name in ("torch", "jax", "cupy") if name in sys.modules])
print([name for name in sys.modules if name.startswith("cakert.sim.")])
from cakert.runtime import driver
print(driver.initialised())
print(any("libcuda.so" in line for line in open("/proc/self/maps")))
"""
    assert run(code) == ["[]", "[]", "[]", "False", "False"]


def test_public_names():
    assert set(cakert.__all__) <= set(dir(cakert))
    assert cakert.__version__
    assert cakert.reference.attention
    assert cakert.sim.device
    assert issubclass(cakert.CudaError, RuntimeError)
    assert issubclass(cakert.CubinError, ValueError)
    with pytest.raises(AttributeError, match="no attribute 'flash'"):
        cakert.flash  # noqa: B018
