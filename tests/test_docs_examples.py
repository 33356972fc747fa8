"""Every example of README.md and docs/ runs: as it stands, or as these tables say.

A page's Python blocks run in order and share their names, in a folder with the files that pages
name. `tests/gpu/test_docs_on_gpu.py` runs all of them as they stand, on a GPU.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import make_shots
import pytest
from helpers import cuda_tools
from helpers.doc_blocks import DATA, PROJECT, Block, blocks, commands, pages, python_blocks
from helpers.stub import run_with_stub

import cakert
from cakert import sim
from cakert.cli.main import build_parser
from cakert.cubins import store
from cakert.sim.ptx import read

# What a block on a GPU becomes here: plans get a simulated device, whose memory is the CPU's.
STAND_INS = (
    ('sm_scale=None, device="cuda"', "sm_scale=None, device=simulated"),
    ('device="cuda"', 'device="cpu"'),
)
# The simulator is slow: fewer heads and blocks. And no C++ compiler for torch.compile.
SMALLER = {
    ("README.md", 1): (
        ("torch.rand(8, 64, 64, ", "torch.rand(2, 4, 4, "),
        ("M=4096, N=4096, ", "M=256, N=256, "),
        ("num_qo_heads=8, num_kv_heads=8", "num_qo_heads=2, num_kv_heads=2"),
        ("torch.randn(4096, 8, 128, ", "torch.randn(256, 2, 128, "),
    ),
    ("quickstart.md", 1): (("heads, blocks = 8, 64", "heads, blocks = 2, 4"),),
    ("changing-masks.md", 1): (("heads, blocks = 8, 64", "heads, blocks = 2, 4"),),
    ("changing-masks.md", 6): (("@torch.compile", '@torch.compile(backend="eager")'),),
}
# With the stub as the driver, which records calls and computes nothing; what comes before it.
STUB = {
    ("README.md", 2): "from helpers.docs_tensor import x\n",
    ("own-kernel.md", 2): "",
}
# Not run here at all, and why. tests/gpu runs them.
GPU_ONLY = {
    ("changing-masks.md", 5): "torch captures CUDA graphs on a GPU only",
    ("own-kernel.md", 3): "torch captures CUDA graphs on a GPU only",
}
# What a page leaves to its reader, as code that runs before the block.
GIVEN = {
    ("explain.md", 1): """
import numpy as np
import cakert
mask = np.tri(4, dtype=bool)[None]
plan = cakert.plan_cake_vsa(
    None, None, mask, None, None, None, M=256, N=256, R=64, C=64, num_qo_heads=1, num_kv_heads=1,
    head_dim=64, q_data_type="float16", sm_scale=None, device=simulated)
""",
}
# Lines that begin like a command and are none, such as a synopsis.
NO_COMMANDS = {
    "cakert run FILE [KERNEL] --grid X[,Y[,Z]] --block X[,Y[,Z]] --arg ARG ...",
}
# `cakert` commands that are only parsed, and why.
PARSED_ONLY = {
    "cakert explain mask.npy --device cuda:0": "needs a GPU",
    **{
        f"cakert load {arguments}": "needs a GPU"
        for arguments in (
            "kernel.cubin",
            "kernel.cubin --shared 98432",
            "kernel.cubin --block 256 --shared 65536",
            "libmine.so --device 1 --json",
        )
    },
    "cakert verify --rebuild --jobs 4": "assembles all cubins: tests of verify do it for some",
    "cakert verify build/cubins": "a folder of the reader's",
}

LANGUAGES = {"", "cuda", "json", "ptx", "python", "sh", "text"}
PROGRAMS = {"cakert", "nvcc", "pip", "python", "sphinx-build"}

ALL = [block for page in pages() for block in blocks(page)]
PYTHON = python_blocks()
COMMANDS: dict[str, list[str]] = {}
for block in ALL:
    if block.language != "python":
        COMMANDS.setdefault(block.page, []).extend(
            c for c in commands(block) if c not in NO_COMMANDS
        )
COMMANDS = {page: list(dict.fromkeys(found)) for page, found in COMMANDS.items() if found}


def fill(path: Path) -> None:
    """Write the files that the pages name."""
    make_shots.stage(path)
    (path / "cakert").mkdir()
    (path / "cakert" / "cubins").symlink_to(store().root)


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A folder with those files."""
    path = tmp_path_factory.mktemp("docs")
    fill(path)
    return path


def stand_in(block: Block) -> str:
    """The text to run here in place of the block's."""
    text = block.text
    for old, new in SMALLER.get(block.key, ()):
        assert old in text, f"{block.key}: {old!r} is not in the block any more"
        text = text.replace(old, new)
    for old, new in STAND_INS:
        text = text.replace(old, new)
    return text


@pytest.mark.parametrize("page", PYTHON)
def test_python_of_a_page(page, folder, monkeypatch):
    here = [block for block in PYTHON[page] if block.key not in STUB | GPU_ONLY]
    if any("import torch" in block.text for block in here):
        pytest.importorskip("torch")
    monkeypatch.chdir(folder)
    with sim.device("sm_100a") as simulated:
        names: dict[str, object] = {"simulated": simulated}
        for block in here:
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(GIVEN.get(block.key, ""), names)
                block.run(names, stand_in(block))
            if block.output is not None:
                assert printed.getvalue() == block.output, block.key


@pytest.mark.parametrize("key", STUB, ids=str)
def test_launches_reach_the_driver(key, folder):
    page, number = key
    block = PYTHON[page][number - 1]
    script = f"import os, sys\nos.chdir(sys.argv[1])\n{STUB[key]}{block.text}"
    result = run_with_stub(script, arguments=[folder])
    (launch,) = result.trace.named("cuLaunchKernelEx")
    grid, threads = re.search(r"grid=(\d+), block=(\d+)", block.text).groups()
    assert launch["kernel"] == "scale"
    assert (launch["grid"], launch["block"]) == ([int(grid), 1, 1], [int(threads), 1, 1])


def test_tables_name_blocks_that_are_there():
    keys = {block.key for page in PYTHON.values() for block in page}
    assert keys >= SMALLER.keys() | STUB.keys() | GPU_ONLY.keys()
    # The list excuses blocks that need torch on a GPU, nothing else.
    for page, number in GPU_ONLY:
        assert "torch.cuda." in PYTHON[page][number - 1].text
    assert keys >= GIVEN.keys()
    assert {c for found in COMMANDS.values() for c in found} >= PARSED_ONLY.keys()
    assert {c for block in ALL for c in commands(block)} >= NO_COMMANDS


def test_blocks_that_need_torch_are_few_pages():
    """So that the other pages are tested without it, too."""
    with_torch = {p for p, of_page in PYTHON.items() if any("torch" in b.text for b in of_page)}
    assert PYTHON.keys() - with_torch >= {"simulator.md"}


# --- other blocks ---------------------------------------------------------------------------------


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_every_block_has_a_language_that_is_tested(page):
    for block in blocks(page):
        where = f"{block.page}:{block.line}"
        if block.language == "{toctree}":
            assert page.name == "index.md", f"{where}: other pages are plain Markdown"
            continue
        assert block.language in LANGUAGES, where
        if block.language == "json":
            json.loads(block.text)
        if block.language == "ptx":
            assert read(block.text).functions, where
        if block.language == "sh":
            for line in block.text.replace("\\\n", " ").splitlines():
                program = shlex.split(line, comments=True)[:1]
                assert not program or program[0] in PROGRAMS, f"{where}: {line}"
        for script in re.findall(r"^(?:\$ )?python (\S+\.py)", block.text, re.MULTILINE):
            assert (PROJECT / script).is_file(), f"{where}: {script}"
        for extra in re.findall(r"pip install .*'(?:\.|cakert)\[(\S+)\]'", block.text):
            assert f"\n{extra} = [" in (PROJECT / "pyproject.toml").read_text(), where


def test_pages_have_commands():
    assert COMMANDS.keys() >= {"README.md", "quickstart.md", "cubin-tool.md", "own-kernel.md"}
    assert sum(map(len, COMMANDS.values())) >= 10


@pytest.mark.parametrize("page", COMMANDS)
def test_no_shell_expands_what_a_command_of_a_page_holds(page):
    """Zsh refuses a word with brackets outside of quotes that matches no file."""
    for command in COMMANDS[page]:
        assert not set("[]*?") & set(re.sub(r"'[^']*'", "", command)), command


@pytest.mark.parametrize("page", COMMANDS)
def test_commands_of_a_page(page, tmp_path):
    """In the order of the page: one may read what another has written."""
    fill(tmp_path)
    package_root = str(Path(cakert.__file__).resolve().parents[1])
    search = os.pathsep.join(filter(None, [package_root, os.environ.get("PYTHONPATH", "")]))
    for command in COMMANDS[page]:
        arguments = shlex.split(command)[1:]
        build_parser().parse_args(arguments)  # exits where it is no command of ours
        if command in PARSED_ONLY:
            continue
        done = subprocess.run(
            [sys.executable, "-m", "cakert.cli", *arguments],
            cwd=tmp_path, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
            env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": search},
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        assert done.stdout and not done.stderr, command


def cuda_block() -> Block:
    (block,) = [block for block in ALL if block.language == "cuda"]
    assert block.page == "own-kernel.md"
    return block


def test_the_kernel_of_the_page_is_the_one_that_was_compiled(folder, tmp_path):
    """With the page's own nvcc commands; elsewhere the tests run what came out once."""
    if reason := cuda_tools.why_no_compiler():
        pytest.skip(reason)
    (tmp_path / "scale.cu").write_text(cuda_block().text)
    lines = [
        line
        for block in ALL
        if block.page == "own-kernel.md" and block.language == "sh"
        for line in block.text.splitlines()
        if line.startswith("nvcc ")
    ]
    assert len(lines) == 2
    for line in lines:
        tool, *arguments = shlex.split(line)
        done = subprocess.run(
            [cuda_tools.find(tool), *arguments],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    code = [
        [line for line in (path / "scale.ptx").read_text().splitlines() if line[:2] != "//"]
        for path in (tmp_path, DATA)
    ]
    assert code[0] == code[1]
    gpu = sim.Gpu("sm_100a")
    assert gpu.load_ptx((tmp_path / "scale.ptx").read_text()).kernels == ("scale",)


def test_the_kernel_takes_forty_lines_in_all():
    """What docs/own-kernel.md promises by being short: source, commands, simulator and launch."""
    count = 0
    for block in ALL:
        if block.page == "own-kernel.md" and (
            block.language in ("cuda", "sh") or block.key in {("own-kernel.md", 1), *STUB}
        ):
            count += sum(bool(line.strip()) for line in block.text.splitlines())
    assert 20 < count <= 40
