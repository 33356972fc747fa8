"""Static libraries (``ar`` archives): their members, found without following a size on trust.

The form is that of System V with GNU's long names (ar(5)): "!<arch>", a newline, and members at
even offsets, each behind 60 bytes of text: name (16), date (12), owner (6), group (6), mode (8),
size in decimal (10), and a backquote with a newline. "/" and "/SYM64/" are the linker's index, "//"
holds names of more than 15 bytes, "/123" is the one at byte 123 of it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MAGIC = b"!<arch>\n"
THIN_MAGIC = b"!<thin>\n"

_HEADER_SIZE = 60
_INDEXES = ("/", "/SYM64/", "__.SYMDEF")
_LONG_NAMES = "//"
_LONGEST_NAME = 1024  # members may share a name, and each would be a copy of it


class Member(NamedTuple):
    """A file of the archive: name, and its bytes at `offset` of the archive."""

    name: str
    offset: int
    size: int


def read_members(data: bytes) -> tuple[Member, ...]:
    """The files in an archive, in its order, without its indexes.

    Raises
    ------
    ValueError
        A header is malformed, or a member ends beyond the file; says at which offset.
    """
    members = []
    long_names = b""
    at = len(MAGIC)
    while at < len(data):
        header = data[at : at + _HEADER_SIZE]
        if len(header) < _HEADER_SIZE or header[58:] != b"`\n":
            raise ValueError(f"there is no header of a member at offset {at}")
        digits = re.fullmatch(rb"(\d{1,10}) *", header[48:58])
        if digits is None:
            raise ValueError(f"the member at offset {at} has a size of {header[48:58]!r}")
        start, size = at + _HEADER_SIZE, int(digits[1])
        if size > len(data) - start:
            raise ValueError(
                f"the member at offset {at} has {size} bytes, {len(data) - start} are left "
                "(truncated or corrupted)"
            )
        name = header[:16].decode("latin-1").rstrip()
        if name == _LONG_NAMES:
            long_names = data[start : start + size]
        elif name not in _INDEXES:
            members.append(Member(_name(name, long_names, at), start, size))
        at = start + size + size % 2
    return tuple(members)


def _name(text: str, long_names: bytes, at: int) -> str:
    if re.fullmatch(r"/\d+", text):
        place = int(text[1:])
        end = long_names.find(b"\n", place, place + _LONGEST_NAME)
        if end < 0:
            raise ValueError(
                f"the name of the member at offset {at} is not in the table of names, or has more "
                f"than {_LONGEST_NAME} bytes"
            )
        text = long_names[place:end].decode("utf-8", "replace")
    return text.removesuffix("/")
