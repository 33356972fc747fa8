#!/usr/bin/env python3
"""Run the simulator's full matrix and print the record for docs/verification.md. No GPU needed.

    tools/verify_sim.py [--jobs N]

All variants of every kernel family under every schedule, and the kernels of others, which
tools/get_conformance.sh fetches first; those of FlashInfer need nvcc on PATH. Exits with 1 if
anything fails, or if a kernel of others was left out.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LEFT_OUT = re.compile(r"^SKIPPED.*tests/sim/conformance.*$", re.MULTILINE)
SUMMARY = re.compile(r"^.*\d+ (?:passed|failed|error).* in .*$", re.MULTILINE)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1, help="processes (xdist)")
    options = parser.parse_args()
    variables = os.environ | {"PYTHON": sys.executable, "OPENBLAS_NUM_THREADS": "1"}
    fetched = subprocess.run(
        ["bash", "tools/get_conformance.sh"], cwd=ROOT, env=variables, check=False
    )
    if fetched.returncode:
        print("verify_sim: the kernels of others were not fetched", file=sys.stderr)
        return 1
    command = [
        sys.executable, "-m", "pytest", "tests/sim", "--full", "-q", "-rs",
        *(["-n", str(options.jobs)] if options.jobs > 1 else []),
    ]  # fmt: skip
    start = time.monotonic()
    done = subprocess.run(
        command, cwd=ROOT, env=variables, text=True, stdout=subprocess.PIPE, check=False
    )
    seconds = time.monotonic() - start
    left_out = LEFT_OUT.findall(done.stdout)
    if done.returncode:
        print(done.stdout)
    for line in left_out:
        print(f"verify_sim: {line}", file=sys.stderr)
    summaries = SUMMARY.findall(done.stdout)
    verdict = summaries[-1].strip("= ") if summaries else "no summary"
    today = datetime.datetime.now(tz=datetime.timezone.utc).date()
    shown = " ".join(command).replace(sys.executable, "python")
    print(f"* Date: {today}. `{shown}`: {verdict} ({seconds:.0f} s)")
    return 1 if done.returncode or left_out else 0


if __name__ == "__main__":
    sys.exit(main())
