"""README and docs: nothing unfilled, every link of ours leads somewhere."""

from __future__ import annotations

import html
import importlib
import json
import re
import sys
from pathlib import Path

import bench_tables
import make_shots
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


def test_pictures_are_drawn_by_the_script_and_shown(project):
    drawn = {f"{shot.name}.svg" for shot in make_shots.SHOTS}
    there = {path.name for path in (project / "docs" / "pictures").iterdir()}
    assert drawn <= there
    assert len(drawn) == len(make_shots.SHOTS)
    shown = set()
    for page in pages(project):
        shown |= set(re.findall(r"\]\((?:docs/)?pictures/([^)#\s]+)\)", page.read_text()))
    assert shown == there  # that a page's links lead somewhere is tested above


def test_pictures_fetch_nothing_and_show_their_command(project):
    for shot in make_shots.SHOTS:
        picture = (project / "docs" / "pictures" / f"{shot.name}.svg").read_text()
        assert not re.findall(r"url\((?!#)|href|@font-face|@import", picture), shot.name
        text = " ".join(html.unescape(re.sub(r"<[^>]*>", "", picture)).split())
        assert f"$ {shot.command}" in text
        assert not re.findall(r"/(?:tmp|root|home|work)/", text), f"{shot.name}: a folder of ours"


def texts(picture: str) -> str:
    return html.unescape("".join(re.findall(r"<text [^>]*>(.*?)</text>", picture)))


@pytest.mark.parametrize("name", [shot.name for shot in make_shots.SHOTS if not shot.varies])
def test_a_picture_shows_what_the_command_prints(project, tmp_path, name):
    (shot,) = [shot for shot in make_shots.SHOTS if shot.name == name]
    make_shots.stage(tmp_path)
    drawn = texts(make_shots.svg(shot, make_shots.run_in_terminal(shot, tmp_path)))
    assert drawn == texts((project / "docs" / "pictures" / f"{name}.svg").read_text())
    assert len(drawn) > 100


def test_another_exit_status_than_the_pictures_is_an_error(tmp_path):
    shot = make_shots.Shot("none", "cakert inspect nothing.cubin")
    with pytest.raises(RuntimeError, match="exit status 1, expected 0"):
        make_shots.run_in_terminal(shot, tmp_path)


def test_a_picture_is_the_same_for_the_same_output():
    shot = make_shots.Shot("trial", "cakert trial", columns=40)
    written = "\x1b[1mbold\x1b[0m\n\rhalf\r\x1b[2Kwhole\nbar\n\r\x1b[1A\x1b[2Kend"
    settled = make_shots.settle(written)
    assert settled == "\x1b[1mbold\x1b[0m\nwhole\nend"
    assert make_shots.svg(shot, settled) == make_shots.svg(shot, settled)
    assert "trial" in make_shots.svg(shot, settled)
    row = f"│ in {make_shots.ROOT}/cakert{' ' * 12}│ well │"
    assert make_shots.anonymous(row).startswith("│ in ~/cakert/cakert    ")
    assert len(make_shots.anonymous(row)) == len(row)


def test_numbers_of_the_performance_page_are_those_of_the_json(project):
    page = (project / "docs" / "performance.md").read_text()
    report = json.loads((project / "docs" / "bench" / "h200.json").read_text())
    assert bench_tables.fill(page, report) == page
    rows = bench_tables.speed(report).splitlines()[2:]
    assert len(rows) == len({row["workload"] for row in report["rows"]})
    # One that is checked by hand here: a changed number must change the page.
    assert "| 7 x 109,632, 64 of 1,713 | 64, 128 | 506 | 475 | 348 | 508 | 1.00 |" in page
    report["rows"][0]["tflops"] += 10
    assert bench_tables.fill(page, report) != page
    with pytest.raises(ValueError, match="one table 'run'"):
        bench_tables.fill(page.replace("<!-- run -->", ""), report)


def test_every_page_is_in_the_table_of_contents(project):
    index = (project / "docs" / "index.md").read_text()
    listed = re.findall(r"^([\w/*\[\]-]+)$", index, re.MULTILINE)
    found = {
        str(path.relative_to(project / "docs").with_suffix(""))
        for pattern in ("*.md", "api/*.rst")
        for path in (project / "docs").glob(pattern)
    }
    missing = {name for name in found - {"index"} if not any(map(Path(name).match, listed))}
    assert not missing


@pytest.mark.parametrize(
    "package", ["cakert", "cakert.explanation", "cakert.inspect", "cakert.sim"]
)
def test_every_public_name_is_in_the_reference(project, package):
    module = importlib.import_module(package)
    described: set[str] = set()
    for page in (project / "docs" / "api").glob("*.rst"):
        here = ""
        for directive, name in re.findall(
            r"^\.\. ([\w:]+):: ([\w.]+)", page.read_text(), re.MULTILINE
        ):
            if directive in ("currentmodule", "automodule"):
                here = name
            described.add(name if name.startswith("cakert.") else f"{here}.{name}")
    public = {n for n in module.__all__ if callable(getattr(module, n))}
    missing = {n for n in public if not {f"{package}.{n}", f"cakert.{n}"} & described}
    assert public and not missing


@pytest.mark.parametrize("package", ["cli", "cubins", "explanation", "inspect"])
def test_every_module_is_on_the_map(project, package):
    text = (project / "docs" / "architecture.md").read_text()
    part = text[text.index(f"Inside `cakert/{package}/`") :]
    end = part.find("\nInside `", 1)
    named = set(re.findall(r"\w+", part[: part.index("\n## ") if end < 0 else end]))
    folder = Path(importlib.import_module(f"cakert.{package}").__file__).parent
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__", "__main__"}
    assert sorted(modules - named) == []


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
