"""Which instructions are lane ops, and how their operands bind.

A rule takes an instruction's modifiers one by one and emits the C functions of
``cakert.sim.core.lane_ops`` that do its work, usually one. A modifier that no rule takes is an
error: a form is either executed as the ISA says or refused.
"""

from __future__ import annotations

from cakert.sim.decode.lane_builder import LaneBinder, LaneBinding, LaneBuilder
from cakert.sim.decode.lane_convert import CONVERT_RULES
from cakert.sim.decode.lane_cross import CROSS_RULES
from cakert.sim.decode.lane_float import (
    FLOAT_RULES,
    float_arithmetic,
    float_divide,
    float_extremum,
    float_neg_abs,
)
from cakert.sim.decode.lane_integer import (
    INTEGER_RULES,
    INTEGERS,
    LaneRule,
    integer_arithmetic,
    integer_extremum,
    integer_multiply,
    integer_neg_abs,
    typed,
)
from cakert.sim.decode.lane_select import SELECT_RULES
from cakert.sim.ptx.model import Instruction

__all__ = ["LANE_RULES", "LaneBinding", "bind_lane"]


def _by_type(integers: LaneRule, floats: LaneRule) -> LaneRule:
    """A rule for an opcode that integers and floating point share."""

    def rule(b: LaneBuilder) -> None:
        kind = b.peek()
        (floats if "f" in kind else integers)(b)

    return rule


LANE_RULES: dict[str, LaneRule] = {
    **INTEGER_RULES,
    **FLOAT_RULES,
    **SELECT_RULES,
    **CONVERT_RULES,
    **CROSS_RULES,
    "add": _by_type(integer_arithmetic, float_arithmetic),
    "sub": _by_type(integer_arithmetic, float_arithmetic),
    "mul": _by_type(integer_multiply, float_arithmetic),
    "mad": _by_type(integer_multiply, float_arithmetic),
    "div": _by_type(typed(*INTEGERS, operands=3), float_divide),
    "min": _by_type(integer_extremum, float_extremum),
    "max": _by_type(integer_extremum, float_extremum),
    "neg": _by_type(integer_neg_abs, float_neg_abs),
    "abs": _by_type(integer_neg_abs, float_neg_abs),
}


def bind_lane(instruction: Instruction, binder: LaneBinder) -> tuple[LaneBinding, ...] | None:
    """The lane ops that execute an instruction, in order; None where it is of another kind.

    Raises
    ------
    UnsupportedInstruction
        The opcode is known, but not this form of it.
    """
    rule = LANE_RULES.get(instruction.opcode)
    if rule is None:
        return None
    builder = LaneBuilder(instruction, binder)
    rule(builder)
    return builder.finish()
