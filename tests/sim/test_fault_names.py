"""`FAULT_NAMES` against the sources: each name that is raised or noted, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cakert import sim
from cakert.sim.fault_names import FAULT_NAMES

NAME = r'"([a-z0-9]+(?:-[a-z0-9]+)*)"'

# How a name reaches a fault. The look-behind is for setdefault("wgmma-warpgroups", ...).
SITES = [
    re.compile(r"(?<!de)(?:fault|note|Fault)\w*\(\s*(?:warp,\s*)?" + NAME),
    re.compile(r"issuing_lane\([\w, ]+,\s*" + NAME),
]
# SharedMemory chooses a name before it raises.
CHOSEN = re.compile(rf"^ +name = {NAME}(?: if [\w =]+ else {NAME})?$", re.MULTILINE)


def names_in(text: str, *, chosen: bool = False) -> set[str]:
    found = {name for site in SITES for name in site.findall(text)}
    if chosen:
        found.update(name for names in CHOSEN.findall(text) for name in names if name)
    return found


def names_of_the_sources() -> set[str]:
    names: set[str] = set()
    for source in Path(sim.__file__).parent.rglob("*"):
        if source.suffix in (".py", ".pyx", ".pxi"):
            names |= names_in(source.read_text(), chosen=source.name == "shared_memory.pyx")
    return names


def test_the_list_is_that_of_the_sources():
    names = names_of_the_sources()
    assert len(names) > 90
    assert not names - FAULT_NAMES, f"FAULT_NAMES lacks {sorted(names - FAULT_NAMES)}"
    assert not FAULT_NAMES - names, f"no source raises {sorted(FAULT_NAMES - names)}"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('launch.fault(\n    "a-b",\n    "message")', {"a-b"}),
        ('raise Fault("trap", "message")', {"trap"}),
        ('self.fault_at(\n    warp, "a-b", 3)', {"a-b"}),
        ('issuing_lane(warp, mask, where, "a-b")', {"a-b"}),
        ('state.setdefault("a-b", {})', set()),
        ('launch.count("a-b", 1)', set()),
        ('    name = "a-b" if kind == KIND else "c-d"\n', {"a-b", "c-d"}),
    ],
)
def test_the_collector(text, names):
    assert names_in(text, chosen=True) == names


def test_every_name_can_be_ignored():
    assert sim.Gpu("sm_90a", ignore=FAULT_NAMES).ignore == FAULT_NAMES
