"""Which lane ops shuffles, votes, matches, reductions and elections are (PTX ISA 9.7.9, 9.7.13)."""

from __future__ import annotations

from cakert.sim.decode.lane_builder import LaneBuilder
from cakert.sim.decode.lane_integer import LaneRule

__all__ = ["CROSS_RULES"]

PROPAGATE_NAN, ABSOLUTE = 1, 4


def shuffle(b: LaneBuilder) -> None:
    """``shfl.sync``."""
    b.need("sync")
    mode = b.need("up", "down", "bfly", "idx")
    b.type("b32")
    b.count(5)
    b.emit(f"shfl.{mode}", b.pair(b.operands[0]), b.operands[1:])


def vote(b: LaneBuilder) -> None:
    """``vote.sync``."""
    b.need("sync")
    mode = b.need("all", "any", "uni", "ballot")
    b.type("b32" if mode == "ballot" else "pred")
    b.count(3)
    b.emit(f"vote.{mode}", b.operands[:1], b.operands[1:])


def match(b: LaneBuilder) -> None:
    """``match.sync``."""
    mode = b.need("any", "all")
    b.need("sync")
    kind = b.type("b32", "b64")
    b.count(3)
    first, second = b.pair(b.operands[0])
    if mode == "any" and second is not None:
        b.fail("match.any has one destination")
    outs = (first,) if mode == "any" else (first, second)
    b.emit(f"match.{mode}.{kind}", outs, b.operands[1:])


def reduce(b: LaneBuilder) -> None:
    """``redux.sync``."""
    b.need("sync")
    operation = b.need("add", "min", "max", "and", "or", "xor")
    absolute, propagate = b.flag("abs"), b.flag("NaN")
    logical = operation in ("and", "or", "xor")
    kind = b.type(*(("b32",) if logical else ("u32", "s32", "f32")))
    b.count(3)
    if (kind == "f32" and operation == "add") or (kind != "f32" and (absolute or propagate)):
        b.fail("no such form of redux")
    if kind == "f32":
        b.since_sm100("redux of .f32")
    extra = (ABSOLUTE if absolute else 0) | (PROPAGATE_NAN if propagate else 0)
    kind = "b32" if operation == "add" else kind
    b.emit(f"redux.{operation}.{kind}", b.operands[:1], b.operands[1:], extra=extra)


def elect(b: LaneBuilder) -> None:
    """``elect.sync``: the lowest lane."""
    b.need("sync")
    b.count(2)
    b.emit("elect", b.pair(b.operands[0]), b.operands[1:])


CROSS_RULES: dict[str, LaneRule] = {
    "shfl": shuffle,
    "vote": vote,
    "match": match,
    "redux": reduce,
    "elect": elect,
}
