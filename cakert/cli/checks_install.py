"""Checks of the installation: interpreter, packages, names, files, frameworks, variables."""

from __future__ import annotations

import difflib
import os
import re
import shutil
from pathlib import Path

from cakert.cli.results import Result
from cakert.cli.surroundings import REQUIREMENTS, Surroundings
from cakert.errors import CubinError

BINDINGS = ((12, 9), (14, 0))
"""From the first on, below the second, as pyproject.toml has it."""
PYTHONS = ((3, 10), (3, 14))
_OF_EXTENSIONS = ("cuda-bindings", "ml-dtypes", "numpy")
VARIABLES = ("CAKERT_CONFORMANCE", "CAKERT_DEBUG_CYTHON", "CAKERT_SEED")
INSPECT_EXTRA = ("demangle", "lz4", "zstandard")
_TORCH_WITH_EXCHANGE_API = (2, 10)


def release(version: str) -> tuple[int, int]:
    """The first two numbers of a version: (13, 0) of "13.0.3"."""
    numbers = [int(each) for each in re.findall(r"\d+", version.partition("+")[0])[:2]]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else (numbers[0] if numbers else 0, 0)


def python(here: Surroundings) -> list[Result]:
    """The interpreter and the platform."""
    it = here.interpreter
    name = f"{it.implementation} {it.version[0]}.{it.version[1]} on {it.system} {it.machine}"
    results = []
    if it.system != "Linux" or it.machine not in ("x86_64", "aarch64"):
        results.append(Result("platform-other", name))
    if it.implementation != "CPython" or not PYTHONS[0] <= it.version <= PYTHONS[1]:
        results.append(Result("python-other", name))
    if not it.gil:
        results.append(Result("python-without-gil", f"{name}, free-threaded"))
    return results or [Result("python-ok", name)]


def extensions(here: Surroundings) -> list[Result]:
    """Whether the extension modules can be imported, and why not."""
    if not here.failures:
        return [Result("extensions-ok", f"all of {here.package} import")]
    name, reason = next(iter(here.failures.items()))
    found = f"{len(here.failures)} fail in {here.package}, the first is {name}: {reason}"
    lacking = re.search(r"ModuleNotFoundError: No module named '([\w.]+)'", reason)
    # An extension module without numpy says something else.
    needs = any(name in here.unusable or name not in here.packages for name in _OF_EXTENSIONS)
    if lacking.group(1).partition(".")[0] != "cakert" if lacking else needs:
        return [Result("extensions-need", found)]
    stem = here.package.joinpath(*name.split(".")[1:])
    files = [path.name for path in stem.parent.glob(f"{stem.name}.*.so")]
    if any(file == stem.name + here.interpreter.suffix for file in files):
        return [Result("extensions-broken", found)]
    if files:
        wanted = f"{stem.name}{here.interpreter.suffix}"
        return [Result("extensions-other", f"{found}; there is {files[0]}, wanted {wanted}")]
    if (here.package.parent / "setup.py").is_file():
        return [Result("extensions-missing", found)]
    return [Result("extensions-broken", found)]


def packages(here: Surroundings) -> list[Result]:
    """Whether what the package requires is installed, and cuda-bindings of the right releases."""
    missing = [name for name in REQUIREMENTS if name not in here.packages]
    results = [
        Result("package-missing", f"no {name} is installed", {"package": name}) for name in missing
    ]
    without_numpy = "numpy" in missing or "numpy" in here.unusable
    results += [
        Result(
            "package-broken",
            f"{name} {(version := here.packages[name])}: {reason}",
            {"package": name, "version": version},
        )
        for name, reason in here.unusable.items()
        if not (name == "ml-dtypes" and without_numpy)  # which it imports
    ]
    bindings = here.packages.get("cuda-bindings")
    if bindings is not None and not BINDINGS[0] <= release(bindings) < BINDINGS[1]:
        results.append(Result("bindings-other", f"cuda-bindings {bindings}"))
    names = [f"{name} {here.packages[name]}" for name in REQUIREMENTS if name in here.packages]
    return results or [Result("packages-ok", ", ".join(names))]


def names(here: Surroundings) -> list[Result]:
    """Whether something else of the name `cuda` or `cakert` comes first on the path."""
    folders = list(dict.fromkeys(Path(each or ".").absolute() for each in here.import_path))
    results = []
    for folder in folders:
        # A folder without __init__.py hides nothing: it becomes a part of the namespace package.
        hiding = [folder / "cuda" / "__init__.py", folder / "cuda.py"]
        if (path := next(filter(Path.is_file, hiding), None)) is not None:
            path = path.parent if path.name == "__init__.py" else path
            found = f"{path} is on the path"
            results.append(Result("cuda-shadowed", found, {"path": str(path)}))
            break
    ours = [folder / "cakert" for folder in folders if (folder / "cakert/__init__.py").is_file()]
    others = [path for path in ours if path.resolve() != here.package]
    if others:
        found = f"{here.package} is taken, {', '.join(map(str, others))} is there as well"
        results.append(Result("cakert-twice", found, {"path": str(here.package.parent)}))
    return results or [Result("names-ok", f"cakert is {here.package}")]


def extras(here: Surroundings) -> list[Result]:
    """The optional packages of the commands, and NVIDIA's disassembler."""
    results = []
    # There is no demangle for Python 3.10.
    wanted = INSPECT_EXTRA if here.interpreter.version >= (3, 11) else INSPECT_EXTRA[1:]
    if missing := [name for name in wanted if name not in here.packages]:
        results.append(Result("extra-inspect", f"not installed: {', '.join(missing)}"))
    # Where cakert/inspect/sass.py looks, which cannot be imported without pyelftools.
    homes = [here.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    folders = [here.environ.get("PATH", ""), *(str(Path(home) / "bin") for home in homes if home)]
    found = shutil.which("nvdisasm", path=os.pathsep.join(folders))
    if found is None and "nvidia-cuda-nvdisasm" not in here.packages:
        results.append(Result("extra-nvdisasm", "no nvdisasm on PATH, in CUDA_HOME or from pip"))
    for extra, package in (("explain", "matplotlib"), ("completion", "shtab")):
        if package not in here.packages:
            results.append(Result(f"extra-{extra}", f"not installed: {package}"))
    found_all = ", ".join([*wanted, "nvdisasm", "matplotlib", "shtab"])
    return results or [Result("extras-ok", found_all)]


def cubins(here: Surroundings) -> list[Result]:
    """The shipped cubins, each against the manifest."""
    try:
        from cakert.verification import verify

        verification = verify(here.package / "cubins")
    except ImportError as problem:
        return [Result("store-unread", str(problem))]
    except (CubinError, OSError) as problem:
        return [Result("store-damaged", str(problem))]
    if verification.findings:
        first = verification.findings[0]
        found = f"{len(verification.findings)} findings, the first: {first.file}: {first.text}"
        return [Result("store-damaged", found)]
    toolkit = verification.manifest.toolkit["version"] if verification.manifest else "unknown"
    found = f"{len(verification.cubins)} cubins of toolkit {toolkit}, all as in the manifest"
    return [Result("store-ok", found)]


def torch_cuda(here: Surroundings) -> str | None:
    """The CUDA release that the installed torch is built for, "" for the CPU, None if unknown.

    From its ``version.py``: importing torch would take seconds, and may fail.
    """
    for folder in here.import_path:
        file = Path(folder or ".") / "torch" / "version.py"
        try:
            text = file.read_text(errors="replace")
        except OSError:
            continue
        pattern = r"^cuda\s*(?::[^=\n]*)?=\s*(?:None|['\"]([^'\"]*)['\"])"
        found = re.search(pattern, text, re.MULTILINE)
        return None if found is None else found.group(1) or ""
    return None


def frameworks(here: Surroundings) -> list[Result]:
    """What could lend tensors."""
    results = []
    found = []
    if (torch := here.packages.get("torch")) is not None:
        cuda = torch_cuda(here)
        build = {None: "", "": " for the CPU"}.get(cuda, f" for CUDA {cuda}")
        found.append(f"torch {torch}{build}")
        if cuda == "":
            results.append(Result("torch-cpu", f"torch {torch} is built without CUDA"))
        if release(torch) < _TORCH_WITH_EXCHANGE_API:
            results.append(Result("torch-old", f"torch {torch}"))
    cupys = [name for name in here.packages if re.fullmatch(r"cupy(-cuda\d+x|-rocm-[\d-]+)?", name)]
    found += [f"{name} {here.packages[name]}" for name in cupys]
    if len(cupys) > 1:
        results.append(Result("cupy-several", f"installed together: {', '.join(sorted(cupys))}"))
    if (jax := here.packages.get("jax")) is not None:
        plugins = [name for name in here.packages if re.fullmatch(r"jax-cuda\d+-plugin", name)]
        found.append(" with ".join([f"jax {jax}", *plugins]))
        if not plugins:
            results.append(Result("jax-cpu", f"jax {jax} without a CUDA plugin"))
    none = "none of torch, CuPy, JAX: cakert.DeviceArray and numpy serve"
    return results or [Result("frameworks-ok", ", ".join(found) or none)]


def variables(here: Surroundings) -> list[Result]:
    """Environment variables: ours, and those that change how the driver loads or launches."""
    env = here.environ
    results = []
    for name in sorted(env):
        if name.startswith("CAKERT_") and name not in VARIABLES:
            meant = difflib.get_close_matches(name, VARIABLES, n=1, cutoff=0)[0]
            results.append(Result("variable-unknown", f"{name} is set", {"meant": meant}))
    loading = env.get("CUDA_MODULE_LOADING")
    if loading is not None and loading.upper() not in ("LAZY", "EAGER", "DEFAULT"):
        results.append(Result("module-loading", f"CUDA_MODULE_LOADING={loading!r}"))
    if env.get("CUDA_FORCE_PTX_JIT", "0") not in ("", "0"):
        results.append(Result("force-ptx-jit", f"CUDA_FORCE_PTX_JIT={env['CUDA_FORCE_PTX_JIT']}"))
    if env.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"):
        found = f"CUDA_LAUNCH_BLOCKING={env['CUDA_LAUNCH_BLOCKING']}"
        results.append(Result("launch-blocking", found))
    ours = [f"{name}={env[name]}" for name in VARIABLES if name in env]
    modules = f"CUDA_MODULE_LOADING is {loading or 'not set'} (LAZY and EAGER both work)"
    return results or [Result("variables-ok", ", ".join([*ours, modules]))]


def fork(here: Surroundings) -> list[Result]:
    """How multiprocessing starts its children unless told otherwise."""
    method = here.interpreter.start_method
    found = f"multiprocessing starts children by {method}"
    return [Result("fork-default" if method == "fork" else "fork-ok", found)]
