"""PTX text -> tokens (PTX ISA 4.1 to 4.5).

Comments and the debug lines ``.loc`` and ``.file``, which end at the end of their line and carry
nothing that is executed, leave no tokens.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass

from cakert.sim.faults import PtxError

__all__ = ["Tokens", "tokenize"]

# A mnemonic is one word with its modifiers, "::" included; so is a component of a special register.
_TOKEN = re.compile(
    r"""
    (?P<skip>   \s+ | //[^\n]* | /\*[\s\S]*?\*/ )
  | (?P<word>   (?:%[\w$]|[A-Za-z_$]) [\w$]* (?:(?:\.|::)[\w$]+)* )
  | (?P<number> (?: 0[fF][0-9A-Fa-f]{8} | 0[dD][0-9A-Fa-f]{16}
                  | 0[xX][0-9A-Fa-f]+U? | 0[bB][01]+U?
                  | (?:\d+\.\d*|\.\d+)(?:[eE][-+]?\d+)? | \d+[eE][-+]?\d+ | \d+U? ) (?![\w.]) )
  | (?P<line>   \.(?:loc|file)\b[^\n]* )
  | (?P<dot>    \.\w+ (?:::\w+)* )
  | (?P<punct>  <<|>>|<=|>=|==|!=|&&|\|\| | [][{}()<>,;:|@!+*&^~?=%-] | /(?!\*) )
  | (?P<string> "[^"\n]*" )
  | (?P<bad>    [\s\S] )
    """,
    re.ASCII | re.VERBOSE,
)
# Behind the last token: the parser looks at most two tokens ahead.
_PADDING = 3


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of a text, as parallel lists.

    Attributes
    ----------
    kinds
        "word", "number", "dot" (a directive, a type or a detached modifier), "string", "end", or
        the punctuation itself.
    texts
        As written.
    starts
        Offsets into ``source``.
    source
        The whole PTX text.
    newlines
        Offsets of its line ends.
    """

    kinds: list[str]
    texts: list[str]
    starts: list[int]
    source: str
    newlines: list[int]

    def line(self, index: int) -> int:
        """Line of token ``index``, from 1."""
        return bisect_right(self.newlines, self.starts[index]) + 1

    def error(self, index: int, problem: str) -> PtxError:
        """What to raise for a problem at token ``index``."""
        return PtxError(f"line {self.line(index)}: {problem}")

    def expected(self, index: int, what: str) -> PtxError:
        """What to raise where ``what`` should stand instead of token ``index``."""
        text = self.texts[index]
        found = "the end of the text" if self.kinds[index] == "end" else f"'{_shorten(text)}'"
        return self.error(index, f"expected {what}, found {found}")

    def take(self, index: int, kind: str, what: str = "") -> int:
        """The index after token ``index``, which has to be of ``kind``."""
        if self.kinds[index] != kind:
            raise self.expected(index, what or f"'{kind}'")
        return index + 1


def tokenize(source: str) -> Tokens:
    """Split PTX text into tokens.

    Raises
    ------
    PtxError
        A character, a number or a comment that PTX does not know.
    """
    kinds: list[str] = []
    texts: list[str] = []
    starts: list[int] = []
    newlines = [match.start() for match in re.finditer("\n", source)]
    tokens = Tokens(kinds, texts, starts, source, newlines)
    for match in _TOKEN.finditer(source):
        kind = match.lastgroup
        if kind == "skip" or kind is None:
            continue
        start = match.start()
        text = match.group()
        if kind == "punct":
            kind = text
        elif kind == "line":
            if source[source.rfind("\n", 0, start) + 1 : start].strip():
                line = bisect_right(newlines, start) + 1
                raise PtxError(f"line {line}: {text.split()[0]} has to begin its line")
            continue
        elif kind == "bad":
            raise PtxError(f"line {bisect_right(newlines, start) + 1}: {_explain(source, start)}")
        kinds.append(kind)
        texts.append(text)
        starts.append(start)
    kinds.extend(["end"] * _PADDING)
    texts.extend([""] * _PADDING)
    # An error at the end of the text is reported on its last line that says something.
    last = starts[-1] if starts else 0
    starts.extend([last] * _PADDING)
    return tokens


def _explain(source: str, start: int) -> str:
    """What is wrong with the text at ``start``, where no token begins."""
    if source.startswith("/*", start):
        return "a comment /* without its */"
    if source[start] == '"':
        return "a string without its closing quote"
    number = re.compile(r"[\w.]+", re.ASCII).match(source, start)
    if source[start].isascii() and source[start].isdigit() and number:
        return f"'{_shorten(number.group())}' is no number"
    return f"unexpected character {source[start]!r}"


def _shorten(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
