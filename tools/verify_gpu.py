#!/usr/bin/env python3
"""Verify the kernels on the GPU of this machine and print the record for docs/verification.md.

    tools/verify_gpu.py                    the full matrix, then compute-sanitizer on a small set
    tools/verify_gpu.py --stage matrix     one stage

Needs the package installed with its test extra, a GPU that has cubins, and for the sanitizer
stage `compute-sanitizer` on PATH. Exits with 1 if anything fails.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from gpu_environment import environment

ROOT = Path(__file__).resolve().parent.parent
SUMMARY = re.compile(r"\d+ (passed|failed|skipped)|(ERROR|RACECHECK) SUMMARY")
ANY_PASSED = re.compile(r"[1-9]\d* passed")
STAGE_SECONDS = 1800
STAGES = ("matrix", "memcheck", "racecheck", "synccheck", "initcheck")


def why_not_here() -> str:
    """One sentence where device 0 cannot run the package's kernels."""
    from cakert.cubins import store
    from cakert.runtime import driver

    try:
        capability = driver.device_capability(0) if driver.device_count() else None
    except RuntimeError as error:
        return str(error)
    if capability not in store().capabilities:
        return (
            f"device 0 has compute capability {capability}, cubins are for {store().capabilities}"
        )
    return ""


def command_of(stage: str, jobs: int) -> list[str]:
    if stage == "matrix":
        parallel = ["-n", str(jobs)] if jobs > 1 else []
        return [
            sys.executable, "-m", "pytest", "tests/gpu", "--full", "-q", *parallel,
            "-p", "no:cacheprovider",
        ]  # fmt: skip
    # API errors are left out: asking for one parameter too many is how a kernel's are counted.
    # Padding keeps allocations apart, so that a read into the next one is seen.
    checker = ["--report-api-errors", "no", "--padding", "4096"] if stage == "memcheck" else []
    cases = ["--no-garbage"] if stage == "initcheck" else []
    return [
        "compute-sanitizer", "--tool", stage, "--error-exitcode", "9", *checker, sys.executable,
        "tools/sanitize_cases.py", *cases,
    ]  # fmt: skip


def verdict_line(output: str) -> str:
    """The line in which pytest or compute-sanitizer sums up, or the last one."""
    lines = [line.strip("= ") for line in output.splitlines() if line.strip()]
    summaries = [line for line in lines if SUMMARY.search(line)]
    return (summaries or lines or ["no output"])[-1]


def record(stages: dict[str, tuple[bool, str, float, list[str]]]) -> str:
    """The Markdown that belongs into docs/verification.md."""
    found = environment()
    targets = ", ".join(found["cubin_targets"])
    lines = [
        f"* Date: {found['date']}",
        f"* GPU: {found['gpu']}, compute capability {found['capability']}; driver "
        f"{found['driver']} (CUDA {found['driver_cuda']})",
        f"* cakert {found['cakert']}, {found['cubins']} cubins of target {targets}; SHA-256 over "
        f"their sorted hashes `{found['cubins_sha256']}`",
        "",
        "| stage | command | result | time |",
        "| --- | --- | --- | --- |",
    ]
    for stage, (passed, last, seconds, command) in stages.items():
        shown = " ".join(command).replace(sys.executable, "python")
        verdict = "passed" if passed else "FAILED"
        lines.append(f"| {stage} | `{shown}` | {verdict}: {last} | {seconds:.0f} s |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stage", choices=STAGES, action="append", help="default: all")
    parser.add_argument("--jobs", type=int, default=1, help="processes of the matrix (xdist)")
    parser.add_argument("--out", type=Path, help="write the record there too")
    options = parser.parse_args()
    if problem := why_not_here():
        print(f"verify_gpu: {problem}", file=sys.stderr)
        return 1
    results: dict[str, tuple[bool, str, float, list[str]]] = {}
    for stage in options.stage or STAGES:
        command = command_of(stage, options.jobs)
        if shutil.which(command[0]) is None:
            print(f"verify_gpu: {command[0]} is not on PATH; stage {stage} was not run")
            results[stage] = (False, "not run, the tool is missing", 0.0, command)
            continue
        start = time.monotonic()
        # JAX would otherwise take most of the card's memory for itself, and each of the matrix's
        # processes all cores for a product of its reference.
        threads = str(max(1, (os.cpu_count() or 1) // options.jobs))
        variables = os.environ | {
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
            "OMP_NUM_THREADS": threads,
            "OPENBLAS_NUM_THREADS": threads,
        }
        try:
            done = subprocess.run(
                command, cwd=ROOT, text=True, capture_output=True, env=variables, check=False,
                timeout=STAGE_SECONDS,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            print(f"verify_gpu: stage {stage} did not end within {STAGE_SECONDS} s")
            results[stage] = (False, "timed out", float(STAGE_SECONDS), command)
            continue
        output = done.stdout + done.stderr
        if done.returncode:
            print(output)
        seconds = time.monotonic() - start
        verdict = verdict_line(output)
        passed = done.returncode == 0 and (stage != "matrix" or bool(ANY_PASSED.search(verdict)))
        results[stage] = (passed, verdict, seconds, command)
        print(f"{stage}: exit status {done.returncode}, {seconds:.0f} s, {results[stage][1]}")
    text = record(results)
    print("\n" + text)
    if options.out:
        options.out.write_text(text + "\n")
    return 0 if all(passed for passed, *_ in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
