#!/usr/bin/env python3
"""Record what a real GPU answers to single instructions, or compare a recording.

    tools/record_gpu_instructions.py [--out FILE]      run all cases on device 0 and write FILE
    tools/record_gpu_instructions.py --replay FILE     run them on the simulator and print a table
    tools/record_gpu_instructions.py --assemble PACK   only assemble the texts, into a zip file
    tools/record_gpu_instructions.py --cubins PACK     record with those, on a machine without ptxas

Recording needs the package installed, ptxas (CUDA 13.0) on PATH or a pack, and a GPU of compute
capability 9.0. The cases are in tools/instruction_cases/; run it again whenever they change.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from gpu_environment import driver_release
from instruction_cases import all_cases
from instruction_cases.cubins import Assembler, CubinPack, CubinSource
from instruction_cases.model import Case
from instruction_cases.recording import Recording
from instruction_cases.replay import judge
from instruction_cases.runners import GpuRunner, SimRunner

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "tests" / "sim" / "data" / "instructions_h200.npz"
CAPABILITY = (9, 0)
MOST_BYTES = 600_000


def _chosen(pattern: str) -> dict[str, Case]:
    return {name: case for name, case in all_cases().items() if pattern in name}


def _work(names: list[str], cubins: CubinSource, results: Connection) -> None:
    """Run cases until one loses the context, which no later launch of the process survives."""
    cases, runner = all_cases(), GpuRunner(cubins)
    for name in names:
        try:
            results.send((name, runner.run(cases[name]), ""))
        except Exception as error:  # noqa: PERF203 - each case stands for itself
            results.send((name, None, str(error)))
            if "context is lost" in str(error):
                return


def _outputs(names: list[str], cubins: CubinSource) -> Iterator[tuple[str, Any, str]]:
    """(name, output or None, error) of every case, in as many processes as it takes."""
    processes = multiprocessing.get_context("spawn")
    left = list(names)
    while left:
        results, end = processes.Pipe(duplex=False)
        worker = processes.Process(target=_work, args=(left, cubins, end))
        worker.start()
        end.close()
        done = 0
        with contextlib.suppress(EOFError):
            while True:
                yield results.recv()
                done += 1
        worker.join()
        if not done:
            raise RuntimeError(f"the process that runs {left[0]} died")
        left = left[done:]


def record(cases: dict[str, Case], path: Path, cubins: CubinSource) -> int:
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
        "gpu": driver.device_name(0), "driver": driver_release(), "ptxas": cubins.version(),
    })  # fmt: skip
    failed = refused = 0
    for name, output, error in _outputs(list(cases), cubins):
        if "ILLEGAL_INSTRUCTION" in error:
            recording.add(cases[name], np.empty(0, np.uint8))
            refused += 1
        elif output is None:
            failed += 1
            print(f"record_gpu_instructions: {name}: {error}", file=sys.stderr)
        else:
            recording.add(cases[name], output)
    size = recording.save(path, cases)
    seconds = time.perf_counter() - start
    print(
        f"{len(recording.entries)} of {len(cases)} cases ({refused} refused by the GPU), "
        f"{size} bytes, {seconds:.1f} s"
    )
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
    parser.add_argument("--assemble", type=Path, metavar="PACK")
    parser.add_argument("--cubins", type=Path, metavar="PACK")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases with TEXT in their name")
    given = parser.parse_args()
    cases = _chosen(given.only)
    if given.assemble is not None:
        CubinPack.write(given.assemble, {case.ptx for case in cases.values()})
        return 0
    if given.replay is not None:
        return replay(cases, given.replay)
    cubins = Assembler() if given.cubins is None else CubinPack(given.cubins)
    return record(cases, given.out, cubins)


if __name__ == "__main__":
    sys.exit(main())
