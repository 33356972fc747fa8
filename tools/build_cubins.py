#!/usr/bin/env python3
"""Build the cubins of the package, or prove that those on disk come from the sources on disk.

    python tools/build_cubins.py                     rebuild everything
    python tools/build_cubins.py --only 'GLOB' --out FOLDER
                                                     kernel development: some cubins, elsewhere
    python tools/build_cubins.py --check             hashes; with the recorded nvcc also a rebuild
                                                     that compares bytes
    python tools/build_cubins.py --check --quick     hashes only, standard library only

Exit status: 0 well, 1 something is wrong or did not build, 2 usage.
"""

from __future__ import annotations

import argparse
import fnmatch
import lzma
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

import cubin_manifest as manifests
from cubin_toolchain import BuildError, Built, Toolchain, build_variant, find_toolchain
from cubin_variants import VARIANTS, Variant

ROOT = Path(__file__).resolve().parent.parent
PACKAGE_FOLDER = Path("cakert") / "cubins"

Job = tuple[Variant, str]
Report = Callable[[str], None]


# --- progress -------------------------------------------------------------------------------------


@contextmanager
def progress(total: int) -> Iterator[Report]:
    """A function to call once a finished build: a bar on a terminal, plain lines elsewhere."""
    if sys.stdout.isatty():
        try:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn
        except ImportError:
            pass
        else:
            with Progress(
                "building",
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
            ) as bar:
                task = bar.add_task("", total=total)

                def advance(line: str) -> None:
                    bar.console.print(line, markup=False, highlight=False)
                    bar.advance(task)

                yield advance
            return
    done = 0

    def report(line: str) -> None:
        nonlocal done
        done += 1
        print(f"[{done:>{len(str(total))}}/{total}] {line}", flush=True)

    yield report


def describe(name: str, built: Built, seconds: float) -> str:
    """One line on one cubin."""
    parts = [
        f"{k.registers} registers, {k.threads} threads, {k.shared_bytes}+{k.static_shared_bytes} "
        f"B shared, {k.spill_stores}/{k.spill_loads} B spilled"
        for k in built.kernels
    ]
    return f"{name}  {'; '.join(parts)}, {len(built.cubin)} B, {seconds:.1f} s"


# --- building -------------------------------------------------------------------------------------


def select(variants: Sequence[Variant], pattern: str) -> list[Job]:
    """The (variant, target) pairs whose ``stem.target`` matches a shell pattern."""
    return [
        (variant, target)
        for variant in variants
        for target in variant.targets
        if fnmatch.fnmatchcase(f"{variant.stem}.{target}", pattern)
    ]


def build_all(
    toolchain: Toolchain, root: Path, work: Sequence[Job], jobs: int
) -> list[tuple[Variant, str, Built]]:
    """Build `work` in parallel, in the order given; the first failure stops what has not begun.

    Raises
    ------
    BuildError
        From the first build that failed.
    """

    def one(job: Job) -> tuple[Built, float]:
        start = time.perf_counter()
        built = build_variant(toolchain, root, *job)
        return built, time.perf_counter() - start

    results: dict[Job, Built] = {}
    with ThreadPoolExecutor(jobs) as pool, progress(len(work)) as report:
        futures = {pool.submit(one, job): job for job in work}
        pending = set(futures)
        try:
            while pending:
                finished, pending = wait(pending, return_when=FIRST_COMPLETED)
                for future in finished:
                    variant, target = futures[future]
                    built, seconds = future.result()
                    results[variant, target] = built
                    report(describe(f"{variant.stem}.{target}", built, seconds))
                    for warning in built.warnings:
                        print(f"  {variant.stem}.{target}: {warning}", file=sys.stderr)
        except BaseException:
            for future in pending:
                future.cancel()
            raise
    return [(variant, target, results[variant, target]) for variant, target in work]


def write_files(folder: Path, results: Sequence[tuple[Variant, str, Built]]) -> None:
    """Write cubins and PTX; a file that already says the same is left alone.

    That matters for the PTX: another liblzma may compress the same text to other bytes.
    """
    for variant, target, built in results:
        cubin = folder / manifests.cubin_name(variant, target)
        manifests.write_atomic(cubin, built.cubin)
        packed = folder / manifests.ptx_name(cubin.name)
        try:
            if lzma.decompress(packed.read_bytes()) == built.ptx:
                continue
        except (OSError, lzma.LZMAError, EOFError):
            pass
        manifests.write_atomic(packed, manifests.compress(built.ptx))


def remove_strays(folder: Path, keep: set[str]) -> None:
    """Delete cubins and PTX that the manifest no longer names."""
    for path in [*folder.glob("*.cubin"), *folder.glob("*.ptx.xz")]:
        if path.name not in keep:
            path.unlink()


def build(
    toolchain: Toolchain,
    root: Path,
    folder: Path,
    variants: Sequence[Variant],
    *,
    pattern: str = "*",
    jobs: int = 1,
    allow_spills: bool = False,
) -> list[tuple[Variant, str, Built]]:
    """Build what `pattern` selects into `folder`; the manifest too where that is everything.

    Raises
    ------
    BuildError
        Nothing matches, a build failed, a kernel spills, ptxas serialises wgmma, sources changed
        while building, or the files are too large in all. Nothing is written then.
    """
    work = select(variants, pattern)
    if not work:
        raise BuildError(f"--only {pattern!r} matches none of the {len(variants)} variants")
    sources = manifests.source_hashes(root)
    results = build_all(toolchain, root, work, jobs)
    spilling = [
        f"  {variant.stem}.{target}: {name}"
        for variant, target, built in results
        for name in built.spilling
    ]
    if spilling and not allow_spills:
        raise BuildError(
            "these functions spill registers or use a stack frame (--allow-spills lets them):\n"
            + "\n".join(spilling)
        )
    serialised = [
        f"  {variant.stem}.{target}: {line}"
        for variant, target, built in results
        for line in built.serialised
    ]
    if serialised:
        raise BuildError("ptxas serialises wgmma in these kernels:\n" + "\n".join(serialised))
    if manifests.source_hashes(root) != sources:
        raise BuildError("a file under cuda/ changed during the build; build again")
    total = sum(len(b.cubin) + len(manifests.compress(b.ptx)) for _, _, b in results)
    if total > manifests.MAX_TOTAL_BYTES:
        raise BuildError(f"{total} bytes in all, the limit is {manifests.MAX_TOTAL_BYTES}")

    write_files(folder, results)
    if len(work) == sum(len(variant.targets) for variant in variants):
        entries = [manifests.make_entry(*result) for result in results]
        manifest = manifests.make_manifest(toolchain, sources, entries)
        # Last, so that a manifest never names files that are not there yet.
        manifests.write_atomic(folder / manifests.MANIFEST, manifests.dump(manifest))
        files = {entry["file"] for entry in entries}
        remove_strays(folder, files | {manifests.ptx_name(file) for file in files})
    print(f"{len(results)} cubins, {total / 1024:.0f} KiB with their PTX, in {folder}")
    return results


# --- checking -------------------------------------------------------------------------------------


def check(
    root: Path,
    folder: Path,
    variants: Sequence[Variant],
    *,
    quick: bool,
    jobs: int = 1,
    toolkit: Path | None = None,
) -> list[str]:
    """Problems found, one line each; empty when `folder` is what the sources give."""
    problems = manifests.check_hashes(root, folder, variants)
    if quick or problems:
        return problems
    manifest, _ = manifests.load(folder)
    assert manifest is not None  # check_hashes has just read it
    toolchain = find_toolchain(toolkit, manifest["toolkit"])
    if toolchain is None:
        print("hashes are right; no nvcc found, so nothing was rebuilt")
        return []
    if toolchain.identity != manifest["toolkit"]:
        print(
            f"hashes are right; nvcc here ({toolchain.origin}) is {toolchain.version.build}, the "
            f"cubins were built with {manifest['toolkit']['build']}, so nothing was rebuilt"
        )
        return []
    recorded = {entry["file"]: entry for entry in manifest["entries"]}
    for variant, target, built in build_all(toolchain, root, select(variants, "*"), jobs):
        entry = recorded[manifests.cubin_name(variant, target)]
        fresh = manifests.make_entry(variant, target, built)
        for key, value in fresh.items():
            if entry.get(key) != value:
                problems.append(
                    f"mismatch: {entry['file']}: rebuilt {key} is {value}, "
                    f"manifest {entry.get(key)}"
                )
    if not problems:
        print(f"{len(recorded)} cubins rebuilt with {toolchain.version.build}: identical bytes")
    return problems


# --- command line ---------------------------------------------------------------------------------


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read and cross-check the command line; exits with 2 on a mistake."""
    parser = argparse.ArgumentParser(
        description="Build the package's cubins, or check those on disk."
    )
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--quick", action="store_true", help="with --check: hashes only")
    parser.add_argument("--only", metavar="GLOB", help="build matching <stem>.<target> only")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="default: cakert/cubins")
    parser.add_argument("--root", type=Path, default=ROOT, help="repository root (sources)")
    parser.add_argument("--toolkit", type=Path, help="toolkit folder holding bin/nvcc")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="parallel builds")
    parser.add_argument("--allow-spills", action="store_true", help="accept register spills")
    args = parser.parse_args(argv)
    if args.quick and not args.check:
        parser.error("--quick goes with --check")
    if args.check and (args.only or args.allow_spills):
        parser.error("--check takes neither --only nor --allow-spills")
    if args.only and args.out is None:
        parser.error("--only needs --out FOLDER: the package ships all variants or none")
    if args.jobs < 1:
        parser.error(f"--jobs must be at least 1, got {args.jobs}")
    return args


def main(argv: Sequence[str] | None = None, variants: Sequence[Variant] = VARIANTS) -> int:
    """Run the command; returns the exit status."""
    args = parse_arguments(argv)
    root = args.root.resolve()
    folder = args.out.resolve() if args.out else root / PACKAGE_FOLDER
    try:
        if args.check:
            problems = check(
                root, folder, variants, quick=args.quick, jobs=args.jobs, toolkit=args.toolkit
            )
            for line in problems:
                print(line)
            if args.quick and not problems:
                print("cubins, PTX and sources have the hashes of the manifest")
            return 1 if problems else 0
        toolchain = find_toolchain(args.toolkit)
        if toolchain is None:
            print(
                "error: no nvcc on PATH, in CUDA_HOME, or from pip; "
                "install it with: pip install '.[cubins]'",
                file=sys.stderr,
            )
            return 1
        print(f"nvcc {toolchain.version.version} ({toolchain.origin}: {toolchain.nvcc})")
        build(
            toolchain,
            root,
            folder,
            variants,
            pattern=args.only or "*",
            jobs=args.jobs,
            allow_spills=args.allow_spills,
        )
    except BuildError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
