"""An explanation as a picture of one page, by matplotlib."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cakert.explanation.records import Explanation
from cakert.explanation.text import predicted_text, shape_text, size_text, time_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["SUFFIXES", "check_path", "draw"]

SUFFIXES = (".svg", ".png")

# Colours of Okabe and Ito, told apart with every kind of colour vision.
_BLUE, _ORANGE, _GREY, _RED = "#0072b2", "#e69f00", "#999999", "#d55e00"
_SMALL = 8
_STYLE: dict[str, Any] = {
    "svg.hashsalt": "cakert",  # the same ids in every run
    "svg.fonttype": "path",  # looks the same wherever it is shown
    "font.family": ["DejaVu Sans"],  # comes with matplotlib
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_MOST_MAPS = 6


def check_path(path: Path) -> str:
    """The picture's format.

    Raises
    ------
    ValueError
        A suffix that is none of ``SUFFIXES``.
    ImportError
        There is no matplotlib.
    """
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"a picture's name must end in .svg or .png, got {str(path)!r}")
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as problem:
        raise ImportError(
            f"drawing needs matplotlib: pip install 'cakert[explain]' ({problem})"
        ) from problem
    return suffix[1:]


def draw(e: Explanation, path: Path) -> None:
    """Write the picture; see ``Explanation.draw``."""
    kind = check_path(path)
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(12, 8.2), layout=ConstrainedLayoutEngine(w_pad=0.08))
        figure.suptitle(_headline(e), x=0.01, ha="left", fontsize=11, linespacing=1.5)
        if e.notes:
            notes = textwrap.fill("; ".join(e.notes), 170)
            figure.supxlabel(notes, x=0.01, ha="left", fontsize=_SMALL, color="#555555")
        halves: Any = figure.subfigures(2, 1, height_ratios=(1.05, 1))
        above, below = halves
        sides: Any = above.subfigures(1, 2, width_ratios=(2.1, 1))
        _maps(e, sides[0])
        _density(e, sides[1].subplots())
        rows, load, tiles, limits = below.subplots(1, 4, width_ratios=(1, 1.35, 0.8, 1.15))
        _rows(e, rows)
        _load(e, load)
        _tiles(e, tiles)
        _limits(e, limits)
        # Neither date nor version: the same explanation gives the same file.
        nothing = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
        figure.savefig(path, format=kind, dpi=110, metadata=nothing)


def _headline(e: Explanation) -> str:
    first = f"{e.machine.name}, predicted: {predicted_text(e)}"
    if e.predicted_us is None:
        first = f"{e.machine.name}: no predicted time, it was not measured"
    reason = textwrap.fill(e.reason[0].upper() + e.reason[1:] + ".", 130)
    return f"{first}\n{reason}\n{e.route}: {shape_text(e)}"


def _maps(e: Explanation, figure: Any) -> None:
    """Heat maps of the heads; where there are many, of those that differ most in density."""
    heads = len(e.heat)
    if heads > _MOST_MAPS:
        by_density = np.argsort(e.head_density, kind="stable")
        places = np.linspace(0, heads - 1, _MOST_MAPS).round().astype(int)
        shown = sorted(by_density[places].tolist())
    else:
        shown = list(range(heads))
    columns = min(3, len(shown))
    lines = -(-len(shown) // columns)
    axes = np.atleast_1d(figure.subplots(lines, columns, squeeze=False)).reshape(-1)
    most = max(float(e.heat[shown].max()), 1e-9)
    image = None
    for axis, head in zip(axes, shown, strict=False):
        image = axis.imshow(
            e.heat[head],
            cmap="viridis",
            vmin=0,
            vmax=most,
            interpolation="nearest",
            aspect="auto",
            extent=(0, e.shape.kv_blocks, e.shape.q_blocks, 0),
        )
        axis.set_title(f"head {head}: {e.head_density[head]:.1%}", fontsize=9)
        axis.tick_params(labelsize=7)
        _integer_ticks(axis.xaxis)
        _integer_ticks(axis.yaxis)
    for axis in axes[len(shown) :]:
        axis.set_axis_off()
    figure.supxlabel("KV block", fontsize=_SMALL)
    figure.supylabel("query block", fontsize=_SMALL)
    bar = figure.colorbar(image, ax=axes.tolist(), shrink=0.8, pad=0.01)
    bar.set_label("selected part", fontsize=_SMALL)
    bar.ax.yaxis.set_major_formatter(_percent())
    bar.ax.tick_params(labelsize=7)


def _percent() -> Any:
    from matplotlib.ticker import PercentFormatter

    return PercentFormatter(1.0)


def _density(e: Explanation, axis: Axes) -> None:
    heads = np.arange(len(e.head_density))
    axis.bar(heads, e.head_density, color=_BLUE, width=0.8 if len(heads) <= 64 else 1.0)
    axis.axhline(e.density, color=_RED, linewidth=1)
    axis.set_title(f"Density of a head (mean {e.density:.1%})")
    axis.set_xlabel("head")
    axis.yaxis.set_major_formatter(_percent())
    axis.set_ylim(0, max(float(e.head_density.max()) * 1.08, 1e-6))
    axis.set_xlim(-0.7, len(heads) - 0.3)
    _integer_ticks(axis.xaxis)


def _integer_ticks(axis: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=5, integer=True, min_n_ticks=1))


def _rows(e: Explanation, axis: Axes) -> None:
    c = e.counts
    span = c.most - c.least + 1
    wide = -(-span // 40)  # counts of a bar
    edges = c.least - 0.5 + np.arange(0, span + wide, wide)
    found, _ = np.histogram(e.row_counts, bins=edges)
    axis.stairs(found, edges, fill=True, color=_BLUE)
    axis.axvline(c.mean, color=_RED, linewidth=1)
    if span < 4:  # one bar would fill the frame
        axis.set_xlim(c.least - 2.5, c.most + 2.5)
    axis.set_title(f"Blocks a row ({c.least:,} to {c.most:,})")
    axis.set_xlabel(f"selected KV blocks; mean {c.mean:,.1f}")
    axis.set_ylabel(f"rows, of {c.rows:,}")
    _integer_ticks(axis.xaxis)
    _integer_ticks(axis.yaxis)


def _load(e: Explanation, axis: Axes) -> None:
    load = e.load
    steps = np.sort(load.sm_steps)[::-1]
    axis.stairs(steps, np.arange(len(steps) + 1), fill=True, color=_BLUE)
    axis.axhline(load.mean, color=_RED, linewidth=1)
    axis.set_ylim(0, max(load.most, 1) * 1.15)
    axis.set_xlim(0, len(steps))
    axis.annotate(
        f"mean {load.mean:,.1f}",
        (len(steps), load.mean),
        xytext=(-2, 3),
        textcoords="offset points",
        ha="right",
        va="bottom",
        color=_RED,
        fontsize=_SMALL,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
    )
    axis.set_title(f"Load of an SM: up to {load.imbalance:.2f} x mean")
    axis.set_xlabel(f"SM, by load; {load.busy} of {len(steps)} busy, {load.waves:.2f} waves")
    axis.set_ylabel("steps")
    _integer_ticks(axis.yaxis)


def _tiles(e: Explanation, axis: Axes) -> None:
    t = e.tiles
    values = (t.selected, t.fetched, t.distinct)
    bars = axis.bar(range(3), values, color=(_GREY, _BLUE, _ORANGE), width=0.7)
    axis.bar_label(bars, [_short(value) for value in values], fontsize=_SMALL, padding=2)
    axis.set_xticks(range(3), ["selected", "fetched", "distinct"], fontsize=_SMALL)
    axis.set_ylim(0, max(t.selected, 1) * 1.15)
    axis.set_title("Tiles of K" + (f": {t.overlap:.0%} shared" if t.groups else ""))
    axis.set_yticks([])
    axis.spines["left"].set_visible(False)
    axis.set_xlabel(f"L2 {size_text(e.traffic.l2)}, HBM {size_text(e.traffic.hbm)}")


def _short(number: int) -> str:
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= 10 * size:
            return f"{number / size:,.0f}{unit}"
    return f"{number:,}"


def _limits(e: Explanation, axis: Axes) -> None:
    """What each limit alone would take, the largest on top."""
    axis.set_title("Limits, and what bounds it" if e.bound else "Limits")
    if not e.limits:
        axis.set_axis_off()
        axis.text(
            0, 0.9, "the rates of this GPU\nare not known", transform=axis.transAxes, va="top"
        )
        return
    names = sorted(e.limits, key=lambda name: e.limits[name])
    times = [e.limits[name] for name in names]
    colours = [_RED if name == e.bound else _GREY for name in names]
    bars = axis.barh(range(len(names)), times, color=colours, height=0.7)
    axis.bar_label(bars, [time_text(us) for us in times], fontsize=_SMALL, padding=3)
    axis.set_yticks(range(len(names)), names)
    axis.set_xlim(0, max(times) * 1.35)
    axis.set_ylim(len(names) - 5.5, len(names) - 0.5)  # bars of one size, however many
    axis.set_xticks([])
    axis.spines["bottom"].set_visible(False)
    axis.set_xlabel("alone; the longest counts" if e.bound else "by the data sheet")
