"""Every PTX of the package is read whole, and says the same when written and read again."""

from __future__ import annotations

import re
import time

import pytest
from ptx_writer import plain, write, write_instruction

from cakert.cubins import store
from cakert.sim.ptx import read

ENTRIES = store().entries


def count_instructions(text: str) -> int:
    """Statements that end in a semicolon, without directives: no part of the reader is used."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)
    # One function a file; braces within it are those of inline assembly.
    body = text[text.index("\n{\n") : text.rindex("}")]
    statements = re.sub(r"[\w$]+:(?!:)", "", body).split(";")
    heads = [re.sub(r"^[\s{}]+", "", statement) for statement in statements]
    return sum(bool(head.strip()) and head[0] != "." for head in heads)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.file)
def test_shipped_ptx(entry):
    text = store().ptx(entry)
    module = read(text)
    assert module.target == entry.target
    (kernel,) = entry.kernels
    assert list(module.functions) == [kernel.name]
    function = module.functions[kernel.name]
    assert len(function.body) == count_instructions(text) > 500
    assert function.directives["maxntid"] == (kernel.threads, 1, 1)

    lines = text.splitlines()
    for instruction in function.body:
        assert instruction.opcode in lines[instruction.line - 1]
        assert instruction.text.split()[0] in lines[instruction.line - 1]
        assert ";" not in instruction.text

    again = read(write(module))
    copy = again.functions[kernel.name]
    assert [write_instruction(each) for each in copy.body] == [
        write_instruction(each) for each in function.body
    ]
    assert copy.labels == {plain(name): at for name, at in function.labels.items()}
    assert copy.directives == function.directives
    assert copy.branch_targets == function.branch_targets
    assert [(each.type, plain(each.name)) for each in function.registers.values()] == [
        (each.type, each.name) for each in copy.registers.values()
    ]
    for one, two in zip(
        [*function.parameters, *function.variables, *module.variables.values()],
        [*copy.parameters, *copy.variables, *again.variables.values()],
        strict=True,
    ):
        assert (one.space, one.size, one.align, one.init, one.extern) == (
            two.space,
            two.size,
            two.align,
            two.init,
            two.extern,
        )


def test_all_are_tested():
    assert len(ENTRIES) == len({entry.file for entry in ENTRIES}) >= 36


def test_reading_is_linear():
    text = min((store().ptx(entry) for entry in ENTRIES), key=len)
    head, body = text.split("\n{\n", 1)
    declarations, statements = body[: body.rindex("}")].split(";\n\n", 1)

    def seconds(copies: int) -> float:
        scopes = f"{{\n{statements}\n}}\n" * copies
        many = f"{head}\n{{\n{declarations};\n{scopes}}}\n"
        best = float("inf")
        for _ in range(3):
            start = time.process_time()
            read(many)
            best = min(best, time.process_time() - start)
        return best

    # Eight times the text: a quadratic reader would take 64 times as long.
    assert seconds(8) < 24 * seconds(1)
