"""What an explanation holds: plain values and arrays, filled by `describe`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["QUANTILES", "Explanation", "Load", "Machine", "RowCounts", "Shape", "Tiles", "Traffic"]

Array = npt.NDArray[Any]

SCHEMA = 1
QUANTILES = (5, 25, 50, 75, 95)


@dataclass(frozen=True)
class Machine:
    """The device that a plan is for.

    Attributes
    ----------
    name
        As the driver says, or of the GPU that a simulated one stands for.
    capability, sms
        Compute capability; streaming multiprocessors.
    measured
        Whether the model of time was fitted to measurements on this GPU.
    """

    name: str
    capability: tuple[int, int]
    sms: int
    measured: bool


@dataclass(frozen=True)
class Shape:
    """Sizes of the problem; `block` tokens are R = C."""

    q_tokens: int
    kv_tokens: int
    block: int
    q_blocks: int
    kv_blocks: int
    num_qo_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: str


@dataclass(frozen=True)
class RowCounts:
    """Selected KV blocks of the rows; a row is a query block of a query head.

    Attributes
    ----------
    rows
        How many there are.
    empty
        Rows that select nothing; only an update can bring any.
    least, mean, most
        Of all rows.
    quantiles
        Percent (``QUANTILES``) to count, without interpolation.
    """

    rows: int
    empty: int
    least: int
    mean: float
    most: int
    quantiles: dict[int, int]


@dataclass(frozen=True)
class Tiles:
    """What is fetched of K, and as much of V, in blocks.

    Attributes
    ----------
    selected
        By all rows: the sum of their counts.
    fetched
        By thread blocks: less where two rows share a fetch.
    groups
        Pairs of rows (or single ones) that share; 0 where each row fetches for itself.
    distinct
        Blocks that are needed at all: each counts once a KV head.
    """

    selected: int
    fetched: int
    groups: int
    distinct: int

    @property
    def overlap(self) -> float:
        """Share of the selected blocks that was not fetched, because another row had."""
        return 1 - self.fetched / self.selected if self.selected else 0.0


@dataclass(frozen=True)
class Load:
    """How the work is dealt to SMs.

    Attributes
    ----------
    grid
        Thread blocks of the launch.
    cluster
        Thread blocks of a cluster, which share a row.
    threads
        Of a thread block.
    resident
        Thread blocks that an SM holds at a time.
    waves
        ``grid / (resident * sms)``.
    step
        What a step is, in words.
    sm_steps
        (sms,) int64: steps of each SM. Exact where the launch fixes who takes what; where the
        hardware hands out thread blocks, by giving each in grid order to the SM with the least.
    sm_items
        (sms,) int64: rows or groups of each SM.
    longest
        Steps of the longest single row or group.
    """

    grid: int
    cluster: int
    threads: int
    resident: int
    waves: float
    step: str
    sm_steps: npt.NDArray[np.int64]
    sm_items: npt.NDArray[np.int64]
    longest: int

    @property
    def busy(self) -> int:
        """SMs that have any work."""
        return int(np.count_nonzero(self.sm_steps))

    @property
    def mean(self) -> float:
        """Steps of an SM, idle ones included."""
        return float(self.sm_steps.mean())

    @property
    def most(self) -> int:
        """Steps of the SM with the most."""
        return int(self.sm_steps.max())

    @property
    def imbalance(self) -> float:
        """The longest SM over the mean; 1 where all have the same, and where there is no work."""
        return self.most / self.mean if self.most else 1.0


@dataclass(frozen=True)
class Traffic:
    """Bytes of a run, and of the plan.

    Attributes
    ----------
    hbm
        Compulsory: q and out once, every needed K and V block once, the plan's lists once.
    l2
        What thread blocks move: q and out once, K and V as often as they are fetched, the lists.
    plan
        Device memory that the plan holds.
    """

    hbm: int
    l2: int
    plan: int


@dataclass(frozen=True, eq=False)
class Explanation:
    """What a plan does, and what that costs. From :func:`cakert.explain`.

    It holds copies: a later update of the plan does not change it.

    Attributes
    ----------
    route, family
        The kernel, and the source that it comes from.
    why
        Why this family runs.
    passed_over
        Families that are preferred to it and were not taken: name and reason.
    machine, shape
        The device and the problem.
    density
        Selected part of all (row, KV block) cells.
    head_density
        (num_qo_heads,) float64: the same of each query head.
    row_counts
        (num_qo_heads, q_blocks) int64: selected KV blocks of each row.
    heat
        (num_qo_heads, up to 96, up to 96) float64: density of a patch of cells, for the picture.
    counts, tiles, load, traffic
        See their classes.
    flops
        4 * head_dim * block**2 a selected block, as in the benchmarks.
    limits
        Microseconds that each limit alone would take, by name: "tensor core", "L2", "HBM" and,
        where the kernel was measured, "even steps" (work spread evenly over all SMs) and "longest
        SM". Only those whose rate is known; empty where none is.
    predicted_us
        Time of the kernel in microseconds, K and V not in L2 before; the largest of ``limits``.
        None where the kernel was not measured on this GPU.
    error
        Smallest and largest ``predicted / measured - 1`` over the measurements of this kernel
        on this GPU; None without a prediction.
    bound
        Name of the limit that gives ``predicted_us``; None without one.
    cause
        Main reason in one word: "start", "idle SMs", "imbalance", "steps", "tensor core", "L2",
        "HBM", or "unknown" where nothing was measured and the SMs are evenly busy.
    reason
        The same as a sentence.
    notes
        What the numbers assume.
    """

    route: str
    family: str
    why: str
    passed_over: tuple[tuple[str, str], ...]
    machine: Machine
    shape: Shape
    density: float
    head_density: npt.NDArray[np.float64]
    row_counts: npt.NDArray[np.int64]
    heat: npt.NDArray[np.float64]
    counts: RowCounts
    tiles: Tiles
    load: Load
    traffic: Traffic
    flops: int
    limits: dict[str, float]
    predicted_us: float | None
    error: tuple[float, float] | None
    bound: str | None
    cause: str
    reason: str
    notes: tuple[str, ...]

    @property
    def predicted_tflops(self) -> float | None:
        """TFLOP/s of the selected blocks at the predicted time."""
        if self.predicted_us is None:
            return None
        return self.flops / self.predicted_us / 1e6

    def text(self) -> str:
        """The explanation in some twenty lines."""
        from cakert.explanation.text import as_text

        return as_text(self)

    __str__ = text

    def as_dict(self) -> dict[str, Any]:
        """JSON-able values; docs/explain.md has every field. Patches of the mask are left out."""
        result: dict[str, Any] = {"schema": SCHEMA}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name not in ("heat", "row_counts"):
                result[field.name] = _plain(value)
        result["predicted_tflops"] = self.predicted_tflops
        result["tiles"]["overlap"] = self.tiles.overlap
        for name in ("busy", "mean", "most", "imbalance"):
            result["load"][name] = getattr(self.load, name)
        result["passed_over"] = [
            {"family": family, "reason": reason} for family, reason in self.passed_over
        ]
        return result

    def draw(self, path: str | Path) -> None:
        """Write a picture of one page; the same explanation gives the same SVG.

        Parameters
        ----------
        path
            File to write, ending in .svg or .png.

        Raises
        ------
        ValueError
            Another suffix.
        ImportError
            There is no matplotlib.
        """
        from cakert.explanation.picture import draw

        draw(self, Path(path))


def _plain(value: Any) -> Any:
    """Arrays and records as lists and dicts; keys as JSON has them."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return value
