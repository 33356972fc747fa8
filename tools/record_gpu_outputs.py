#!/usr/bin/env python3
"""Record what a real GPU computes for the small problems that the simulator is held to.

    tools/record_gpu_outputs.py            writes tests/sim/data/h200_outputs/<case>.npz

Needs the package installed and a GPU of compute capability 9.0; no framework. Run it again
whenever cubins for that capability change: tests/sim/test_recorded.py fails until it was done.
Every kernel family has its cases.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from gpu_environment import driver_release

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from helpers.recorded import CASES, Case, checksum, problem_of, stored_rows  # noqa: E402

import cakert  # noqa: E402
from cakert import routes  # noqa: E402
from cakert.cubins import store  # noqa: E402
from cakert.runtime import driver  # noqa: E402

FOLDER = ROOT / "tests" / "sim" / "data" / "h200_outputs"
CAPABILITY = (9, 0)
MOST_BYTES = 800_000


def record(case: Case, folder: Path) -> int:
    """Run a case and store its outputs; returns the bytes of the file."""
    problem = problem_of(case)
    pattern = {
        name: cakert.DeviceArray.from_numpy(array)
        if array is not None and name.startswith("q2k")
        else array
        for name, array in problem.pattern.items()
    }
    with routes.only(case.family):
        plan = cakert.plan_cake_vsa(**pattern, **problem.scalars, device=0)
    q, k, v = (cakert.DeviceArray.from_numpy(a) for a in (problem.q, problem.k, problem.v))
    out, lse = cakert.run_cake_vsa(
        plan, q, k, v, out=None, lse=None, return_lse=True, backend="cake"
    )
    entry = store().find(plan["route"], CAPABILITY)
    assert entry is not None
    rows = stored_rows(case, problem)
    path = folder / f"{case.name}.npz"
    np.savez_compressed(
        path,
        out=out.numpy().view(np.uint16)[rows],
        lse=lse.numpy()[rows],
        checksum=checksum(problem),
        kernel=plan["route"],
        cubin_sha256=entry.sha256,
        gpu=driver.device_name(0),
        driver=driver_release(),
    )
    return path.stat().st_size


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", type=Path, default=ROOT / "tests" / "sim" / "data" / "h200_outputs"
    )
    folder = parser.parse_args().out
    try:
        capability = driver.device_capability(0) if driver.device_count() else None
    except RuntimeError as error:
        print(f"record_gpu_outputs: {error}", file=sys.stderr)
        return 1
    if capability != CAPABILITY:
        print(f"record_gpu_outputs: needs capability {CAPABILITY}, found {capability}",
              file=sys.stderr)  # fmt: skip
        return 1
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.npz"):
        old.unlink()
    sizes = {case.name: record(case, folder) for case in CASES}
    print(f"{len(sizes)} cases, {sum(sizes.values())} bytes, on {driver.device_name(0)}")
    if sum(sizes.values()) > MOST_BYTES:
        print(f"record_gpu_outputs: more than {MOST_BYTES} bytes", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
