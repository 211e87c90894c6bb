"""The timeline: who was in the batch when, doing what. The course's main picture."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from toyserve.recording import Recording
from toyserve.viz.cells import View, paint_cells
from toyserve.viz.image import blend
from toyserve.viz.spans import Mark, Span, Spans, spans_of
from toyserve.viz.style import (
    MARKS,
    STATES,
    State,
    Theme,
    add_legend,
    check_choice,
    claim_x,
    dress,
    figure_of,
    mark_line,
    new_axes,
    set_title,
    state_patch,
    theme_of,
)
from toyserve.viz.words import require_steps, run_name, say_empty, short, step_axis
from toyserve.words import counted

MAX_ROWS, MAX_SPANS = 64, 3000


def timeline(
    recording: Recording,
    *,
    by: Literal["slot", "request"] = "slot",
    x: Literal["step", "time"] = "step",
    steps: tuple[int, int] | None = None,
    ax: Axes | None = None,
    title: str | None = None,
    legend: bool = True,
    theme: str = "light",
) -> Figure:
    """Who was in the batch when, doing what.

    by: a row for each place in the batch, or for each request (then its wait shows too).
    x: one cell per step, counted from 1, or seconds on the engine's clock.
    steps: only steps first .. last, counted from 1 as in the picture.
    A run too large for single cells is blended into an image.
    """
    check_choice("by", by, ("slot", "request"))
    check_choice("x", x, ("step", "time"))
    require_steps(recording)
    look = theme_of(theme)
    story = spans_of(recording)
    view = View(recording, story, by, x, _window(recording, story, x, steps))
    if ax is None:
        ax = new_axes((10, timeline_height(view.num_rows)), look)[0]
    else:
        dress(ax, look)
    claim_x(ax, x)
    states, marks = draw(ax, view, look)
    set_title(ax, _title(view) if title is None else title, look)
    if legend:
        add_legend(ax, legend_handles(states, marks, look), look)
    return figure_of(ax)


def timeline_height(num_rows: int) -> float:
    """Inches, with room for the title, the axis and the legend."""
    return min(8.0, 1.5 + 0.36 * max(2, num_rows))


def draw(ax: Axes, view: View, theme: Theme) -> tuple[set[State], set[str]]:
    """Paint the view with its axes; returns the states and the kinds of mark in it."""
    spans = view.visible_spans()
    marks: list[Mark] = []
    if view.num_rows > MAX_ROWS or len(spans) > MAX_SPANS:
        _paint_image(ax, view, spans, theme)
    else:
        marks = paint_cells(ax, view, spans, theme)
    _axes(ax, view)
    if not view.story.num_steps:
        say_empty(ax, view.recording, theme)
    return {span.state for span in spans}, {mark.kind for mark in marks}


def legend_handles(states: set[State], marks: set[str], theme: Theme) -> list[Any]:
    """Entries for what a picture shows, always in the same order."""
    return [state_patch(s, theme) for s in STATES if s in states] + [
        mark_line(m, theme) for m in MARKS if m in marks
    ]


def _window(
    recording: Recording, story: Spans, x: str, steps: tuple[int, int] | None
) -> tuple[float, float]:
    first, last = steps if steps is not None else (1, max(1, story.num_steps))
    if not 1 <= first <= last or (steps is not None and last > story.num_steps):
        raise ValueError(
            f"steps is {steps!r}: first and last step, counted from 1; "
            f"this run has {story.num_steps}"
        )
    if x == "step":
        return first - 1, last
    if steps is not None:
        return recording.steps[first - 1].start_time, recording.steps[last - 1].end_time
    low = min((span.start_time for span in story.spans), default=0.0)
    return low, max(low + 1e-9, max((span.end_time for span in story.spans), default=1.0))


# -- an image of blended cells ------------------------------------------------------------------


def _paint_image(ax: Axes, view: View, spans: list[Span], theme: Theme) -> None:
    low, high = view.window
    extents = np.array([view.extent(span) for span in spans])
    rows = np.array([view.row(span) or 0 for span in spans])
    states = [span.state for span in spans]
    image = blend(extents, rows, states, (low, high), view.num_rows, theme)
    ax.imshow(
        image, aspect="auto", interpolation="nearest",
        extent=(low, high, view.num_rows - 0.5, -0.5), gid="timeline",
    )  # fmt: skip


# -- words --------------------------------------------------------------------------------------


def _axes(ax: Axes, view: View) -> None:
    rows, ids = view.num_rows, view.story.request_ids
    name = "request" if view.by == "request" else "slot"
    if rows <= 40:
        labels = ids if view.by == "request" and ids else [str(i + 1) for i in range(rows)]
        ax.set_yticks(range(rows), [short(label) for label in labels[:rows]])
        ax.tick_params(axis="y", length=0)
    else:
        ax.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    order = " (in order of arrival)" if view.by == "request" and rows > 40 else ""
    ax.set_ylabel(name + order)
    low, high = view.window
    if view.x == "time":
        ax.set_xlabel("time (s)")
        return
    step_axis(ax, low, high)


def useful_share(spans: list[Span], window: tuple[float, float], num_rows: int) -> float:
    """Part of all slot-steps in which a request read or wrote tokens that somebody wanted."""
    low, high = window
    done = sum(
        max(0.0, min(span.end, high) - max(span.start, low))
        for span in spans
        if span.state in (State.PREFILL, State.DECODE)
    )
    return done / max(1.0, (high - low) * num_rows)


def _title(view: View) -> str:
    name = run_name(view.recording)
    count, num_steps = len(view.story.request_ids), view.story.num_steps
    who = counted(count, "request")
    if view.by == "request":
        return f"{name}: {who}, one row each; grey is waiting"
    where = f"{num_steps:,} steps"
    window = (0.0, float(num_steps))
    if view.x == "step":
        window = view.window
        if view.window != (0, num_steps):
            where = f"steps {view.window[0] + 1:,.0f} to {view.window[1]:,.0f} of {num_steps:,}"
    share = useful_share(view.story.spans, window, view.num_rows)
    slots = counted(view.num_rows, "slot")
    return f"{name}: {who} in {slots}, {where}; {share:.1%} of the slots' steps did useful work"
