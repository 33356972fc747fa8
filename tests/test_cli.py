"""The command: what it prints, its exit status, and that a mistake never gives a traceback."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import problems
from helpers.stub import run_with_stub

import cakert
from cakert.cli import problem as demo_problem
from cakert.cli.main import main
from cakert.cubins import store


def driver_is_here() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


no_driver = pytest.mark.skipif(driver_is_here(), reason="this machine has an NVIDIA driver")


def command(
    *arguments: object, env: dict[str, str] | None = None, python=(), cwd=None, timeout=None
):
    return subprocess.run(
        [sys.executable, *python, "-m", "cakert.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        cwd=cwd,
        timeout=timeout,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", **(env or {})},
    )


def stubbed(*arguments: str, check=False, **stub):
    """The command with the stub as its driver."""
    script = f"import sys; from cakert.cli.main import main; sys.exit(main({list(arguments)!r}))"
    return run_with_stub(script, check=check, **stub)


def assert_one_line_error(done, *words: str) -> None:
    assert done.returncode == 1
    assert done.stderr.startswith("cakert: error: ")
    assert done.stderr.count("\n") == 1
    for word in words:
        assert word in done.stderr


# --- the command itself ---------------------------------------------------------------------------


def test_version_and_help():
    done = command("--version")
    assert (done.returncode, done.stdout) == (0, f"cakert {cakert.__version__}\n")
    done = command("--help")
    assert done.returncode == 0
    names = ("completion", "demo", "doctor", "explain", "info", "inspect", "load", "run", "verify")
    for name in (*names, "exit status:"):
        assert name in done.stdout


@pytest.mark.parametrize("arguments", [(), ("fly",), ("info", "--fast"), ("demo", "extra")])
def test_wrong_usage(arguments):
    done = command(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "usage: cakert" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--block", "32"), "argument --block: invalid choice: 32"),
        (("--head-dim", "80"), "argument --head-dim: invalid choice: 80"),
        (("--dtype", "fp32"), "argument --dtype: invalid choice: 'fp32'"),
        (("--heads", "0"), "argument --heads: must be at least 1, got 0"),
        (("--heads", "two"), "argument --heads: must be a positive integer, got 'two'"),
        (("--tokens-q", "100"), "argument --tokens-q: must be a multiple of --block 64, got 100"),
        (("--tokens-kv", "64", "--block", "128"), "--tokens-kv: must be a multiple of --block 128"),
        (("--topk", "9"), "argument --topk: must be in [1, 8], the KV blocks that there are"),
        (("--heads", "6", "--kv-heads", "4"), "--kv-heads: must divide --heads 6, got 4"),
        (("--seed", "-1"), "argument --seed: must be at least 0, got -1"),
        (("--device", "rocm:0"), "argument --device: must be cuda:0, cuda:1, ..., sim:sm_90a"),
        (("--device", "sim:sm_80"), "sim:sm_103a or cpu, got 'sim:sm_80'"),
        (("--device", "cuda:-1"), "argument --device: must be cuda:0"),
    ],
)
def test_wrong_demo_argument(arguments, reason):
    done = command("demo", *arguments)
    assert done.returncode == 2
    assert reason in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("module", ["cakert", "cakert.cli"])
def test_the_package_runs_as_a_module(module):
    done = subprocess.run(
        [sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"cakert {cakert.__version__}\n"


def test_closed_pipe_is_quiet():
    shell = f"'{sys.executable}' -m cakert.cli info | head -n 1"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("versions")
    assert done.stderr == ""


def test_a_name_that_the_encoding_does_not_have(tmp_path):
    """Of a file that was named in Latin-1: shown escaped, and no reason to fail."""
    (cubin, *_) = (Path(cakert.__file__).parent / "cubins").glob("*.cubin")
    named = tmp_path / os.fsdecode(b"k\xff.cubin")
    named.write_bytes(cubin.read_bytes())
    done = command("inspect", named, env={"PYTHONIOENCODING": "utf-8:strict"})
    assert (done.returncode, done.stderr) == (0, "")
    assert r"k\udcff.cubin: cubin for" in done.stdout


def in_a_terminal(*arguments: str) -> str:
    """All that the command writes to a terminal."""
    terminal, line = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "cakert.cli", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=line,
        stderr=line,
        env={**os.environ, "TERM": "xterm-256color"},
    )
    os.close(line)
    written = b""
    with contextlib.suppress(OSError):  # Linux says so when the last writer has gone
        while part := os.read(terminal, 65536):
            written += part
    os.close(terminal)
    assert process.wait() == 0, written
    return written.decode()


def test_json_on_a_terminal_is_json_without_a_progress_bar(project):
    file = project / "tests" / "data" / "docs" / "scale.ptx"
    run = ["run", str(file), "--device", "sim:sm_90a", "--grid", "1", "--block", "32",
           "--arg", "f32[32]=rand", "--arg", "f32=2", "--arg", "i32=32"]  # fmt: skip
    assert "simulating" in in_a_terminal(*run)
    assert json.loads(in_a_terminal(*run, "--json"))["schema"] == 1


def test_ctrl_c_is_status_130_and_no_traceback(monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("cakert.cli.info.show_installation", interrupted)
    assert main(["info"]) == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("arguments", [("info",), ("demo", "--device", "cpu")])
def test_output_in_a_pipe_is_plain(arguments):
    done = command(*arguments, env={"PYTHONIOENCODING": "ascii", "TERM": "xterm-256color"})
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert done.stdout.isascii()


# --- info -----------------------------------------------------------------------------------------


@no_driver
@pytest.mark.parametrize("python", [(), ("-O",)])
def test_info_without_driver(python):
    done = command("info", python=python)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "no NVIDIA driver found" in done.stdout
    for target in ("sm_90", "sm_100a", "sm_103a"):
        assert re.search(rf"{target}\s", done.stdout)
    assert f"{len(store().entries)} cubins, all as in the manifest" in done.stdout
    assert f"toolkit {store().toolkit['version']}" in done.stdout
    assert "supported compute capabilities: 9.0, 10.0, 10.3" in done.stdout
    assert "simulator: runs the PTX of these cubins on the CPU as sm_90a, sm_100a" in done.stdout


def test_info_lists_devices_and_what_fits():
    done = stubbed("info", devices=3, capability=[(9, 0), (12, 0), (10, 3)])
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if "cuda:" in line]
    assert len(rows) == 3
    count = len(store().fitting((9, 0)))
    assert f"{count} of {len(store().entries)}" in rows[0]
    assert "12.0" in rows[1]
    assert "none" in rows[1]
    assert "10.3" in rows[2]
    assert "CUDA 13.0" in done.stdout
    assert "too old" not in done.stdout


def test_info_warns_of_an_old_driver():
    done = stubbed("info", driver=12080)
    assert done.returncode == 0, done.stderr
    assert "CUDA 12.8" in done.stdout
    assert re.search(r"driver is too old .* need CUDA 13\.0 \(driver 580 or newer\)", done.stdout)


def test_info_with_a_driver_that_fails():
    done = stubbed("info", fail={"cuInit": 999})
    assert done.returncode == 0, done.stderr
    assert "the NVIDIA driver does not work here" in done.stdout
    assert "CUDA_ERROR_UNKNOWN" in done.stdout


def test_info_with_a_driver_without_gpu():
    done = stubbed("info", fail={"cuInit": 100})
    assert done.returncode == 0, done.stderr
    assert "sees no GPU" in done.stdout


def test_info_describes_cubins(tmp_path):
    entries = {entry.target: entry for entry in store().entries}
    files = []
    for target, entry in entries.items():
        path = tmp_path / f"{target}.cubin"
        path.write_bytes(store().read(entry))
        files.append(path)
    done = command("info", *files)
    assert done.returncode == 0, done.stderr
    for target, entry in entries.items():
        row = next(line for line in done.stdout.splitlines() if f"{target}.cubin" in line)
        assert target in row.split(".cubin", 1)[1]
        assert entry.kernels[0].name in row
        assert entry.file in row
        assert ("9.x from 9.0 on" if target == "sm_90" else " alone ") in row


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the file is empty"),
        (b"hello", "no ELF header"),
        (b".version 9.0\n.target sm_90\n", "this is PTX text"),
        ("half", "truncated or corrupted"),
        (None, "No such file or directory"),
        ("folder", "not a regular file"),
    ],
)
def test_info_of_a_bad_file_is_one_line(tmp_path, content, reason):
    path = tmp_path / "bad.cubin"
    if content == "folder":
        path.mkdir()
    elif content == "half":
        data = store().read(store().entries[0])
        path.write_bytes(data[: len(data) // 2])
    elif content is not None:
        path.write_bytes(content)
    assert_one_line_error(command("info", path), "bad.cubin", reason)


@pytest.mark.parametrize(
    "arguments",
    [("info",), ("inspect",), ("load",), ("explain",), ("run", "--grid=1", "--block=1")],
)
def test_a_pipe_is_no_file_to_wait_for(tmp_path, arguments):
    os.mkfifo(tmp_path / "pipe")
    done = command(*arguments, tmp_path / "pipe", timeout=30)
    assert_one_line_error(done, "pipe: not a regular file")


@pytest.mark.parametrize("name", ["info", "inspect", "load", "verify"])
@pytest.mark.parametrize("sound", [True, False])
def test_the_name_of_a_file_cannot_steer_a_terminal(tmp_path, name, sound):
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/x\x1b[31m\ny\xff.cubin"))
    if name != "verify":
        data = store().read(store().entries[0])
        path.write_bytes(data if sound else data[:99])
    elif sound:
        path.mkdir()
    done = command(name, path, env={"PYTHONIOENCODING": "utf-8:strict"})
    printed = done.stdout + done.stderr
    assert "\x1b" not in printed and "codec" not in printed
    assert "\\x1b[31m" in printed or name == "load"  # no GPU: not a word of a sound file


# --- a damaged installation -----------------------------------------------------------------------


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the package to damage; returns the folder of its cubins."""
    source = Path(cakert.__file__).parent
    shutil.copytree(source, tmp_path / "cakert", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "cakert" / "cubins"


def run_copy(copy: Path, *arguments: str):
    # `-m` puts the current folder first on sys.path.
    root = copy.parent.parent
    return command(*arguments, env={"PYTHONPATH": str(root)}, cwd=root)


def test_info_refuses_a_flipped_byte(copy):
    entry = store().entries[-1]
    path = copy / entry.file
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 0x40
    path.write_bytes(data)
    done = run_copy(copy, "info")
    assert_one_line_error(done, entry.file, f"expected '{entry.sha256}'", "actual '")


def test_info_refuses_a_missing_cubin(copy):
    (copy / store().entries[0].file).unlink()
    assert_one_line_error(run_copy(copy, "info"), store().entries[0].file, "no such file")


@pytest.mark.parametrize(
    ("text", "reason"), [(None, "no manifest"), ("{", "not JSON"), ("[]", "must be an object")]
)
def test_info_refuses_a_bad_manifest(copy, text, reason):
    (copy / "manifest.json").unlink()
    if text is not None:
        (copy / "manifest.json").write_text(text)
    assert_one_line_error(run_copy(copy, "info"), "manifest.json", reason)


def test_describing_a_file_needs_no_intact_installation(copy):
    file = store().root / store().entries[0].file
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["format"] = 99
    (copy / "manifest.json").write_text(json.dumps(manifest))
    done = run_copy(copy, "info", str(file))
    assert done.returncode == 0, done.stderr
    assert store().entries[0].kernels[0].name in done.stdout


# --- demo -----------------------------------------------------------------------------------------


def without_time(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if "host clock" not in line)


@no_driver
def test_demo_without_gpu_runs_on_the_simulator():
    done = command("demo")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "No GPU to run on: no NVIDIA driver found." in done.stdout
    assert "Running the kernel for sm_100a on the simulator" in done.stdout
    assert "simulated sm_100a (10.0)" in done.stdout
    assert "cake_vsa_portable_r64_d128_bf16" in done.stdout
    assert "within the bound" in done.stdout
    assert "2 heads, 256 x 512 tokens, head_dim 128, bfloat16" in done.stdout
    assert "24 of 64 blocks of 64 x 64" in done.stdout


def test_demo_on_the_cpu_runs_the_reference():
    done = command("demo", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "No GPU" not in done.stdout
    assert "cakert.reference" in done.stdout
    assert "2 heads, 256 x 512 tokens, head_dim 128, bfloat16" in done.stdout
    assert "24 of 64 blocks of 64 x 64" in done.stdout


@no_driver
def test_demo_on_a_gpu_that_is_not_there_fails():
    assert_one_line_error(
        command("demo", "--device", "cuda:0"), "--device cuda:0: no NVIDIA driver"
    )


def test_demo_is_a_function_of_its_arguments():
    arguments = ("demo", "--device", "cpu", "--dtype", "float16", "--block", "128", "--heads", "4",
                 "--kv-heads", "2", "--head-dim", "96", "--topk", "2")  # fmt: skip
    one, again = command(*arguments), command(*arguments)
    other = command(*arguments, "--seed", "1")
    assert one.returncode == again.returncode == other.returncode == 0, one.stderr
    assert without_time(one.stdout) == without_time(again.stdout) != without_time(other.stdout)
    assert "4 heads (2 KV), 256 x 512 tokens, head_dim 96, float16" in one.stdout


def test_demo_on_an_unsupported_gpu_says_what_is_supported():
    small = ("--tokens-q", "64", "--tokens-kv", "64", "--topk", "1", "--head-dim", "64")
    done = stubbed("demo", *small, capability=(8, 0))
    assert done.returncode == 0, done.stderr
    assert "(8.0); compute capabilities with cubins: 9.0, 10.0, 10.3" in done.stdout
    assert "Running the kernel for sm_100a on the simulator" in done.stdout
    assert "within the bound" in done.stdout
    done = stubbed("demo", "--device", "cuda:0", capability=(8, 0))
    assert_one_line_error(done, "has compute capability 8.0", "9.0, 10.0, 10.3")


def test_demo_on_a_device_out_of_range():
    done = stubbed("demo", "--device", "2", devices=2)
    assert_one_line_error(done, "--device cuda:2: must be in [0, 2)")


def test_demo_picks_the_supported_gpu_and_reports_a_wrong_result():
    # The stub executes nothing, so the output is whatever the memory held: never the answer.
    done = stubbed("demo", devices=2, capability=[(8, 0), (9, 0)])
    assert done.returncode == 1, done.stderr
    assert done.stderr == ""
    assert "cuda:1" in done.stdout
    assert "cake_vsa_sm90_split_r64_d128_bf16" in done.stdout
    assert "WRONG: out of the bound" in done.stdout


def test_demo_with_a_driver_error_is_one_line():
    done = stubbed("demo", fail={"cuLibraryLoadData": 209})
    assert_one_line_error(done, "CUDA_ERROR_NO_BINARY_FOR_GPU", "cuLibraryLoadData")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("block", [64, 128])
@pytest.mark.parametrize("head_dim", [64, 96, 128])
def test_demo_is_right_on_a_gpu(dtype, block, head_dim):
    done = subprocess.run(
        [sys.executable, "-m", "cakert.cli", "demo", "--dtype", dtype, "--block", str(block),
         "--head-dim", str(head_dim)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    short = {"float16": "fp16", "bfloat16": "bf16"}[dtype]
    assert re.search(rf"cake_vsa_\w+_r{block}_d{head_dim}_{short}", done.stdout)
    assert "within the bound" in done.stdout


# --- the demo's own arithmetic --------------------------------------------------------------------


def draw(dtype: str, seed: int) -> demo_problem.Problem:
    return demo_problem.make_problem(
        heads=4, kv_heads=2, tokens_q=128, tokens_kv=320, topk=3, block=64, head_dim=96,
        dtype=dtype, seed=seed,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_plain_implementation_is_the_one_of_the_tests(dtype):
    drawn = draw(dtype, seed=int.from_bytes(os.urandom(4), "little"))
    assert (drawn.block_mask.sum(axis=-1) == 3).all()
    theirs = problems.VsaProblem(
        kind="mask", M=128, N=320, block=64, num_qo_heads=4, num_kv_heads=2, head_dim=96,
        dtype=dtype, sm_scale=None, q=drawn.q, k=drawn.k, v=drawn.v,
        mask=drawn.block_mask, lens=None, pattern={},
    )  # fmt: skip
    np.testing.assert_array_equal(demo_problem.plain_attention(drawn), problems.plain(theirs))


def test_verdict_is_strict():
    drawn = draw("bfloat16", seed=7)
    plain = demo_problem.plain_attention(drawn)
    reference, _ = cakert.reference.attention(
        drawn.q, drawn.k, drawn.v, drawn.block_mask, sm_scale=None, block=64
    )
    assert demo_problem.judge(plain, reference, plain).passed
    for value in (np.nan, np.inf, reference[5, 1, 7] + 0.1):
        wrong = plain.copy()
        wrong[5, 1, 7] = value
        assert not demo_problem.judge(wrong, reference, plain).passed
    # No single element is far off, but all of them a little.
    bound = demo_problem.judge(plain, reference, plain).max_bound
    assert not demo_problem.judge(reference + 0.9 * bound, reference, plain).passed
