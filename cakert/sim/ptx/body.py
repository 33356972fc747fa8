"""The statements of a function body (PTX ISA 4.3)."""

from __future__ import annotations

from dataclasses import dataclass, field
from re import compile as compile_pattern

from cakert.sim.ptx.constants import literal
from cakert.sim.ptx.directives import read_pragma, skip_statement
from cakert.sim.ptx.lexer import Tokens
from cakert.sim.ptx.model import Instruction, LabelRef, Register, Symbol, Variable
from cakert.sim.ptx.operands import read_operands, read_predicate
from cakert.sim.ptx.scopes import Names, outline
from cakert.sim.ptx.variables import REGISTER_TYPES, read_variables

__all__ = ["Body", "read_body"]

_COMMENT = compile_pattern(r"//[^\n]*|/\*[\s\S]*?\*/")
_OPCODE = compile_pattern(r"[a-z][a-z0-9_]*")
_VARIABLE_SPACES = frozenset([".shared", ".local", ".param"])
# Directives that follow a label and make it the name of a table.
_TABLES = frozenset([".branchtargets", ".calltargets", ".callprototype"])


@dataclass(slots=True)
class Body:
    """What a body says; the fields are those of ``Function``."""

    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    registers: dict[str, Register] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)
    branch_targets: dict[str, tuple[str, ...]] = field(default_factory=dict)


def read_body(
    tokens: Tokens, start: int, module: dict[str, Symbol], parameters: dict[str, Symbol]
) -> tuple[Body, int]:
    """Read the body of a kernel, whose "{" is token ``start``.

    Parameters
    ----------
    tokens, start
        Where the body stands.
    module, parameters
        Names that are declared outside of it.

    Returns
    -------
    tuple
        What it says, and the index after its "}".
    """
    plan = outline(tokens, start)
    names = Names(tokens, plan.labels, module, parameters)
    reader = _BodyReader(tokens, names)
    index = start + 1
    while index < plan.end:
        index = reader.read_statement(index)
    reader.check_branch_targets()
    body = reader.body
    body.registers = names.registers
    return body, tokens.take(index, "}")


class _BodyReader:
    """Reads statement after statement into a Body."""

    def __init__(self, tokens: Tokens, names: Names) -> None:
        self.body = Body()
        self._tokens = tokens
        self._names = names
        self._mnemonics: dict[str, tuple[str, tuple[str, ...]]] = {}
        self._target_lines: list[tuple[int, str]] = []

    def read_statement(self, index: int) -> int:
        """Read the statement at token ``index``; returns the index after it."""
        tokens = self._tokens
        kind = tokens.kinds[index]
        if kind == "word":
            if tokens.kinds[index + 1] == ":":
                return self._read_label(index)
            return self._read_instruction(index, index, None, False)
        if kind == "@":
            negated = tokens.kinds[index + 1] == "!"
            at = index + 1 + negated
            guard = read_predicate(tokens, at, self._names)
            return self._read_instruction(index, at + 1, guard, negated)
        if kind == "dot":
            return self._read_directive(index)
        if kind == "{":
            self._names.open()
            return index + 1
        if kind == "}":
            self._names.close()
            return index + 1
        raise tokens.expected(index, "an instruction, a label or a directive")

    def check_branch_targets(self) -> None:
        """Fail where a ``.branchtargets`` list names what is no label of an instruction."""
        for index, name in self._target_lines:
            if name not in self.body.labels:
                text = self._tokens.texts[index]
                raise self._tokens.error(index, f"'{text}' is no label of code")

    def _read_instruction(
        self, start: int, index: int, guard: Register | None, negated: bool
    ) -> int:
        tokens = self._tokens
        word = tokens.texts[tokens.take(index, "word", "an instruction") - 1]
        mnemonic = self._mnemonics.get(word)
        if mnemonic is None:
            opcode, *rest = word.split(".")
            if not _OPCODE.fullmatch(opcode):
                raise tokens.expected(index, "an instruction")
            mnemonic = self._mnemonics[word] = (opcode, tuple(rest))
        opcode, modifiers = mnemonic
        index += 1
        while tokens.kinds[index] == "dot":
            # Hand-written assembly may have spaces before modifiers.
            modifiers = (*modifiers, tokens.texts[index][1:])
            index += 1
        operands, end = read_operands(tokens, index, self._names, lists=opcode == "call")
        text = tokens.source[tokens.starts[start] : tokens.starts[end]]
        if "/" in text:
            text = _COMMENT.sub(" ", text)
        self.body.instructions.append(
            Instruction(
                opcode,
                modifiers,
                tuple(operands),
                tokens.line(start),
                " ".join(text.split()),
                guard,
                negated,
            )
        )
        return end + 1

    def _read_label(self, index: int) -> int:
        tokens = self._tokens
        label = self._names.label(index)
        directive = tokens.texts[index + 2]
        if directive not in _TABLES or tokens.kinds[index + 2] != "dot":
            self.body.labels[label.name] = len(self.body.instructions)
            return index + 2
        if directive == ".branchtargets":
            return self._read_branch_targets(index + 3, label.name)
        return skip_statement(tokens, index + 3)

    def _read_branch_targets(self, index: int, table: str) -> int:
        tokens = self._tokens
        targets = []
        while True:
            tokens.take(index, "word", "a label")
            target = self._names.find(index)
            if not isinstance(target, LabelRef):
                raise tokens.expected(index, "a label")
            targets.append(target.name)
            self._target_lines.append((index, target.name))
            index += 1
            if tokens.kinds[index] != ",":
                break
            index += 1
        self.body.branch_targets[table] = tuple(targets)
        return tokens.take(index, ";", "',' or ';'")

    def _read_directive(self, index: int) -> int:
        tokens = self._tokens
        directive = tokens.texts[index]
        if directive == ".reg":
            return self._read_registers(index + 1)
        if directive in _VARIABLE_SPACES:
            variables, index = read_variables(tokens, index, self._names.add)
            self.body.variables.extend(variables)
            return index
        if directive == ".pragma":
            return read_pragma(tokens, index)
        raise tokens.error(index, f"directive {directive} is not known in a function")

    def _read_registers(self, index: int) -> int:
        """Read ``.reg .type a, b<10>;`` from its type on."""
        tokens = self._tokens
        tokens.take(index, "dot", "the type of registers")
        type_ = tokens.texts[index][1:]
        if type_ not in REGISTER_TYPES:
            raise tokens.error(index, f"registers of type .{type_} are not supported")
        while True:
            at = index + 1
            tokens.take(at, "word", "a register's name")
            index = at + 1
            if tokens.kinds[index] == "<":
                if not tokens.texts[index + 1].isdigit():
                    raise tokens.expected(index + 1, "a number of registers")
                self._names.add_range(at, int(literal(tokens, index + 1).value), type_)
                index = tokens.take(index + 2, ">")
            else:
                self._names.add_register(at, type_)
            if tokens.kinds[index] != ",":
                return tokens.take(index, ";", "',' or ';'")
