"""The manifest of the shipped cubins: made, written, and held against what lies on disk.

Standard library only, so that `build_cubins.py --check --quick` runs on a bare interpreter. The
package reads the same file with `cakert.cubins`.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cubin_toolchain import NVCC_FLAGS, PTXAS_FLAGS, Built, Toolchain
from cubin_variants import Variant

FORMAT = 1
MANIFEST = "manifest.json"
SOURCE_SUFFIXES = {".cu", ".cuh", ".h"}
# The wheel holds every cubin; past this it is no longer a small install (design, section 5).
MAX_TOTAL_BYTES = 24 * 1024 * 1024


def sha256(data: bytes) -> str:
    """Hexadecimal SHA-256."""
    return hashlib.sha256(data).hexdigest()


def cubin_name(variant: Variant, target: str) -> str:
    """File name of one cubin."""
    return f"{variant.stem}.{target}.cubin"


def ptx_name(cubin: str) -> str:
    """File name of the PTX beside a cubin."""
    return cubin.removesuffix(".cubin") + ".ptx.xz"


def compress(ptx: bytes) -> bytes:
    """XZ with fixed settings: the same liblzma gives the same bytes."""
    return lzma.compress(ptx, format=lzma.FORMAT_XZ, check=lzma.CHECK_CRC64, preset=9)


def write_atomic(path: Path, data: bytes) -> None:
    """Replace `path` in one step, so that no reader meets half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        temporary.chmod(0o644)  # mkstemp's 0600 would end up in the wheel
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def source_hashes(root: Path) -> dict[str, str]:
    """SHA-256 of every kernel source and header below ``cuda/``, by path with forward slashes."""
    files = sorted(p for p in (root / "cuda").rglob("*") if p.suffix in SOURCE_SUFFIXES)
    return {p.relative_to(root).as_posix(): sha256(p.read_bytes()) for p in files}


def flags() -> dict[str, list[str]]:
    """The flags that every variant is built with."""
    return {"nvcc": list(NVCC_FLAGS), "ptxas": list(PTXAS_FLAGS)}


def make_entry(variant: Variant, target: str, built: Built) -> dict[str, Any]:
    """The manifest entry of one cubin."""
    specs = {spec.name: spec for spec in variant.kernels}
    return {
        "file": cubin_name(variant, target),
        "sha256": sha256(built.cubin),
        "ptx_sha256": sha256(built.ptx),
        "family": variant.family,
        "target": target,
        "source": variant.source,
        "defines": list(variant.defines),
        "kernels": [
            {
                "name": kernel.name,
                "R": specs[kernel.name].R,
                "D": specs[kernel.name].D,
                "dtype": specs[kernel.name].dtype,
                "threads": kernel.threads,
                "registers": kernel.registers,
                "shared_bytes": kernel.shared_bytes,
                "static_shared_bytes": kernel.static_shared_bytes,
                "stack_bytes": kernel.stack_bytes,
                "spill_loads": kernel.spill_loads,
                "spill_stores": kernel.spill_stores,
                "tensor_instructions": kernel.tensor_instructions,
            }
            for kernel in built.kernels
        ],
    }


def make_manifest(
    toolchain: Toolchain, sources: dict[str, str], entries: list[dict[str, Any]]
) -> dict[str, Any]:
    """The whole manifest, entries sorted by file name."""
    return {
        "format": FORMAT,
        "toolkit": toolchain.identity,
        "flags": flags(),
        "sources": sources,
        "entries": sorted(entries, key=lambda entry: entry["file"]),
    }


def dump(manifest: dict[str, Any]) -> bytes:
    """The manifest's bytes: stable, readable in a diff."""
    return (json.dumps(manifest, indent=1, ensure_ascii=True) + "\n").encode("ascii")


# --- checking -------------------------------------------------------------------------------------


def load(folder: Path) -> tuple[dict[str, Any] | None, str]:
    """The manifest of `folder`, or None and the reason."""
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None, f"error: no manifest at {path}; run tools/build_cubins.py"
    except (ValueError, OSError) as problem:
        return None, f"error: {path} cannot be read: {problem}"
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        return None, f"error: {path} is not a manifest of format {FORMAT}"
    return manifest, ""


def _compare(kind: str, expected: dict[str, str], actual: dict[str, str], word: str) -> list[str]:
    problems = []
    for name in sorted(expected.keys() | actual.keys()):
        if name not in actual:
            problems.append(f"{word}: {kind} {name} is in the manifest but not on disk")
        elif name not in expected:
            problems.append(f"{word}: {kind} {name} is on disk but not in the manifest")
        elif expected[name] != actual[name]:
            problems.append(
                f"{word}: {kind} {name}: manifest {expected[name]}, actual {actual[name]}"
            )
    return problems


def check_hashes(root: Path, folder: Path, variants: Sequence[Variant]) -> list[str]:
    """Hold the manifest against sources, variant table and files.

    Returns
    -------
    list of str
        One line a problem, beginning with ``stale`` (the sources or the table moved on),
        ``mismatch`` (a file is not the recorded one) or ``error``; empty when all is well.
    """
    manifest, reason = load(folder)
    if manifest is None:
        return [reason]
    try:
        return _check_loaded(manifest, root, folder, variants)
    except (KeyError, TypeError, AttributeError) as problem:
        return [f"error: {folder / MANIFEST} is malformed: {type(problem).__name__} {problem}"]


def _check_loaded(
    manifest: dict[str, Any], root: Path, folder: Path, variants: Sequence[Variant]
) -> list[str]:
    problems = _compare("source", manifest["sources"], source_hashes(root), "stale")
    if manifest["flags"] != flags():
        problems.append(f"stale: flags: manifest {manifest['flags']}, tool {flags()}")
    recipes: dict[str, object] = {}
    for entry in manifest["entries"]:
        if entry["file"] in recipes:
            problems.append(f"mismatch: {entry['file']} stands in the manifest twice")
        kernels = tuple((k["name"], k["R"], k["D"], k["dtype"]) for k in entry["kernels"])
        recipes[entry["file"]] = (
            entry["family"], entry["target"], entry["source"], tuple(entry["defines"]), kernels,
        )  # fmt: skip
    for variant in variants:
        kernels = tuple((spec.name, spec.R, spec.D, spec.dtype) for spec in variant.kernels)
        for target in variant.targets:
            file = cubin_name(variant, target)
            recipe = (variant.family, target, variant.source, variant.defines, kernels)
            if recipes.pop(file, None) != recipe:
                problems.append(f"stale: {file} is missing from the manifest or built otherwise")
    problems += [f"stale: {file} is in the manifest but no variant gives it" for file in recipes]

    expected, actual = {}, {}
    for entry in manifest["entries"]:
        expected[entry["file"]] = entry["sha256"]
        expected[ptx_name(entry["file"])] = entry["ptx_sha256"]
    for path in sorted([*folder.glob("*.cubin"), *folder.glob("*.ptx.xz")]):
        data = path.read_bytes()
        if path.suffix == ".xz":
            try:
                data = lzma.decompress(data, format=lzma.FORMAT_XZ)
            except (lzma.LZMAError, EOFError) as problem:
                problems.append(f"mismatch: file {path.name} is not valid xz: {problem}")
                expected.pop(path.name, None)
                continue
        actual[path.name] = sha256(data)
    return problems + _compare("file", expected, actual, "mismatch")
