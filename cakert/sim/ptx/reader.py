"""PTX text -> ``Module``: what stands outside of function bodies (PTX ISA 11).

The reader knows the grammar, not the instruction set: it splits a mnemonic and binds names to what
they declare, and leaves to the decoder whether there is such an instruction.
"""

from __future__ import annotations

import re

from cakert.sim.ptx.body import read_body
from cakert.sim.ptx.directives import (
    read_performance_directives,
    read_pragma,
    skip_block,
)
from cakert.sim.ptx.lexer import Tokens, tokenize
from cakert.sim.ptx.model import Function, Module, Symbol, Variable
from cakert.sim.ptx.variables import read_parameters, read_variables, skip_parentheses

__all__ = ["read"]

_LINKAGES = frozenset([".visible", ".weak", ".extern", ".common"])
_SPACES = frozenset([".global", ".const", ".shared"])
# What .target may list beside an architecture; none of it concerns a simulator (PTX ISA 11.1.2).
_TARGET_OPTIONS = frozenset(["debug", "map_f64_to_f32", "texmode_unified", "texmode_independent"])
_VERSIONS = range(7, 10)


def read(text: str) -> Module:
    """Read a PTX file.

    Device functions (``.func``) are checked for matching braces only and left out of the module.

    Parameters
    ----------
    text
        The whole file, as nvcc or LLVM write it: PTX ISA 7.0 to 9.x, 64-bit addresses.

    Returns
    -------
    Module
        Its variables and kernels.

    Raises
    ------
    PtxError
        The text is no such file; the message begins with the line and says what was expected.
    """
    return _ModuleReader(tokenize(text)).read()


class _ModuleReader:
    """Reads directive after directive of a module."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._variables: dict[str, Variable] = {}
        self._functions: dict[str, Function] = {}
        self._device_functions: set[str] = set()
        self._symbols: dict[str, Symbol] = {}

    def read(self) -> Module:
        tokens = self._tokens
        version, index = self._read_version(0)
        target, index = self._read_target(index)
        while tokens.kinds[index] != "end":
            index = self._read_directive(index)
        return Module(version, target, self._variables, self._functions)

    def _read_version(self, index: int) -> tuple[tuple[int, int], int]:
        tokens = self._tokens
        if tokens.texts[index] != ".version":
            raise tokens.expected(index, ".version")
        match = re.fullmatch(r"(\d{1,3})\.(\d{1,3})", tokens.texts[index + 1], re.ASCII)
        if match is None:
            raise tokens.expected(index + 1, "a version such as 9.0")
        version = int(match[1]), int(match[2])
        if version[0] not in _VERSIONS:
            raise tokens.error(index, f"PTX ISA {version[0]}.{version[1]} is not one of 7.0 to 9.x")
        return version, index + 2

    def _read_target(self, index: int) -> tuple[str, int]:
        tokens = self._tokens
        if tokens.texts[index] != ".target":
            raise tokens.expected(index, ".target")
        targets = []
        while True:
            index += 1
            tokens.take(index, "word", "a target")
            name = tokens.texts[index]
            if re.fullmatch(r"(sm|compute)_\d+[af]?", name, re.ASCII):
                targets.append(name)
            elif name not in _TARGET_OPTIONS:
                raise tokens.error(index, f"target '{name}' is not known")
            index += 1
            if tokens.kinds[index] != ",":
                break
        if not targets:
            raise tokens.error(index - 1, "no architecture in .target")
        return targets[0], index

    def _read_directive(self, index: int) -> int:
        tokens = self._tokens
        tokens.take(index, "dot", "a directive")
        directive = tokens.texts[index]
        linkage = ""
        if directive in _LINKAGES:
            linkage = directive
            index = tokens.take(index + 1, "dot", "a directive") - 1
            directive = tokens.texts[index]
        if directive == ".entry":
            return self._read_entry(index)
        if directive == ".func":
            return self._read_device_function(index)
        if directive in _SPACES:
            extern = linkage == ".extern"
            variables, index = read_variables(tokens, index, self._add_variable, extern=extern)
            self._variables.update((variable.name, variable) for variable in variables)
            return index
        if not linkage and directive == ".address_size":
            if tokens.texts[index + 1] != "64":
                raise tokens.expected(index + 1, "64: other address sizes are not supported")
            return index + 2
        if not linkage and directive == ".section":
            # Debug information.
            return skip_block(tokens, tokens.take(index + 1, "dot", "a section's name"))
        if not linkage and directive == ".pragma":
            return read_pragma(tokens, index)
        raise tokens.error(index, f"directive {directive} is not known in a module")

    def _add_variable(self, index: int) -> str:
        name = self._new_name(index)
        declared = self._variables.get(name)
        if name in self._symbols and not (declared and declared.extern):
            raise self._tokens.error(index, f"'{name}' is declared twice")
        self._symbols[name] = Symbol(name)
        return name

    def _read_entry(self, index: int) -> int:
        tokens = self._tokens
        line = tokens.line(index)
        name = self._new_name(tokens.take(index + 1, "word", "a kernel's name") - 1)
        if name in self._symbols:
            raise tokens.error(index + 1, f"'{name}' is declared twice")
        # A kernel's address is an operand where it launches itself; the decoder refuses that.
        self._symbols[name] = Symbol(name)
        index += 2
        symbols: dict[str, Symbol] = {}

        def add_parameter(at: int) -> str:
            parameter = self._new_name(at)
            if parameter in symbols:
                raise tokens.error(at, f"parameter '{parameter}' is declared twice")
            symbols[parameter] = Symbol(parameter)
            return parameter

        parameters: list[Variable] = []
        if tokens.kinds[index] == "(":
            parameters, index = read_parameters(tokens, index, add_parameter)
        directives, index = read_performance_directives(tokens, index)
        if tokens.kinds[index] != "{":
            raise tokens.expected(index, "'{' of the kernel's body")
        body, index = read_body(tokens, index, self._symbols, symbols)
        self._functions[name] = Function(
            name=name,
            parameters=tuple(parameters),
            body=tuple(body.instructions),
            labels=body.labels,
            registers=body.registers,
            variables=tuple(body.variables),
            directives=directives,
            line=line,
            branch_targets=body.branch_targets,
        )
        return index

    def _read_device_function(self, index: int) -> int:
        """Read past ``.func (results) name (parameters) directives { body }``, or a prototype."""
        tokens = self._tokens
        index += 1
        if tokens.texts[index] == ".attribute":
            index = skip_parentheses(tokens, index + 1)
        if tokens.kinds[index] == "(":
            index = skip_parentheses(tokens, index)
        at = tokens.take(index, "word", "a function's name") - 1
        name = self._new_name(at)
        if name in self._symbols and name not in self._device_functions:
            raise tokens.error(at, f"'{name}' is declared twice")
        self._device_functions.add(name)
        self._symbols[name] = Symbol(name)
        index += 1
        if tokens.kinds[index] == "(":
            index = skip_parentheses(tokens, index)
        while tokens.kinds[index] not in (";", "{"):
            if tokens.texts[index] == ".pragma":
                index = read_pragma(tokens, index)
            elif tokens.kinds[index] in ("dot", "number", ","):
                index += 1
            else:
                raise tokens.expected(index, "a directive, ';' or the function's body")
        return index + 1 if tokens.kinds[index] == ";" else skip_block(tokens, index)

    def _new_name(self, index: int) -> str:
        """The name that token ``index`` declares."""
        name = self._tokens.texts[index]
        if "." in name or "::" in name or name == "_":
            raise self._tokens.expected(index, "a name")
        return name
