"""The fenced blocks of README.md and docs/*.md, and the commands in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
DATA = PROJECT / "tests" / "data" / "docs"

_FENCE = re.compile(r"^```(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes
    ----------
    page
        File name: "README.md".
    number
        From 1, among the blocks of the page in this language.
    line
        Where its text begins in the page, from 1.
    output
        Text of the `text` block right behind it: what it prints; else None.
    """

    page: str
    language: str
    number: int
    line: int
    text: str
    output: str | None

    @property
    def key(self) -> tuple[str, int]:
        return self.page, self.number

    def run(self, names: dict[str, object], text: str | None = None) -> None:
        """Execute Python; tracebacks have the page's name and lines."""
        source = "\n" * (self.line - 1) + (self.text if text is None else text)
        exec(compile(source, self.page, "exec"), names)


def pages() -> list[Path]:
    return [PROJECT / "README.md", *sorted((PROJECT / "docs").glob("*.md"))]


def blocks(page: Path) -> list[Block]:
    """The blocks of a page in order; a page may not leave a fence open."""
    text = page.read_text()
    assert text.count("\n```") % 2 == 0, f"{page.name}: a fence is left open"
    found: list[Block] = []
    matches = list(_FENCE.finditer(text))
    for at, match in enumerate(matches):
        following = matches[at + 1] if at + 1 < len(matches) else None
        language = match[1]
        output = None
        if (
            following
            and following[1] == "text"
            and not text[match.end() : following.start()].strip()
        ):
            output = following[2]
        number = 1 + sum(block.language == language for block in found)
        line = text.count("\n", 0, match.start(2)) + 1
        found.append(Block(page.name, language, number, line, match[2], output))
    return found


def python_blocks() -> dict[str, list[Block]]:
    """The Python of each page that has any."""
    found = {
        page.name: [block for block in blocks(page) if block.language == "python"]
        for page in pages()
    }
    return {page: of_page for page, of_page in found.items() if of_page}


def commands(block: Block) -> list[str]:
    """Lines of a block that are shell commands of `cakert`, `&&` taken apart.

    What stands behind two spaces or more, or behind `#`, says what the command does; where its
    output goes is left out.
    """
    found = []
    for line in re.sub(r"\s*\\\n\s*", " ", block.text).splitlines():
        for part in line.removeprefix("$ ").split("&&"):
            command = re.sub(r"\s{2,}.*|\s+[#>].*", "", part.strip())
            if re.match(r"cakert( |$)", command):
                found.append(command)
    return found
