"""The suite's own switches: `gpu` tests skip with a reason, `full` tests wait to be asked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from helpers.stub import run_with_stub

SCRIPT = """
from conftest import why_no_gpu
import stub_child
stub_child.report(why_no_gpu())
"""


@pytest.mark.parametrize(
    ("stub", "reason"),
    [
        ({"capability": (9, 0)}, ""),
        ({"devices": 2, "capability": [(8, 0), (10, 3)]}, ""),
        (
            {"capability": (8, 0)},
            "compute capability (8, 0) has no cubins, only [(9, 0), (10, 0), (10, 3)]",
        ),
        ({"fail": {"cuInit": 100}}, "the NVIDIA driver sees no GPU"),
        ({"fail": {"cuInit": 999}}, "CUDA_ERROR_UNKNOWN"),
    ],
)
def test_reason_names_what_was_found(stub, reason):
    found = run_with_stub(SCRIPT, **stub).report
    assert found == reason if not reason else reason in found


def collect(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider",
         str(Path(__file__).with_name("test_package.py")), *arguments],
        capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_full_tests_run_only_when_asked_for():
    full, light = "test_wheel_and_sdist_hold_every_cubin", "test_public_names"
    for arguments, expected in (
        ((), (False, True)),
        (("--full",), (True, True)),
        (("-m", "full"), (True, False)),
    ):
        text = collect(*arguments)
        assert (full in text, light in text) == expected, arguments


def test_unknown_marker_is_an_error(tmp_path, project):
    (tmp_path / "test_it.py").write_text("import pytest\n@pytest.mark.gqu\ndef test_x(): pass\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-c", str(project / "pyproject.toml"),
         "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)],
        capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode != 0
    assert "'gqu' not found in `markers`" in done.stdout
