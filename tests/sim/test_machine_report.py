"""The report on numbers made up: pipes, roles, estimate, and its forms."""

import io
import json
import subprocess
import sys

import numpy as np
import pytest
from rich.console import Console

from cakert.sim.faults import Where
from cakert.sim.report import Note, Report, pipe_of
from cakert.sim.report_roles import group


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


OPERATIONS = [
    ("mov.u32", 4),
    ("ex2.approx.f32", 5),
    ("ld.shared.v4.b32", 6),
    ("fma.rn.f32", 7),
    ("bar.sync", 8),
]
COUNTS = [[2, 10, 0, 4, 1], [2, 30, 0, 8, 1], [2, 0, 5, 0, 0], [2, 5, 0, 1, 1]]


def make(operations=OPERATIONS, counts=COUNTS, *, lanes=None, counters=None, arch="sm_103a"):
    counts = np.array(counts, np.uint64)
    lanes = 32 * counts if lanes is None else np.array(lanes, np.uint64)
    wavefronts = np.zeros_like(counts)
    return Report(
        "k", arch, (4, 1, 1), (32 * len(counts), 1, 1), (1, 1, 1), "lazy", 0, 2, operations,
        counts, lanes, wavefronts, counters or {},
    )  # fmt: skip


@pytest.fixture
def report():
    made = make(counters={"tensor-cycles": 100, "tma-load-bytes": 4096})
    made.wavefronts[2, 2] = 7
    where = Where("k", 6, "ld.shared.v4.b32 ...", (0, 0, 0), 2)
    made.notes = [Note("some-finding", where, "looks odd.", 3)]
    return made


def test_roles_are_warps_that_run_the_same_code(report):
    assert report.roles() == {"warps 0-1, 3": [0, 1, 3], "warp 2": [2]}
    roles = report.by_role()
    assert roles["warps 0-1, 3"]["xu"] == 45
    assert roles["warp 2"]["lsu"] == 5
    assert sum(sum(row.values()) for row in roles.values()) == report.instructions == 74


def test_a_little_more_than_its_fellows_leaves_a_warp_in_its_role():
    # The prologue; the setup of warp 0; two loops; warp 3 has the prologue only, warp 4 nothing.
    counts = np.array(
        [[5, 8, 90, 0], [5, 0, 40, 0], [5, 0, 0, 70], [5, 0, 0, 0], [0, 0, 0, 0]], np.uint64
    )
    assert group(counts) == [[0, 1], [2], [3], [4]]
    counts[0, 1] = 12  # 12 of 107: more than a tenth
    assert group(counts) == [[0], [1], [2], [3], [4]]


def test_roles_do_not_see_what_no_lane_executes():
    operations = [("mov.u32", 1), ("cp.async.bulk.commit_group", 2)]
    guarded = make(operations, [[9, 9], [9, 9]], lanes=[[288, 9], [288, 0]])
    assert guarded.roles() == {"warp 0": [0], "warp 1": [1]}


def test_jobs_are_of_those_who_do_most_of_it():
    operations = [
        ("mov.u32", 1),
        ("cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes", 2),
        ("tcgen05.mma.cta_group::1.kind::f16", 3),
        ("ex2.approx.ftz.f32", 4),
        ("ex2.approx.ftz.f32", 5),
        ("st.global.v4.b32", 6),
        ("tcgen05.ld.sync.aligned.32x32b.x8.b32", 7),
        ("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group", 8),
    ]
    counts = [
        [1, 9, 0, 0, 0, 0, 0, 0],
        [1, 0, 9, 0, 0, 0, 0, 0],
        [1, 0, 0, 90, 0, 0, 9, 0],
        [1, 0, 0, 0, 9, 9, 9, 9],
    ]
    assert list(make(operations, counts).jobs().values()) == [
        ["bulk loads"],
        ["MMA"],
        ["exp2", "tensor memory"],
        ["tensor memory", "stores", "bulk stores"],
    ]


def test_estimate_divides_by_the_sms_and_knows_the_target(report):
    cycles = report.cycles()
    assert cycles == {
        "issue": (74 - 8) / 4 / 2,  # without the moves
        "fma": 13 * 32 / 128 / 2,
        "xu": 45 * 32 / 32 / 2,
        "shared": (7 + 5 * 4) / 2,
        "shared+fills": (7 + 5 * 4 + 4096 / 128) / 2,
        "tensor": 50,
    }
    assert report.bound == report.bound_on("sm_103") == "tensor"
    assert report.cycles("sm_100")["xu"] == 45
    assert report.cycles("sm_100a", parts=9)["xu"] == 90 / 9
    assert report.cycles(parts=report.ctas)["tensor"] == 25
    with pytest.raises(ValueError, match="parts must be at least 1"):
        report.cycles(parts=0)


def test_exp2_counts_lanes_and_halves():
    operations = [("ex2.approx.ftz.f32", 1), ("ex2.approx.ftz.bf16x2", 2), ("rcp.approx.f32", 3)]
    made = make(operations, [[3, 3, 3]], lanes=[[70, 10, 96]], arch="sm_100a")
    assert made.exp2 == 70 + 2 * 10
    # The MUFU takes whole warps, and the halves of a pair one by one.
    assert made.cycles(parts=1)["xu"] == (3 + 2 * 3 + 3) * 32 / 16
    assert made.cycles("sm_103", parts=1)["xu"] == (3 + 2 * 3) * 32 / 32 + 3 * 32 / 16


def test_a_packed_f32_operation_is_two():
    made = make([("fma.rn.f32x2", 1), ("fma.rn.bf16x2", 2)], [[5, 7]], arch="sm_100a")
    assert made.cycles(parts=1)["fma"] == (2 * 5 + 7) * 32 / 128


@pytest.mark.parametrize(
    ("form", "cost"),
    [
        ("m16n8k16.row.col.f32.bf16.bf16.f32", 1),
        ("m16n8k8.row.col.f32.f16.f16.f32", 1 / 2),
        ("m16n8k8.row.col.f32.tf32.tf32.f32", 1),
        ("m16n8k32.row.col.f32.e4m3.e4m3.f32", 1),
        ("m16n8k32.row.col.s32.s8.u8.s32", 1),
    ],
)
def test_mma_sync_at_the_measured_rate(form, cost):
    made = make([(f"mma.sync.aligned.{form}", 1)], [[1000]], arch="sm_90a")
    cycles = cost * 1000 * 2 * 16 * 8 * 16 / (0.62 * 4096)
    for target in ("sm_90", "sm_100", "sm_103"):
        assert made.cycles(target, parts=1)["tensor"] == pytest.approx(cycles)
    assert any("measured on an H200" in remark for remark in made.remarks())
    assert any("assumed" in remark for remark in made.remarks("sm_103"))


def test_tensor_instructions_of_one_family_are_not_judged_on_another(report):
    assert report.targets() == ("sm_100", "sm_103")
    with pytest.raises(ValueError, match="uses tcgen05, which sm_90 does not have"):
        report.bound_on("sm_90")
    hopper = make(counters={"tensor-cycles-sm90": 64, "wgmma-shared-bytes": 1280}, arch="sm_90a")
    assert hopper.targets() == ("sm_90",)
    cycles = hopper.cycles(parts=1)
    assert cycles["tensor"] == 64
    assert cycles["shared"] == 5 * 4 + 10
    with pytest.raises(ValueError, match="uses wgmma, which sm_100 does not have"):
        hopper.cycles("sm_100a")
    with pytest.raises(ValueError, match="target must be one of sm_90, sm_100, sm_103"):
        hopper.cycles("sm_120a")


def test_l2_has_a_rate_where_it_was_measured():
    made = make(counters={"cp-async-bytes": 132 * 1980 * 100}, arch="sm_90a")
    # 8.5 TB/s over 132 SMs at 1.98 GHz.
    assert made.cycles(parts=1)["l2"] == pytest.approx(132 * 1980 * 100 / (8.5e12 / 132 / 1.98e9))
    assert made.bound == "l2"
    assert "l2" not in made.cycles("sm_100")
    assert made.bound_on("sm_100") == "xu"
    assert any("unknown" in remark for remark in made.remarks("sm_100"))


def test_json_says_everything(report):
    data = json.loads(report.to_json(tiles=8))
    assert data["schema"] == 1
    assert data["bank_conflicts"] == 7
    assert data["counters"]["tma-load-bytes"] == 4096
    assert data["bytes"]["l2"] == {"TMA loads": 4096}
    assert data["operations"][2] == {
        "line": 6, "mnemonic": "ld.shared.v4.b32", "pipe": "lsu", "count": 5, "lanes": 160,
        "bank_conflicts": 7,
    }  # fmt: skip
    assert data["roles"][0]["name"] == "warps 0-1, 3"
    assert data["roles"][0]["warps"] == [0, 1, 3]
    assert data["roles"][0]["jobs"] == ["exp2"]
    assert data["roles"][0]["pipes"]["xu"] == 45
    assert list(data["targets"]) == ["sm_100", "sm_103"]
    assert data["targets"]["sm_100"]["cycles_per_cta"]["tensor"] == 25
    assert data["targets"]["sm_100"]["cycles_per_tile"]["tensor"] == 12.5
    assert data["bound"] == data["targets"]["sm_103"]["bound"] == "tensor"
    assert data["notes"][0]["name"] == "some-finding"
    assert data["notes"][0]["count"] == 3


def test_table_prints(report):
    console = Console(width=120, file=io.StringIO())
    console.print(report.table(tiles=8))
    text = console.file.getvalue()
    for words in (
        "warps 0-1, 3", "L2: TMA loads", "4,096", "shared+fills", "unknown", "a tile", "50*", "25*",
        "12*", "[some-finding] line 6, CTA (0, 0, 0), warp 2: looks odd. (3 times)",
    ):  # fmt: skip
        assert words in text


def test_repr_is_short(report):
    assert repr(report) == (
        "<Report of k on sm_103a: grid 4x1x1, 74 warp instructions, bound by tensor, 1 notes>"
    )


def test_rich_is_imported_for_the_table_only():
    script = "import cakert.sim.report, sys; sys.exit('rich' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0
