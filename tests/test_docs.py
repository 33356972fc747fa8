"""README and docs: nothing unfilled, every link of ours leads somewhere."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

PAGES = ("README.md", "CHANGELOG.md", "docs/*.md")


def pages(project: Path) -> list[Path]:
    return [page for pattern in PAGES for page in sorted(project.glob(pattern))]


def test_links_lead_somewhere(project):
    found = pages(project)
    assert len(found) >= 5
    for page in found:
        for target in re.findall(r"\]\(([^)#\s]+)\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_nothing_is_left_to_be_filled_in(project):
    for page in pages(project):
        assert not re.findall(r"@[A-Z]+@|TODO|TBD|FIXME", page.read_text()), page.name


@pytest.mark.parametrize(
    "command", ["pip install . && cakert demo", "pip install -e '.[test]' && pytest"]
)
def test_readme_has_the_two_commands(project, command):
    assert command in (project / "README.md").read_text().splitlines()


def test_kernel_table_is_that_of_the_manifest(project):
    """docs/kernels.md quotes resources; they change with every build."""
    from cakert.cubins import store

    text = (project / "docs" / "kernels.md").read_text()
    registers: dict[tuple[int, int], dict[str, int]] = {}
    shared: dict[tuple[int, int], int] = {}
    hopper = set()
    for entry in store().entries:
        for kernel in entry.kernels:
            if kernel.dtype == "bf16" and entry.family != "portable":
                hopper.add(
                    f"| {kernel.R} | {kernel.D} | {kernel.registers} | {kernel.threads} | "
                    f"{kernel.shared_bytes:,} |"
                )
            elif kernel.dtype == "bf16":
                registers.setdefault((kernel.R, kernel.D), {})[entry.target] = kernel.registers
                shared[kernel.R, kernel.D] = kernel.shared_bytes
    assert (len(registers), len(hopper)) == (6, 10)
    assert hopper <= set(text.splitlines())
    for (block, head_dim), by_target in registers.items():
        row = " / ".join(str(by_target[target]) for target in ("sm_90", "sm_100a", "sm_103a"))
        assert f"| {block} | {head_dim} | {row} | {shared[block, head_dim]:,} |" in text


def test_every_fault_of_the_simulator_is_listed(project):
    from cakert.sim.fault_names import FAULT_NAMES

    text = (project / "docs" / "simulator.md").read_text()
    listed = set(re.findall(r"`([a-z0-9-]+)`", text[text.index("## Faults") :]))
    assert not FAULT_NAMES - listed, f"docs/simulator.md lacks {sorted(FAULT_NAMES - listed)}"


def test_the_example_without_a_gpu_runs(project):
    text = (project / "README.md").read_text()
    block = text[text.index("## Without a GPU") :].split("```python\n")[1].split("```")[0]
    names: dict[str, object] = {}
    exec(compile(block, "README.md", "exec"), names)
    assert not np.isnan(np.asarray(names["out"], np.float32)).any()


def test_numbers_that_the_docs_quote(project):
    from cakert.sim.core.lane_ops import LANE_FUNCTIONS

    text = (project / "docs" / "simulator.md").read_text()
    assert f"{len(LANE_FUNCTIONS)} arithmetic functions" in text
    sys.path.insert(0, str(project / "tests" / "sim"))
    try:
        from planted import FAULTS
    finally:
        sys.path.pop(0)
    assert f"{len(FAULTS)} small kernels" in text
    assert f"{len(FAULTS)} planted faults" in (project / "README.md").read_text()
