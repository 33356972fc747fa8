"""Every instruction that a Python handler executes, by prefix of its mnemonic."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TypeAlias

from cakert.sim.decode.binder import Binder, Handler
from cakert.sim.ptx.model import Instruction

__all__ = ["Rule", "handler_rules"]

Rule: TypeAlias = Callable[[Instruction, Binder], Handler]


@functools.cache
def handler_rules() -> Mapping[str, Rule]:
    """The rules of all families; a mnemonic belongs to the longest prefix."""
    from cakert.sim import copies, machine, matrix, tcgen05
    from cakert.sim.decode import atomics

    rules: dict[str, Rule] = {}
    for family in (atomics, machine, copies, matrix, tcgen05):
        clash = rules.keys() & family.INSTRUCTIONS.keys()
        if clash:
            raise AssertionError(f"{family.__name__} binds again: {sorted(clash)}")
        rules.update(family.INSTRUCTIONS)
    return rules
