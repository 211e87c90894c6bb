"""How long users waited: distributions of TTFT, ITL and E2E latency with their percentiles."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from toyserve.metrics import e2e, itl, percentile, tpot, ttft
from toyserve.recording import Recording, RequestRecord
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
from toyserve.viz.words import format_seconds, run_name, short

Runs = Recording | Sequence[Recording] | Mapping[str, Recording]


def _one(value: float | None) -> list[float]:
    return [] if value is None else [value]


METRICS: dict[str, tuple[str, Callable[[RequestRecord], list[float]]]] = {
    "ttft": ("TTFT: arrival to first token", lambda r: _one(ttft(r))),
    "itl": ("ITL: each gap between two tokens", itl),
    "tpot": ("TPOT: mean gap of each answer", lambda r: _one(tpot(r))),
    "e2e": ("E2E: arrival to last token", lambda r: _one(e2e(r))),
}
PERCENTILES = ((50, "o"), (95, "s"), (99, "D"))
LINES = ("-", "--", "-.", ":")


def latency_values(recording: Recording, metric: str) -> list[float]:
    """Every measured value of ``metric`` ("ttft", "itl", "tpot" or "e2e") in ms, sorted."""
    check_choice("metric", metric, tuple(METRICS))
    values = METRICS[metric][1]
    return sorted(1e3 * v for record in recording.requests.values() for v in values(record))


def latency(
    runs: Runs,
    *,
    metrics: Sequence[str] = ("ttft", "itl", "e2e"),
    ax: Axes | Sequence[Axes] | None = None,
    title: str | None = None,
    log: bool | None = None,
    theme: str = "light",
) -> Figure:
    """One panel per metric: which share of users had waited no longer than x.

    runs: a recording, several, or a mapping from label to recording. The marks are p50, p95 and
    p99, written out below each panel. log: a logarithmic x axis; None: where values spread 30-fold.
    """
    for metric in metrics:
        check_choice("metric", metric, tuple(METRICS))
    look, named = theme_of(theme), name_runs(runs)
    if len(named) > len(LINES):
        raise ValueError(f"{len(named)} runs: one picture tells at most {len(LINES)} apart")
    axes = _axes_for(ax, len(metrics), len(named), look)
    for panel, metric in zip(axes, metrics, strict=True):
        values = {name: latency_values(run, metric) for name, run in named.items()}
        _panel(panel, values, log, look)
        set_title(panel, METRICS[metric][0], look)
        panel.title.set_fontsize(9.5)
    axes[0].set_ylabel("share of values ≤ x")
    marks = [
        Line2D([], [], marker=m, linestyle="", color=look.ink, label=f"p{q}")
        for q, m in PERCENTILES
    ]
    lines = [
        Line2D([], [], color=look.series[i], linestyle=LINES[i], label=short(name, 30))
        for i, name in enumerate(named)
    ]
    add_legend(axes[-1], lines + marks, look)
    if title is not None or ax is None:
        figure_of(axes[0]).suptitle(
            title or "How long users waited: further left is better, and the top is the tail",
            fontsize=11, color=look.ink, x=0.01, ha="left",
        )  # fmt: skip
    return figure_of(axes[0])


def name_runs(runs: Runs) -> dict[str, Recording]:
    """Labels that differ: from the mapping, else from the recordings' own meta."""
    if isinstance(runs, Mapping):
        return dict(runs)
    several = [runs] if isinstance(runs, Recording) else list(runs)
    named: dict[str, Recording] = {}
    for run in several:
        label = run_name(run)
        number = 2
        while label in named:
            label, number = f"{run_name(run)} {number}", number + 1
        named[label] = run
    if not named:
        raise ValueError("no recording was given: at least 1 is needed")
    return named


def _axes_for(
    ax: Axes | Sequence[Axes] | None, num_panels: int, num_runs: int, theme: Theme
) -> list[Axes]:
    if ax is None:
        size = (10.0, 3.1 + 0.22 * num_runs)
        return new_axes(size, theme, 1, num_columns=num_panels, sharex=False)
    axes = [ax] if isinstance(ax, Axes) else list(ax)
    if len(axes) != num_panels:
        raise ValueError(f"ax holds {len(axes)} axes and there are {num_panels} metrics to draw")
    for panel in axes:
        dress(panel, theme)
    return axes


def _panel(ax: Axes, values: dict[str, list[float]], log: bool | None, theme: Theme) -> None:
    every = [v for series in values.values() for v in series]
    in_seconds = max(every, default=0.0) >= 10_000
    unit = 1000.0 if in_seconds else 1.0
    claim_x(ax, f"latency in {'s' if in_seconds else 'ms'}")
    for number, (name, series) in enumerate(values.items()):
        color = theme.series[number]
        text = "not measured"
        if series:
            _curve(ax, [v / unit for v in series], name, color, LINES[number], theme)
            marks = [(q, percentile(series, q) / 1e3) for q, _ in PERCENTILES]
            text = "  ".join(f"p{q} {format_seconds(v)}" for q, v in marks)
        ax.annotate(
            text, (0, 0), xytext=(0, -38 - 13 * number), xycoords="axes fraction",
            textcoords="offset points", fontsize=8, color=color, fontweight="bold", va="top",
            gid=f"percentiles: {name}",
        )  # fmt: skip
    if log is None:
        log = min(every, default=0.0) > 0 and max(every) > 30 * min(every)
    if log and min(every, default=0.0) > 0:
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(
            FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
        )
    else:
        ax.set_xlim(left=0)
    ax.set_ylim(0, 1.04)
    ax.set_yticks([0, 0.25, 0.5, 0.75, 0.95], ["0", "25%", "50%", "75%", "95%"])
    ax.grid(axis="y", color=theme.faint, alpha=0.25, linewidth=0.6)
    ax.set_xlabel("s" if in_seconds else "ms")


def _curve(
    ax: Axes, series: list[float], name: str, color: str, line: str, theme: Theme
) -> None:  # fmt: skip
    shares = np.arange(1, len(series) + 1) / len(series)
    x, y = np.array([series[0], *series]), np.array([0.0, *shares])
    if len(x) > 2000:
        keep = np.unique(np.concatenate([np.linspace(0, len(x) - 1, 1500).astype(int),
                                         np.arange(len(x) - 500, len(x))]))  # fmt: skip
        x, y = x[keep], y[keep]
    ax.plot(
        x, y, drawstyle="steps-post", color=color, linestyle=line, linewidth=1.8, label=name,
        gid=f"curve: {name}",
    )  # fmt: skip
    for q, marker in PERCENTILES:
        ax.plot(
            [percentile(series, q)], [q / 100], marker=marker, markersize=6, color=color,
            markeredgecolor=theme.background, linestyle="", zorder=4, gid=f"p{q}: {name}",
        )  # fmt: skip
