"""Names in a function body: nested scopes of registers, variables and labels.

Inline assembly of nvcc opens a scope each time it stands in a kernel, so the same names, labels
included, come again and again. A name means the declaration in the innermost scope around its use;
labels are known in their whole scope, everything else from its declaration on (PTX ISA 4.4, 5.1).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cakert.sim.ptx.lexer import Tokens
from cakert.sim.ptx.model import LabelRef, Operand, Register, Special, Symbol
from cakert.sim.ptx.specials import SPECIAL_REGISTERS

__all__ = ["Names", "Outline", "outline"]

# Scopes in one another; a bound for texts that are no programs.
_MAX_DEPTH = 256
_STATEMENT_ENDS = frozenset(";{}:")
_SPECIALS = {name: Special(name) for name in SPECIAL_REGISTERS}


@dataclass(frozen=True, slots=True)
class Outline:
    """What a body's braces and labels are, before anything else of it is read.

    Attributes
    ----------
    labels
        For each scope, in order of opening: label -> its reference, under a unique name.
    end
        Index of the closing brace.
    """

    labels: list[dict[str, LabelRef]]
    end: int


def outline(tokens: Tokens, start: int) -> Outline:
    """Find the scopes and labels of the body whose opening brace is token ``start``.

    Raises
    ------
    PtxError
        Braces that do not match, a label that stands twice in its scope.
    """
    kinds, texts = tokens.kinds, tokens.texts
    labels: list[dict[str, LabelRef]] = [{}]
    stack = [0]
    in_list = False
    index = start
    while True:
        index += 1
        kind = kinds[index]
        if kind == ":":
            # The other colon, of a conditional expression, follows no statement's first word.
            if kinds[index - 1] == "word" and kinds[index - 2] in _STATEMENT_ENDS:
                name, scope = texts[index - 1], stack[-1]
                if name in labels[scope]:
                    raise tokens.error(index - 1, f"label '{name}' stands twice in its scope")
                labels[scope][name] = LabelRef(_unique(name, scope))
        elif kind == "{":
            if kinds[index - 1] in _STATEMENT_ENDS and not in_list:
                if len(stack) >= _MAX_DEPTH:
                    raise tokens.error(index, f"scopes nested deeper than {_MAX_DEPTH}")
                stack.append(len(labels))
                labels.append({})
            elif in_list:
                raise tokens.expected(index, "'}' of the list")
            else:
                in_list = True
        elif kind == "}":
            if in_list:
                in_list = False
                continue
            stack.pop()
            if not stack:
                return Outline(labels, index)
        elif kind == ";":
            if in_list:
                raise tokens.expected(index, "'}' of the list")
        elif kind == "end":
            raise tokens.expected(index, f"'}}' of the body of line {tokens.line(start)}")


@dataclass(slots=True)
class _Scope:
    number: int
    names: dict[str, Operand]
    ranges: dict[str, tuple[int, str]] = field(default_factory=dict)


class Names:
    """The declarations that are visible at a place in a function.

    Parameters
    ----------
    tokens
        For errors.
    labels
        ``Outline.labels`` of the body.
    module
        What the module declares.
    parameters
        What the function's parameter list declares.

    Attributes
    ----------
    registers
        Every register declared by its own name, or used, by unique name.
    """

    def __init__(
        self,
        tokens: Tokens,
        labels: list[dict[str, LabelRef]],
        module: dict[str, Symbol],
        parameters: dict[str, Symbol],
    ) -> None:
        self._tokens = tokens
        self._labels = labels
        self._module = module
        self._opened = 0
        self._scopes: list[_Scope] = []
        self.registers: dict[str, Register] = {}
        self.open()
        for name, symbol in parameters.items():
            self._scopes[0].names.setdefault(name, symbol)

    def open(self) -> None:
        """Enter the next scope."""
        number = self._opened
        self._opened += 1
        names: dict[str, Operand] = dict(self._labels[number])
        self._scopes.append(_Scope(number, names))

    def close(self) -> None:
        """Leave the innermost scope."""
        self._scopes.pop()

    def add_register(self, index: int, type_: str) -> None:
        """Declare the register that token ``index`` names."""
        register = Register(self.add(index), type_)
        self._scopes[-1].names[self._tokens.texts[index]] = register
        self.registers[register.name] = register

    def add_range(self, index: int, count: int, type_: str) -> None:
        """Declare ``name<count>``: registers ``name0`` to ``name<count - 1>``."""
        name, scope = self._tokens.texts[index], self._scopes[-1]
        if name in scope.ranges:
            raise self._tokens.error(index, f"'{name}<...>' is declared twice in its scope")
        scope.ranges[name] = (count, type_)

    def add(self, index: int) -> str:
        """Declare the variable that token ``index`` names; returns its unique name."""
        name, scope = self._tokens.texts[index], self._scopes[-1]
        if "." in name or "::" in name or name == "_":
            raise self._tokens.expected(index, "a name")
        if name in scope.names or self._in_ranges(scope, name) is not None:
            raise self._tokens.error(index, f"'{name}' is declared twice in its scope")
        unique = _unique(name, scope.number)
        scope.names[name] = Symbol(unique)
        return unique

    def label(self, index: int) -> LabelRef:
        """The label that stands at token ``index``."""
        return self._labels[self._scopes[-1].number][self._tokens.texts[index]]

    def find(self, index: int) -> Operand:
        """What the word at token ``index`` means as an operand.

        Raises
        ------
        PtxError
            Nothing visible has that name.
        """
        name = self._tokens.texts[index]
        for scope in reversed(self._scopes):
            found = scope.names.get(name)
            if found is not None:
                return found
            if scope.ranges:
                register = self._in_ranges(scope, name)
                if register is not None:
                    scope.names[name] = register
                    self.registers[register.name] = register
                    return register
        symbol = self._module.get(name)
        if symbol is not None:
            return symbol
        special = _SPECIALS.get(name)
        if special is not None:
            return special
        if name[0] == "%":
            raise self._tokens.error(index, f"register '{name}' is not declared")
        raise self._tokens.error(index, f"'{name}' is not declared")

    def _in_ranges(self, scope: _Scope, name: str) -> Register | None:
        """The register of a range that ``name`` denotes: "%r12" of ``%r<20>`` or of ``%r1<3>``."""
        prefix = name.rstrip("0123456789")
        # Ten digits hold every count; a longer name cannot be of a range that is ever used.
        for length in range(len(prefix), min(len(name), len(prefix) + 10)):
            found = scope.ranges.get(name[:length])
            digits = name[length:]
            if found is None or len(digits) > 10 or (digits[0] == "0" and len(digits) > 1):
                continue
            count, type_ = found
            if int(digits) < count:
                return Register(_unique(name, scope.number), type_)
        return None


def _unique(name: str, scope: int) -> str:
    return f"{name}@{scope}" if scope else name
