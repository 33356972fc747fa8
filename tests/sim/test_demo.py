"""`cakert demo` on the simulator: what a person without a GPU sees."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys

import pytest

SMALL = ["--tokens-q=64", "--tokens-kv=128", "--topk=1", "--heads=1", "--head-dim=64"]


def command(*arguments: str):
    return subprocess.run(
        [sys.executable, "-m", "cakert.cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a", "sm_103a"])
def test_demo_on_the_simulator(arch):
    done = command("demo", "--device", f"sim:{arch}", *SMALL)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert f"Running the kernel for {arch} on the simulator" in done.stdout
    assert f"simulated {arch}" in done.stdout
    family = "sm90_split" if arch == "sm_90a" else "portable"
    assert f"cake_vsa_{family}_r64_d64_bf16" in done.stdout
    assert "within the bound" in done.stdout
    assert "\x1b" not in done.stdout


def test_demo_is_a_function_of_its_arguments():
    arguments = ("demo", "--device", "sim:sm_100a", *SMALL, "--dtype", "float16")
    one, again, other = (
        re.sub(r".*host clock.*", "", command(*arguments, *seed).stdout)
        for seed in ((), (), ("--seed", "5"))
    )
    assert one == again != other


def test_progress_on_a_terminal_only():
    from rich.console import Console

    from cakert.cli.console import cta_progress

    for terminal in (False, True):
        stream = io.StringIO()
        with cta_progress(Console(file=stream, force_terminal=terminal, width=100)) as progress:
            progress(3, 8)
            progress(8, 8)
        assert ("8/8" in stream.getvalue()) == terminal


def test_a_wrong_architecture_is_wrong_usage():
    done = command("demo", "--device", "sim:sm_80")
    assert done.returncode == 2
    assert "sim:sm_90a, sim:sm_100a, sim:sm_103a or cpu, got 'sim:sm_80'" in done.stderr
