"""Bytes of one cubin -> `CubinRecord`.

Layout relied upon, besides that of `cakert.inspect.nvinfo`, compared with cuobjdump and nvdisasm in
tests/inspect/test_agreement.py: an entry point is a function symbol with bit 4 of st_other set
(nvdisasm: STO_CUDA_ENTRY), its code the section ``.text.<kernel>``, whose sh_info has the registers
in bits 24-31 (before sm_90) and whose sh_flags have the barriers in bits 20-26 (ABI 7; nvdisasm:
SHF_BARRIERS) where no attribute names them. ``.nv.shared.<kernel>``,
``.nv.local.<kernel>`` and ``.nv.constant<bank>.<kernel>`` belong to it; without a kernel's name
they belong to the module.
"""

from __future__ import annotations

import re
import struct
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from cakert.cubins.elf import Section, failure, read_sections, read_string
from cakert.cubins.image import describe_image
from cakert.inspect import nvinfo
from cakert.inspect.demangle import demangle
from cakert.inspect.records import ConstantBank, CubinRecord, KernelRecord

_SYMBOL = struct.Struct("<IBBHQQ")  # Elf64_Sym
_STT_FUNC = 2
_STO_CUDA_ENTRY = 0x10
_SHT_SYMTAB, _SHT_RELA, _SHT_NOBITS, _SHT_REL = 2, 4, 8, 9
_RELOCATION_SIZE = {_SHT_RELA: 24, _SHT_REL: 16}
_ET_REL = 1
_CONSTANT = re.compile(r"\.nv\.constant(\d{1,2})(?:\.(.+))?", re.DOTALL)


@dataclass(slots=True)
class _Function:
    """What ``.nv.info`` says about the function of one symbol."""

    registers: int | None = None
    frame_bytes: int | None = None
    stack_bytes: int | None = None


@dataclass(slots=True)
class _Module:
    """The parts of a cubin, collected in one pass over its sections."""

    code: dict[int, Section] = field(default_factory=dict)  # by section index
    info: dict[str, Section] = field(default_factory=dict)  # by kernel
    sizes: Counter[tuple[str, str]] = field(default_factory=Counter)  # by (what, kernel)
    banks: dict[str, list[ConstantBank]] = field(default_factory=lambda: defaultdict(list))
    relocations: Counter[int] = field(default_factory=Counter)  # by section of the code
    symbols: Section | None = None
    global_bytes: int = 0


def _bytes_of(data: bytes, section: Section) -> bytes:
    if section.type == _SHT_NOBITS:
        return b""
    return data[section.offset : section.offset + section.size]


def _collect(sections: tuple[Section, ...]) -> _Module:
    module = _Module()
    for section in sections:
        name = section.name
        if section.type == _SHT_SYMTAB:
            module.symbols = module.symbols or section
        elif section.type in _RELOCATION_SIZE:
            count = section.size // _RELOCATION_SIZE[section.type]
            module.relocations[section.info] += count
        elif name.startswith(".text."):
            module.code[section.index] = section
        elif name.startswith(".nv.info."):
            module.info[name.removeprefix(".nv.info.")] = section
        elif name == ".nv.info":
            module.info[""] = section
        elif name in (".nv.global", ".nv.global.init"):
            module.global_bytes += section.size
        elif found := _CONSTANT.fullmatch(name):
            bank = ConstantBank(int(found[1]), section.size)
            module.banks[found[2] or ""].append(bank)
        else:
            for what in (".nv.shared.", ".nv.local."):
                if name.startswith(what):
                    module.sizes[what, name.removeprefix(what)] += section.size
    return module


def _read_functions(data: bytes, section: Section | None) -> dict[int, _Function]:
    """By symbol index."""
    functions: dict[int, _Function] = defaultdict(_Function)
    for attribute in nvinfo.read_attributes(_bytes_of(data, section) if section else b""):
        if attribute.code in (nvinfo.REGCOUNT, nvinfo.FRAME_SIZE, nvinfo.MIN_STACK_SIZE):
            symbol, value = attribute.words(2)
            if attribute.code == nvinfo.REGCOUNT:
                functions[symbol].registers = value
            elif attribute.code == nvinfo.FRAME_SIZE:
                functions[symbol].frame_bytes = value
            else:
                unknown = value == nvinfo.UNKNOWN_STACK
                functions[symbol].stack_bytes = None if unknown else value
    return functions


def _three(attributes: dict[int, nvinfo.Attribute], code: int) -> tuple[int, int, int] | None:
    if code not in attributes:
        return None
    x, y, z = attributes[code].words(3)
    return x, y, z


def _kernel(
    data: bytes, module: _Module, name: str, code: Section, function: _Function
) -> KernelRecord:
    section = module.info.get(name)
    attributes: dict[int, nvinfo.Attribute] = {}
    parameters = []
    for attribute in nvinfo.read_attributes(_bytes_of(data, section) if section else b""):
        attributes[attribute.code] = attribute
        if attribute.code in (nvinfo.KPARAM_INFO, nvinfo.KPARAM_INFO_V2):
            parameters.append(nvinfo.read_parameter(attribute))

    def short(code: int) -> int | None:
        return attributes[code].value if code in attributes else None

    base = None
    if nvinfo.PARAM_CBANK in attributes:
        base = attributes[nvinfo.PARAM_CBANK].words(2)[1] & 0xFFFF
    size = short(nvinfo.CBANK_PARAM_SIZE)
    if size is None and attributes and not parameters:
        size = 0  # only kernels with parameters have the attribute
    rank = None
    if nvinfo.MAX_CLUSTER_RANK in attributes:
        (rank,) = attributes[nvinfo.MAX_CLUSTER_RANK].words(1)
    barriers = short(nvinfo.NUM_BARRIERS)
    groups = ((1, nvinfo.TCGEN05_1CTA_USED), (2, nvinfo.TCGEN05_2CTA_USED))
    return KernelRecord(
        name=name,
        demangled=demangle(name),
        parameters=tuple(sorted(parameters, key=lambda parameter: parameter.ordinal)),
        parameter_bytes=size,
        parameter_base=base,
        registers=function.registers if function.registers is not None else code.info >> 24 or None,
        max_registers=short(nvinfo.MAXREG_COUNT),
        shared_bytes=module.sizes[".nv.shared.", name],
        local_bytes=module.sizes[".nv.local.", name],
        frame_bytes=function.frame_bytes,
        stack_bytes=function.stack_bytes,
        barriers=barriers if barriers is not None else code.flags >> 20 & 0x7F,
        max_threads=_three(attributes, nvinfo.MAX_THREADS),
        required_threads=_three(attributes, nvinfo.REQNTID),
        cluster=_three(attributes, nvinfo.CTA_PER_CLUSTER),
        max_cluster=rank,
        constant_banks=_sorted_banks(module, name),
        relocations=module.relocations[code.index],
        code_bytes=code.size,
        tcgen05=tuple(size for size, used in groups if used in attributes),
    )


def _sorted_banks(module: _Module, name: str) -> tuple[ConstantBank, ...]:
    return tuple(sorted(module.banks.get(name, ()), key=lambda bank: bank.bank))


def _read_kernels(
    data: bytes, sections: tuple[Section, ...], module: _Module
) -> tuple[KernelRecord, ...]:
    if module.symbols is None:
        return ()
    functions = _read_functions(data, module.info.get(""))
    names = _bytes_of(data, sections[module.symbols.link])
    table = _bytes_of(data, module.symbols)
    table = table[: len(table) // _SYMBOL.size * _SYMBOL.size]
    found: dict[str, tuple[str, Section, _Function]] = {}
    # A cubin of a library has 10^5 symbols: pyelftools takes 50 us to parse one.
    for index, (at, info, other, section, _, _) in enumerate(_SYMBOL.iter_unpack(table)):
        if info & 0xF != _STT_FUNC or not other & _STO_CUDA_ENTRY or section not in module.code:
            continue
        # The section's name is the kernel's too, so a symbol must agree with it.
        code = module.code[section]
        name = read_string(names, at)
        if code.name != f".text.{name}":
            raise ValueError(f"symbol {index} ({name[:80]!r}) is not the kernel of {code.name!r}")
        if name in found:
            raise ValueError(f"symbol {index} is a second kernel {name[:80]!r}")
        found[name] = (name, code, functions.get(index, _Function()))
    in_order = sorted(found.values(), key=lambda kernel: kernel[1].index)
    return tuple(_kernel(data, module, *kernel) for kernel in in_order)


def inspect_cubin(data: bytes, name: str) -> CubinRecord:
    """What a cubin says about itself and its kernels.

    Parameters
    ----------
    data
        The whole cubin.
    name
        What messages call it.

    Raises
    ------
    CubinError
        It is not a sound cubin; names the file and the reason.
    """
    image = describe_image(data, name)
    sections = read_sections(data)
    module = _collect(sections)
    try:
        # Each is read once, so the time is linear in the file unless they overlap.
        if sum(section.size for section in module.info.values()) > len(data):
            raise ValueError("its .nv.info sections overlap")
        kernels = _read_kernels(data, sections, module)
    except ValueError as problem:
        raise failure(name, str(problem)) from problem
    return CubinRecord(
        target=image.target,
        toolkit=image.toolkit,
        flags=image.flags,
        abi_version=data[8],
        relocatable=struct.unpack_from("<H", data, 16)[0] == _ET_REL,
        size=len(data),
        global_bytes=module.global_bytes,
        constant_banks=_sorted_banks(module, ""),
        kernels=kernels,
    )
