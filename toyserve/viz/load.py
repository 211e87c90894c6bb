"""Latency against arrival rate with the knee, and throughput against batch size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from toyserve.recording import Recording
from toyserve.viz.style import (
    Theme,
    add_legend,
    check_choice,
    claim_x,
    dress,
    figure_of,
    new_axes,
    set_title,
    theme_of,
)

Point = tuple[float, Recording | Mapping[str, Any]]
Throughputs = Sequence[tuple[int, float]]
METRICS = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2e": "E2E latency"}
LOOKS = (("o", "-"), ("s", "--"), ("D", "-."), ("^", ":"))


def knee(points: Sequence[tuple[float, float]], limit: float) -> float | None:
    """The last rate before the first whose value (a latency) is above ``limit``.

    points: (rate, value), ascending. None if no value is above it, or the first already is: the
    boundary was not measured.
    """
    for number, (_, value) in enumerate(points):
        if value > limit:
            return points[number - 1][0] if number else None
    return None


def latency_vs_rate(
    points: Sequence[Point],
    *,
    metric: str = "ttft",
    target: float | None = None,
    factor: float = 3.0,
    ax: Axes | None = None,
    title: str | None = None,
    theme: str = "light",
) -> Figure:
    """p50, p95 and p99 of ``metric`` at each arrival rate, the knee marked.

    points: (requests per second, its recording or the recording's ``summary()``). The knee is the
    last rate at which p95 is within ``target`` seconds, or else within ``factor`` times what it is
    at the lowest rate.
    """
    check_choice("metric", metric, tuple(METRICS))
    if not points:
        raise ValueError("no points were given: at least 1 rate is needed")
    look = theme_of(theme)
    rows = sorted((rate, _distribution(run, metric)) for rate, run in points)
    rates = [rate for rate, _ in rows]
    series = {q: [d.get(q) for _, d in rows] for q in ("p50", "p95", "p99")}
    if ax is None:
        ax = new_axes((8, 4), look)[0]
    else:
        dress(ax, look)
    claim_x(ax, "arrival rate")
    for (name, values), (marker, line), color in zip(
        series.items(), LOOKS, look.series, strict=False
    ):
        known = [(r, v) for r, v in zip(rates, values, strict=True) if v is not None]
        ax.plot(
            [r for r, _ in known], [v for _, v in known], marker=marker, linestyle=line,
            color=color, linewidth=1.8, markersize=5, label=name, gid=name,
        )  # fmt: skip
    known = [(r, v) for r, v in zip(rates, series["p95"], strict=True) if v is not None]
    limit = factor * known[0][1] if target is None and known else 1e3 * (target or 0.0)
    edge = knee(known, limit)
    _mark_knee(ax, edge, limit, target, factor, look)
    _log_scale(ax.yaxis, [v for values in series.values() for v in values if v])
    ax.set_xlim(left=0)
    ax.set_xlabel("arrival rate (requests per second)")
    ax.set_ylabel(f"{METRICS[metric]} (ms)")
    ax.grid(color=look.faint, alpha=0.25, linewidth=0.6)
    late = bool(known) and known[0][1] > limit
    set_title(ax, title or _rate_title(METRICS[metric], rates, edge, late), look)
    handles = list(ax.get_lines())
    add_legend(ax, [h for h in handles if not str(h.get_label()).startswith("_")], look)
    return figure_of(ax)


def _distribution(run: Recording | Mapping[str, Any], metric: str) -> Mapping[str, Any]:
    summary = run.summary() if isinstance(run, Recording) else run
    try:
        distribution: Mapping[str, Any] = summary[f"{metric}_ms"]
    except KeyError:
        raise ValueError(f"a point's summary has no entry '{metric}_ms'") from None
    return distribution


def _mark_knee(
    ax: Axes, edge: float | None, limit: float, target: float | None, factor: float, theme: Theme
) -> None:
    what = "target" if target is not None else f"{factor:g} x p95 at the lowest rate"
    label = f"{what} ({limit:,.0f} ms)"
    ax.axhline(limit, color=theme.faint, linestyle=":", linewidth=1.3, label=label, gid="limit")
    if edge is not None:
        ax.axvline(
            edge, color=theme.ink, linestyle="--", linewidth=1.4, gid="knee",
            label=f"knee: {edge:.3g} requests/s",
        )  # fmt: skip


def _rate_title(name: str, rates: Sequence[float], edge: float | None, late: bool) -> str:
    if edge is None:
        where = "past the limit already at" if late else "no knee up to"
        return f"{name} under load: {where} {min(rates) if late else max(rates):g} requests/s"
    return f"{name} under load: past {edge:g} requests/s the tail grows much faster than the load"


# -- throughput ---------------------------------------------------------------------------------


def throughput_vs_batch(
    points: Throughputs | Mapping[str, Throughputs],
    *,
    ax: Axes | Sequence[Axes] | None = None,
    title: str | None = None,
    theme: str = "light",
) -> Figure:
    """Tokens per second of all users together (left) and of each user (right), by batch size.

    points: (batch size, tokens per second of all together), or several such series by label, such
    as "modelled" and "measured".
    """
    named = dict(points) if isinstance(points, Mapping) else {"": points}
    if not any(len(series) for series in named.values()):
        raise ValueError("no points were given: at least 1 batch size is needed")
    if len(named) > len(LOOKS):
        raise ValueError(f"{len(named)} series: one picture tells at most {len(LOOKS)} apart")
    look = theme_of(theme)
    axes = _pair(ax, look)
    for panel in axes:
        claim_x(panel, "batch")
    drawn: tuple[list[float], list[float]] = ([], [])
    batches = sorted({batch for series in named.values() for batch, _ in series})
    for number, (name, series) in enumerate(named.items()):
        rows = sorted(series)
        marker, line = LOOKS[number]
        style: dict[str, Any] = {
            "marker": marker, "linestyle": line, "color": look.series[number], "linewidth": 1.8,
            "markersize": 5, "label": name or "_", "gid": name or "points",
        }  # fmt: skip
        sizes = [batch for batch, _ in rows]
        both = [total for _, total in rows], [total / batch for batch, total in rows]
        for panel, values, rates in zip(axes, drawn, both, strict=True):
            panel.plot(sizes, rates, **style)
            values.extend(rates)
    for panel, values, words in zip(axes, drawn, ("all users together", "each user"), strict=True):
        _log_scale(panel.yaxis, values)
        panel.set_xscale("log", base=2)
        panel.set_xticks(batches, [f"{b:,}" for b in batches])
        panel.xaxis.set_minor_locator(NullLocator())
        panel.set_xlabel("batch (requests per step)")
        panel.set_ylabel("tokens per second")
        panel.grid(color=look.faint, alpha=0.25, linewidth=0.6)
        set_title(panel, words, look)
    rows = sorted(next(iter(named.values())))
    if title is not None or ax is None:
        figure_of(axes[0]).suptitle(
            title or _batch_title(rows), fontsize=11, color=look.ink, x=0.01, ha="left"
        )
    if len(named) > 1:
        add_legend(axes[-1], [h for h in axes[0].get_lines() if isinstance(h, Line2D)], look)
    return figure_of(axes[0])


def _batch_title(rows: Sequence[tuple[int, float]]) -> str:
    (low, first), (high, last) = rows[0], rows[-1]
    if low == high or not first:
        return "Throughput by batch size"
    alone, shared = first / low, last / high
    return (
        f"From batch {low:,} to {high:,}: {last / first:.1f} x the tokens in all, "
        f"{shared / alone:.2f} x for each user"
    )


def _pair(ax: Axes | Sequence[Axes] | None, theme: Theme) -> list[Axes]:
    if ax is None:
        return new_axes((10, 3.8), theme, 1, num_columns=2, sharex=False)
    axes = [ax] if isinstance(ax, Axes) else list(ax)
    if len(axes) != 2:
        raise ValueError(f"ax holds {len(axes)} axes: throughput_vs_batch draws into two")
    for panel in axes:
        dress(panel, theme)
    return axes


def _log_scale(axis: Any, values: Sequence[float]) -> None:
    """Logarithmic with plain numbers, where the values spread over more than 8 times."""
    low, high = min(values, default=1.0), max(values, default=1.0)
    if low > 0 and high > 8 * low:
        axis.axes.set_yscale("log")
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.0f}" if v >= 1 else f"{v:g}"))
    else:
        axis.axes.set_ylim(0, 1.08 * high if high > 0 else None)  # the highest dot is drawn whole
