"""The simulator against what an H200 answered (tools/record_gpu_instructions.py).

Results are equal bit for bit, except where a case names a bound: approximations, within the errors
that the PTX ISA states, and sums in a tensor core over numbers that do not add exactly.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from helpers.stub import run_with_stub
from instruction_cases import GROUPS, all_cases
from instruction_cases.cubins import CubinPack, assemble
from instruction_cases.model import Rule, disagreements, segments_of
from instruction_cases.recording import Recording
from instruction_cases.replay import judge, stale
from instruction_cases.runners import SimRunner

FILE = Path(__file__).parent / "data" / "instructions_h200.npz"
CASES = all_cases()
SAMPLE = ("tma-load 2d uint16 128B narrow64", "tma-add 2d float32", "matrix-moves", "bits", "f32")


@cache
def recording() -> Recording:
    return Recording.load(FILE)


@cache
def runner() -> SimRunner:
    return SimRunner("random", seed=9)


@pytest.mark.parametrize("name", CASES)
def test_recorded(name):
    verdict = judge(CASES[name], recording(), runner())
    assert not verdict.problem, "\n".join(verdict.detail or (verdict.problem,))


def test_the_recording_is_of_these_cases_alone():
    assert set(recording().entries) == set(CASES)
    assert "H200" in recording().environment["gpu"]
    assert FILE.stat().st_size < 600_000


@pytest.fixture(scope="module")
def simulated(tmp_path_factory) -> Recording:
    """A recording that the simulator made, read back from its file."""
    made = Recording({"gpu": "simulated"})
    for name in SAMPLE:
        made.add(CASES[name], SimRunner().run(CASES[name]))
    path = tmp_path_factory.mktemp("recording") / "made.npz"
    made.save(path, CASES)
    found = Recording.load(path)
    assert found.environment == made.environment
    for name in SAMPLE:
        assert np.array_equal(found.entries[name].output, made.entries[name].output)
    return found


@pytest.mark.parametrize("name", SAMPLE)
def test_one_wrong_bit_is_found(simulated, name):
    case = CASES[name]
    assert judge(case, simulated, SimRunner()).problem == ""
    rng = np.random.default_rng()
    segment = case.segments[rng.integers(len(case.segments))]
    if segment.rule.kind == "nan":
        segment = case.segments[0]
    at = rng.integers(segment.start, segment.end)
    entry = simulated.entries[name]
    output = entry.output.copy()
    output[at] ^= np.uint8(1 << rng.integers(8))
    wrong = Recording({}, {name: replace(entry, output=output)})
    found = judge(case, wrong, SimRunner())
    assert found.problem.startswith(segment.name)
    assert f"first at {(at - segment.start) // segment.size}:" in found.problem


def test_what_is_stale_is_found(simulated):
    case = CASES["bits"]
    entry = simulated.entries["bits"]
    assert stale(case, simulated) == ""
    assert "has no such case: record again" in stale(case, Recording())
    other = replace(case, ptx=case.ptx.replace("popc", "clz"))
    assert "the PTX is another one" in stale(other, simulated)
    other = replace(case, source=case.source[::-1])
    assert "the inputs are other ones" in stale(other, simulated)
    cut = Recording({}, {"bits": replace(entry, output=entry.output[:-4])})
    assert "record again" in judge(case, cut, SimRunner()).problem


@pytest.mark.parametrize(
    ("rule", "theirs", "ours", "agree"),
    [
        (Rule("nan", "f32"), np.nan, -np.nan, True),
        (Rule("nan", "f32"), 1.0, np.nan, False),
        (Rule("nan", "f32"), 0.0, -0.0, False),
        (Rule("near", "f32", 2.0**-22), 1 + 2.0**-22, 1.0, True),
        (Rule("near", "f32", 2.0**-22), 1 + 2.0**-21, 1.0, False),
        (Rule("near", "f32", 2.0**-22), np.inf, 3e38, False),
        (Rule("near", "f32", 0.0, 2.0**-20), 2.0**-20, 0.0, True),
        (Rule("sum", "f32", 2.0**-20), 1.0, 1 + 2.0**-19, True),
        (Rule("sum", "f32", 2.0**-20), 1.0, 1 + 2.0**-17, False),
        (Rule("stored"), 1.0, 2.0, True),
    ],
)
def test_rules(rule, theirs, ours, agree):
    segments = segments_of([("one", 1, 4, rule), ("scale", 1, 4, rule)])
    case = replace(CASES["bits"], segments=segments)
    a, b = (np.array([x, 4.0], np.float32).view(np.uint8) for x in (theirs, ours))
    assert (len(disagreements(case, segments[0], a, b)) == 0) == agree


def test_segments_cover_outputs():
    for case in CASES.values():
        assert case.segments[-1].end == len(case.before)
        assert all(a.end == b.start for a, b in zip(case.segments, case.segments[1:], strict=False))
    assert len(CASES) < 400
    assert set(GROUPS) == {"tma", "copies", "matrices", "wgmma", "floats", "conversions",
                           "integers", "warps"}  # fmt: skip


@pytest.mark.parametrize("group", [name for name in GROUPS if name not in ("tma", "copies")])
def test_cases_write_all_that_they_compare(group):
    """A result that no lane writes would agree with anything."""
    for case in GROUPS[group]():
        output = SimRunner().run(case)
        for segment in case.segments:
            if case.name == "matrix-moves" and "stmatrix" in segment.name:
                continue
            results = output[segment.start : segment.end].reshape(segment.count, segment.size)
            untouched = (results == 0xA5).all(axis=1).mean()
            assert untouched < 0.05, f"{case.name}, {segment.name}"


needs_ptxas = pytest.mark.skipif(shutil.which("ptxas") is None, reason="no ptxas on PATH")


@needs_ptxas
@pytest.mark.full
def test_ptxas_takes_every_text():
    for ptx in {case.ptx for case in CASES.values()}:
        assemble(ptx)


def test_copies_complete():
    """Each load waits for as many bytes as the ISA counts; the simulator counts them too."""
    cases = [case for case in CASES.values() if case.segments[0].name == "completed"]
    assert len(cases) > 100
    for case in cases:
        if " column " in case.name or case.name.startswith("bulk-inside"):
            continue  # GPUs refuse them
        assert SimRunner().run(case)[:4].view(np.uint32)[0] == 1, case.name


@needs_ptxas
def test_a_pack_of_cubins(tmp_path):
    texts = [CASES[name].ptx for name in SAMPLE[:2]]
    CubinPack.write(tmp_path / "pack.zip", texts)
    pack = CubinPack(tmp_path / "pack.zip")
    assert [pack.cubin(text) for text in texts] == [assemble(text) for text in texts]
    assert pack.version().startswith("Build cuda_")
    with pytest.raises(RuntimeError, match="make it again"):
        pack.cubin(CASES["bits"].ptx)


@needs_ptxas
def test_the_tool_records(tmp_path, project):
    """Under the stub driver, which executes nothing, and encodes no tensor maps."""
    file = tmp_path / "made.npz"
    script = f"""
import sys
sys.path.insert(0, {str(project / "tools")!r})
sys.argv = ["record_gpu_instructions.py", "--only", "wgmma n24", "--out", {str(file)!r}]
import record_gpu_instructions
sys.exit(record_gpu_instructions.main())
"""
    run_with_stub(script, capability=(9, 0))
    made = Recording.load(file)
    names = {name for name in CASES if "wgmma n24" in name}
    assert set(made.entries) == names
    assert len(names) >= 2
    assert all(stale(CASES[name], made) == "" for name in names)
    assert {"gpu", "driver", "ptxas"} == set(made.environment)
    refused = run_with_stub(script, capability=(10, 0), check=False)
    assert refused.returncode == 1
    assert "needs capability (9, 0), found (10, 0)" in refused.stderr
