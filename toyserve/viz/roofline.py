"""The roofline of a GPU, with the steps of a run on it."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from toyserve.costs import RooflineCostModel
from toyserve.hardware import HardwareSpec, get_hardware
from toyserve.modelspecs import ModelSpec, get_model
from toyserve.recording import Recording
from toyserve.replay import Phase, Work, replay_work
from toyserve.stepshape import StepShape
from toyserve.viz.style import (
    STATES,
    State,
    Theme,
    add_legend,
    claim_x,
    dress,
    figure_of,
    new_axes,
    set_title,
    theme_of,
)
from toyserve.viz.words import require_steps

KINDS = (
    ("decode", State.DECODE, "o", "decode steps"),
    ("mixed", State.STALLED, "D", "steps with both"),
    ("prefill", State.PREFILL, "s", "prefill steps"),
)


def step_points(
    cost: RooflineCostModel, recording: Recording
) -> dict[str, list[tuple[float, float]]]:
    """(FLOPs per byte, FLOP/s reached) of every step, by kind; the time is the recording's."""
    points: dict[str, list[tuple[float, float]]] = {kind: [] for kind, *_ in KINDS}
    for step, work in replay_work(recording):
        shape = StepShape.of_rows(_rows(work), cost.model.sliding_window)
        bill = cost.breakdown(shape)
        flops = bill.linear.num_flops + bill.attention.num_flops
        num_bytes = bill.linear.num_bytes + bill.attention.num_bytes
        seconds = step.end_time - step.start_time
        if flops and seconds > 0:
            points[shape.phase].append((flops / num_bytes, flops / seconds))
    return points


def _rows(work: list[Work]) -> list[tuple[int, int]]:
    """(tokens already computed, tokens run) per request, its padding in the same row."""
    rows: dict[str, tuple[int, int]] = {}
    for item in work:
        before, tokens = rows.get(item.request_id, (item.context_len - item.num_tokens, 0))
        if item.phase is Phase.PADDING and not tokens:
            before = item.context_len
        rows[item.request_id] = (before, tokens + item.num_tokens)
    return list(rows.values())


def roofline(
    hardware: str | HardwareSpec,
    model: str | ModelSpec,
    recording: Recording | None = None,
    *,
    ax: Axes | None = None,
    title: str | None = None,
    theme: str = "light",
) -> Figure:
    """What the GPU could do at best for each arithmetic intensity, and what the steps reached.

    Left of the ridge a step waits for memory, right of it for arithmetic. A step's FLOPs and bytes
    are the cost model's for ``model``; its time is the recording's.
    """
    look, gpu, spec = theme_of(theme), get_hardware(hardware), get_model(model)
    if ax is None:
        ax = new_axes((8, 4.6), look)[0]
    else:
        dress(ax, look)
    claim_x(ax, "arithmetic intensity")
    points: dict[str, list[tuple[float, float]]] = {}
    if recording is not None:
        require_steps(recording)
        points = step_points(RooflineCostModel(gpu, spec), recording)
    peak, ridge = gpu.peak_flops_for(spec.weight_dtype), gpu.ridge(spec.weight_dtype)
    every = [point for some in points.values() for point in some]
    low = min([0.5, ridge / 300, *(i for i, _ in every)]) / 1.5
    high = max([ridge * 8, *(i for i, _ in every)]) * 1.5
    x = np.array([low, ridge, high])
    ax.plot(x, np.minimum(peak, x * gpu.bandwidth), color=look.ink, linewidth=2.2, gid="roof")
    handles = _paint_steps(ax, points, look)
    ax.axvline(ridge, color=look.faint, linestyle=":", linewidth=1.3, gid="ridge")
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(low, high)
    bottom = min([low * gpu.bandwidth, *(f for _, f in every)])
    ax.set_ylim(bottom / 2, peak * 4)
    _write_regions(ax, gpu, peak, ridge, low, high, look)
    ax.set_xlabel("arithmetic intensity (FLOPs per byte moved)")
    ax.set_ylabel("FLOP/s")
    set_title(ax, title or _title(gpu, spec, points), look)
    add_legend(ax, handles, look)
    return figure_of(ax)


def _paint_steps(
    ax: Axes, points: dict[str, list[tuple[float, float]]], theme: Theme
) -> list[Line2D]:
    handles = []
    for kind, state, marker, words in KINDS:
        if points.get(kind):
            (line,) = ax.plot(
                *zip(*points[kind], strict=True), linestyle="", marker=marker, markersize=6,
                color=STATES[state].fill(theme), markeredgecolor=theme.ink, markeredgewidth=0.5,
                alpha=0.75, label=f"{words} ({len(points[kind]):,})", gid=kind,
                rasterized=len(points[kind]) > 2000,
            )  # fmt: skip
            handles.append(line)
    return handles


def _write_regions(
    ax: Axes, gpu: HardwareSpec, peak: float, ridge: float, low: float, high: float, theme: Theme
) -> None:
    middle = (low * ridge) ** 0.5
    ax.text(
        middle, peak * 1.25, f"memory-bound: {gpu.bandwidth / 1e9:,.0f} GB/s is the limit",
        ha="center", va="bottom", fontsize=8.5, color=theme.ink,
    )  # fmt: skip
    ax.text(
        (ridge * high) ** 0.5, peak * 1.25, f"compute-bound:\n{peak / 1e12:,.4g} TFLOP/s",
        ha="center", va="bottom", fontsize=8.5, color=theme.ink,
    )  # fmt: skip
    ax.text(
        ridge, ax.get_ylim()[0] * 1.15, f" ridge: {ridge:,.0f} FLOPs/byte", ha="left", va="bottom",
        fontsize=8.5, color=theme.ink,
    )  # fmt: skip


def _title(gpu: HardwareSpec, spec: ModelSpec, points: dict[str, list[tuple[float, float]]]) -> str:
    text = f"{spec.name} on {gpu.name}"
    every = [point for some in points.values() for point in some]
    if not every:
        return f"{text}: the roof that no step can rise above"
    ridge = gpu.ridge(spec.weight_dtype)
    left = sum(1 for intensity, _ in every if intensity < ridge)
    return f"{text}: {left / len(every):.0%} of {len(every):,} steps lie left of the ridge"
