"""``mbarrier.*``: the instructions that work on mbarrier objects (PTX ISA "mbarrier").

The lanes of a warp act one by one, as the ISA says for scalar instructions: 32 lanes that arrive
are 32 arrivals. Memory semantics (``.release``, ``.acquire``, ``.relaxed`` and scopes) change
nothing here, since simulated warps see each other's writes in order; they are checked all the same.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import TYPE_CHECKING, NamedTuple

from cakert.sim.core.lanes import lanes_of
from cakert.sim.machine.addresses import address_space, resolve_shared
from cakert.sim.machine.mbarrier import Mbarrier, pending_of, phase_of
from cakert.sim.machine.waiting import Wait
from cakert.sim.ptx.model import Address, Instruction, Operand, Sink, Symbol

if TYPE_CHECKING:
    from cakert.sim.core.warp import Warp
    from cakert.sim.decode.binder import AddressSource, Binder, Handler
    from cakert.sim.machine.launch import Place

__all__ = ["INSTRUCTIONS"]

_SPACE = r"(\.shared::cta|\.shared::cluster|\.shared)?"
_SCOPE = r"(\.cta|\.cluster)"
_FORMS = {
    "init": rf"{_SPACE}\.b64",
    "inval": rf"{_SPACE}\.b64",
    "expect_tx": rf"\.relaxed{_SCOPE}{_SPACE}\.b64",
    "complete_tx": rf"\.relaxed{_SCOPE}{_SPACE}\.b64",
    "arrive": rf"(\.expect_tx)?(\.(release|relaxed){_SCOPE})?{_SPACE}\.b64",
    "arrive.noComplete": rf"(\.release\.cta)?{_SPACE}\.b64",
    "test_wait": rf"(\.parity)?(\.(acquire|relaxed){_SCOPE})?{_SPACE}\.b64",
    "pending_count": r"\.b64",
}
# Random schedule: chance that a try_wait that would have to wait returns false instead.
_SPURIOUS = 0.25


class _Target(NamedTuple):
    """How an instruction finds its barriers."""

    source: AddressSource
    space: str
    line: int

    def barrier(self, warp: Warp, address: int) -> Mbarrier:
        cta, offset = resolve_shared(warp.cta, address, self.space, warp.where)
        table = cta.mbarriers
        barrier = table.at(offset, warp.where)
        table.used_by(barrier, warp.cta, warp.index, warp.where)
        return barrier

    def by_address(self, warp: Warp, mask: int) -> list[tuple[int, int]]:
        """(address, mask of the lanes that use it), in order of the first lane."""
        addresses = self.source.lanes(warp)
        groups: dict[int, int] = {}
        while mask:
            bit = mask & -mask
            address = int(addresses[bit.bit_length() - 1])
            groups[address] = groups.get(address, 0) | bit
            mask ^= bit
        return list(groups.items())


def _check(instruction: Instruction, binder: Binder, form: str, skip: int) -> None:
    rest = "".join(f".{modifier}" for modifier in instruction.modifiers[skip:])
    if re.fullmatch(_FORMS[form], rest) is None:
        binder.fail(f"unknown form of mbarrier.{form}")


def _target(instruction: Instruction, binder: Binder, position: int, spaces: str) -> _Target:
    """Bind the address operand; ``spaces`` says which state spaces the instruction takes."""
    operand = instruction.operands[position]
    if not isinstance(operand, Address):
        binder.fail("expected an address in brackets")
    space = address_space(instruction.modifiers)
    if space == "shared::cluster" and "cluster" not in spaces:
        binder.fail("takes no .shared::cluster address")
    if space == "generic" and isinstance(operand.base, Symbol):
        space = "shared::cta"  # the name of a variable stands for its address in shared memory
    return _Target(binder.address(operand), space, instruction.line)


def _count(instruction: Instruction, binder: Binder, position: int) -> int | None:
    """Row of an optional 32-bit operand."""
    operands = instruction.operands
    if len(operands) <= position:
        return None
    return int(binder.row(operands[position], 32))


def _arity(instruction: Instruction, binder: Binder, *allowed: int) -> None:
    if len(instruction.operands) not in allowed:
        binder.fail(f"expected {' or '.join(map(str, allowed))} operands")


# --- init, inval ------------------------------------------------------------------------------


def _bind_init(instruction: Instruction, binder: Binder) -> Handler:
    _check(instruction, binder, "init", 1)
    _arity(instruction, binder, 2)
    target = _target(instruction, binder, 0, "cta")
    row = binder.row(instruction.operands[1], 32)

    def handler(warp: Warp, mask: int) -> None:
        addresses = target.source.lanes(warp)
        for lane in lanes_of(mask):
            cta, offset = resolve_shared(warp.cta, int(addresses[lane]), target.space, warp.where)
            cta.mbarriers.init(
                offset,
                int(warp.file32[row, lane]),
                warp.where,
                line=target.line,
                warp=warp.index,
            )

    return handler


def _bind_inval(instruction: Instruction, binder: Binder) -> Handler:
    _check(instruction, binder, "inval", 1)
    _arity(instruction, binder, 1)
    target = _target(instruction, binder, 0, "cta")

    def handler(warp: Warp, mask: int) -> None:
        addresses = target.source.lanes(warp)
        for lane in lanes_of(mask):
            cta, offset = resolve_shared(warp.cta, int(addresses[lane]), target.space, warp.where)
            cta.mbarriers.invalidate(offset, warp.where)

    return handler


# --- transactions -----------------------------------------------------------------------------


def _bind_tx(instruction: Instruction, binder: Binder) -> Handler:
    form = instruction.modifiers[0]
    _check(instruction, binder, form, 1)
    _arity(instruction, binder, 2)
    target = _target(instruction, binder, 0, "cta cluster")
    row = binder.row(instruction.operands[1], 32)
    expect = form == "expect_tx"

    def handler(warp: Warp, mask: int) -> None:
        addresses = target.source.lanes(warp)
        for lane in lanes_of(mask):
            barrier = target.barrier(warp, int(addresses[lane]))
            nbytes = int(warp.file32[row, lane])
            if expect:
                barrier.expect_tx(nbytes, warp.where)
            else:
                barrier.complete_tx(nbytes, warp.where)

    return handler


# --- arrivals ---------------------------------------------------------------------------------


def _bind_arrive(instruction: Instruction, binder: Binder) -> Handler:
    no_complete = "noComplete" in instruction.modifiers
    if no_complete:
        _check(instruction, binder, "arrive.noComplete", 2)
    else:
        _check(instruction, binder, "arrive", 1)
    expect = "expect_tx" in instruction.modifiers
    drop = instruction.modifiers[0] == "arrive_drop"
    _arity(instruction, binder, *((3,) if expect or no_complete else (2, 3)))
    target = _target(instruction, binder, 1, "cta cluster")
    result = _state_row(instruction.operands[0], binder, target)
    row = _count(instruction, binder, 2)

    def one_by_one(warp: Warp, mask: int) -> None:
        addresses = target.source.lanes(warp)
        by = (warp.cta.rank, warp.index, target.line)
        for lane in lanes_of(mask):
            barrier = target.barrier(warp, int(addresses[lane]))
            operand = 1 if row is None else int(warp.file32[row, lane])
            if expect:
                barrier.expect_tx(operand, warp.where)
            state = barrier.arrive(
                1 if expect else operand,
                warp.where,
                by=by,
                drop=drop,
                no_complete=no_complete,
            )
            if result is not None:
                warp.file64[result, lane] = state

    if expect or row is not None or result is not None:
        return one_by_one

    def handler(warp: Warp, mask: int) -> None:
        by = (warp.cta.rank, warp.index, target.line)
        for address, lanes in target.by_address(warp, mask):
            barrier = target.barrier(warp, address)
            count = lanes.bit_count()
            # In one step where that cannot be told apart from one by one.
            if count <= barrier.pending:
                barrier.arrive(count, warp.where, by=by, drop=drop)
            else:
                for _ in range(count):
                    barrier.arrive(1, warp.where, by=by, drop=drop)

    return handler


def _state_row(operand: Operand, binder: Binder, target: _Target) -> int | None:
    if isinstance(operand, Sink):
        return None
    if target.space == "shared::cluster":
        binder.fail("a remote arrive returns no state: its destination must be _")
    return int(binder.out(operand, 64))


def _bind_pending_count(instruction: Instruction, binder: Binder) -> Handler:
    _check(instruction, binder, "pending_count", 1)
    _arity(instruction, binder, 2)
    out = binder.out(instruction.operands[0], 32)
    row = binder.row(instruction.operands[1], 64)

    def handler(warp: Warp, mask: int) -> None:
        for lane in lanes_of(mask):
            count = pending_of(int(warp.file64[row, lane]))
            if count is None:
                _bad_state(warp)
                count = 0
            warp.file32[out, lane] = count

    return handler


def _bad_state(warp: Warp) -> None:
    warp.cta.launch.fault(
        "mbarrier-state",
        "the state operand was not returned by an mbarrier.arrive.",
        where=warp.where,
    )


# --- waits ------------------------------------------------------------------------------------


class _Test:
    """One execution of test_wait or try_wait: the phase that each lane asks about."""

    __slots__ = ("asked", "out", "warp", "where")

    def __init__(self, warp: Warp, out: int) -> None:
        self.warp = warp
        self.out = out
        self.where: Place = warp.where
        # (barrier, phase) -> lanes.
        self.asked: dict[tuple[Mbarrier, int], int] = {}

    def any_passed(self) -> bool:
        return any(barrier.passed(phase, self.where) for barrier, phase in self.asked)

    def write(self) -> None:
        """Write the predicate of every lane that asked."""
        passed = failed = 0
        for (barrier, phase), lanes in self.asked.items():
            if barrier.passed(phase, self.where):
                passed |= lanes
            else:
                failed |= lanes
        value = int(self.warp.predicates[self.out])
        self.warp.predicates[self.out] = value & ~failed | passed

    def needs(self) -> list[Hashable]:
        """The barriers, by what `Operation.signals` calls them."""
        return [(barrier.cta, barrier.address) for barrier, _ in self.asked]

    def describe(self) -> str:
        return "; ".join(barrier.describe(phase) for barrier, phase in self.asked)


def _bind_wait(instruction: Instruction, binder: Binder) -> Handler:
    blocking = instruction.modifiers[0] == "try_wait"
    _check(instruction, binder, "test_wait", 1)
    _arity(instruction, binder, *((3, 4) if blocking else (3,)))
    out = binder.out_predicate(instruction.operands[0])
    target = _target(instruction, binder, 1, "cta")
    by_parity = "parity" in instruction.modifiers
    row = binder.row(instruction.operands[2], 32 if by_parity else 64)
    _count(instruction, binder, 3)  # the time limit, in ns: any is a legal one

    def ask(warp: Warp, mask: int) -> _Test:
        test = _Test(warp, out)
        values = (warp.file32 if by_parity else warp.file64)[row]
        for address, lanes in target.by_address(warp, mask):
            barrier = target.barrier(warp, address)
            for lane in lanes_of(lanes):
                value = int(values[lane])
                if by_parity:
                    if value > 1:
                        warp.cta.launch.fault(
                            "mbarrier-parity",
                            f"the phase parity must be 0 or 1, got {value}.",
                            where=warp.where,
                        )
                    phase = barrier.phase_named(value)
                else:
                    named = phase_of(value)
                    if named is None:
                        _bad_state(warp)
                        named = barrier.phase
                    phase = named
                key = (barrier, phase)
                test.asked[key] = test.asked.get(key, 0) | 1 << lane
        return test

    def test_wait(warp: Warp, mask: int) -> Wait | None:
        test = ask(warp, mask)
        passed = test.any_passed()
        test.write()
        # A loop of tests must not keep the others from running.
        return None if passed else Wait.pause(test.describe, needs=test.needs)

    def try_wait(warp: Warp, mask: int) -> Wait | None:
        test = ask(warp, mask)
        launch = warp.cta.launch
        if test.any_passed():
            test.write()
            return None
        if launch.engine.schedule == "random" and launch.engine.random.random() < _SPURIOUS:
            test.write()
            return Wait.pause(test.describe)
        test.where = warp.where()  # by the time of a fault, the warp may be elsewhere
        return Wait(test.any_passed, test.describe, test.write, test.needs)

    return try_wait if blocking else test_wait


INSTRUCTIONS = {
    "mbarrier.init": _bind_init,
    "mbarrier.inval": _bind_inval,
    "mbarrier.expect_tx": _bind_tx,
    "mbarrier.complete_tx": _bind_tx,
    "mbarrier.arrive": _bind_arrive,
    "mbarrier.arrive_drop": _bind_arrive,
    "mbarrier.pending_count": _bind_pending_count,
    "mbarrier.test_wait": _bind_wait,
    "mbarrier.try_wait": _bind_wait,
}
