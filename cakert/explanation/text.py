"""An explanation as lines of text."""

from __future__ import annotations

import textwrap

from cakert.explanation.records import Explanation

__all__ = ["as_text", "error_text", "predicted_text", "shape_text", "size_text", "time_text"]


_COLUMNS = 110


def as_text(e: Explanation) -> str:
    """Some twenty lines of at most 110 columns, label before value; no colours, no markup."""
    s, c, t, load = e.shape, e.counts, e.tiles, e.load
    heads = e.head_density
    capability = ".".join(map(str, e.machine.capability))
    lines = [
        ("main reason", e.reason),
        ("predicted time", predicted_text(e)),
        ("device", f"{e.machine.name} ({capability}), {e.machine.sms} SMs"),
        (
            "problem",
            f"{shape_text(e)}, head_dim {s.head_dim}, {s.dtype}",
        ),
        ("kernel", e.route),
        ("because", f"{e.family} {e.why}"),
        *((f"not {family}", f"{reason}") for family, reason in e.passed_over),
        (
            "density",
            f"{e.density:.2%}; heads from {heads.min():.2%} to {heads.max():.2%}",
        ),
        (
            "blocks a row",
            f"{c.least:,} to {c.most:,}, mean {c.mean:,.1f}; "
            + ", ".join(f"{q} %: {n:,}" for q, n in c.quantiles.items())
            + (f"; {c.empty:,} of {c.rows:,} rows are empty" if c.empty else ""),
        ),
        (
            "tiles",
            f"{t.selected:,} selected, {t.fetched:,} fetched, {t.distinct:,} distinct; "
            + (
                f"{t.groups:,} groups of rows share {t.overlap:.1%}"
                if t.groups
                else "rows do not share"
            ),
        ),
        (
            "launch",
            f"{load.grid:,} thread blocks of {load.threads} threads"
            + (f" in clusters of {load.cluster}" if load.cluster > 1 else "")
            + f", {load.resident} an SM: {load.waves:.2f} waves",
        ),
        (
            "load of an SM",
            f"up to {load.most:,} steps, mean {load.mean:,.1f}: {load.imbalance:.2f} times; "
            f"{load.busy} of {e.machine.sms} SMs busy (a step: {load.step})",
        ),
        (
            "bytes",
            f"{size_text(e.traffic.hbm)} from memory at least, {size_text(e.traffic.l2)} through "
            f"L2, plan {size_text(e.traffic.plan)}",
        ),
        ("work", f"{e.flops / 1e9:,.2f} GFLOP"),
    ]
    if e.limits:
        each = sorted(e.limits.items(), key=lambda item: -item[1])
        lines.append(("limits", ", ".join(f"{name} {time_text(us)}" for name, us in each)))
    lines += [("note", note) for note in e.notes]
    width = max(len(label) for label, _ in lines)
    return "\n".join(
        textwrap.fill(
            value,
            _COLUMNS,
            initial_indent=f"{label:{width}}  ",
            subsequent_indent=" " * (width + 2),
            break_long_words=False,
            break_on_hyphens=False,
        )
        for label, value in lines
    )


def shape_text(e: Explanation) -> str:
    """Heads and blocks of the problem."""
    s = e.shape
    heads = "1 head" if s.num_qo_heads == 1 else f"{s.num_qo_heads:,} heads"
    kv = f" ({s.num_kv_heads:,} of K and V)" if s.num_kv_heads != s.num_qo_heads else ""
    return f"{heads}{kv} x {s.q_blocks:,} x {s.kv_blocks:,} blocks of {s.block}"


def predicted_text(e: Explanation) -> str:
    """The predicted time with its rate and error, or that there is none."""
    if e.predicted_us is None or e.predicted_tflops is None:
        return f"none: not measured on {e.machine.name}"
    tflops = (
        f"{e.predicted_tflops:,.0f}" if e.predicted_tflops >= 10 else f"{e.predicted_tflops:.2f}"
    )
    return f"{time_text(e.predicted_us)}, {tflops} TFLOP/s ({error_text(e)})"


def error_text(e: Explanation) -> str:
    """How far off predictions of the kernel were."""
    assert e.error is not None  # as the prediction
    low, high = e.error
    return f"on measured masks off by {low:+.0%} to {high:+.0%}"


def time_text(us: float) -> str:
    """Microseconds, or milliseconds where there are many, to three or four digits."""
    if us >= 1000:
        return f"{us / 1000:,.2f} ms"
    return f"{us:.1f} us" if us >= 1 else f"{us:.2f} us"


def size_text(count: int) -> str:
    """Bytes with a decimal prefix."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            value = count / size
            return f"{value:.3g} {unit}" if value < 999.5 else f"{value:,.0f} {unit}"
    return f"{count} B"
