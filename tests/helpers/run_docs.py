"""The JSON of `cakert run` beside its description in docs/run.md."""

from __future__ import annotations

import re
from pathlib import Path


def documented(project: Path) -> dict[str, dict[str, str]]:
    """Field to type, by the heading of its section."""
    found = {}
    section = (project / "docs" / "run.md").read_text().split("\n## JSON\n")[1]
    for part in ("Document\n" + section).split("\n### "):
        rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", part, re.MULTILINE)
        found[part.split("\n")[0]] = dict(rows)
    return found


def has_type(value: object, name: str) -> bool:
    if name.endswith(" or null"):
        return value is None or has_type(value, name.removesuffix(" or null"))
    if name.startswith("list of"):
        plain = {"integers": int, "numbers": float}.get(name.removeprefix("list of "), dict)
        return isinstance(value, list) and all(type(one) is plain for one in value)
    plain = {"integer": int, "string": str, "boolean": bool, "number": (int, float)}
    return isinstance(value, plain.get(name, dict)) and (name != "integer" or type(value) is int)


def hold_to_the_docs(project: Path, found: dict) -> set[str]:
    """Every object of a document against its section; the sections that were seen."""
    types = documented(project)
    seen = set()

    def check(heading: str, record: dict) -> None:
        assert list(record) == list(types[heading]), heading
        for field, value in record.items():
            assert has_type(value, types[heading][field]), (heading, field, value)
        seen.add(heading)

    check("Document", found)
    for argument in found["arguments"]:
        check("Argument", argument)
        if argument["values"]:
            check("Values", argument["values"])
            check("Histogram", argument["values"]["histogram"])
    if found["time"]:
        check("Time", found["time"])
        check("Histogram", found["time"]["histogram"])
    if found["comparison"]:
        check("Comparison", found["comparison"])
        for difference in found["comparison"]["arrays"]:
            check("Difference", difference)
    return seen
