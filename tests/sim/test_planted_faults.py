"""Planted faults are caught and named, with their line; the mended twins are clean and right."""

from __future__ import annotations

import shutil
import subprocess

import numpy as np
import pytest
from planted import FAULTS, RACES
from planted.record import SEEDS

from cakert.sim import Fault
from cakert.sim.report import Note
from cakert.sim.schedules import compare_schedules

SCHEDULES = [("eager", 0), ("lazy", 0), *(("random", seed) for seed in range(4))]


def named(record):
    return pytest.param(record, id=record.name)


def source_of(record):
    # Another input each time: no result may depend on the numbers.
    return record.source(np.random.default_rng())


def finding(record, source, schedule, seed):
    """The fault or note that a broken kernel ends in, or None."""
    try:
        _, report = record.run(source, mended=False, schedule=schedule, seed=seed)
    except Fault as fault:
        return fault
    notes = [note for note in report.notes if note.name == record.fault]
    return notes[0] if record.is_note and notes else None


def runs_of(schedule):
    return [(schedule, seed) for seed in (SEEDS if schedule == "random" else [0])]


def test_records_are_distinct():
    records = [*FAULTS, *RACES]
    assert len({record.name for record in records}) == len(records) >= 30
    for record in records:
        assert record.text(mended=True) != record.text(mended=False)


@pytest.mark.parametrize("record", [named(record) for record in (*FAULTS, *RACES)])
def test_the_mended_twin_is_right_and_clean(record):
    source = source_of(record)
    expected = record.expected(source)
    for schedule, seed in SCHEDULES:
        written, report = record.run(source, mended=True, schedule=schedule, seed=seed)
        np.testing.assert_array_equal(written, expected, err_msg=f"{schedule}, seed {seed}")
        assert [str(note) for note in report.notes] == []


@pytest.mark.parametrize(
    ("record", "schedule"),
    [
        pytest.param(record, schedule, id=f"{record.name}-{schedule}")
        for record in FAULTS
        for schedule in record.caught_by
    ],
)
def test_the_fault_is_caught_and_explained(record, schedule):
    source = source_of(record)
    found = [finding(record, source, *one) for one in runs_of(schedule)]
    caught = [one for one in found if one is not None and one.name == record.fault]
    assert caught, f"found instead: {[str(one) for one in found]}"
    if schedule != "random":
        assert len(caught) == len(found)
    for one in caught:
        explained(record, one)


def explained(record, found):
    """Kernel, line, CTA, warp, the other instruction, and what to do about it."""
    text, lines = str(found), record.lines("!")
    assert record.name in text
    if found.where is None:
        assert record.fault == "deadlock"
        for line in lines:
            assert f"line {line} `" in text, text
        assert "CTA (0, 0, 0) warp" in text
    else:
        assert found.where.kernel == record.name
        assert found.where.line in lines, text
        assert found.where.cta[1:] == (0, 0) and 0 <= found.where.cta[0] < record.grid
        assert 0 <= found.where.warp < -(-record.threads // 32)
        assert f"line {found.where.line} `{found.where.text}`" in text
    for line in record.lines("&"):
        assert f"line {line}" in text, text
    for part in record.says:
        assert part in text, text
    if not isinstance(found, Note):
        assert found.advice and found.advice in text


@pytest.mark.parametrize("record", [named(record) for record in FAULTS])
def test_a_broken_kernel_is_no_error_of_the_simulator(record):
    """Under any schedule it runs to its end or to a fault."""
    source = source_of(record)
    for schedule, seed in SCHEDULES:
        found = finding(record, source, schedule, seed)
        assert found is None or isinstance(found, Fault | Note)


@pytest.mark.parametrize("record", [named(record) for record in RACES])
def test_a_race_shows_by_unequal_results(record):
    source = source_of(record)

    def run(schedule, seed, mended=False):
        return {"out": record.run(source, mended=mended, schedule=schedule, seed=seed)[0]}

    comparison = compare_schedules(run)
    assert not comparison.agree and not comparison.faults
    assert "the result depends on the schedule" in str(comparison)
    assert "elements of out differ from eager" in str(comparison)
    assert compare_schedules(lambda *schedule: run(*schedule, mended=True)).agree


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="ptxas is not installed")
@pytest.mark.parametrize("mended", [True, False], ids=["mended", "broken"])
@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_ptxas_takes_the_kernels(target, mended, tmp_path):
    """They are PTX, and the broken ones as well: it is not the assembler who finds the faults."""
    records = [record for record in (*FAULTS, *RACES) if record.target == target]
    header, kernels = None, []
    for record in records:
        lines = record.text(mended=mended).splitlines(keepends=True)
        header = lines[:3]
        kernels += lines[3:]
    source = tmp_path / "planted.ptx"
    source.write_text("".join([*header, *kernels]))
    command = ["ptxas", f"-arch={target}", "-o", str(tmp_path / "planted.cubin"), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and "is not defined for option" in done.stderr:
        pytest.skip(f"this ptxas does not know {target}")
    assert done.returncode == 0, done.stderr
