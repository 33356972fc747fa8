"""Descriptors of tcgen05 that no layout and no instruction allow; ptxas checks none of it."""

from __future__ import annotations

from planted.tensor_memory import (
    DESCRIPTOR,
    DONE,
    INSTRUCTION,
    STORE,
    allocate,
    free,
    load,
    multiply,
    operands,
    planted,
)
from planted.tiles import tile_bytes


def _wrong_constant(name, constant, *says):
    return _wrong(
        name,
        "descriptor-invalid",
        *says,
        constant=f"mov.b64 %rd11, {constant:#x}; //-\n    mov.b64 %rd11, {DESCRIPTOR:#x}; //+",
    )


def _wrong_word(name, word, *says):
    return _wrong(
        name,
        "instruction-descriptor-invalid",
        *says,
        word=f"mov.u32 %r13, {word:#x}; //-\n    mov.u32 %r13, {INSTRUCTION:#x}; //+",
    )


def _wrong_start(name, offset, *says):
    return _wrong(
        name,
        "descriptor-invalid",
        *says,
        b_offset=f"add.s64 %rd13, %rd12, {offset >> 4}; //-\n"
        f"    add.s64 %rd13, %rd12, {tile_bytes(128) >> 4}; //+",
    )


def _wrong(name, fault, *says, **parts):
    body = allocate() + operands() + multiply(mark="//!", **parts) + DONE + load() + STORE + free()
    return planted(name, fault, body, says=says)


_SWIZZLE = 7 << 61

FAULTS = [
    _wrong_start(
        "tile_off_its_swizzle_boundary",
        tile_bytes(128) + 128,
        "row 1 of its 128-byte swizzle pattern",
    ),
    _wrong_start("tile_past_the_end", 1 << 17, "beyond the end of the CTA's shared memory"),
    _wrong_constant("swizzle_code_illegal", DESCRIPTOR & ~_SWIZZLE | 3 << 61, "swizzle code 3"),
    _wrong_constant("constant_of_blackwell_missing", DESCRIPTOR & ~(1 << 46), "bits 46-48"),
    _wrong_constant("reserved_bits_of_a_descriptor", DESCRIPTOR | 1 << 53, "reserved bits 53-60"),
    _wrong_word("illegal_m", INSTRUCTION & ~(31 << 24) | 6 << 24, "M (bits 24-28) is 96"),
    _wrong_word("reserved_bit_of_an_instruction", INSTRUCTION | 1 << 23, "bit 23"),
    _wrong_word("formats_disagree", INSTRUCTION & ~(7 << 10), "A format bf16", "B format f16"),
]
