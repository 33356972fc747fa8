"""What `cakert inspect` finds, as frozen values; docs/inspect.md has the same fields as JSON.

Sizes and offsets are bytes. None means that the file does not say; nothing here is a guess.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Parameter:
    """One kernel parameter: its position, and where its bytes stand in the parameter block."""

    ordinal: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class ConstantBank:
    """A constant bank and the bytes that it takes."""

    bank: int
    size: int


@dataclass(frozen=True, slots=True)
class KernelRecord:
    """One entry point.

    Attributes
    ----------
    name, demangled
        As in the symbol table, and in C++ spelling; `demangled` equals `name` where that is not
        mangled, and is None where it cannot be read or no demangler is installed.
    parameters
        In the order of the source.
    parameter_bytes, parameter_base
        Size of the parameter block, and where it begins in constant bank 0.
    registers, max_registers
        Registers a thread, and the limit that the compiler was given (255: none).
    shared_bytes
        Static shared memory; from sm_90 on with 1024 reserved bytes where ptxas put them in.
    local_bytes, frame_bytes, stack_bytes
        Section of local memory; stack of the kernel alone; stack with what it calls. The last is
        None where nvlink could not tell (recursion, calls by pointer) and in code to be linked;
        ptxas by itself records a recursive kernel's own stack there.
    barriers
        Named barriers, the one of ``__syncthreads`` included.
    max_threads, required_threads
        ``__launch_bounds__`` (x, y, z; x is the product where the source gave one number), and the
        block that the kernel demands.
    cluster, max_cluster
        Cluster dimensions that the kernel demands, and the largest cluster it was compiled for.
    constant_banks
        Banks of this kernel alone, ascending.
    relocations
        Entries of the relocation tables of its code.
    code_bytes
        Machine code, with device functions placed in the kernel's section and with padding.
    tcgen05
        CTA group sizes of the tcgen05 instructions in it: (), (1,), (2,) or (1, 2).
    """

    name: str
    demangled: str | None
    parameters: tuple[Parameter, ...]
    parameter_bytes: int | None
    parameter_base: int | None
    registers: int | None
    max_registers: int | None
    shared_bytes: int
    local_bytes: int
    frame_bytes: int | None
    stack_bytes: int | None
    barriers: int
    max_threads: tuple[int, int, int] | None
    required_threads: tuple[int, int, int] | None
    cluster: tuple[int, int, int] | None
    max_cluster: int | None
    constant_banks: tuple[ConstantBank, ...]
    relocations: int
    code_bytes: int
    tcgen05: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CubinRecord:
    """One cubin.

    Attributes
    ----------
    target, toolkit
        As `cakert.cubins.describe_image` reads them; "unknown" where the file does not say.
    flags, abi_version
        e_flags and EI_ABIVERSION of the ELF header.
    relocatable
        Whether it has to be linked (``nvcc -rdc=true``) before a driver loads it.
    size
        Of the whole cubin.
    global_bytes
        ``__device__`` variables, with and without an initial value.
    constant_banks
        Banks that all kernels share (3: ``__constant__``, 4: addresses), ascending.
    kernels
        In the order of their code in the file.
    """

    target: str
    toolkit: str
    flags: int
    abi_version: int
    relocatable: bool
    size: int
    global_bytes: int
    constant_banks: tuple[ConstantBank, ...]
    kernels: tuple[KernelRecord, ...]


@dataclass(frozen=True, slots=True)
class PtxRecord:
    """PTX text: its ISA version ("9.0"), its target and its entry points."""

    version: str
    target: str
    kernels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FatbinEntry:
    """One image of a fatbin.

    Attributes
    ----------
    kind
        "elf" (a cubin), "ptx", "lto" (code for the linker, not read any further), or "unknown".
    arch
        From the entry's header: "sm_90a" for a cubin, "compute_90a" for the others.
    compression
        "none", "zstd" or "lz4".
    stored_size, size
        Bytes in the file, and after decompression; of PTX without the padding behind the text.
    file_name
        Source file that the header names (builds with ``-G`` or ``-lineinfo``), else "".
    cubin, ptx
        What the image holds; None but for that kind.
    """

    kind: str
    arch: str
    compression: str
    stored_size: int
    size: int
    file_name: str
    cubin: CubinRecord | None
    ptx: PtxRecord | None


@dataclass(frozen=True, slots=True)
class Fatbin:
    """One fatbin.

    Attributes
    ----------
    section
        The section of the host file that holds it; "" in a fatbin file.
    offset, size
        Its place in the file.
    entries
        Its images.
    member
        The member of an archive that has the section; "" in other files.
    """

    section: str
    offset: int
    size: int
    entries: tuple[FatbinEntry, ...]
    member: str = ""

    @property
    def place(self) -> str:
        """Member, section and offset, for people."""
        section = self.section or "fatbin"
        return (
            f"{self.member}:{section} at {self.offset}"
            if self.member
            else (f"{section} at {self.offset}")
        )


@dataclass(frozen=True, slots=True)
class Inspection:
    """A file: of kind "cubin" it has `cubin`; "fatbin", "host" and "archive" have `fatbins`."""

    name: str
    kind: str
    size: int
    cubin: CubinRecord | None
    fatbins: tuple[Fatbin, ...]

    @property
    def cubins(self) -> tuple[CubinRecord, ...]:
        """Every cubin of the file, in its order."""
        if self.cubin is not None:
            return (self.cubin,)
        return tuple(
            entry.cubin
            for fatbin in self.fatbins
            for entry in fatbin.entries
            if entry.cubin is not None
        )
