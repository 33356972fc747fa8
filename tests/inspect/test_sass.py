"""Machine code by nvdisasm: sections, opcodes, and what stands in its way."""

from __future__ import annotations

import json
import os
import stat
import sysconfig
from pathlib import Path

import pytest
from helpers import cuda_tools

from cakert.cli.main import main
from cakert.cubins import store
from cakert.errors import CubinError
from cakert.inspect import inspect_bytes, sass

OUTPUT = """\
\t.target\tsm_90a

//--------------------- .nv.constant0.first      --------------------------
\t.section\t.nv.constant0.first,"a",@progbits
\t.byte\t0x00
//--------------------- .text.first              --------------------------
\t.section\t.text.first,"ax",@progbits
        .global         first
first:
.text.first:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/               @P0 BRA `(.L_x_1) ;
.L_x_1:
        /*0020*/              @!UP2 UTMALDG.4D [UR8], [UR10] ;
        /*0030*/                   HGMMA.64x64x16.F32.BF16 R24, gdesc[UR4], RZ, !UPT ;
        /*12340*/                  HGMMA.64x64x16.F32.BF16 R24, gdesc[UR4], R24 ;
//--------------------- .text._Z6secondPi --------------------------
        /*0000*/                   EXIT ;
"""


@pytest.fixture
def needs_tool():
    if cuda_tools.find("nvdisasm") is None:
        pytest.skip("no nvdisasm installed")


def test_output_is_read_by_section():
    found = sass.read_output(OUTPUT)
    assert list(found) == ["first", "_Z6secondPi"]
    expected = {"HGMMA": 2, "BRA": 1, "LDC": 1, "UTMALDG": 1}
    assert found["first"].instructions == expected
    assert list(found["first"].instructions) == list(expected), "most frequent first"
    assert ".L_x_1:" in found["first"].lines and len(found["first"].lines) == 8
    assert found["_Z6secondPi"].instructions == {"EXIT": 1}


def test_labels_of_other_sections_are_no_code():
    text = (
        "//---- .text.k ----\n        /*0000*/   EXIT ;\n"
        "//---- .nv.global ----\nvariable:\n"
        "//---- .text.other ----\n.L_x_1:\n        /*0000*/   RET ;\n"
    )
    found = sass.read_output(text)
    assert found["k"].lines == ("        /*0000*/   EXIT ;",)
    assert len(found["other"].lines) == 2


def test_tensor_instructions_of_the_store(needs_tool):
    """Two readings of the same code: ours of the bytes when it was built, and nvdisasm's."""
    entries = json.loads((store().root / "manifest.json").read_text())["entries"]
    chosen = {(entry["family"], entry["target"]): entry for entry in entries}
    assert len(chosen) == 6
    for entry in chosen.values():
        data = (store().root / entry["file"]).read_bytes()
        found = sass.disassemble(data, entry["file"])
        for kernel in entry["kernels"]:
            counted = found[kernel["name"]].instructions
            for opcode, count in kernel["tensor_instructions"].items():
                assert counted[opcode] == count
            record = inspect_bytes(data, "x").cubin.kernels[0]
            assert sum(counted.values()) * 16 == record.code_bytes


def test_without_the_tool(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sysconfig, "get_path", lambda key: str(tmp_path))
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ImportError, match=r"cakert\[sass\]"):
        sass.disassemble(b"")


def fake_tool(monkeypatch, folder, script: str) -> None:
    path = folder / "nvdisasm"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sysconfig, "get_path", lambda key: str(folder / "none"))
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_what_the_tool_complains_of(monkeypatch, tmp_path):
    fake_tool(monkeypatch, tmp_path, "echo 'nvdisasm error: no ELF' >&2; exit 3")
    with pytest.raises(CubinError, match=r"mine\.cubin: nvdisasm ends with status 3.*no ELF"):
        sass.disassemble(b"x", "mine.cubin")


def test_a_tool_that_does_not_end(monkeypatch, tmp_path):
    fake_tool(monkeypatch, tmp_path, "exec sleep 30")
    monkeypatch.setattr(sass, "_SECONDS", 0.5)
    with pytest.raises(CubinError, match="has not ended"):
        sass.disassemble(b"x", "mine.cubin")


def test_nothing_is_left_behind(monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(sass.tempfile, "tempdir", None)
    tools = tmp_path / "tools"
    tools.mkdir()
    fake_tool(monkeypatch, tools, "cat image.cubin >/dev/null && exit 1")
    with pytest.raises(CubinError):
        sass.disassemble(b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["tools"]


DATA = Path(__file__).with_name("data")


def test_the_command_counts_opcodes_of_every_image(needs_tool, capsys):
    pytest.importorskip("zstandard")
    assert main(["inspect", str(DATA / "kernels.fatbin"), "--json", "--sass"]) == 0
    (file,) = json.loads(capsys.readouterr().out)["files"]
    cubins = [entry["cubin"] for entry in file["fatbins"][0]["entries"] if entry["cubin"]]
    assert len(cubins) == 3
    for cubin in cubins:
        assert len(cubin["kernels"]) == 16
        for kernel in cubin["kernels"]:
            counts = kernel["instructions"]
            assert counts["EXIT"] >= 1
            assert sum(counts.values()) * 16 <= kernel["code_bytes"]
    assert main(["inspect", str(DATA / "kernels.fatbin"), "--json"]) == 0
    assert "instructions" not in capsys.readouterr().out


def test_the_command_shows_code(needs_tool, capsys):
    assert main(["inspect", str(DATA / "abi7_sm_80.cubin"), "--sass"]) == 0
    shown = capsys.readouterr().out
    assert "instructions: " in shown and "EXIT" in shown and "/*0000*/" in shown
    assert "\x1b" not in shown


def test_the_command_without_the_tool(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sysconfig, "get_path", lambda key: str(tmp_path))
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    assert main(["inspect", str(DATA / "abi7_sm_80.cubin"), "--sass"]) == 1
    shown = capsys.readouterr()
    assert not shown.out and shown.err.count("\n") == 1 and "cakert[sass]" in shown.err


def test_not_with_a_comparison(capsys):
    file = str(DATA / "abi7_sm_80.cubin")
    with pytest.raises(SystemExit) as stopped:
        main(["inspect", file, file, "--diff", "--sass"])
    assert stopped.value.code == 2 and "--sass" in capsys.readouterr().err
