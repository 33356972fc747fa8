"""README and docs: nothing unfilled, every link of ours leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

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
            if kernel.dtype == "bf16" and entry.family == "sm90":
                hopper.add(
                    f"| {kernel.R} | {kernel.D} | {kernel.registers} | {kernel.threads} | "
                    f"{kernel.shared_bytes:,} |"
                )
            elif kernel.dtype == "bf16":
                registers.setdefault((kernel.R, kernel.D), {})[entry.target] = kernel.registers
                shared[kernel.R, kernel.D] = kernel.shared_bytes
    assert len(registers) == len(hopper) == 6
    assert hopper <= set(text.splitlines())
    for (block, head_dim), by_target in registers.items():
        row = " / ".join(str(by_target[target]) for target in ("sm_90", "sm_100a", "sm_103a"))
        assert f"| {block} | {head_dim} | {row} | {shared[block, head_dim]:,} |" in text


def test_every_fault_of_the_simulator_is_listed(project):
    """Names stand in the calls that raise or note them."""
    calls = re.compile(
        r'(?:fault|note|fault_at|Fault)\w*\(\s*(?:warp,\s*)?"([a-z0-9]+(?:-[a-z0-9]+)+)"'
    )
    names = {"deadlock", "livelock", "trap"}
    for source in (project / "cakert" / "sim").rglob("*.p[yx]*"):
        if source.suffix in (".py", ".pyx", ".pxi"):
            names.update(calls.findall(source.read_text()))
    assert len(names) > 60
    listed = set(re.findall(r"`([a-z0-9-]+)`", (project / "docs" / "simulator.md").read_text()))
    assert not names - listed, f"docs/simulator.md lacks {sorted(names - listed)}"
