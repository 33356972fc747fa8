"""What ``cakert run`` found: the JSON document, and the same as tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.text import Text

from cakert.cli.argument_specs import ArraySpec, BytesSpec, ScalarSpec
from cakert.cli.array_statistics import Histogram, Statistics, changed, describe, histogram
from cakert.cli.console import make_table
from cakert.cli.launch_job import Argument, Job
from cakert.cli.result_files import Difference
from cakert.cli.text import printable
from cakert.inspect.demangle import demangle
from cakert.runtime.geometry import dim3

if TYPE_CHECKING:
    from cakert.sim import Report

Array = npt.NDArray[Any]

SCHEMA = 1
_COLUMNS = ["array", "type", "changed", "nan", "inf", "zero", "min", "max", "mean", "deviation"]


@dataclass(frozen=True)
class Where:
    """The device of a run.

    Attributes
    ----------
    name
        "cuda:0" or "sim:sm_100a".
    product
        Name of the GPU; None on the simulator.
    capability
    schedule
        Of the simulator; None on a GPU.
    """

    name: str
    product: str | None
    capability: tuple[int, int]
    schedule: str | None


@dataclass(frozen=True)
class Timing:
    """Microseconds of the timed launches, in their order."""

    microseconds: npt.NDArray[np.float64]
    warm_up: int
    flushed_bytes: int


@dataclass(frozen=True)
class Ran:
    """A launch that is done.

    Attributes
    ----------
    job, where
    arrays
        After exactly one launch, by name.
    timing
        None where nothing was timed.
    report
        The simulator's; None on a GPU.
    """

    job: Job
    where: Where
    arrays: Mapping[str, Array]
    timing: Timing | None
    report: Report | None


@dataclass(frozen=True)
class Result:
    """A run, compared and written.

    Attributes
    ----------
    path
        FILE of the command line.
    ran
    seed
    changes
        Elements of each array whose bytes the kernel changed, by name.
    compared_with, differences
        None where nothing was compared.
    written
        The result file, or None.
    """

    path: Path
    ran: Ran
    seed: int
    changes: Mapping[str, int]
    compared_with: Path | None
    differences: list[Difference] | None
    written: Path | None

    @property
    def passed(self) -> bool:
        """Whether the comparison, if there was one, found no difference."""
        return all(difference.passed for difference in self.differences or ())


def count_changes(job: Job, arrays: Mapping[str, Array]) -> dict[str, int]:
    """Elements of each array whose bytes the kernel changed."""
    return {
        argument.name: changed(np.asarray(argument.value), arrays[argument.name])
        for argument in job.arguments
        if argument.is_array
    }


# --- JSON -----------------------------------------------------------------------------------------


def as_json(result: Result, *, with_report: bool) -> dict[str, Any]:
    """The document of ``--json``; docs/run.md has its fields."""
    ran = result.ran
    job, where = ran.job, ran.where
    return {
        "schema": SCHEMA,
        "file": str(result.path),
        "image": {"place": job.image.place, "kind": job.image.kind, "target": job.image.target},
        "kernel": job.symbol,
        "demangled": demangle(job.symbol),
        "device": {
            "name": where.name,
            "product": where.product,
            "capability": list(where.capability),
            "schedule": where.schedule,
        },
        "grid": list(dim3("grid", job.grid)),
        "block": list(dim3("block", job.block)),
        "cluster": None if job.cluster is None else list(dim3("cluster", job.cluster)),
        "shared_bytes": job.shared_bytes,
        "seed": result.seed,
        "arguments": [_argument(result, argument) for argument in job.arguments],
        "time": None if result.ran.timing is None else _time(result.ran.timing),
        "comparison": _comparison(result),
        "out": None if result.written is None else str(result.written),
        "report": result.ran.report.as_dict()
        if result.ran.report is not None and with_report
        else None,
    }


def _argument(result: Result, argument: Argument) -> dict[str, Any]:
    spec = argument.spec
    kind = {ArraySpec: "array", ScalarSpec: "scalar", BytesSpec: "bytes"}[type(spec)]
    if isinstance(spec, BytesSpec):
        assert isinstance(argument.value, bytes)
        nbytes = len(argument.value)
    else:
        nbytes = spec.nbytes
    values = None
    if argument.is_array:
        statistics = describe(result.ran.arrays[argument.name])
        values = {"changed": result.changes[argument.name], **asdict(statistics)}
        values["histogram"] = _histogram(statistics.histogram)
    return {
        "number": argument.number,
        "name": argument.name,
        "kind": kind,
        "type": None if isinstance(spec, BytesSpec) else spec.dtype,
        "shape": list(spec.shape) if isinstance(spec, ArraySpec) else None,
        "nbytes": nbytes,
        "initial": spec.initial_text,
        "values": values,
    }


def _histogram(counted: Histogram) -> dict[str, Any]:
    return {"edges": list(counted.edges), "counts": list(counted.counts)}


def _summary(timing: Timing) -> dict[str, float]:
    times = timing.microseconds
    return {
        "min_us": float(times.min()),
        "median_us": float(np.median(times)),
        "p80_us": float(np.percentile(times, 80)),
        "max_us": float(times.max()),
    }


def _time(timing: Timing) -> dict[str, Any]:
    return {
        "launches": timing.microseconds.size,
        "warm_up": timing.warm_up,
        "flushed_bytes": timing.flushed_bytes,
        **_summary(timing),
        "microseconds": timing.microseconds.tolist(),
        "histogram": _histogram(histogram(timing.microseconds)),
    }


def _comparison(result: Result) -> dict[str, Any] | None:
    if result.differences is None:
        return None
    return {
        "file": str(result.compared_with),
        "passed": result.passed,
        "arrays": [
            {
                "name": difference.name,
                "passed": difference.passed,
                "problem": difference.problem or None,
                **{key: value for key, value in asdict(difference).items()
                   if key not in ("name", "problem", "first")},
                "first": None if difference.first is None else list(difference.first),
            }
            for difference in result.differences
        ],
    }  # fmt: skip


# --- tables ---------------------------------------------------------------------------------------


def show(result: Result, console: Console, *, with_report: bool) -> None:
    """Print everything for people."""
    ran = result.ran
    job, where = ran.job, ran.where
    device = f"{where.product} ({where.name})"
    if where.product is None:
        device = f"simulated {where.name.removeprefix('sim:')}, schedule {where.schedule}"
    rows: list[list[object]] = [
        ["image", printable(f"{job.image.place}: {job.image.kind} for {job.image.target}")],
        ["kernel", printable(demangle(job.symbol) or job.symbol)],
        ["device", device],
        ["launch", job.launch_text],
        ["seed", result.seed],
    ]
    console.print(make_table("run", ["what", "value"], rows))
    _show_arguments(result, console)
    described = {name: describe(array) for name, array in result.ran.arrays.items()}
    _show_arrays(result, described, console)
    if result.ran.timing is not None:
        _show_time(result.ran.timing, console)
    if with_report and result.ran.report is not None:
        console.print(result.ran.report.table())
    elif result.ran.report is not None:
        for note in result.ran.report.notes:
            _line(console, f"note: {note}")
    if result.differences is not None:
        _show_differences(result, console)
    if result.written is not None:
        _line(console, f"written: {result.written}")


def _line(console: Console, text: str, style: str = "") -> None:
    # Neither markup nor a wrapped line: a path is to be copied.
    console.print(Text(text, style=style), soft_wrap=True)


def _show_arguments(result: Result, console: Console) -> None:
    rows: list[list[object]] = [
        [argument.number, argument.name, argument.spec.type_text,
         printable(_short(argument.spec.initial_text))]
        for argument in result.ran.job.arguments
    ]  # fmt: skip
    if rows:
        console.print(make_table("arguments", ["number", "name", "type", "initial"], rows))


def _short(text: str) -> str:
    return text if len(text) <= 64 else f"{text[:60]} ..."


def _show_arrays(result: Result, described: Mapping[str, Statistics], console: Console) -> None:
    rows: list[list[object]] = []
    types = {argument.name: argument.spec.type_text for argument in result.ran.job.arguments}
    for name, found in described.items():
        numbers = (found.minimum, found.maximum, found.mean, found.deviation)
        changes = result.changes[name]
        rows.append(
            [
                name,
                types[name],
                f"{changes} of {found.count}" if changes else "none",
                found.nan,
                found.infinite,
                found.zero,
                *("" if number is None else _number(number) for number in numbers),
            ]
        )
    if rows:
        console.print(make_table("arrays after one launch", _COLUMNS, rows))
    if rows and not any(result.changes.values()):
        _line(console, "The kernel changed no array.")
    for name, found in described.items():
        if result.changes[name] and found.histogram.counts:
            _show_histogram(f"values of {name}", found.histogram, console)


def _number(number: float) -> str:
    return str(number) if isinstance(number, int) else f"{number:.6g}"


def _show_histogram(title: str, counted: Histogram, console: Console) -> None:
    _line(console, title, "bold")
    for line in counted.lines():
        _line(console, f"  {line}")


def _show_time(timing: Timing, console: Console) -> None:
    rows: list[list[object]] = [
        [name.removesuffix("_us"), f"{value:.2f}"] for name, value in _summary(timing).items()
    ]
    console.print(make_table("time", ["what", "us"], rows))
    text = f"{timing.microseconds.size} launches by events"
    if timing.flushed_bytes:
        text += f", L2 cache flushed before each ({timing.flushed_bytes} bytes cleared)"
    _line(console, text)
    _show_histogram("times in us", histogram(timing.microseconds), console)


def _show_differences(result: Result, console: Console) -> None:
    assert result.differences is not None
    rows: list[list[object]] = []
    for one in result.differences:
        if one.problem:
            rows.append([printable(one.name), f"FAILED: {one.problem}", *[""] * 4])
            continue
        first = ""
        if one.first is not None:
            index = ", ".join(map(str, one.first))
            first = f"[{index}]: {one.actual}, expected {one.expected}"
        values = (one.max_absolute, one.max_relative)
        rows.append(
            [
                one.name,
                "equal" if one.passed else "DIFFERENT",
                f"{one.differing} of {one.count}",
                *("" if value is None else f"{value:.4g}" for value in values),
                first,
            ]
        )
    columns = ["array", "result", "out of tolerance", "largest difference", "relative", "first"]
    console.print(make_table(f"compared with {result.compared_with}", columns, rows))
