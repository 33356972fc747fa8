"""The report: pipes, roles, estimate, and its two forms."""

import io
import json

import numpy as np
import pytest
from rich.console import Console

from cakert.sim.faults import Where
from cakert.sim.report import Note, Report, pipe_of


@pytest.mark.parametrize(
    ("mnemonic", "pipe"),
    [
        ("add.s32", "alu"),
        ("add.rn.f32", "fma"),
        ("fma.rn.f32x2", "fma"),
        ("mul.wide.u32", "alu"),
        ("mul.rn.bf16x2", "fma"),
        ("max.f32", "alu"),
        ("ex2.approx.ftz.f32", "xu"),
        ("cvt.rn.bf16x2.f32", "alu"),
        ("cvt.rn.f32.s32", "xu"),
        ("cvt.u64.u32", "alu"),
        ("ld.shared.v4.b32", "lsu"),
        ("shfl.sync.bfly.b32", "lsu"),
        ("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", "tensor"),
        ("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16", "tensor"),
        ("wgmma.fence.sync.aligned", "sync"),
        ("tcgen05.mma.cta_group::1.kind::f16", "tensor"),
        ("tcgen05.ld.sync.aligned.32x32b.x8.b32", "lsu"),
        ("tcgen05.commit.cta_group::1.mbarrier::arrive::one.b64", "sync"),
        ("cp.async.cg.shared.global", "lsu"),
        ("cp.async.commit_group", "sync"),
        ("cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes", "tma"),
        ("cp.async.bulk.commit_group", "sync"),
        ("bra.uni", "branch"),
        ("mbarrier.try_wait.parity.shared::cta.b64", "sync"),
        ("vadd4.u32", "other"),
    ],
)
def test_pipes(mnemonic, pipe):
    assert pipe_of(mnemonic) == pipe


@pytest.fixture
def report():
    operations = [
        ("mov.u32", 4),
        ("ex2.approx.f32", 5),
        ("ld.shared.v4.b32", 6),
        ("fma.rn.f32", 7),
        ("bar.sync", 8),
    ]
    counts = np.array(
        [[2, 10, 0, 4, 1], [2, 30, 0, 8, 1], [2, 0, 5, 0, 0], [2, 5, 0, 1, 1]], np.uint64
    )
    wavefronts = np.zeros_like(counts)
    wavefronts[2, 2] = 7
    where = Where("k", 6, "ld.shared.v4.b32 ...", (0, 0, 0), 2)
    notes = [Note("some-finding", where, "looks odd.", 3)]
    return Report(
        "k", "sm_103a", (4, 1, 1), (128, 1, 1), (1, 1, 1), "lazy", 0, 2, operations, counts,
        wavefronts, {"tensor-cycles": 100, "tma-load-bytes": 4096}, notes,
    )  # fmt: skip


def test_roles_are_warps_that_execute_the_same(report):
    assert report.roles() == {"warps 0-1, 3": [0, 1, 3], "warp 2": [2]}
    roles = report.by_role()
    assert roles["warps 0-1, 3"]["xu"] == 45 and roles["warp 2"]["lsu"] == 5
    assert sum(sum(row.values()) for row in roles.values()) == report.instructions == 74


def test_estimate_divides_by_the_sms_and_knows_the_target(report):
    cycles = report.cycles()
    assert cycles == {
        "issue": 74 / 4 / 2,
        "fma": 13 * 32 / 128 / 2,
        "xu": 45 * 32 / 32 / 2,
        "shared": (7 + 5 * 4) / 2,
        "tensor": 50,
    }
    assert report.bound == "tensor"
    report.arch = "sm_100a"
    assert report.cycles()["xu"] == 45 and report.exp2 == 45 * 32
    report.counters["exp2"] = 17
    assert report.exp2 == 17


def test_json_says_everything(report):
    data = json.loads(report.to_json())
    assert data["bank_conflicts"] == 7 and data["counters"]["tma-load-bytes"] == 4096
    assert data["operations"][2] == {"line": 6, "mnemonic": "ld.shared.v4.b32", "count": 5}
    assert data["notes"][0]["name"] == "some-finding" and data["notes"][0]["count"] == 3


def test_table_prints(report):
    console = Console(width=120, file=io.StringIO())
    console.print(report.table())
    text = console.file.getvalue()
    for word in ("warps 0-1, 3", "tma-load-bytes", "4,096", "bound by", "[some-finding]"):
        assert word in text
