"""Bulk copies of bytes, their reductions, and cp.async."""

from __future__ import annotations

import numpy as np

from instruction_cases.model import BITS, Case, Rule, segments_of
from instruction_cases.text import FILL, copy_words, kernel, wait

__all__ = ["cases"]

REGION = 2048


def _poison(nbytes: int) -> np.ndarray:
    return np.full(nbytes, FILL & 255, np.uint8)


def _bulk_load(nbytes: int, at: int, source: int) -> Case:
    body = (
        copy_words("fill", "shared %r1", "fill", str(REGION))
        + "setp.ne.u32 %p0, %r0, 0;\n@%p0 bra ready;\nmbarrier.init.shared::cta.b64 [%r2], 1;\n"
        + "ready:\nfence.proxy.async.shared::cta;\nbar.sync 0;\n@%p0 bra issued;\n"
        + f"mbarrier.arrive.expect_tx.shared::cta.b64 %d3, [%r2], {nbytes};\n"
        + f"add.u32 %r6, %r1, {at};\nadd.u64 %d4, %d1, {source};\n"
        + "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
        + f"[%r6], [%d4], {nbytes}, [%r2];\nissued:\n"
        + wait("waiting")
        + "bar.sync 0;\n@!%p0 st.global.b32 [%d0], %r84;\nadd.u64 %d0, %d0, 16;\n"
        + copy_words("dump", "global %d0", "shared %r1", str(REGION))
    )
    source_bytes = (np.arange(REGION) * 7 % 251).astype(np.uint8)
    return Case(
        f"bulk-load {nbytes} at+{at} from+{source}", kernel(body), source_bytes,
        _poison(16 + REGION), segments_of([("completed", 4, 4, BITS), ("shared", REGION, 1, BITS)]),
        shared_bytes=REGION + 1024,
    )  # fmt: skip


def _bulk_inside(nbytes: int) -> Case:
    """Shared memory to shared memory of the same CTA, as a cluster address."""
    body = (
        copy_words("fill", "shared %r1", "global %d1", str(REGION))
        + "setp.ne.u32 %p0, %r0, 0;\n@%p0 bra ready;\nmbarrier.init.shared::cta.b64 [%r2], 1;\n"
        + "ready:\nfence.proxy.async.shared::cta;\nbar.sync 0;\n@%p0 bra issued;\n"
        + f"mbarrier.arrive.expect_tx.shared::cta.b64 %d3, [%r2], {nbytes};\n"
        + "add.u32 %r6, %r1, 1024;\nadd.u32 %r7, %r1, 16;\n"
        + "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes "
        + f"[%r6], [%r7], {nbytes}, [%r2];\nissued:\n"
        + wait("waiting")
        + "bar.sync 0;\n@!%p0 st.global.b32 [%d0], %r84;\nadd.u64 %d0, %d0, 16;\n"
        + copy_words("dump", "global %d0", "shared %r1", str(REGION))
    )
    source_bytes = (np.arange(REGION) * 11 % 241).astype(np.uint8)
    return Case(
        f"bulk-inside {nbytes}", kernel(body), source_bytes, _poison(16 + REGION),
        segments_of([("completed", 4, 4, BITS), ("shared", REGION, 1, BITS)]),
        shared_bytes=REGION + 1024,
    )  # fmt: skip


def _bulk_store(instruction: str, size: int, rule: Rule, source: np.ndarray, before: np.ndarray,
                nbytes: int) -> Case:  # fmt: skip
    body = (
        copy_words("fill", "shared %r1", "global %d1", str(source.nbytes))
        + "fence.proxy.async.shared::cta;\nbar.sync 0;\nsetp.ne.u32 %p0, %r0, 0;\n@%p0 bra done;\n"
        + f"add.u64 %d4, %d0, 32;\nadd.u32 %r6, %r1, 16;\n{instruction} [%d4], [%r6], {nbytes};\n"
        + "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;\ndone:\n"
    )
    return Case(
        f"{instruction} {nbytes}", kernel(body), source.view(np.uint8), before.view(np.uint8),
        segments_of([("global", before.nbytes // size, size, rule)]),
        shared_bytes=source.nbytes + 1024,
    )  # fmt: skip


_BULK_REDUCTIONS = {
    "u32": ("add", "min", "max", "inc", "dec", "and", "or", "xor"), "s32": ("add", "min", "max"),
    "u64": ("add", "min", "max"), "s64": ("min", "max"), "f32": ("add",), "f64": ("add",),
    "f16": ("noftz.add", "min", "max"), "bf16": ("noftz.add", "min", "max"),
}  # fmt: skip


def _bulk_reductions() -> list[Case]:
    found = []
    rng = np.random.default_rng(31)
    for element, operations in _BULK_REDUCTIONS.items():
        size = 2 if element.endswith("16") else int(element[1:]) // 8
        for operation in operations:
            count, kind = 512 // size, Rule("nan", element) if "f" in element else BITS
            if element in ("f16", "bf16"):
                # All bit patterns, NaN, infinities and denormals among them: each sum is rounded.
                source, before = rng.integers(0, 1 << 16, (2, count), np.uint16)
            elif element[0] == "f":
                source, before = rng.integers(1, 1000, (2, count)).astype(f"<f{size}") / 8
            elif operation in ("inc", "dec"):
                source, before = rng.integers(0, 6, (2, count), np.uint32)
            else:
                source, before = rng.integers(0, 1 << (8 * size), (2, count), f"<u{size}")
            name = operation if "." not in operation else "add.noftz"
            letters = {"and": "b32", "or": "b32", "xor": "b32"}.get(operation, element)
            form = "cp.reduce.async.bulk.global.shared::cta.bulk_group"
            found.append(_bulk_store(f"{form}.{name}.{letters}", size, kind, source, before, 384))
    return found


def _cp_async() -> Case:
    """Each thread copies once with its own src-size; then one with ignore-src."""
    body = copy_words("fill", "shared %r1", "fill", "3072", 32)
    body += "bar.sync 0;\n"
    offset = 0
    for size, cache in ((4, "ca"), (8, "ca"), (16, "ca"), (16, "cg")):
        body += (
            f"rem.u32 %r3, %r0, {size + 1};\nmul.lo.u32 %r4, %r0, {size};\nadd.u32 %r5, %r1, %r4;\n"
            f"add.u32 %r5, %r5, {offset};\ncvt.u64.u32 %d4, %r4;\nadd.u64 %d4, %d1, %d4;\n"
            f"cp.async.{cache}.shared.global [%r5], [%d4], {size}, %r3;\n"
        )
        offset += 32 * size
    body += (
        "mul.lo.u32 %r4, %r0, 16;\nadd.u32 %r5, %r1, %r4;\nadd.u32 %r5, %r5, 2048;\n"
        "cvt.u64.u32 %d4, %r4;\nadd.u64 %d4, %d1, %d4;\nand.b32 %r3, %r0, 1;\n"
        "setp.ne.u32 %p1, %r3, 0;\n"
        "cp.async.ca.shared.global [%r5], [%d4], 16, %p1;\n"
        "cp.async.commit_group;\ncp.async.wait_group 0;\nbar.sync 0;\n"
    )
    body += copy_words("dump", "global %d0", "shared %r1", "3072", 32)
    source = (np.arange(1024) * 7 % 251 + 1).astype(np.uint8)
    parts = [("cp.async.ca 4", 128, 1, BITS), ("cp.async.ca 8", 256, 1, BITS),
             ("cp.async.ca 16", 512, 1, BITS), ("cp.async.cg 16", 512, 1, BITS),
             ("untouched", 640, 1, BITS), ("cp.async.ca 16 ignore-src", 512, 1, BITS),
             ("rest", 512, 1, BITS)]  # fmt: skip
    return Case(
        "cp-async", kernel(body, block=32), source, _poison(3072), segments_of(parts), block=32,
        shared_bytes=4096,
    )  # fmt: skip


def cases() -> list[Case]:
    """All of this file."""
    found = [
        _bulk_load(*how) for how in ((16, 0, 0), (48, 16, 32), (512, 272, 16), (1008, 1024, 0))
    ]
    found += [_bulk_inside(nbytes) for nbytes in (16, 240, 1008)]
    words = np.arange(1, 513, dtype=np.uint32)
    for nbytes in (16, 272, 1024):
        before = np.full(512, FILL, np.uint32)
        form = "cp.async.bulk.global.shared::cta.bulk_group"
        found.append(_bulk_store(form, 4, BITS, words, before, nbytes))
    return [*found, *_bulk_reductions(), _cp_async()]
