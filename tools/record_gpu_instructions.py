#!/usr/bin/env python3
"""Record what a real GPU answers to single instructions, or compare a recording.

    tools/record_gpu_instructions.py [--out FILE]      run all cases on device 0 and write FILE
    tools/record_gpu_instructions.py --replay FILE     run them on the simulator and print a table
    tools/record_gpu_instructions.py --assemble        only see that ptxas takes every text

Recording needs the package installed, ptxas (CUDA 13.0) on PATH and a GPU of compute capability
9.0. The cases are in tools/instruction_cases/; run it again whenever they change.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpu_environment import driver_release
from instruction_cases import all_cases
from instruction_cases.model import Case
from instruction_cases.recording import Recording
from instruction_cases.replay import judge
from instruction_cases.runners import GpuRunner, Runner, SimRunner, assemble

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "tests" / "sim" / "data" / "instructions_h200.npz"
CAPABILITY = (9, 0)
MOST_BYTES = 600_000
GIVE_UP = 6
"""Failures in a row after which the context must be lost, and with it all later launches."""


def _chosen(pattern: str) -> dict[str, Case]:
    return {name: case for name, case in all_cases().items() if pattern in name}


def _ptxas_version() -> str:
    done = subprocess.run(["ptxas", "--version"], text=True, capture_output=True, check=True)
    return done.stdout.strip().splitlines()[-1]


def check_texts(cases: dict[str, Case]) -> int:
    """Assemble every text once; returns how many were refused."""
    texts = {case.ptx: name for name, case in cases.items()}

    def refused(text: str) -> str:
        try:
            assemble(text)
        except RuntimeError as error:
            return f"{texts[text]}: {error}"
        return ""

    with ThreadPoolExecutor(4) as pool:
        problems = [problem for problem in pool.map(refused, texts) if problem]
    print(*problems, f"{len(texts)} texts, {len(problems)} refused", sep="\n")
    return len(problems)


def _try(case: Case, runner: Runner, recording: Recording) -> bool:
    try:
        recording.add(case, runner.run(case))
    except Exception as error:
        print(f"record_gpu_instructions: {case.name}: {error}", file=sys.stderr)
        return False
    return True


def record(cases: dict[str, Case], path: Path) -> int:
    """Run the cases on device 0; returns the exit status."""
    from cakert.runtime import driver

    try:
        capability = driver.device_capability(0) if driver.device_count() else None
    except RuntimeError as error:
        print(f"record_gpu_instructions: {error}", file=sys.stderr)
        return 1
    if capability != CAPABILITY:
        print(f"record_gpu_instructions: needs capability {CAPABILITY}, found {capability}",
              file=sys.stderr)  # fmt: skip
        return 1
    start = time.perf_counter()
    recording = Recording({
        "gpu": driver.device_name(0), "driver": driver_release(), "ptxas": _ptxas_version(),
    })  # fmt: skip
    runner, failed, in_a_row = GpuRunner(), 0, 0
    for case in cases.values():
        in_a_row = 0 if _try(case, runner, recording) else in_a_row + 1
        failed += in_a_row > 0
        if in_a_row == GIVE_UP:
            break
    size = recording.save(path, cases)
    seconds = time.perf_counter() - start
    print(f"{len(recording.entries)} of {len(cases)} cases, {size} bytes, {seconds:.1f} s")
    if size > MOST_BYTES:
        print(f"record_gpu_instructions: more than {MOST_BYTES} bytes", file=sys.stderr)
        return 1
    return int(bool(failed))


def replay(cases: dict[str, Case], path: Path) -> int:
    """Print what disagrees; returns 1 where something does."""
    recording = Recording.load(path)
    print(", ".join(f"{name} {value}" for name, value in recording.environment.items()))
    runner = SimRunner()
    verdicts = [judge(case, recording, runner) for case in cases.values()]
    wrong = [verdict for verdict in verdicts if verdict.problem]
    for verdict in wrong:
        for line in verdict.detail or (verdict.problem,):
            print(f"{verdict.case:44}  {line}")
    print(f"{len(verdicts) - len(wrong)} cases agree, {len(wrong)} do not")
    return int(bool(wrong))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=FILE)
    parser.add_argument("--replay", type=Path, metavar="FILE")
    parser.add_argument("--assemble", action="store_true")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases with TEXT in their name")
    given = parser.parse_args()
    cases = _chosen(given.only)
    if given.assemble:
        return int(bool(check_texts(cases)))
    if given.replay is not None:
        return replay(cases, given.replay)
    return record(cases, given.out)


if __name__ == "__main__":
    sys.exit(main())
