"""What changed between two builds, kernel by kernel."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from cakert.inspect.records import Inspection, KernelRecord

_NAMES = ("name", "demangled")


@dataclass(frozen=True, slots=True)
class KernelChange:
    """One kernel of either build.

    Attributes
    ----------
    kernel, demangled
        Its name, as in `KernelRecord`.
    target
        Of the build it is in; "sm_90 -> sm_90a" where the two differ.
    status
        "same", "changed", "added" or "removed".
    fields
        What differs: name of the `KernelRecord` field to (before, after). Empty but for "changed".
    """

    kernel: str
    demangled: str | None
    target: str
    status: str
    fields: dict[str, tuple[Any, Any]]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two files by name, and the kernels of both: the first one's in its order, then new ones."""

    before: str
    after: str
    changes: tuple[KernelChange, ...]


_Key = tuple[str, str, int]


def _kernels(file: Inspection, *, by_target: bool) -> dict[_Key, tuple[str, KernelRecord]]:
    """By (target, name, how many such came before): a program may embed a kernel several times."""
    seen: Counter[tuple[str, str]] = Counter()
    found: dict[_Key, tuple[str, KernelRecord]] = {}
    for cubin in file.cubins:
        for kernel in cubin.kernels:
            key = (cubin.target if by_target else "", kernel.name)
            found[(*key, seen[key])] = (cubin.target, kernel)
            seen[key] += 1
    return found


def _compare(
    old: tuple[str, KernelRecord] | None, new: tuple[str, KernelRecord] | None
) -> KernelChange:
    if old is None or new is None:
        target, kernel = old or new  # type: ignore[misc]  # a key comes from one of the two
        status = "added" if old is None else "removed"
        return KernelChange(kernel.name, kernel.demangled, target, status, {})
    target = old[0] if old[0] == new[0] else f"{old[0]} -> {new[0]}"
    before, after = asdict(old[1]), asdict(new[1])
    fields = {
        name: (before[name], after[name])
        for name in before
        if name not in _NAMES and before[name] != after[name]
    }
    status = "changed" if fields else "same"
    return KernelChange(new[1].name, new[1].demangled, target, status, fields)


def compare(before: Inspection, after: Inspection) -> Comparison:
    """What changed from one file to another.

    Kernels are matched by name, and by target too where a file holds several cubins. Machine code
    is compared by size, not by content.
    """
    by_target = len(before.cubins) > 1 or len(after.cubins) > 1
    old = _kernels(before, by_target=by_target)
    new = _kernels(after, by_target=by_target)
    keys = [*old, *(key for key in new if key not in old)]
    return Comparison(
        before.name,
        after.name,
        tuple(_compare(old.get(key), new.get(key)) for key in keys),
    )
