"""`cakert completion`, and that every command explains itself."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cakert.cli.completion import script
from cakert.cli.main import build_parser, main
from cakert.cli.parsers import all_parsers

PARSERS = {parser.prog: parser for parser in all_parsers(build_parser())}
COMMANDS = {prog.removeprefix("cakert "): parser for prog, parser in PARSERS.items() if " " in prog}


# --- help -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("prog", PARSERS)
def test_every_option_has_a_help_text(prog):
    for action in PARSERS[prog]._actions:
        if not isinstance(action, argparse._SubParsersAction):
            assert action.help, action.option_strings or action.dest
            assert action.help != argparse.SUPPRESS


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_examples_and_exit_statuses(name):
    parser = COMMANDS[name]
    assert parser.description
    assert parser.formatter_class is argparse.RawDescriptionHelpFormatter
    # Beside what else a command has to say.
    *paragraphs, status = parser.epilog.split("\n\n")
    assert re.match(r"exit status: 0 .+, 1 .+, 2 wrong usage", status.replace("\n", " "))
    (examples,) = [each for each in paragraphs if each.startswith("examples:")]
    lines = examples.splitlines()
    assert lines[0] == "examples:"
    assert len(lines) > 1
    for line in lines[1:]:
        if not line.startswith("   "):  # a continued line
            assert line.startswith(f"  cakert {name}")


@pytest.mark.parametrize("columns", [60, 200])
@pytest.mark.parametrize("name", COMMANDS)
def test_description_is_broken_to_the_terminal(name, columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(columns))
    with pytest.raises(SystemExit) as caught:
        main([name, "--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    description = text.partition("\n\n")[2].partition("\n\n")[0]
    assert " ".join(description.split()) == COMMANDS[name].description
    assert max(map(len, description.splitlines())) <= min(columns, 100)


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_use_options_that_exist(name):
    options = {option for action in COMMANDS[name]._actions for option in action.option_strings}
    for line in COMMANDS[name].epilog.splitlines():
        if line.startswith("  cakert "):
            used = set(re.findall(r"(?<!\S)--[\w-]+", line))
            assert used <= options, line


def test_overview_lists_every_command_with_its_exit_statuses(project):
    text = (project / "docs" / "commands.md").read_text()
    rows = re.findall(r"^\| `cakert (\w+)[^|]*` \| [^|]+ \| [^|]+ \| [^|]+ \|$", text, re.MULTILINE)
    assert len(rows) == len(set(rows))
    assert COMMANDS.keys() <= set(rows)
    assert rows == sorted(rows)


# --- completion -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bash_script(tmp_path_factory) -> Path:
    pytest.importorskip("shtab", reason="cakert[completion] is not installed")
    if shutil.which("bash") is None:
        pytest.skip("no bash")
    path = tmp_path_factory.mktemp("completion") / "cakert.bash"
    path.write_text(script(build_parser(), "bash"))
    return path


def complete(bash_script: Path, *words: str, cwd: Path | None = None) -> list[str]:
    """What bash offers for the last of `words`, typed after the command's name."""
    code = (
        f"set -u; source '{bash_script}'\n"
        'COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 ))\n'
        "_shtab_cakert\n"
        "[[ ${#COMPREPLY[@]} = 0 ]] || printf '%s\\n' \"${COMPREPLY[@]}\"\n"
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", code, "bash", "cakert", *words],
        capture_output=True, text=True, check=False, cwd=cwd, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_script_parses_in_bash(bash_script):
    done = subprocess.run(["bash", "-n", bash_script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_bash_completes_commands_options_and_values(bash_script):
    assert set(complete(bash_script, "")) >= COMMANDS.keys()
    assert complete(bash_script, "ver") == ["verify"]
    assert complete(bash_script, "doctor", "--tr") == ["--trouble"]
    assert complete(bash_script, "demo", "--dtype", "b") == ["bfloat16"]
    assert complete(bash_script, "demo", "--kv") == ["--kv-heads"]
    assert sorted(complete(bash_script, "completion", "")) == ["bash", "tcsh", "zsh"]
    assert complete(bash_script, "nothing") == []


def test_bash_completes_files_and_folders(bash_script, tmp_path):
    (tmp_path / "kernel_one.cubin").write_bytes(b"")
    (tmp_path / "kernel_dir").mkdir()
    files = complete(bash_script, "inspect", "kernel_", cwd=tmp_path)
    assert sorted(files) == ["kernel_dir", "kernel_one.cubin"]
    assert complete(bash_script, "verify", "kernel_", cwd=tmp_path) == ["kernel_dir"]
    assert complete(bash_script, "verify", "--toolkit", "kernel_", cwd=tmp_path) == ["kernel_dir"]


@pytest.mark.parametrize(
    ("shell", "start"), [("bash", "# AUTO"), ("zsh", "#compdef cakert"), ("tcsh", "# AUTO")]
)
def test_command_prints_the_script(shell, start, capsys):
    pytest.importorskip("shtab", reason="cakert[completion] is not installed")
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    assert text.startswith(start)
    assert all(name in text for name in COMMANDS)


def test_without_the_extra_the_error_names_it(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == (
        "cakert: error: shell completion needs shtab: pip install 'cakert[completion]'\n"
    )


def test_unknown_shell_is_wrong_usage(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["completion", "fish"])
    assert caught.value.code == 2
    assert "invalid choice: 'fish'" in capsys.readouterr().err
