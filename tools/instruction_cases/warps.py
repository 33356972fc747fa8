"""What lanes tell each other; mbarriers; atomics; who is elected."""

from __future__ import annotations

import numpy as np

from instruction_cases.model import BITS, STORED, Case, Rule, segments_of
from instruction_cases.probes import Probe, family, integer_operands
from instruction_cases.text import FILL, kernel

__all__ = ["cases"]

ALL = "0xffffffff"


def _shuffles() -> list[Case]:
    """Four warps; sources and clamp words differ from lane to lane."""
    rng = np.random.default_rng(80)
    value = rng.integers(0, 1 << 32, 128, np.uint32)
    lane = integer_operands(rng, 128, 32, 1)[0]
    clamp = rng.choice(np.array([0x1F, 0, 0x1C1F, 0x181F, 0x0F, 0x1807, 0x101F, 0x1E1F, 0x1F1F,
                                 0x1C03, 0x0A15], np.uint32), 128)  # fmt: skip
    probes = []
    for mode in ("up", "down", "bfly", "idx"):
        # The predicate says whether the source was in range; where not, a lane gets its own value.
        probes.append(
            Probe(
                f"shfl.sync.{mode}.b32 {{d}}|{{p}}, {{a}}, {{b}}, {{c}}, {ALL};",
                label=f"shfl.{mode}",
            )
        )
        probes.append(
            Probe(f"shfl.sync.{mode}.b32 {{t}}|{{p}}, {{a}}, {{b}}, {{c}}, {ALL}; "
                  "selp.b32 {d}, 1, 0, {p};", label=f"shfl.{mode} predicate")
        )  # fmt: skip
        by = 5 if mode == "bfly" else 3
        probes += [
            Probe(f"shfl.sync.{mode}.b32 {{d}}, {{a}}, {by}, {word}, {ALL};",
                  label=f"shfl.{mode} {word:#x}")
            for word in (0x1F, 0x181F, 0x1C03, 0)
        ]  # fmt: skip
    return [family("shuffles", probes, value, lane, clamp)]


def _votes() -> list[Case]:
    rng = np.random.default_rng(81)
    values = rng.integers(0, 5, 128).astype(np.uint32)
    values[32:64] = 7
    wide = rng.integers(0, 1 << 32, 128, np.uint32)
    third = rng.integers(0, 3, 128).astype(np.uint32)
    probes = [
        Probe("setp.ne.u32 {q}, {a}, 3; vote.sync.ballot.b32 {d}, {q}, " + ALL + ";",
              label="ballot"),
        Probe(f"match.any.sync.b32 {{d}}, {{a}}, {ALL};"),
        Probe(f"match.all.sync.b32 {{d}}|{{p}}, {{a}}, {ALL};"),
        Probe(f"match.all.sync.b32 {{t}}|{{p}}, {{a}}, {ALL}; selp.b32 {{d}}, 1, 0, {{p}};",
              label="match.all predicate"),
        Probe(f"mov.b64 {{w}}, {{{{{{a}}, {{c}}}}}}; match.any.sync.b64 {{d}}, {{w}}, {ALL};",
              label="match.any b64"),
    ]  # fmt: skip
    for mode in ("all", "any", "uni"):
        probes += [
            Probe(f"setp.ne.u32 {{q}}, {{a}}, {value}; "
                  f"vote.sync.{mode}.pred {{p}}, {{q}}, {ALL}; selp.b32 {{d}}, 1, 0, {{p}};",
                  label=f"vote.{mode} {value}")
            for value in (3, 7)
        ]  # fmt: skip
    probes += [
        Probe(f"redux.sync.{operation} {{d}}, {{b}}, {ALL};")
        for operation in ("add.u32", "add.s32", "min.u32", "max.u32", "min.s32", "max.s32",
                          "and.b32", "or.b32", "xor.b32")
    ]  # fmt: skip
    # Lanes of thirds meet among themselves.
    thirds = (
        "mov.b32 {{d}}, 0; setp.ne.u32 {{p}}, {{c}}, 0; vote.sync.ballot.b32 {{t}}, {{p}}, {0}; "
        "@{{p}} redux.sync.add.u32 {{d}}, {{b}}, {{t}}; "
        "@{{p}} match.any.sync.b32 {{u}}, {{a}}, {{t}}; @{{p}} xor.b32 {{d}}, {{d}}, {{u}};"
    )
    probes.append(Probe(thirds.format(ALL), label="redux and match of some lanes"))
    return [family("votes", probes, values, wide, third)]


def _elections() -> list[Case]:
    """The lanes of a mask elect; each mask stands in the text. Result: word and predicate."""
    found = []
    masks = (0xFFFFFFFF, 0xFFFFFFFE, 0x80000000, 0x00010000, 0xF0F0F0F0, 0x00000006, 0xAAAAAAAA)
    body, parts = "shl.b32 %r3, %r0, 2;\ncvt.u64.u32 %d3, %r3;\nadd.u64 %d5, %d0, %d3;\n", []
    for i, mask in enumerate(masks):
        body += (
            f"mov.b32 %r10, 99;\nmov.b32 %r11, 99;\nshr.u32 %r4, {mask:#x}, %r0;\n"
            "and.b32 %r4, %r4, 1;\nsetp.eq.u32 %p1, %r4, 0;\n"
            f"@%p1 bra past{i};\nelect.sync %r10|%p2, {mask:#x};\nselp.b32 %r11, 1, 0, %p2;\n"
            f"past{i}:\nbar.warp.sync {ALL};\n"
            f"st.global.b32 [%d5+{256 * i}], %r10;\nst.global.b32 [%d5+{256 * i + 128}], %r11;\n"
        )
        parts += [(f"elect.sync {mask:#010x} lane", 32, 4, BITS),
                  (f"elect.sync {mask:#010x} predicate", 32, 4, BITS)]  # fmt: skip
    found.append(_one_warp("elections", body, parts))
    # activemask after a branch is whatever the hardware converged; nothing to be held to.
    body = (
        "shl.b32 %r3, %r0, 2;\ncvt.u64.u32 %d3, %r3;\nadd.u64 %d5, %d0, %d3;\n"
        "and.b32 %r4, %r0, 3;\nsetp.eq.u32 %p1, %r4, 0;\n@%p1 bra other;\nactivemask.b32 %r10;\n"
        "bra join;\nother:\nactivemask.b32 %r10;\njoin:\nactivemask.b32 %r11;\n"
        "st.global.b32 [%d5], %r10;\nst.global.b32 [%d5+128], %r11;\n"
    )
    found.append(
        _one_warp("activemask", body, [("inside", 32, 4, STORED), ("after", 32, 4, STORED)])
    )
    return found


def _one_warp(name: str, body: str, parts: list[tuple[str, int, int, Rule]]) -> Case:
    segments = segments_of(parts)
    return Case(
        name, kernel(body, block=32), np.zeros(16, np.uint8),
        np.full(segments[-1].end, FILL & 255, np.uint8), segments, block=32, shared_bytes=2048,
    )  # fmt: skip


def _mbarriers() -> Case:
    """One thread drives one barrier of three arrivals; after each step both parities are asked."""
    steps = (
        ("init", ""),
        ("arrive", "mbarrier.arrive.shared::cta.b64 %d10, [%r2];"),
        ("arrive 2", "mbarrier.arrive.shared::cta.b64 %d10, [%r2], 2;"),
        ("expect_tx", "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r2], 64;"),
        ("arrive 3 with tx", "mbarrier.arrive.shared::cta.b64 %d10, [%r2], 3;"),
        ("complete_tx", "mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%r2], 64;"),
        ("arrive_drop", "mbarrier.arrive_drop.shared::cta.b64 %d10, [%r2];"),
        ("arrive of two", "mbarrier.arrive.shared::cta.b64 %d10, [%r2], 2;"),
        ("one of two", "mbarrier.arrive.shared::cta.b64 %d10, [%r2];"),
        ("two of two", "mbarrier.arrive.shared::cta.b64 %d10, [%r2];"),
        ("arrive.expect_tx", "mbarrier.arrive.expect_tx.shared::cta.b64 %d10, [%r2], 16;"),
        ("the other", "mbarrier.arrive.shared::cta.b64 %d10, [%r2];"),
        ("complete", "mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%r2], 16;"),
    )
    body = "setp.ne.u32 %p0, %r0, 0;\n@%p0 bra done;\nmbarrier.init.shared::cta.b64 [%r2], 3;\n"
    parts = []
    for i, (name, text) in enumerate(steps):
        state = "arrive" in text
        body += text + "\n"
        body += "mbarrier.pending_count.b64 %r10, %d10;\n" if state else "mov.b32 %r10, 0;\n"
        for parity in (0, 1):
            body += (
                f"mbarrier.test_wait.parity.shared::cta.b64 %p1, [%r2], {parity};\n"
                f"selp.b32 %r{11 + parity}, 1, 0, %p1;\n"
            )
        body += (
            "mbarrier.test_wait.shared::cta.b64 %p1, [%r2], %d10;\n" if state else
            "setp.ne.u32 %p1, %r0, %r0;\n"
        ) + "selp.b32 %r13, 1, 0, %p1;\n"  # fmt: skip
        body += "".join(f"st.global.b32 [%d0+{16 * i + 4 * j}], %r{10 + j};\n" for j in range(4))
        parts.append((f"mbarrier {name}: pending, parity 0, parity 1, state", 4, 4, BITS))
    return _one_warp("mbarriers", body + "done:\n", parts)


def _atomics() -> list[Case]:
    """One thread, in global and in shared memory: old values, then the final one."""
    found = []
    steps = {
        "b32": [("inc.u32", 4, 3)] * 7 + [("dec.u32", 4, 3)] * 7 + [
            ("exch.b32", 4, 9), ("dec.u32", 4, 5), ("inc.u32", 4, 2), ("add.u32", 4, 0xFFFFFFFF),
            ("min.s32", 4, 0x80000005), ("min.u32", 4, 7), ("max.s32", 4, 0xFFFFFFF0),
            ("max.u32", 4, 0xFFFFFF00), ("and.b32", 4, 0xFF00FF), ("or.b32", 4, 0x10101010),
            ("xor.b32", 4, 0x12345678), ("exch.b32", 4, 0x3F800000), ("add.f32", 4, 0x33800000),
            ("add.f32", 4, 0x33800001), ("exch.b32", 4, 0x7F7FFFFF), ("add.f32", 4, 0x7F7FFFFF),
            ("exch.b32", 4, 1), ("add.f32", 4, 2), ("exch.b32", 4, 0x80000000), ("add.f32", 4, 0),
            ("add.noftz.f16x2", 4, 0x3C010001), ("add.noftz.f16x2", 4, 0x7BFF0001),
            ("exch.b32", 4, 0x3F800001), ("add.noftz.bf16x2", 4, 0x3B800001),
        ],
        "b64": [("add.u64", 8, (1 << 64) - 1), ("min.s64", 8, 1 << 63), ("max.u64", 8, 77),
                ("exch.b64", 8, 1), ("add.f64", 8, 2), ("and.b64", 8, 3), ("xor.b64", 8, 1 << 40)],
    }  # fmt: skip
    for space in ("global", "shared"):
        for width, table in steps.items():
            size = int(width[1:]) // 8
            old = "%r10" if size == 4 else "%d10"
            address = "%d0" if space == "global" else "%r1"
            body = "setp.ne.u32 %p0, %r0, 0;\n@%p0 bra done;\n"
            body += f"st.{space}.{width} [{address}], 0;\n"
            parts = [("final", 1, size, BITS)]
            for i, (operation, _, value) in enumerate(table):
                source = "%r11" if size == 4 else "%d11"
                body += f"mov.{width} {source}, {value:#x};\n"
                body += f"atom.{space}.{operation} {old}, [{address}], {source};\n"
                body += f"st.global.{width} [%d0+{size + size * i}], {old};\n"
                rule = (
                    Rule("nan", "f16") if "f16x2" in operation and "bf" not in operation else BITS
                )
                parts.append((f"atom.{space}.{operation} {value:#x}", 1, size, rule))
            for i, (wanted, value) in enumerate(((0, 5), (5, 6)), len(table)):
                # The first finds something else, unless the value is 0 by then.
                body += f"mov.{width} {old}, {wanted};\n"
                body += f"atom.{space}.cas.{width} {old}, [{address}], {old}, {value};\n"
                body += f"st.global.{width} [%d0+{size + size * i}], {old};\n"
                parts.append((f"atom.{space}.cas {wanted} {value}", 1, size, BITS))
            body += (
                f"ld.{space}.{width} {old}, [{address}];\nst.global.{width} [%d0], {old};\ndone:\n"
            )
            found.append(_one_warp(f"atomics-{space}-{width}", body, parts))
    return found


def cases() -> list[Case]:
    """All of this file."""
    return [*_shuffles(), *_votes(), *_elections(), _mbarriers(), *_atomics()]
