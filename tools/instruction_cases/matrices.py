"""Warp-level matrices: ldmatrix, stmatrix, movmatrix, mma.sync."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from instruction_cases.model import BITS, Case, Rule, segments_of
from instruction_cases.text import FILL, copy_words, kernel

__all__ = ["cases"]

LANES = 32
NUMBERS = {"f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16),
           "f32": np.dtype(np.float32)}  # fmt: skip


def _registers(first: int, count: int) -> str:
    return "{" + ", ".join(f"%r{first + i}" for i in range(count)) + "}"


def _moves() -> Case:
    """All forms in one warp. Input: 1024 bytes of matrices, a row offset a lane, words."""
    body = copy_words("fill", "shared %r1", "global %d1", "1024", 32)
    body += (
        "bar.sync 0;\nshl.b32 %r3, %r0, 2;\ncvt.u64.u32 %d3, %r3;\nadd.u64 %d4, %d1, %d3;\n"
        "ld.global.b32 %r4, [%d4+1024];\nadd.u32 %r5, %r1, %r4;\nadd.u64 %d5, %d0, %d3;\n"
    )
    body += "".join(f"ld.global.b32 %r{20 + i}, [%d4+{1152 + 128 * i}];\n" for i in range(4))
    parts, at = [], 0
    for trans in ("", ".trans"):
        for count in (1, 2, 4):
            name = f"ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16"
            body += f"{name} {_registers(10, count)}, [%r5];\n"
            body += "".join(
                f"st.global.b32 [%d5+{at + 128 * i}], %r{10 + i};\n" for i in range(count)
            )
            parts.append((name, LANES * count, 4, BITS))
            at += 128 * count
    body += f"movmatrix.sync.aligned.m8n8.trans.b16 %r10, %r20;\nst.global.b32 [%d5+{at}], %r10;\n"
    parts.append(("movmatrix", LANES, 4, BITS))
    at += 128
    for trans in ("", ".trans"):
        for count in (1, 2, 4):
            name = f"stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16"
            label = f"s{count}{trans[1:]}"
            body += "bar.sync 0;\n" + copy_words(f"f{label}", "shared %r1", "fill", "1024", 32)
            body += f"bar.sync 0;\n{name} [%r5], {_registers(20, count)};\nbar.sync 0;\n"
            body += f"add.u64 %d6, %d0, {at};\n"
            body += copy_words(f"d{label}", "global %d6", "shared %r1", "1024", 32)
            parts.append((name, 256, 4, BITS))
            at += 1024
    rng = np.random.default_rng(5)
    source = np.concatenate([
        rng.integers(0, 1 << 32, 256, np.uint32),
        (16 * rng.permutation(64)[:LANES]).astype(np.uint32),
        rng.integers(0, 1 << 32, 4 * LANES, np.uint32),
    ])  # fmt: skip
    return Case(
        "matrix-moves", kernel(body, block=32), source.view(np.uint8),
        np.full(at, FILL & 255, np.uint8), segments_of(parts), block=32, shared_bytes=2048,
    )  # fmt: skip


def _mma(k: int, element: str, result: str, values: str) -> Case:
    """Input: registers of A, B and C, each 32 words; for "random" twice, the second absolute."""
    num_a, num_b = k // 4, k // 8
    num_c = 4 if result == "f32" else 2
    name = f"mma.sync.aligned.m16n8k{k}.row.col.{result}.{element}.{element}.{result}"
    total = num_a + num_b + num_c
    rounds = 2 if values == "random" else 1
    body = "shl.b32 %r3, %r0, 2;\ncvt.u64.u32 %d3, %r3;\n"
    body += "add.u64 %d4, %d1, %d3;\nadd.u64 %d5, %d0, %d3;\n"
    for i in range(rounds):
        start = 128 * total * i
        body += "".join(
            f"ld.global.b32 %r{10 + j}, [%d4+{start + 128 * j}];\n" for j in range(total)
        )
        body += (
            f"{name} {_registers(40, num_c)}, {_registers(10, num_a)}, "
            f"{_registers(10 + num_a, num_b)}, {_registers(10 + num_a + num_b, num_c)};\n"
        )
        start = 128 * num_c * i
        body += "".join(
            f"st.global.b32 [%d5+{start + 128 * j}], %r{40 + j};\n" for j in range(num_c)
        )
    rng = np.random.default_rng(k + len(name))
    a = (num_a + num_b) * 64
    c = num_c * LANES * (1 if result == "f32" else 2)
    if values == "integers":
        ab, add = rng.integers(-4, 5, a), rng.integers(-20, 21, c)
    else:
        ab, add = rng.normal(size=a), rng.normal(size=c)
    parts = []
    for i in range(rounds):
        for numbers, kind in ((ab, element), (add, result)):
            parts.append((np.abs(numbers) if i else numbers).astype(NUMBERS[kind]).view(np.uint8))
    size = 4 if result == "f32" else 2
    # f16 accumulators: the result is rounded to 11 bits, what happens before is not published.
    rule = Rule("sum", result, 2.0**-20 if result == "f32" else 2.0**-10)
    segments = [(name, c, size, BITS if rounds == 1 else rule)]
    if rounds == 2:
        scale = Rule("near", result, 2.0**-20 if result == "f32" else 2.0**-9)
        segments.append((f"{name} absolute", c, size, scale))
    return Case(
        f"mma-sync k{k} {element} {result} {values}", kernel(body, block=32), np.concatenate(parts),
        np.full(rounds * num_c * 128, FILL & 255, np.uint8), segments_of(segments), block=32,
    )  # fmt: skip


def cases() -> list[Case]:
    """All of this file."""
    forms = [(k, element, "f32") for k in (8, 16) for element in ("f16", "bf16")]
    forms += [(8, "f16", "f16"), (16, "f16", "f16")]
    return [_moves()] + [_mma(*form, values) for form in forms for values in ("integers", "random")]
