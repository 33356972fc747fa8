"""The JSON of `cakert inspect`: plain values with the names of the records.

The form is stable: a field keeps its name, type and unit while `SCHEMA` keeps its number, and new
fields may come. docs/inspect.md has them all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from cakert.inspect.comparison import Comparison
from cakert.inspect.records import Inspection

SCHEMA = 1


def as_json(files: Iterable[Inspection]) -> dict[str, Any]:
    """The document for `files`; only dicts, lists, strings, numbers, booleans and None in it."""
    return {"schema": SCHEMA, "files": [_plain(asdict(file)) for file in files]}


def comparison_as_json(comparison: Comparison) -> dict[str, Any]:
    """The document for a comparison."""
    changes = []
    for change in comparison.changes:
        values = {
            name: {"before": _plain(before), "after": _plain(after)}
            for name, (before, after) in change.fields.items()
        }
        changes.append(
            {
                "kernel": change.kernel,
                "demangled": change.demangled,
                "target": change.target,
                "status": change.status,
                "fields": values,
            }
        )
    return {
        "schema": SCHEMA,
        "before": comparison.before,
        "after": comparison.after,
        "kernels": changes,
    }


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value
