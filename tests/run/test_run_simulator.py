"""`cakert run` on the simulator: right results, files, comparisons, faults; and docs/run.md."""

from __future__ import annotations

import json
import lzma
import os
import re
import shlex
import struct
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from helpers.run_docs import documented, hold_to_the_docs

from cakert.cli.main import main
from cakert.cubins import store

ARCHITECTURES = ("sm_90a", "sm_100a", "sm_103a")
AXPY = ["axpy", "--grid", "4", "--block", "256", "--arg", "y:f32[1000]=randn", "--arg",
        "x:f32[1000]=rand:-8:8", "--arg", "a:f32=0.5", "--arg", "n:i32=900"]  # fmt: skip


def run(capsys, *arguments: object, status: int = 0) -> tuple[str, str]:
    """What the command prints on stdout and stderr."""
    got = main(["run", *map(str, arguments)])
    shown = capsys.readouterr()
    assert got == status, shown.err
    return shown.out, shown.err


def document(capsys, *arguments: object, status: int = 0) -> dict:
    out, err = run(capsys, *arguments, "--json", status=status)
    assert err == ""

    def refuse(text: str) -> None:
        raise AssertionError(f"{text} is no JSON")

    found = json.loads(out, parse_constant=refuse)
    assert found["schema"] == 1
    return found


def tables(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("│")[1:-1]]
            for line in text.splitlines() if line.startswith("│")]  # fmt: skip


def load(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as file:
        return {name: file[name] for name in file.files if name != "__cakert__"}


# --- results --------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("schedule", ["eager", "lazy", "random"])
def test_axpy_is_right(arch, schedule, kernels, capsys, rng):
    y = rng.standard_normal(1000).astype(np.float32)
    x = rng.standard_normal(1000).astype(np.float32)
    np.savez(kernels / "in.npz", x=x, y=y)
    out = kernels / "out.npz"
    run(
        capsys, kernels / "run_kernels.ptx", "axpy", "--device", f"sim:{arch}", "--schedule",
        schedule, "--grid", "4", "--block", "256", "--arg", f"y:f32[1000]=@{kernels}/in.npz:y",
        "--arg", f"x:f32[1000]=@{kernels}/in.npz:x", "--arg", "f32=0.5", "--arg", "i32=900",
        "--out", out,
    )  # fmt: skip
    expected = y.copy()
    expected[:900] += np.float32(0.5) * x[:900]  # the product is exact, so one rounding as in fma
    results = load(out)
    assert list(results) == ["y", "x"]
    assert results["y"].tobytes() == expected.tobytes()
    assert results["x"].tobytes() == x.tobytes()


def test_a_struct_shared_memory_and_sixteen_bit_floats(kernels, capsys):
    window = struct.pack("<qif", 37, 50, 2.0)
    (kernels / "window.bin").write_bytes(window)
    for spec in (f"bytes={window.hex()}", f"w:bytes=@{kernels / 'window.bin'}"):
        out = kernels / "out.npz"
        run(
            capsys, kernels / "run_kernels.cubin", "_Z7rev", "--device", "sim:sm_90a", "--grid",
            "1", "--block", "64", "--shared", "128", "--arg", "out:bf16[64]=nan", "--arg",
            "in:bf16[128]=randn", "--arg", spec, "--out", out, "--overwrite",
        )  # fmt: skip
        results = load(out)
        source = results["in"].view(ml_dtypes.bfloat16).astype(np.float32)
        got = results["out"].view(ml_dtypes.bfloat16).astype(np.float32)
        assert (got[:50] == 2 * source[37:87][::-1]).all()
        assert np.isnan(got[50:]).all()


def test_what_is_printed(kernels, capsys):
    out, err = run(capsys, kernels / "run_kernels.cubin", *AXPY, "--device", "sim:sm_100a")
    assert err == ""
    rows = {row[0]: row[1:] for row in tables(out)}
    assert rows["image"] == [f"{kernels}/run_kernels.ptx: ptx for sm_90"]
    assert rows["kernel"] == ["axpy"]
    assert rows["device"] == ["simulated sm_100a, schedule eager"]
    assert rows["launch"] == ["grid 4, block 256"]
    assert rows["seed"] == ["0"]
    assert rows["1"] == ["x", "f32[1000]", "rand:-8.0:8.0"]
    assert rows["3"] == ["n", "i32", "900"]
    assert rows["y"][:2] == ["f32[1000]", "900 of 1000"]
    assert rows["x"][1] == "none"
    assert "values of y" in out
    assert "values of x" not in out
    counts = [int(count) for count in re.findall(r" to +\S+ +(\d+)  #", out)]
    assert sum(counts) == 1000


def test_a_kernel_that_writes_nothing(kernels, capsys):
    out, _ = run(capsys, kernels / "run_kernels.ptx", *AXPY[:-1], "n:i32=0", "--device",
                 "sim:sm_100a")  # fmt: skip
    assert "The kernel changed no array." in out
    assert "values of" not in out


def test_seed(kernels, capsys):
    ptx = kernels / "run_kernels.ptx"
    for seed in (3, 3, 4):
        run(capsys, ptx, *AXPY, "--device", "sim:sm_90a", "--seed", seed, "--out",
            kernels / f"{seed}.npz", "--overwrite")  # fmt: skip
    three, four = load(kernels / "3.npz"), load(kernels / "4.npz")
    assert (three["x"] != four["x"]).any()
    run(capsys, ptx, *AXPY, "--device", "sim:sm_90a", "--seed", 3, "--compare", kernels / "3.npz")
    run(capsys, ptx, *AXPY, "--device", "sim:sm_90a", "--seed", 3, "--compare", kernels / "4.npz",
        status=1)  # fmt: skip


def test_report(kernels, capsys):
    arguments = (kernels / "run_kernels.ptx", *AXPY, "--device", "sim:sm_100a", "--report")
    out, _ = run(capsys, *arguments)
    assert "least cycles by unit" in out
    found = document(capsys, *arguments)
    assert (found["report"]["schema"], found["report"]["kernel"]) == (1, "axpy")
    assert found["report"]["instructions"] > 100
    assert document(capsys, *arguments[:-1])["report"] is None


# --- comparing ------------------------------------------------------------------------------------


def test_compare_says_what_differs(kernels, capsys):
    ptx, out = kernels / "run_kernels.ptx", kernels / "first.npz"
    base = (ptx, *AXPY, "--device", "sim:sm_100a")
    run(capsys, *base, "--out", out)
    expected = load(out)
    text, _ = run(capsys, *base, "--compare", out)
    assert ["y", "equal", "0 of 1000", "0", "0", ""] in tables(text)

    expected["y"][777] += 0.25
    expected["y"][901] = np.nan
    np.savez(kernels / "other.npz", y=expected["y"])
    text, _ = run(capsys, *base, "--compare", kernels / "other.npz", status=1)
    (row,) = [row for row in tables(text) if row[1] == "DIFFERENT"]
    assert row[:4] == ["y", "DIFFERENT", "2 of 1000", "0.25"]
    assert row[5].startswith("[777]: ")
    found = document(capsys, *base, "--compare", kernels / "other.npz", "--tolerance", "0.25",
                     "--relative", "1e-6", status=1)  # fmt: skip
    (difference,) = found["comparison"]["arrays"]
    assert (difference["differing"], difference["not_finite"]) == (1, 1)
    assert (difference["first"], difference["expected"]) == ([901], "nan")
    assert found["comparison"]["passed"] is False

    np.savez(kernels / "inputs.npz", x=expected["x"])
    text, _ = run(capsys, *base, "--compare", kernels / "inputs.npz", status=1)
    assert "FAILED: the file has no such array" in text

    np.savez(kernels / "hostile.npz", **{"z\x1b[2J": expected["x"]})
    text, _ = run(capsys, *base, "--compare", kernels / "hostile.npz", status=1)
    assert [r"z\x1b[2J", "FAILED: the run has no such array"] in [row[:2] for row in tables(text)]


def test_out_is_written_although_the_comparison_fails(kernels, capsys):
    np.savez(kernels / "e.npz", y=np.zeros(1000, np.float32))
    run(capsys, kernels / "run_kernels.ptx", *AXPY, "--device", "sim:sm_90a", "--compare",
        kernels / "e.npz", "--out", kernels / "r.npz", status=1)  # fmt: skip
    assert load(kernels / "r.npz")["y"].any()


def test_out_is_refused_before_the_run(kernels, capsys, monkeypatch):
    monkeypatch.setattr("cakert.cli.run_simulator.execute", lambda *_: pytest.fail("it ran"))
    (kernels / "r.npz").write_bytes(b"mine")
    _, err = run(capsys, kernels / "run_kernels.ptx", *AXPY, "--device", "sim:sm_90a", "--out",
                 kernels / "r.npz", status=1)  # fmt: skip
    assert "the file exists" in err


def test_out_spares_a_file_that_came_during_the_run(kernels, capsys, monkeypatch):
    from cakert.cli import run_simulator

    out, execute = kernels / "r.npz", run_simulator.execute

    def slow(*args):
        out.write_bytes(b"of another run")
        return execute(*args)

    monkeypatch.setattr(run_simulator, "execute", slow)
    _, err = run(capsys, kernels / "run_kernels.ptx", *AXPY, "--device", "sim:sm_90a", "--out", out,
                 status=1)  # fmt: skip
    assert "the file exists" in err
    assert out.read_bytes() == b"of another run"


def test_damage_that_only_reading_shows_costs_no_result(kernels, capsys, rng):
    values = rng.standard_normal(1000).astype(np.float32)
    np.savez(kernels / "e.npz", y=values)
    data = bytearray((kernels / "e.npz").read_bytes())
    data[data.index(values.tobytes()) + 5] ^= 1
    (kernels / "e.npz").write_bytes(data)
    _, err = run(capsys, kernels / "run_kernels.ptx", *AXPY, "--device", "sim:sm_90a", "--compare",
                 kernels / "e.npz", "--out", kernels / "r.npz", status=1)  # fmt: skip
    assert "not a readable NumPy file: Bad CRC-32" in err
    assert load(kernels / "r.npz")["y"].any()


# --- faults ---------------------------------------------------------------------------------------

DEADLOCK = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry stuck(.param .u64 out)
{
    .reg .pred %p;
    .reg .b32 %r<2>;
    mov.u32 %r1, %tid.x;
    setp.lt.u32 %p, %r1, 32;
    @%p bra first;
    bar.sync 1, 64;
    ret;
first:
    bar.sync 2, 64;
    ret;
}
"""


def test_a_fault_is_named_and_nothing_is_written(kernels, capsys):
    out, err = run(
        capsys, kernels / "run_kernels.ptx", *AXPY[:-1], "n:i32=1001", "--device", "sim:sm_100a",
        "--out", kernels / "r.npz", status=1,
    )  # fmt: skip
    assert out == ""
    assert err.startswith("cakert: error: [global-out-of-bounds] axpy line ")
    assert "past the end of y (4000 bytes)" in err
    assert not (kernels / "r.npz").exists()


def test_a_deadlock_lists_who_waits(kernels, capsys):
    (kernels / "stuck.ptx").write_text(DEADLOCK)
    _, err = run(capsys, kernels / "stuck.ptx", "--device", "sim:sm_100a", "--grid", "1",
                 "--block", "64", "--arg", "u8[4]=zeros", status=1)  # fmt: skip
    assert err.startswith("cakert: error: [deadlock]")
    assert "warp 0" in err
    assert "warp 1" in err


def test_an_instruction_that_is_not_simulated_is_one_line(kernels, capsys):
    text = DEADLOCK.replace("bar.sync 2, 64;", "tex.1d.v4.f32.s32 {%f1}, [t, {%r1}];")
    (kernels / "odd.ptx").write_text(text)
    _, err = run(capsys, kernels / "odd.ptx", "--device", "sim:sm_100a", "--grid", "1", "--block",
                 "64", "--arg", "u8[4]=zeros", status=1)  # fmt: skip
    assert err.startswith("cakert: error: ")
    assert err.count("\n") == 1
    assert "line " in err


# --- which PTX ------------------------------------------------------------------------------------


def test_ptx_of_a_cubin_and_of_a_fatbin(kernels, capsys):
    out = kernels / "r.npz"
    arguments = (*AXPY, "--device", "sim:sm_90a")
    run(capsys, kernels / "run_kernels.cubin", *arguments, "--out", out)
    text = (kernels / "run_kernels.ptx").rename(kernels / "moved.ptx").read_bytes()
    _, err = run(capsys, kernels / "run_kernels.cubin", *arguments, status=1)
    assert "run_kernels.ptx or run_kernels.ptx.xz" in err
    (kernels / "run_kernels.ptx.xz").write_bytes(lzma.compress(text))
    run(capsys, kernels / "run_kernels.cubin", *arguments, "--compare", out)

    pytest.importorskip("zstandard")
    pytest.importorskip("lz4")
    from helpers.fatbin_files import entry, fatbin, host_file

    cubin = (kernels / "run_kernels.cubin").read_bytes()
    parts = fatbin(entry("elf", cubin), entry("ptx", text, method="zstd"))
    (kernels / "lib.so").write_bytes(host_file({".nv_fatbin": parts}))
    found = document(capsys, kernels / "lib.so", *arguments, "--compare", out)
    assert found["image"] == {
        "place": f"{kernels}/lib.so, image 2 (compute_90)", "kind": "ptx", "target": "sm_90"
    }  # fmt: skip
    (kernels / "none.fatbin").write_bytes(fatbin(entry("elf", cubin)))
    _, err = run(capsys, kernels / "none.fatbin", *arguments, status=1)
    assert "no PTX for a simulated sm_90a: it has cubins for sm_90" in err


def test_ptx_for_another_gpu(kernels, capsys):
    text = (kernels / "run_kernels.ptx").read_text()
    (kernels / "a.ptx").write_text(text.replace(".target sm_90", ".target sm_100a"))
    _, err = run(capsys, kernels / "a.ptx", *AXPY, "--device", "sim:sm_90a", status=1)
    assert "PTX of .target sm_100a runs on sm_100a only; this is a simulated sm_90a" in err


def test_the_package_s_own_kernel_needs_its_struct(capsys):
    path = store().root / "vsa_portable_r64_d64_bf16.sm_100a.cubin"
    launch = ("--device", "sim:sm_100a", "--grid", "1", "--block", "128", "--shared", "64K")
    for arguments, reason in [
        ((), "cake_vsa_portable_r64_d64_bf16 takes 1 arguments (of 160 bytes), got 0 --arg"),
        (("--arg", "f32[64]=rand"), "argument 0 (arg0): the parameter of "
         "cake_vsa_portable_r64_d64_bf16 has 160 bytes, the address of an array has 8"),
        (("--arg", "params:bytes=00ff"), "argument 0 (params)"),
    ]:  # fmt: skip
        _, err = run(capsys, path, *launch, *arguments, status=1)
        assert reason in err
    # Bytes of the right size are launched: a problem of no rows.
    out, _ = run(capsys, path, *launch, "--arg", "params:bytes=" + "00" * 160)
    assert "vsa_portable_r64_d64_bf16.sm_100a.ptx.xz: ptx for sm_100a" in out


# --- docs/run.md ----------------------------------------------------------------------------------


def page(project: Path) -> str:
    return (project / "docs" / "run.md").read_text()


def test_examples_of_the_docs(project, tmp_path, monkeypatch, capsys):
    text = page(project).split("\n## An example without a GPU\n")[1].split("\n## ")[0]
    (tmp_path / "scale.ptx").write_text(re.search(r"```ptx\n(.*?)```", text, re.DOTALL)[1])
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```\n(cakert run .*?)```", text, re.DOTALL)
    commands = block.replace("\\\n", " ").splitlines()
    assert len(commands) == 3
    outputs = []
    for line in commands:
        assert main(shlex.split(line)[1:]) == 0
        outputs.append(capsys.readouterr().out)
    assert tables(outputs[0])[-1][:2] == ["x", "f32[1000]"]
    assert "values of x" in outputs[0]
    assert "written: first.npz" in outputs[0]
    assert ["x", "equal", "0 of 1000", "0", "0", ""] in tables(outputs[1])
    found = json.loads(outputs[2])
    assert found["arguments"][0]["values"]["changed"] == 32
    # As the page says of n = 1001.
    assert main(shlex.split(commands[1].replace("n:u32=1000", "n:u32=1001"))[1:]) == 1
    assert "past the end of x (4000 bytes)" in capsys.readouterr().err


def test_json_is_as_documented(project, kernels, capsys):
    out = kernels / "r.npz"
    arguments = (kernels / "run_kernels.ptx", *AXPY, "--device", "sim:sm_100a")
    first = document(capsys, *arguments, "--out", out)
    second = document(capsys, *arguments, "--compare", out, "--report", "--cluster", "2")
    poisoned = document(
        capsys, kernels / "run_kernels.ptx", "_Z7rev", "--device", "sim:sm_90a", "--grid", "1",
        "--block", "64", "--shared", "128", "--arg", "bf16[64]=nan", "--arg", "bf16[128]=nan",
        "--arg", "bytes=" + struct.pack("<qif", 0, 10, 1.0).hex(), "--compare", out, status=1,
    )  # fmt: skip
    seen = set()
    for found in (first, second, poisoned):
        seen |= hold_to_the_docs(project, found)
    assert seen == documented(project).keys() - {"Time"}  # that one: test_stub_run.py
    assert (first["out"], second["out"]) == (str(out), None)
    assert (first["grid"], first["block"], second["cluster"]) == ([4, 1, 1], [256, 1, 1], [2, 1, 1])
    assert first["device"] == {"name": "sim:sm_100a", "product": None, "capability": [10, 0],
                               "schedule": "eager"}  # fmt: skip
    values = poisoned["arguments"][0]["values"]
    assert (values["nan"], values["minimum"], values["histogram"]["counts"]) == (64, None, [])
    problems = {one["name"]: one["problem"] for one in poisoned["comparison"]["arrays"]}
    assert problems["y"] == "the run has no such array"


# --- as a process ---------------------------------------------------------------------------------


def test_output_in_a_pipe_is_plain(kernels):
    done = subprocess.run(
        [sys.executable, "-m", "cakert.cli", "run", str(kernels / "run_kernels.ptx"), *AXPY,
         "--device", "sim:sm_100a", "--report"],
        capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "TERM": "xterm-256color"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert done.stdout.isascii()


def test_the_simulator_touches_no_driver(kernels):
    arguments = ["run", str(kernels / "run_kernels.ptx"), *AXPY, "--device", "sim:sm_90a"]
    script = (
        "import sys; from cakert.cli.main import main; "
        f"assert main({arguments!r}) == 0; "
        "assert 'libcuda.so' not in open('/proc/self/maps').read(); "
        "assert not {'torch', 'jax', 'cupy'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
