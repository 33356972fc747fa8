"""A kernel of a PTX module -> the code that warps run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from cakert.sim.core.code import Code
from cakert.sim.core.lanes import mask_array
from cakert.sim.core.specials import VARYING, is_special
from cakert.sim.decode.binder import Binder, Handler
from cakert.sim.decode.core_rules import CORE_RULES
from cakert.sim.decode.lane_rules import bind_lane
from cakert.sim.decode.layout import RegisterLayout
from cakert.sim.decode.table import handler_rules
from cakert.sim.faults import PtxError, UnsupportedInstruction
from cakert.sim.ptx.model import (
    Address,
    Function,
    Instruction,
    Module,
    Operand,
    Special,
    Symbol,
    Vector,
)

__all__ = ["SHARED_START", "decode", "parameter_layout", "place_shared"]

Fields: TypeAlias = dict[str, Any]

# Shared memory below belongs to the system (PTX ISA "%reserved_smem_offset_begin").
SHARED_START = 1024

# Instructions that an asynchronous owner of registers may name again; they check it themselves.
_UNCHECKED = ("wgmma",)

# Local memory of a thread in bytes (CUDA programming guide, technical specifications).
_MOST_LOCAL = 512 * 1024

# After these a warp's proxy fence covers what others wrote before.
_SYNCHRONISING = ("bar.", "barrier.", "mbarrier.test_wait", "mbarrier.try_wait")

# The ISA makes these aligned without the word.
_ALIGNED = ("bar.sync", "bar.red", "bar.arrive", "bar.cta")


def align_up(value: int, alignment: int) -> int:
    """The next multiple of ``alignment``."""
    return -(-value // alignment) * alignment


def parameter_layout(function: Function) -> list[tuple[str, int, int]]:
    """Name, offset and size in bytes of each parameter in the parameter block."""
    offset, layout = 0, []
    for parameter in function.parameters:
        offset = align_up(offset, max(parameter.align, 1))
        layout.append((parameter.name, offset, parameter.size))
        offset += parameter.size
    return layout


def place_shared(module: Module, function: Function) -> tuple[dict[str, int], int]:
    """Addresses of the shared variables, and where dynamic shared memory begins.

    Variables of the module count for every kernel that names them, those of the body always.
    """
    used = {name for instruction in function.body for name in _symbols_of(instruction.operands)}
    static = [v for v in module.variables.values() if v.space == "shared" and v.name in used]
    variables = [*static, *(v for v in function.variables if v.space == "shared")]
    places: dict[str, int] = {}
    end = SHARED_START
    for variable in variables:
        if not variable.extern:
            end = align_up(end, max(variable.align, 1))
            places[variable.name] = end
            end += variable.size
    dynamic = [v for v in variables if v.extern]
    start = align_up(end, max([16, *(v.align for v in dynamic)]))
    places.update({v.name: start for v in dynamic})
    return places, start


def _symbols_of(operands: Iterable[Operand]) -> Iterator[str]:
    """Names of the variables that operands mention."""
    for operand in operands:
        if isinstance(operand, Symbol):
            yield operand.name
        elif isinstance(operand, Address):
            yield from _symbols_of((operand.base,))
        elif isinstance(operand, Vector):
            yield from _symbols_of(operand.items)


def _place_local(function: Function) -> tuple[dict[str, int], int]:
    places, end = {}, 0
    for variable in function.variables:
        if variable.space == "local":
            end = align_up(end, max(variable.align, 1))
            places[variable.name] = end
            end += variable.size
    return places, align_up(end, 16)


def decode(
    module: Module, function: Function, *, arch: str, global_symbols: Mapping[str, int]
) -> Code:
    """Bind every instruction of a kernel.

    Parameters
    ----------
    module, function
        As read.
    arch
        Target of the simulated GPU: "sm_90a", "sm_100a" or "sm_103a".
    global_symbols
        Addresses of the module's variables in global and constant memory.

    Returns
    -------
    Code
        Its ``properties``: "parameters" (name, offset, size), "param_bytes", "directives",
        "shared_start" (where dynamic shared memory begins), "static_shared" (bytes before it),
        "arch", "uses_dynamic_shared".

    Raises
    ------
    UnsupportedInstruction
        An instruction, or a form of one, that the simulator does not execute.
    PtxError
        A label or symbol that is not there.
    """
    parameters = parameter_layout(function)
    shared, dynamic = place_shared(module, function)
    local, local_bytes = _place_local(function)
    symbols = {**global_symbols, **shared, **local}
    symbols |= {name: offset for name, offset, _ in parameters}
    for instruction in function.body:
        if instruction.opcode == "call":
            raise UnsupportedInstruction(
                f"line {instruction.line}: `{instruction.text}`: calls of device functions are not "
                "executed; compile with optimisation, so that they are inlined"
            )
    if local_bytes > _MOST_LOCAL:
        raise PtxError(
            f"line {function.line}: {function.name} needs {local_bytes} bytes of local memory a "
            f"thread; a GPU has {_MOST_LOCAL}"
        )
    layout = RegisterLayout()
    entries: list[Fields] = []
    starts: list[int] = []
    for instruction in function.body:
        starts.append(len(entries))
        binder = Binder(
            instruction, kernel=function.name, arch=arch, layout=layout, symbols=symbols
        )
        entries.extend(_bind(instruction, binder))
    starts.append(len(entries))
    # A kernel whose text ends without ret or exit still ends.
    entries.append({"kind": "exit", "mnemonic": "exit", "line": function.line, "text": "exit"})
    _link(function, entries, starts)
    last = parameters[-1] if parameters else ("", 0, 0)
    return Code(
        function.name,
        entries,
        layout.template(),
        layout.specials,
        num_predicates=layout.num_predicates,
        local_bytes=local_bytes,
        properties={
            "parameters": parameters,
            "param_bytes": last[1] + last[2],
            "directives": dict(function.directives),
            "shared_start": dynamic,
            "static_shared": dynamic - SHARED_START,
            "arch": arch,
        },
    )


def _bind(instruction: Instruction, binder: Binder) -> list[Fields]:
    """Operations of one instruction; more than one where a lane rule needs several steps."""
    common: Fields = {
        "mnemonic": instruction.name,
        "line": instruction.line,
        "text": instruction.text,
    }
    if instruction.guard is not None:
        common["guard"] = binder.out_predicate(instruction.guard)
        common["guard_negated"] = instruction.guard_negated
    if "aligned" in instruction.modifiers or instruction.name.startswith(_ALIGNED):
        common["aligned"] = True
    if instruction.name.startswith(_SYNCHRONISING):
        common["synchronises"] = True
    try:
        bound = _bind_varying(instruction, binder) or _bind_core(instruction, binder)
        bound = bound or _bind_lanes(instruction, binder) or _bind_handler(instruction, binder)
    except PtxError:
        raise
    except (IndexError, ValueError):
        # A rule met fewer operands, or others, than the instruction has.
        binder.fail("the operands are not those of the instruction")
    if bound is None:
        binder.fail(f"the simulator does not know the instruction {instruction.name}")
    if instruction.opcode not in _UNCHECKED:
        bound[0].setdefault("touched", sorted(binder.touched))
    return [{**common, **fields} for fields in bound]


def _bind_core(instruction: Instruction, binder: Binder) -> list[Fields] | None:
    # st.async, st.bulk and bar.sync have other rules than st and bar.warp.
    parts = (instruction.opcode, *instruction.modifiers)
    if parts[:2] in (("st", "async"), ("st", "bulk")):
        return None
    rule = CORE_RULES.get(".".join(parts[:2])) or CORE_RULES.get(instruction.opcode)
    return None if rule is None else [rule(instruction, binder)]


def _bind_lanes(instruction: Instruction, binder: Binder) -> list[Fields] | None:
    bindings = bind_lane(instruction, binder)
    if bindings is None:
        return None
    bound: list[Fields] = [
        {
            "kind": "lane",
            "function": binding.function,
            "lane_rows": binding.rows,
            "extra": binding.extra,
            "lane_flags": binding.flags,
            "immediate": binding.immediate,
            "touched": binding.touched32,
        }
        for binding in bindings
    ]
    if "sync" in instruction.modifiers:
        # shfl, vote, match, redux and elect name the lanes that take part last.
        bound[0]["members"] = binder.row(instruction.operands[-1], 32)
    return bound


def _bind_handler(instruction: Instruction, binder: Binder) -> list[Fields] | None:
    parts = (instruction.opcode, *instruction.modifiers)
    rules = handler_rules()
    for length in range(len(parts), 0, -1):
        rule = rules.get(".".join(parts[:length]))
        if rule is not None:
            return [{"kind": "handler", "handler": rule(instruction, binder)}]
    return None


def _bind_varying(instruction: Instruction, binder: Binder) -> list[Fields] | None:
    """``mov`` from a clock: read when it is executed."""
    for operand in instruction.operands:
        if isinstance(operand, Special) and operand.name not in VARYING:
            if not is_special(operand.name):
                binder.fail(f"the simulator does not know the special register {operand.name}")
        elif isinstance(operand, Special):
            if instruction.opcode != "mov":
                binder.fail(f"{operand.name} can only be read by mov")
            return [{"kind": "handler", "handler": _read_clock(operand.name, instruction, binder)}]
    return None


def _read_clock(name: str, instruction: Instruction, binder: Binder) -> Handler:
    wide = name in ("%clock64", "%globaltimer")
    out = binder.out(instruction.operands[0], 64 if wide else 32)
    shift = 32 if name.endswith("_hi") else 0

    def read(warp: Any, mask: int) -> None:
        value = (warp.cta.launch.clock >> shift) & (2**64 - 1 if wide else 2**32 - 1)
        file = warp.file64 if wide else warp.file32
        file[out, mask_array(mask)] = value

    return read


def _link(function: Function, entries: list[Fields], starts: list[int]) -> None:
    """Replace labels by numbers of operations, and mark where branches lead."""

    def target_of(label: str, line: int) -> int:
        if label not in function.labels:
            raise PtxError(f"line {line}: label {label} is not defined in {function.name}")
        target = starts[function.labels[label]]
        entries[target]["leader"] = True
        return target

    for number, entry in enumerate(entries):
        if "label" in entry:
            entry["target"] = target_of(entry.pop("label"), entry["line"])
        elif "list" in entry:
            name = entry.pop("list")
            if name not in function.branch_targets:
                raise PtxError(f"line {entry['line']}: .branchtargets {name} is not defined")
            entry["targets"] = [
                target_of(label, entry["line"]) for label in function.branch_targets[name]
            ]
        if entry["kind"].startswith("branch") and number + 1 < len(entries):
            entries[number + 1]["leader"] = True
