"""A module as PTX text again: for comparing what was read with what is read from that."""

from __future__ import annotations

from cakert.sim.ptx.model import (
    Address,
    Function,
    Immediate,
    Instruction,
    LabelRef,
    Module,
    NotPredicate,
    Operand,
    Pair,
    Register,
    Sink,
    Special,
    Symbol,
    Variable,
    Vector,
)

HEADER = ".version 9.0\n.target sm_100a\n.address_size 64\n"


def kernel(body: str, module: str = "", parameters: str = "") -> str:
    """A file with one kernel, ``toy``, and some registers; its body begins on line 12."""
    return (
        f"{HEADER}{module}\n.visible .entry toy({parameters})\n"
        "{\n.reg .b32 %r<20>;\n.reg .b64 %rd<20>;\n.reg .pred %p<20>;\n.reg .f32 %f<20>;\n\n"
        f"{body}\nret;\n}}\n"
    )


def plain(name: str) -> str:
    """A unique name of the reader as an identifier."""
    return name.replace("@", "$scope")


def write_operand(operand: Operand) -> str:
    match operand:
        case Register() | LabelRef():
            return plain(operand.name)
        case Special():
            return operand.name
        case Sink():
            return "_"
        case Symbol(offset=0):
            return plain(operand.name)
        case Symbol():
            return f"{plain(operand.name)}+{operand.offset}"
        case Immediate(kind="f32"):
            return f"0f{operand.bits:08X}"
        case Immediate(kind="f64"):
            return f"0d{operand.bits:016X}"
        case Immediate():
            return str(operand.bits - (1 << 64) if operand.bits >> 63 else operand.bits)
        case NotPredicate():
            return f"!{plain(operand.register.name)}"
        case Pair():
            return f"{write_operand(operand.first)}|{write_operand(operand.second)}"
        case Vector():
            return "{" + ", ".join(write_operand(item) for item in operand.items) + "}"
        case Address():
            offset = f"+{operand.offset}" if operand.offset else ""
            rest = f", {write_operand(operand.coordinates)}" if operand.coordinates else ""
            return f"[{write_operand(operand.base)}{offset}{rest}]"
    raise AssertionError(operand)


def write_instruction(instruction: Instruction) -> str:
    guard = ""
    if instruction.guard is not None:
        guard = f"@{'!' * instruction.guard_negated}{plain(instruction.guard.name)} "
    operands = ", ".join(write_operand(operand) for operand in instruction.operands)
    return f"{guard}{instruction.name} {operands}".strip() + ";"


def write_variable(variable: Variable) -> str:
    extern = ".extern " if variable.extern else ""
    head = f"{extern}.{variable.space} .align {variable.align} .b8 {plain(variable.name)}"
    init = ""
    if variable.init is not None:
        init = " = {" + ", ".join(map(str, variable.init)) + "}"
    return f"{head}[{variable.size or ''}]{init}"


def write_function(function: Function) -> str:
    lines = [f".visible .entry {function.name}("]
    lines.append(",\n".join(write_variable(parameter) for parameter in function.parameters))
    lines.append(")")
    for name, numbers in function.directives.items():
        lines.append(f".{name} {', '.join(map(str, numbers))}")
    lines.append("{")
    lines.extend(f".reg .{each.type} {plain(each.name)};" for each in function.registers.values())
    lines.extend(write_variable(variable) + ";" for variable in function.variables)
    for table, targets in function.branch_targets.items():
        lines.append(f"{plain(table)}: .branchtargets {', '.join(map(plain, targets))};")
    at: dict[int, list[str]] = {}
    for label, index in function.labels.items():
        at.setdefault(index, []).append(label)
    for index in range(len(function.body) + 1):
        lines.extend(f"{plain(label)}:" for label in at.get(index, ()))
        if index < len(function.body):
            lines.append(write_instruction(function.body[index]))
    lines.append("}")
    return "\n".join(lines)


def write(module: Module) -> str:
    major, minor = module.version
    lines = [f".version {major}.{minor}", f".target {module.target}", ".address_size 64"]
    lines.extend(write_variable(variable) + ";" for variable in module.variables.values())
    lines.extend(map(write_function, module.functions.values()))
    return "\n".join(lines) + "\n"
