"""Build of the Cython extensions; everything else about the package stands in pyproject.toml.

The only CUDA input is a header: ``cuda.h``, which the declarations of ``cuda.bindings.cydriver``
include. It is taken from ``CUDA_HOME`` (or ``CUDA_PATH``) where that is set, else from the
``nvidia-cuda-runtime`` wheel that pip installs as a build requirement.

Environment
-----------
CUDA_HOME, CUDA_PATH
    Root of a CUDA toolkit whose ``include`` folder is to be used.
CAKERT_DEBUG_CYTHON
    ``1`` turns Cython's checks of negative indices, initialisation and C division on.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

ROOT = Path(__file__).resolve().parent
CHECKED = os.environ.get("CAKERT_DEBUG_CYTHON", "0") not in ("", "0")


def cuda_include_dirs() -> list[str]:
    """Return the folders with ``cuda.h`` and ``cudaProfiler.h``, the toolkit's own first."""
    candidates: list[Path] = []
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        home = os.environ.get(variable)
        if home:
            candidates.append(Path(home) / "include")
            candidates.extend(sorted(Path(home).glob("targets/*/include")))
    candidates.extend(Path(entry or ".") / "nvidia" / "cu13" / "include" for entry in sys.path)
    found = [folder for folder in candidates if (folder / "cuda.h").is_file()]
    if not found:
        looked = "\n  ".join(str(folder) for folder in dict.fromkeys(candidates))
        raise SystemExit(
            "cakert: cuda.h was not found. Set CUDA_HOME to a CUDA 13 toolkit, or install the "
            "header wheels: pip install 'nvidia-cuda-runtime==13.0.*' "
            f"'nvidia-cuda-profiler-api==13.0.*'. Looked in:\n  {looked}"
        )
    # A toolkit may come without the profiler's header: the wheel's folder then stands behind it.
    return list(dict.fromkeys(str(folder) for folder in found))


def extension(name: str, *, include_dirs: list[str]) -> Extension:
    """Describe the extension module `name`, whose source is the .pyx file of the same path."""
    source = Path(*name.split("."))
    return Extension(
        name,
        [f"{source}.pyx"],
        depends=[str(path.relative_to(ROOT)) for path in (ROOT / source.parent).glob("*.h")],
        include_dirs=[*include_dirs, "cuda", "cakert/runtime", "cakert/sim/core"],
        language="c++",
        # Debug information of the lane operations alone is ten times their code.
        extra_compile_args=["-O3", "-g0", "-std=c++17"],
    )


def extensions() -> list[Extension]:
    """List the extension modules in the order of their layers."""
    names = [
        "cakert.runtime.driver",
        "cakert.runtime.tensor",
        "cakert.runtime.arguments",
        "cakert.runtime.library",
        "cakert.runtime.memory",
        "cakert.runtime.event",
        "cakert.runtime.tensormap",
        "cakert.group_lists",
        "cakert.vsa_launch",
        "cakert.sim.core.code",
        "cakert.sim.core.global_memory",
        "cakert.sim.core.lane_ops",
        "cakert.sim.core.shared_memory",
        "cakert.sim.core.warp",
        "cakert.sim.matrix.mma_core",
    ]
    include_dirs = cuda_include_dirs()
    return [extension(name, include_dirs=include_dirs) for name in names]


# Listed by hand: a search for namespace packages would also find cuda/ (kernel sources) and put it
# into the users' `cuda` namespace package.
PACKAGES = [
    "cakert",
    "cakert.cli",
    "cakert.cubins",
    "cakert.explanation",
    "cakert.inspect",
    "cakert.runtime",
    "cakert.sim",
    "cakert.sim.copies",
    "cakert.sim.core",
    "cakert.sim.decode",
    "cakert.sim.machine",
    "cakert.sim.matrix",
    "cakert.sim.ptx",
    "cakert.sim.tcgen05",
]
PACKAGE_DATA = {
    "cakert": ["py.typed", "*.pyi", "*.pxd", "*.pxi", "*.pyx"],
    "cakert.cubins": ["*.cubin", "*.ptx.xz", "manifest.json"],
    "cakert.runtime": ["*.pyi", "*.pxd", "*.pxi", "*.pyx", "*.h"],
    "cakert.sim.core": ["*.pyi", "*.pxd", "*.pxi", "*.pyx", "*.h"],
    "cakert.sim.matrix": ["*.pyi", "*.pyx"],
}

setup(
    packages=PACKAGES,
    package_data=PACKAGE_DATA,
    include_package_data=False,
    ext_modules=cythonize(
        extensions(),
        include_path=["."],
        language_level=3,
        # freethreading_compatible is not set: nobody has run this package without the GIL yet,
        # and the flag only declares, it does not make safe.
        compiler_directives={
            # Kept on: it guards tuples and lists, which callers' objects fill; C arrays have none.
            "boundscheck": True,
            "wraparound": CHECKED,
            "initializedcheck": CHECKED,
            "cdivision": not CHECKED,
        },
    ),
    options={"build_ext": {"parallel": os.cpu_count() or 1}},
)
