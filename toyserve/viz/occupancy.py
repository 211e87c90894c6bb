"""How full each step was: requests in the batch, tokens in the budget, and the queue behind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from toyserve.recording import Recording
from toyserve.replay import Phase, replay_work
from toyserve.viz.bars import Bars, bars_of, x_axis
from toyserve.viz.style import (
    STATES,
    State,
    Theme,
    add_legend,
    check_choice,
    claim_x,
    dress,
    figure_of,
    new_axes,
    set_title,
    state_patch,
    theme_of,
)
from toyserve.viz.words import require_steps, run_name, say_empty

ORDER = (State.DECODE, State.PREFILL, State.PADDING)


@dataclass
class StepLoad:
    """Per step: rows of the batch and tokens, by state; arrays of one number per step."""

    rows: dict[State, NDArray[np.int64]]
    tokens: dict[State, NDArray[np.int64]]


def step_load(recording: Recording) -> StepLoad:
    """How many requests and tokens of each kind every step held.

    A row whose prompt is padded counts once, as prefill; its padding counts among the tokens.
    """
    num_steps = len(recording.steps)
    load = StepLoad(
        {state: np.zeros(num_steps, dtype=np.int64) for state in ORDER},
        {state: np.zeros(num_steps, dtype=np.int64) for state in ORDER},
    )
    for number, (step, work) in enumerate(replay_work(recording)):
        rows, tokens = dict.fromkeys(Phase, 0), dict.fromkeys(Phase, 0)
        for item in work:
            phase = item.phase
            tokens[phase] += item.num_tokens
            if phase is not Phase.PADDING or item.request_id not in step.num_scheduled_tokens:
                rows[phase] += 1
        for phase in Phase:
            load.rows[State(phase)][number] = rows[phase]
            load.tokens[State(phase)][number] = tokens[phase]
    return load


def occupancy(
    recording: Recording,
    *,
    x: Literal["step", "time"] = "step",
    ax: Axes | Sequence[Axes] | None = None,
    title: str | None = None,
    legend: bool = True,
    theme: str = "light",
) -> Figure:
    """How full each step was. Above: requests in the batch; below: tokens computed.

    Dotted is what stayed empty: free slots above, unspent token budget below. Given one ``ax``,
    only the tokens are drawn; given two, both. Long runs show averages over equal parts, and on the
    time axis an engine without work shows as empty.
    """
    check_choice("x", x, ("step", "time"))
    require_steps(recording)
    look = theme_of(theme)
    axes = _axes_for(ax, look)
    for panel in axes:
        claim_x(panel, x)
    load = step_load(recording)
    bars = bars_of(recording, x)
    meta = recording.meta
    panels = [
        (load.rows, meta.get("max_running"), "requests\nin the batch"),
        (load.tokens, meta.get("token_budget"), "tokens\nin the step"),
    ]
    used: set[State] = set()
    for panel, (counts, limit, label) in zip(axes, panels[-len(axes) :], strict=True):
        used |= _stack(panel, counts, limit, bars, look)
        panel.set_ylabel(label)
    x_axis(axes[-1], x, bars.edges)
    if not recording.steps:
        say_empty(axes[-1], recording, look)
    set_title(axes[0], _title(recording, load) if title is None else title, look)
    if legend:
        handles: list[Any] = [
            state_patch(s, look, _name(s)) for s in (*ORDER, State.IDLE) if s in used
        ]
        if any(limit for _, limit, _ in panels[-len(axes) :]):
            handles.append(Line2D([], [], color=look.ink, linestyle="--", label="limit"))
        add_legend(axes[-1], handles, look)
    return figure_of(axes[0])


def queue_length(
    recording: Recording,
    *,
    x: Literal["step", "time"] = "time",
    ax: Axes | None = None,
    title: str | None = None,
    theme: str = "light",
) -> Figure:
    """How many requests have arrived and neither ended nor entered the batch, over time.

    On the time axis every arrival counts at its own moment; on the step axis, the queue that each
    step left behind.
    """
    check_choice("x", x, ("step", "time"))
    require_steps(recording)
    look = theme_of(theme)
    if ax is None:
        ax = new_axes((10, 2.6), look)[0]
    else:
        dress(ax, look)
    claim_x(ax, x)
    if x == "step":
        bars = bars_of(recording, x)
        edges = bars.edges
        waiting = bars.heights(np.array([s.num_waiting for s in recording.steps], dtype=float))
    else:
        edges, waiting = _queue_over_time(recording)
    paint = STATES[State.WAITING]
    if len(waiting):
        ax.stairs(
            waiting, edges, fill=True, facecolor=paint.fill(look), edgecolor=look.ink,
            linewidth=0.8, gid="queue",
        )  # fmt: skip
    ax.set_ylim(0, max(1.0, 1.08 * float(waiting.max(initial=0))))
    ax.set_ylabel("requests waiting")
    x_axis(ax, x, edges)
    longest = round(float(waiting.max(initial=0)))
    left = recording.steps[-1].num_waiting if recording.steps else 0
    end = "it empties" if left == 0 else f"{left:,} still wait at the end"
    set_title(ax, title or f"The queue: at most {longest:,} waiting; {end}", look)
    if not recording.steps:
        say_empty(ax, recording, look)
    return figure_of(ax)


def _queue_over_time(recording: Recording) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Edges and heights of the queue as it really was between decisions."""
    changes = []
    for record in recording.requests.values():
        if record.first_scheduled_time is not None or record.error is None:
            changes.append((record.arrival_time, 1))
        if record.first_scheduled_time is None and record.error is None and record.finish_time:
            changes.append((record.finish_time, -1))  # aborted in the queue
    for step in recording.steps:
        changed = len(step.preempted) - len(step.admitted)
        if changed:
            changes.append((step.start_time, changed))
    changes.sort(key=lambda change: (change[0], -change[1]))  # nobody leaves before they came
    end = recording.steps[-1].end_time if recording.steps else 1.0
    times = np.array([time for time, _ in changes] + [max(end, changes[-1][0] if changes else 0)])
    return times, np.cumsum([change for _, change in changes]).astype(float)


def _stack(
    ax: Axes,
    counts: dict[State, NDArray[np.int64]],
    limit: int | None,
    bars: Bars,
    theme: Theme,
) -> set[State]:
    """Stacked bars; returns the states that occur."""
    used: set[State] = set()
    base = np.zeros(len(bars.edges) - 1)
    heights = {state: bars.heights(counts[state]) for state in ORDER}
    if limit and len(heights[State.DECODE]):
        total = np.sum(list(heights.values()), axis=0)
        heights[State.IDLE] = np.maximum(0, limit - total)
    for state, height in heights.items():
        if not len(height) or not height.any():
            continue
        used.add(state)
        look = STATES[state]
        ax.stairs(
            base + height, bars.edges, baseline=base, fill=True, facecolor=look.fill(theme),
            edgecolor=look.edge(theme), hatch=look.hatch or None, linewidth=0.0, gid=str(state),
        )  # fmt: skip
        base = base + height
    if limit:
        ax.axhline(limit, color=theme.ink, linestyle="--", linewidth=1.0)
    ax.set_ylim(0, max(1.0, 1.08 * float(base.max(initial=0)), 1.08 * (limit or 0)))
    return used


def _axes_for(ax: Axes | Sequence[Axes] | None, theme: Theme) -> list[Axes]:
    if ax is None:
        return new_axes((10, 4.2), theme, 2)
    axes = [ax] if isinstance(ax, Axes) else list(ax)
    if len(axes) not in (1, 2):
        raise ValueError(f"ax holds {len(axes)} axes: occupancy draws into one or two")
    for panel in axes:
        dress(panel, theme)
    return axes


def _name(state: State) -> str:
    return "empty (free slot, unspent budget)" if state is State.IDLE else STATES[state].meaning


def _title(recording: Recording, load: StepLoad) -> str:
    name = run_name(recording)
    if not recording.steps:
        return f"{name}: nothing ran"
    num_steps = len(recording.steps)
    rows = sum(int(part.sum()) for part in load.rows.values())
    total = sum(int(part.sum()) for part in load.tokens.values())
    padding = int(load.tokens[State.PADDING].sum())
    text = f"{name}: {rows / num_steps:.1f} requests and {total / num_steps:,.1f} tokens per step"
    if padding:
        text += f"; {padding / total:.0%} of the tokens are padding"
    budget = recording.meta.get("token_budget")
    if budget:
        text += f"; {total / (budget * num_steps):.0%} of the token budget used"
    return text
