"""`cakert inspect`: what it prints, its exit status, and that docs/inspect.md says the same."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.fatbin_files import entry, fatbin, host_file

from cakert.cli.main import main
from cakert.cubins import store
from cakert.inspect import records

FATBIN = Path(__file__).with_name("data") / "kernels.fatbin"


def cubin(name: str) -> str:
    return str(store().root / name)


SM90 = cubin("vsa_portable_r64_d64_bf16.sm_90.cubin")
SM100 = cubin("vsa_portable_r64_d64_bf16.sm_100a.cubin")


def process(*arguments: object, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cakert.cli", "inspect", *map(str, arguments)],
        capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, **options,
    )  # fmt: skip


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split("[│┃]", line)[1:-1]]


def tables(text: str) -> list[list[str]]:
    return [cells(line) for line in text.splitlines() if line.startswith("│")]


# --- tables ---------------------------------------------------------------------------------------


def test_table_of_a_cubin(capsys):
    assert main(["inspect", SM90]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert f"{SM90}: cubin for sm_90, 26752 bytes, ABI 8" in shown.out
    # Without columns for local memory, clusters and relocations: it has none.
    (row,) = tables(shown.out)
    assert row == ["cake_vsa_portable_r64_d64_bf16", "127", "1024", "0", "1", "<= 128x1x1",
                   "1: 160", "[0] 688", "21248"]  # fmt: skip


def test_tables_of_a_fatbin(capsys):
    pytest.importorskip("demangle")
    assert main(["inspect", str(FATBIN)]) == 0
    rows = tables(capsys.readouterr().out)
    assert [row[1:4] for row in rows[:4]] == [
        ["elf", "sm_80", "sm_80"],
        ["elf", "sm_90a", "sm_90a"],
        ["elf", "sm_100f", "sm_100f"],
        ["ptx", "compute_90", "sm_90 (PTX 9.0)"],
    ]
    assert len(rows) == 4 + 3 * 16
    by_name = {row[0]: row for row in rows[4 + 16 : 4 + 32]}
    assert by_name["fixed_block(float*)"][5:7] == ["64x2x1", "2x2x1"]
    assert by_name["small_clusters(int*)"][5:7] == ["<= 128x1x1", "<= 8"]
    assert by_name["no_parameters()"][7] == "none"
    assert by_name["void templated<float>(float*, shapes::Row<float, 3>, int)"][2] == "1424"


def test_table_of_a_host_file(capsys, tmp_path):
    path = tmp_path / "x.o"
    path.write_bytes(host_file({".nv_fatbin": FATBIN.read_bytes() * 2}))
    assert main(["inspect", str(path)]) == 0
    text = capsys.readouterr().out
    assert "host file with fatbins" in text
    places = {row[0] for row in tables(text) if ".nv_fatbin" in row[0]}
    assert places == {"1: .nv_fatbin at 64", f"2: .nv_fatbin at {64 + FATBIN.stat().st_size}"}


def test_tensor_memory_is_shown(capsys, built):
    assert main(["inspect", str(built["tensor_memory.cubin"])]) == 0
    text = capsys.readouterr().out
    assert "tcgen05" in text
    assert {row[0]: "1 CTA" in row for row in tables(text)} == {"one_cta": True, "cta_pair": False}
    assert {row[0]: "2 CTA" in row for row in tables(text)} == {"one_cta": False, "cta_pair": True}


def test_unknown_target_shows_its_flags(capsys, tmp_path):
    data = bytearray(Path(SM90).read_bytes())
    data[48:52] = (0x0600EE04).to_bytes(4, "little")
    path = tmp_path / "odd.cubin"
    path.write_bytes(data)
    assert main(["inspect", str(path)]) == 0
    assert "unknown target (e_flags 0x0600ee04)" in capsys.readouterr().out


def test_output_in_a_pipe_is_plain():
    done = process(
        FATBIN, env={**os.environ, "PYTHONIOENCODING": "ascii", "TERM": "xterm-256color"}
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert done.stdout.isascii()


def test_text_of_a_file_cannot_steer_the_terminal(capsys, tmp_path):
    image = Path(SM90).read_bytes()
    image = image.replace(b"cake_vsa_portable_r64", b"cake\x1b[31m\nortable_r64")
    path = tmp_path / "colour.fatbin"
    path.write_bytes(fatbin(entry("elf", image, file_name=b"\x1b]0;x\x07.cu")))
    assert main(["inspect", str(path)]) == 0
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert "cake\\x1b[31m\\nortable_r64" in text


# --- JSON and its documentation -------------------------------------------------------------------


def page(project: Path) -> str:
    return (project / "docs" / "inspect.md").read_text()


def test_example_of_the_docs(project, monkeypatch, capsys):
    text = page(project)
    command = re.search(r"`--json` of\n\n```\ncakert (.+)\n```", text)[1]
    example = re.search(r"```json\n(.*?)```", text, re.DOTALL)[1]
    # The package need not be the one of the repository's folder.
    monkeypatch.chdir(store().root.parent.parent)
    assert main(command.split()) == 0
    assert capsys.readouterr().out == example


@pytest.mark.parametrize(
    ("heading", "classes"),
    [
        ("File", [records.Inspection]),
        ("Cubin", [records.CubinRecord]),
        ("Kernel", [records.KernelRecord]),
        ("Parameter, bank", [records.Parameter, records.ConstantBank]),
        ("Fatbin", [records.Fatbin]),
        ("Entry", [records.FatbinEntry]),
        ("PTX", [records.PtxRecord]),
    ],
)
def test_every_field_is_documented(project, heading, classes):
    section = page(project).split(f"\n### {heading}\n")[1].split("\n#")[0]
    documented = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    expected = {field.name for record in classes for field in dataclasses.fields(record)}
    assert len(documented) == len(set(documented))
    assert set(documented) == expected


def documented_types(project: Path) -> dict[str, dict[str, str]]:
    found = {}
    for section in page(project).split("\n### ")[1:]:
        rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", section.split("\n## ")[0], re.MULTILINE)
        found[section.split("\n")[0]] = dict(rows)
    return found


def has_type(value: object, name: str) -> bool:
    if name.endswith(" or null"):
        return value is None or has_type(value, name.removesuffix(" or null"))
    if name == "integer":
        return type(value) is int
    if name == "string":
        return isinstance(value, str)
    if name == "boolean":
        return isinstance(value, bool)
    if name.startswith("list of"):
        item = name.removeprefix("list of ")
        count = re.match(r"(\d) ", item)
        if not isinstance(value, list) or (count and len(value) != int(count[1])):
            return False
        plain = {"integers": int, "3 integers": int, "strings": str}.get(item, dict)
        return all(type(one) is plain for one in value)
    return isinstance(value, dict)


def test_values_have_the_documented_types(project, capsys):
    types = documented_types(project)
    assert main(["inspect", str(FATBIN), SM90, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    seen: dict[str, int] = {}

    def check(heading: str, record: dict[str, object]) -> None:
        for field, value in record.items():
            assert has_type(value, types[heading][field]), (heading, field, value)
            seen[heading] = seen.get(heading, 0) + 1

    assert document.keys() == types["Document"].keys()
    for file in document["files"]:
        check("File", file)
        cubins = [file["cubin"]] if file["cubin"] else []
        for container in file["fatbins"]:
            check("Fatbin", container)
            for image in container["entries"]:
                check("Entry", image)
                cubins += [image["cubin"]] if image["cubin"] else []
                if image["ptx"]:
                    check("PTX", image["ptx"])
        for one in cubins:
            check("Cubin", one)
            for kernel in one["kernels"]:
                check("Kernel", kernel)
                for item in (*kernel["parameters"], *kernel["constant_banks"]):
                    check("Parameter, bank", item)
    assert seen.keys() == types.keys() - {"Document"}
    assert seen["Kernel"] == 49 * len(types["Kernel"])


# --- differences ----------------------------------------------------------------------------------


def test_differences(capsys):
    assert main(["inspect", SM90, SM100, "--diff"]) == 0
    text = capsys.readouterr().out
    rows = {row[2]: row for row in tables(text)}
    assert rows["registers"] == ["cake_vsa_portable_r64_d64_bf16", "sm_90 -> sm_100a", "registers",
                                 "127", "162"]  # fmt: skip
    assert rows["constant_banks"][3] == "[0] 688"
    assert "0 of 1 kernels did not change" in text


def test_no_differences(capsys):
    assert main(["inspect", str(FATBIN), str(FATBIN), "--diff"]) == 0
    assert capsys.readouterr().out == "48 of 48 kernels did not change\n"


def test_differences_as_json(capsys, project):
    assert main(["inspect", str(FATBIN), SM90, "--diff", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    section = page(project).split("\n## Differences\n")[1].split("\n## ")[0]
    documented = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert documented == [*document, *document["kernels"][0]]
    statuses = [kernel["status"] for kernel in document["kernels"]]
    assert (statuses.count("removed"), statuses.count("added")) == (48, 1)
    assert main(["inspect", SM90, SM100, "--diff", "--json"]) == 0
    (kernel,) = json.loads(capsys.readouterr().out)["kernels"]
    assert kernel["fields"]["registers"] == {"before": 127, "after": 162}


def test_changed_parameters_are_shown(capsys, tmp_path):
    from cakert.inspect import inspect_file

    before, after = tmp_path / "before.cubin", tmp_path / "after.cubin"
    before.write_bytes(Path(SM90).read_bytes())
    # The one parameter's size (160 in bits 18-31 of KPARAM_INFO) becomes 168.
    word, changed = (160 << 18 | 0x1F000).to_bytes(4, "little"), (168 << 18 | 0x1F000)
    assert before.read_bytes().count(word) == 1
    after.write_bytes(before.read_bytes().replace(word, changed.to_bytes(4, "little")))
    assert inspect_file(after).cubin.kernels[0].parameters[0].size == 168
    assert main(["inspect", str(before), str(after), "--diff"]) == 0
    (row,) = tables(capsys.readouterr().out)
    assert row[2:] == ["parameters", "0+160", "0+168"]


# --- mistakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((), "the following arguments are required: FILE"),
        ((SM90, "--diff"), "argument --diff: expected two files, got 1"),
        ((SM90, SM90, SM90, "--diff"), "argument --diff: expected two files, got 3"),
        ((SM90, "--fast"), "unrecognized arguments: --fast"),
    ],
)
def test_wrong_usage(arguments, reason, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["inspect", *arguments])
    assert caught.value.code == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert reason in shown.err


def bad_files(folder: Path) -> dict[str, str]:
    sources = {
        "empty.cubin": b"",
        "text.cubin": b"hello",
        "half.cubin": Path(SM90).read_bytes()[:10_000],
        "half.fatbin": FATBIN.read_bytes()[:10_000],
        "host.o": host_file({".text": bytes(8)}),
        "lie.fatbin": fatbin(entry("elf", b"x" * 99, method="zstd", decompressed_size=1 << 40)),
    }
    for name, data in sources.items():
        (folder / name).write_bytes(data)
    return {
        "empty.cubin": "the file is empty",
        "text.cubin": "no ELF header",
        "half.cubin": "truncated or corrupted",
        "half.fatbin": "truncated or corrupted",
        "host.o": "no section .nv_fatbin",
        "lie.fatbin": "more than the limit",
        "missing": "No such file or directory",
        ".": "not a regular file",
    }


@pytest.mark.parametrize("option", [(), ("--json",)])
def test_bad_file_is_one_line_and_status_1(tmp_path, monkeypatch, capsys, option):
    reasons = bad_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    for name, reason in reasons.items():
        assert main(["inspect", name, *option]) == 1
        shown = capsys.readouterr()
        assert shown.err.startswith("cakert: error: ")
        assert shown.err.count("\n") == 1
        assert name in shown.err
        assert reason in shown.err
        assert shown.out == ('{\n  "schema": 1,\n  "files": []\n}\n' if option else "")


def test_bad_file_hides_no_other(tmp_path, capsys):
    bad_files(tmp_path)
    bad = str(tmp_path / "empty.cubin")
    assert main(["inspect", bad, SM90, bad, "--json"]) == 1
    shown = capsys.readouterr()
    assert [file["name"] for file in json.loads(shown.out)["files"]] == [SM90]
    assert shown.err.count("\n") == 2
    assert main(["inspect", bad, SM90, "--diff"]) == 1
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)


def test_missing_package_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    assert main(["inspect", str(FATBIN)]) == 1
    shown = capsys.readouterr()
    assert shown.err.count("\n") == 1
    assert "pip install 'cakert[inspect]'" in shown.err


def test_bad_file_in_a_process_gives_no_traceback(tmp_path):
    bad_files(tmp_path)
    done = process(tmp_path / "half.cubin")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1


def test_no_driver_is_touched():
    script = (
        "import sys; from cakert.cli.main import main; "
        f"main(['inspect', {str(FATBIN)!r}]); "
        "assert 'libcuda.so' not in open('/proc/self/maps').read(); "
        "assert not {'torch', 'jax', 'cupy'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_help_has_examples():
    done = process("--help")
    assert done.returncode == 0
    for word in ("cakert inspect old.cubin new.cubin --diff", "exit status:"):
        assert word in done.stdout
