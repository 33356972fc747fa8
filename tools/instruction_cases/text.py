"""Pieces of PTX text that the cases share."""

from __future__ import annotations

import textwrap

__all__ = ["FILL", "HEADER", "TRIES", "copy_words", "kernel", "wait"]

HEADER = ".version 9.0\n.target sm_90a\n.address_size 64\n"

FILL = 0xA5A5A5A5
"""What shared memory holds, and outputs, where nothing was written."""

TRIES = 2000
"""Waits give up after this many tries of 10 us: a wrong count shows as a flag, not as a hang."""


def kernel(body: str, *, params: str = "", map_: bool = False, block: int = 128) -> str:
    """A module with the entry ``k(p_out, p_in, [p_map], ...)``.

    The registers are %p0-15 (predicates), %h0-31 (16 bits), %r0-95 and %d0-31 (32 and 64 bits).
    %d0 is the output, %d1 the input, %r0 the thread, %r1 the first dynamic shared byte, at a
    multiple of 1024; %r2 an mbarrier that nobody has initialised, %d2 the tensor map where there
    is one.
    """
    given = ".param .u64 p_out, .param .u64 p_in"
    if map_:
        given += ", .param .align 64 .b8 p_map[128]"
    if params:
        given += ", " + params
    prologue = """\
        .reg .pred %p<16>;
        .reg .b16 %h<32>;
        .reg .b32 %r<96>;
        .reg .b64 %d<32>;
        .shared .align 8 .b8 bars[16];
        ld.param.u64 %d0, [p_out];
        ld.param.u64 %d1, [p_in];
        cvta.to.global.u64 %d0, %d0;
        cvta.to.global.u64 %d1, %d1;
        mov.u32 %r0, %tid.x;
        mov.u32 %r1, smem;
        add.u32 %r1, %r1, 1023;
        and.b32 %r1, %r1, 0xfffffc00;
        mov.u32 %r2, bars;
    """
    if map_:
        prologue += "        mov.b64 %d2, p_map;\n        cvta.param.u64 %d2, %d2;\n"
    return (
        HEADER
        + ".extern .shared .align 1024 .b8 smem[];\n"
        + f".visible .entry k({given})\n.maxntid {block}\n{{\n"
        + textwrap.dedent(prologue)
        + textwrap.dedent(body)
        + "ret;\n}\n"
    )


def copy_words(name: str, to: str, source: str, nbytes: str, block: int = 128) -> str:
    """The threads of the CTA copy ``nbytes`` (an operand) in words.

    ``to`` and ``source`` are texts such as "shared %r1" and "global %d1"; source may be "fill".
    Uses %r80-83, %d28-29 and %p15.
    """

    def place(what: str) -> tuple[str, str, str]:
        space, base = what.split()
        if space == "shared":
            return f"add.u32 %r82, {base}, %r80;", "shared", "%r82"
        return f"cvt.u64.u32 %d28, %r80; add.u64 %d29, {base}, %d28;", "global", "%d29"

    if source == "fill":
        load = f"mov.b32 %r81, {FILL:#x};"
    else:
        address, space, register = place(source)
        load = f"{address} ld.{space}.b32 %r81, [{register}];"
    address, space, register = place(to)
    return (
        f"shl.b32 %r80, %r0, 2;\n{name}:\n"
        f"setp.ge.u32 %p15, %r80, {nbytes};\n@%p15 bra {name}_end;\n"
        f"{load}\n{address}\nst.{space}.b32 [{register}], %r81;\n"
        f"add.u32 %r80, %r80, {4 * block};\nbra {name};\n{name}_end:\n"
    )


def wait(name: str, barrier: str = "%r2", parity: int = 0, done: str = "%r84") -> str:
    """Wait for a phase of an mbarrier; ``done`` becomes 1, or 0 where it did not come."""
    return (
        f"mov.b32 {done}, 0;\nmov.b32 %r85, 0;\n{name}:\n"
        f"mbarrier.try_wait.parity.shared::cta.b64 %p14, [{barrier}], {parity}, 10000;\n"
        f"@%p14 mov.b32 {done}, 1;\n@%p14 bra {name}_end;\n"
        f"add.u32 %r85, %r85, 1;\nsetp.lt.u32 %p14, %r85, {TRIES};\n@%p14 bra {name};\n"
        f"{name}_end:\n"
    )
