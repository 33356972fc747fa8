#!/usr/bin/env python3
"""Verify the kernels on the GPU of this machine and print the record for docs/verification.md.

    tools/verify_gpu.py                    the full matrix, then compute-sanitizer on a small set
    tools/verify_gpu.py --stage matrix     one stage

Needs the package installed with its test extra, a GPU that has cubins, and for the sanitizer
stage `compute-sanitizer` on PATH. Exits with 1 if anything fails.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STAGES = ("matrix", "memcheck", "racecheck", "synccheck", "initcheck")


def command_of(stage: str, jobs: int) -> list[str]:
    if stage == "matrix":
        parallel = ["-n", str(jobs)] if jobs > 1 else []
        return [
            sys.executable, "-m", "pytest", "tests/gpu", "--full", "-q", *parallel,
            "-p", "no:cacheprovider",
        ]  # fmt: skip
    # API errors are left out: asking for one parameter too many is how a kernel's are counted.
    options = ["--report-api-errors", "no"] if stage == "memcheck" else []
    return [
        "compute-sanitizer", "--tool", stage, "--error-exitcode", "9", *options, sys.executable,
        "tools/sanitize_cases.py",
    ]  # fmt: skip


def verdict_line(output: str) -> str:
    """The line in which pytest or compute-sanitizer sums up, or the last one."""
    lines = [line.strip("= ") for line in output.splitlines() if line.strip()]
    summaries = [line for line in lines if re.search(r"\d+ (passed|failed)|ERROR SUMMARY", line)]
    return (summaries or lines or ["no output"])[-1]


def record(stages: dict[str, tuple[bool, str, float, list[str]]]) -> str:
    """The Markdown that belongs into docs/verification.md."""
    from cakert.cubins import store
    from cakert.runtime import driver

    major, minor = driver.device_capability(0)
    used = [entry for entry in store().entries if entry.target == f"sm_{major}{minor}"]
    digest = hashlib.sha256("".join(sorted(entry.sha256 for entry in used)).encode()).hexdigest()
    lines = [
        f"* Date: {time.strftime('%Y-%m-%d')}",
        f"* GPU: {driver.device_name(0)}, compute capability {major}.{minor}; driver for CUDA "
        f"{driver.driver_version() // 1000}.{driver.driver_version() % 1000 // 10}",
        f"* Cubins: {len(used)} of target sm_{major}{minor}; SHA-256 over their sorted hashes "
        f"`{digest}`",
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
    results: dict[str, tuple[bool, str, float, list[str]]] = {}
    for stage in options.stage or STAGES:
        command = command_of(stage, options.jobs)
        if shutil.which(command[0]) is None:
            print(f"verify_gpu: {command[0]} is not on PATH; stage {stage} was not run")
            results[stage] = (False, "not run, the tool is missing", 0.0, command)
            continue
        start = time.monotonic()
        # JAX would otherwise take most of the card's memory for itself.
        environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        done = subprocess.run(
            command, cwd=ROOT, text=True, capture_output=True, env=environment, check=False
        )
        output = done.stdout + done.stderr
        if done.returncode:
            print(output)
        seconds = time.monotonic() - start
        results[stage] = (done.returncode == 0, verdict_line(output), seconds, command)
        print(f"{stage}: exit status {done.returncode}, {seconds:.0f} s, {results[stage][1]}")
    text = record(results)
    print("\n" + text)
    if options.out:
        options.out.write_text(text + "\n")
    return 0 if all(passed for passed, *_ in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
