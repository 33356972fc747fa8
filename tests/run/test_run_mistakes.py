"""What a mistake gives: one sentence that says what was expected, and never a traceback."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from cakert.cli.main import main

FIT = ["--arg", "y:f32[64]=rand", "--arg", "x:f32[64]=rand", "--arg", "f32=1", "--arg", "i32=64"]
SIM = ["--device", "sim:sm_100a"]
LAUNCH = ["--grid", "1", "--block", "64"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "the following arguments are required: FILE, --grid, --block"),
        (["x.ptx", "--grid", "1"], "required: --block"),
        (["x.ptx", "--grid", "0", "--block", "1"], "argument --grid: extents must be in [1, "),
        (["x.ptx", "--grid", "1", "--block", "a"], "argument --block: must be one to three"),
        (["x.ptx", *LAUNCH, "--shared", "1M"], "argument --shared: must be bytes"),
        (["x.ptx", *LAUNCH, "--seed", "-1"], "argument --seed: must be at least 0"),
        (["x.ptx", *LAUNCH, "--device", "cpu"], "argument --device: must be cuda:0"),
        (["x.ptx", *LAUNCH, "--arg", "f32[4]"], "argument --arg: must be NAME:DTYPE"),
        (["x.ptx", *LAUNCH, "--arg", "i8=128"], "argument --arg: a value of i8 must be in [-128"),
        (["x.ptx", *LAUNCH, "--arg", "n:i8=1", "--arg", "n:i8=2"],
         "argument --arg: arguments 0 and 1 are both named 'n'"),
        (["x.ptx", *LAUNCH, "--time", "0"], "argument --time: must be at least 1, got 0"),
        (["x.ptx", *LAUNCH, "--time", "10001"], "argument --time: must be in [1, 10000]"),
        (["x.ptx", *LAUNCH, *SIM, "--time"], "argument --time: the simulator knows no time"),
        (["x.ptx", *LAUNCH, "--report"], "argument --report: of the simulator alone"),
        (["x.ptx", *LAUNCH, "--device", "0", "--schedule", "lazy"], "argument --schedule: of the"),
        (["x.ptx", *LAUNCH, *SIM, "--schedule", "fast"], "argument --schedule: invalid choice"),
        (["x.ptx", *LAUNCH, "--tolerance", "1"], "argument --tolerance: goes with --compare"),
        (["x.ptx", *LAUNCH, "--relative", "0"], "argument --relative: goes with --compare"),
        (["x.ptx", *LAUNCH, "--compare", "a", "--tolerance", "nan"], "must be finite"),
        (["x.ptx", *LAUNCH, "--overwrite"], "argument --overwrite: goes with --out"),
        (["x.ptx", *LAUNCH, "--out", "a/../b", "--compare", "./b"], "argument --out: must not be"),
        (["x.ptx", *LAUNCH, "--out", "a/../x.ptx", "--overwrite"], "--out: must not be FILE"),
        (["x.ptx", "k", "k", *LAUNCH], "unrecognized arguments: k"),
    ],
)  # fmt: skip
def test_wrong_usage(arguments, reason, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    with pytest.raises(SystemExit) as caught:
        main(["run", *arguments])
    assert caught.value.code == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert reason in shown.err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["none.ptx", *SIM], "No such file or directory: 'none.ptx'"),
        ([".", *SIM], "not a regular file"),
        (["/dev/zero", *SIM], "not a regular file"),
        (["run_kernels.cu", "axpy", *SIM, *FIT], "not a usable cubin: no ELF header"),
        (["half.cubin", "axpy", *SIM, *FIT], "truncated or corrupted"),
        (["half.ptx", "axpy", *SIM, *FIT], "half.ptx: line "),
        (["latin.ptx", "axpy", *SIM, *FIT], "is no UTF-8 text"),
        (["run_kernels.ptx", *SIM, *FIT], "there are 2 kernels, name one of them"),
        (["run_kernels.ptx", "saxpy", *SIM, *FIT], "there is no kernel 'saxpy'; there are: "),
        (["comment.ptx", "ghost", *SIM], "there is no kernel 'ghost'; there are: axpy, _Z7reverse"),
        (["run_kernels.ptx", "axpy", *SIM, *FIT[:-2]], "axpy takes 4 arguments"),
        (["run_kernels.ptx", "axpy", *SIM, *FIT[:-1], "i64=64"],
         "argument 3 (arg3): the parameter of axpy has 4 bytes, i64 has 8"),
        (["run_kernels.ptx", "axpy", *SIM, *FIT[:-1], "f32=64"],
         "argument 3 (arg3): the parameter of axpy is of type .u32, got f32=64.0"),
        (["run_kernels.ptx", "axpy", *SIM, *FIT[:5], "a:u32=1", "--arg", "i32=64"],
         "argument 2 (a): the parameter of axpy is of type .f32, got a:u32=1"),
        (["run_kernels.ptx", "axpy", *SIM, *FIT, "--block", "2048"],
         "block.x must be in [1, 1024]"),
        (["run_kernels.ptx", "axpy", *SIM, *FIT, "--block", "512"],
         "at most 256 threads, .maxntid of axpy"),
        (["run_kernels.ptx", "axpy", *SIM, *FIT, "--grid", "1,65536"], "grid.y must be in"),
        (["run_kernels.ptx", "axpy", *SIM, *FIT, "--shared", "228K"], "shared_bytes must be in"),
        (["run_kernels.ptx", "axpy", *SIM, *FIT, "--cluster", "2"], "multiple of the cluster"),
        (["run_kernels.ptx", "_Z7r", *SIM, "--arg", "bf16[4]=nan", "--arg", "bf16[4]=nan", "--arg",
          "bytes=" + "00" * 16, "--block", "32"], "block must be (64, 1, 1), .reqntid"),
        (["run_kernels.ptx", "axpy", *SIM, "--arg", "f32[64]=@none.npy", *FIT[2:]], "none.npy"),
        (["run_kernels.ptx", "axpy", *SIM, "--arg", "f32[64]=@damaged.npz:x", *FIT[2:]],
         "damaged.npz: not a readable NumPy file"),
        (["run_kernels.ptx", "axpy", *SIM, "--arg", "f32[64]=@pickled.npy", *FIT[2:]],
         "Python objects (pickled), which are not read"),
        (["run_kernels.ptx", "axpy", *SIM, "--arg", "i8[64]=iota", "--arg", "i8[129]=iota",
          *FIT[4:]], "i8[129]=iota: i8 cannot hold 128"),
        (["run_kernels.ptx", "axpy", *SIM, *FIT, "--compare", "none.npz"], "none.npz"),
        (["run_kernels.ptx", "axpy", *SIM, *FIT, "--compare", "damaged.npz"], "not a readable"),
        (["run_kernels.ptx", "axpy", *SIM, *FIT, "--compare", "pickled.npz"], "(pickled)"),
        (["run_kernels.ptx", "axpy", *SIM, *FIT, "--compare", "array.npy"], "not a readable"),
        (["run_kernels.ptx", "axpy", *SIM, *FIT, "--compare", "."], "not a regular file"),
        (["run_kernels.ptx", "axpy", *SIM, *FIT, "--out", "damaged.npz"], "--overwrite replaces"),
        (["run_kernels.ptx", "axpy", *SIM, *FIT, "--out", "none/r.npz"], "there is no folder none"),
        (["run_kernels.ptx", "axpy", *SIM, *FIT, "--out", ".", "--overwrite"], "not a regular"),
        (["run_kernels.ptx", "axpy", *FIT], "PTX alone, which runs on the simulator: give"),
        (["run_kernels.ptx", "axpy", "--device", "0", *FIT],
         "run_kernels.ptx: this is PTX text, and cakert compiles nothing at run time"),
    ],
)  # fmt: skip
def test_one_line_and_status_1(arguments, reason, kernels, monkeypatch, capsys):
    monkeypatch.chdir(kernels)
    ptx = (kernels / "run_kernels.ptx").read_text()
    (kernels / "half.cubin").write_bytes((kernels / "run_kernels.cubin").read_bytes()[:3000])
    (kernels / "half.ptx").write_text(ptx[: len(ptx) // 2])
    (kernels / "latin.ptx").write_bytes(ptx.encode() + "// f\u00fcr".encode("latin-1"))
    (kernels / "comment.ptx").write_text(ptx + "// .entry ghost()\n")
    np.savez(kernels / "damaged.npz", x=np.random.default_rng().random(64))
    data = bytearray((kernels / "damaged.npz").read_bytes())
    data[-40:] = bytes(40)
    (kernels / "damaged.npz").write_bytes(data)
    objects = np.array([{}, []], object)
    np.save(kernels / "pickled.npy", objects, allow_pickle=True)
    np.savez(kernels / "pickled.npz", y=objects)
    np.save(kernels / "array.npy", np.arange(4))
    before = sorted(path.name for path in kernels.iterdir())
    assert main(["run", *LAUNCH, *arguments]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("cakert: error: ")
    assert shown.err.count("\n") == 1
    assert reason in shown.err
    assert sorted(path.name for path in kernels.iterdir()) == before
    assert (kernels / "damaged.npz").read_bytes() == data


def test_a_mistake_in_a_process_gives_no_traceback(kernels):
    done = subprocess.run(
        [sys.executable, "-m", "cakert.cli", "run", "run_kernels.ptx", *LAUNCH, *SIM],
        capture_output=True, text=True, check=False, cwd=kernels,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1


def test_help_has_the_grammar_and_examples():
    done = subprocess.run(
        [sys.executable, "-m", "cakert.cli", "run", "--help"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    for word in ("'x:f32[64x128]=randn'", "rand:LOW:HIGH", "cakert run scale.ptx", "exit status:"):
        assert word in done.stdout
