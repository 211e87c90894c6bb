"""The timeline: who was in the batch when, doing what. The course's main picture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import ScaledTranslation

from toyserve.recording import Recording
from toyserve.viz.image import blend
from toyserve.viz.spans import Mark, Span, Spans, spans_of
from toyserve.viz.style import (
    MARKS,
    STATES,
    State,
    Theme,
    add_legend,
    check_choice,
    dress,
    figure_of,
    mark_line,
    new_axes,
    set_title,
    state_patch,
    theme_of,
)
from toyserve.viz.words import run_name, say_empty, short, step_axis

MAX_ROWS, MAX_SPANS, MAX_MARKS = 64, 3000, 400


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
    look = theme_of(theme)
    story = spans_of(recording)
    view = _View(recording, story, by, x, _window(recording, story, x, steps))
    if ax is None:
        ax = new_axes((10, min(8.0, 1.5 + 0.36 * max(2, view.num_rows))), look)[0]
    else:
        dress(ax, look)
    spans = view.visible_spans()
    marks: list[Mark] = []
    if view.num_rows > MAX_ROWS or len(spans) > MAX_SPANS:
        _paint_image(ax, view, spans, look)
    else:
        marks = _paint_cells(ax, view, spans, look)
    _axes(ax, view)
    set_title(ax, _title(view) if title is None else title, look)
    if not story.num_steps:
        say_empty(ax, recording, look)
    if legend:
        used = {span.state for span in spans}
        kinds = {mark.kind for mark in marks}
        add_legend(ax, legend_handles(used, kinds, look), look)
    return figure_of(ax)


def legend_handles(states: set[State], marks: set[str], theme: Theme) -> list[Any]:
    """Entries for what a picture shows, always in the same order."""
    return [state_patch(s, theme) for s in STATES if s in states] + [
        mark_line(m, theme) for m in MARKS if m in marks
    ]


@dataclass
class _View:
    recording: Recording
    story: Spans
    by: str
    x: str
    window: tuple[float, float]  # in units of x

    @property
    def num_rows(self) -> int:
        if self.by == "request":
            return max(1, len(self.story.request_ids))
        places = self.recording.meta.get("max_running") or 0
        return max(1, self.story.num_slots, places if places <= 16 else 0)

    def visible_spans(self) -> list[Span]:
        """Those with a width and a row, inside the window."""
        low, high = self.window
        chosen = []
        for span in self.story.spans:
            start, end = self.extent(span)
            shown = self.by == "request" or span.slot is not None
            if shown and end > start and end > low and start < high:
                chosen.append(span)
        return chosen

    def extent(self, span: Span) -> tuple[float, float]:
        if self.x == "time":
            return span.start_time, span.end_time
        return span.start, span.end

    def row(self, item: Span | Mark) -> int | None:
        return item.request if self.by == "request" else item.slot


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


# -- a cell for each span -----------------------------------------------------------------------


def _paint_cells(ax: Axes, view: _View, spans: list[Span], theme: Theme) -> list[Mark]:
    for state in STATES:
        chosen = [span for span in spans if span.state is state]
        if not chosen:
            continue
        look = STATES[state]
        boxes = [_box(*view.extent(span), view.row(span) or 0) for span in chosen]
        ax.add_collection(
            PolyCollection(
                boxes, facecolors=look.fill(theme), edgecolors=look.edge(theme),
                hatch=look.hatch or None, linewidths=0.0, gid=str(state),
            )
        )  # fmt: skip
    low, high = view.window
    ax.set_xlim(low, high)
    ax.set_ylim(view.num_rows - 0.5, -0.5)
    _separate_steps(ax, view, theme)
    _write_in_cells(ax, view, spans, theme)
    return _paint_marks(ax, view, theme)


def _box(start: float, end: float, row: int) -> list[tuple[float, float]]:
    top, bottom = row - 0.4, row + 0.4
    return [(start, top), (end, top), (end, bottom), (start, bottom)]


def _separate_steps(ax: Axes, view: _View, theme: Theme) -> None:
    """Thin lines between steps, where there are few enough, and where a slot changes hands."""
    low, high = view.window
    if view.x == "step" and high - low <= 64:
        for step in range(int(low), int(high) + 1):
            ax.axvline(step, color=theme.background, linewidth=0.7, zorder=2)
    if view.by == "slot":
        for stay in view.story.stays:
            start = float(stay.start)
            if view.x == "time":
                start = view.recording.steps[stay.start].start_time
            ends = [stay.slot - 0.42, stay.slot + 0.42]
            ax.plot([start, start], ends, color=theme.background, linewidth=2, zorder=3)


def _write_in_cells(ax: Axes, view: _View, spans: list[Span], theme: Theme) -> None:
    """Token counts in prefill chunks and, by slot, the request's name in its longest span."""
    named: dict[tuple[int, int], Span] = {}
    for span in spans:
        start, end = view.extent(span)
        if span.state is State.PREFILL:
            look = STATES[span.state]
            _fit_text(ax, view, start, end, view.row(span), str(span.num_tokens), look.text(theme))
    if view.by == "request":
        return
    for stay in view.story.stays:
        inside = [
            s for s in spans
            if s.request == stay.request and s.slot == stay.slot
            and stay.start <= s.start < stay.end and s.state is not State.PADDING
        ]  # fmt: skip
        free = [s for s in inside if s.state is not State.PREFILL]
        if free:
            named[stay.request, stay.start] = max(free, key=lambda s: s.end - s.start)
    for span in named.values():
        start, end = view.extent(span)
        text, color = view.story.request_ids[span.request], STATES[span.state].text(theme)
        _fit_text(ax, view, start, end, span.slot, text, color, weight="bold")


def _fit_text(
    ax: Axes, view: _View, start: float, end: float, row: int | None, text: str, color: str,
    weight: str = "normal",
) -> None:  # fmt: skip
    """Write ``text`` in a cell if it can be read there, turned on its side if it must be."""
    low, high = view.window
    start, end = max(start, low), min(end, high)
    inches = figure_of(ax).get_size_inches()
    box = ax.get_position()
    width = (end - start) / (high - low) * box.width * inches[0] * 72
    height = 0.8 / view.num_rows * box.height * inches[1] * 72
    size = 9.0 if weight == "bold" else 8.0
    long = 0.64 * size * len(text)
    if long <= width and size <= height:
        rotation = 0
    elif weight == "normal" and size <= width and long <= height:
        rotation = 90
    else:
        return
    ax.text(
        (start + end) / 2, row or 0, text, ha="center", va="center", fontsize=size, color=color,
        rotation=rotation, zorder=4, fontweight=weight, clip_on=True,
    )  # fmt: skip


def _paint_marks(ax: Axes, view: _View, theme: Theme) -> list[Mark]:
    low, high = view.window
    marks = []
    for mark in view.story.marks:
        place = mark.time if view.x == "time" else mark.position
        if low <= place <= high and (view.by == "request" or mark.slot is not None):
            marks.append(mark)
    if len(marks) > MAX_MARKS:
        return []
    for kind, (marker, filled, _) in MARKS.items():
        chosen = [mark for mark in marks if mark.kind == kind]
        if chosen:
            # Beside the boundary, in its own request's cell: neighbours share the boundary.
            aside, below = {"admitted": (3, 0.4), "finished": (-3, 0.4)}.get(kind, (0, -0.4))
            offset = ScaledTranslation(aside / 72, 0, figure_of(ax).dpi_scale_trans)
            ax.plot(
                [m.time if view.x == "time" else m.position for m in chosen],
                [(view.row(m) or 0) + below for m in chosen],
                linestyle="", marker=marker, markersize=4.5, color=theme.ink, zorder=5,
                markerfacecolor=theme.ink if filled else theme.background, clip_on=False,
                markeredgewidth=1.0, gid=f"mark: {kind}", transform=ax.transData + offset,
            )  # fmt: skip
    return marks


# -- an image of blended cells ------------------------------------------------------------------


def _paint_image(ax: Axes, view: _View, spans: list[Span], theme: Theme) -> None:
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


def _axes(ax: Axes, view: _View) -> None:
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


def _title(view: _View) -> str:
    name = run_name(view.recording)
    count, num_steps = len(view.story.request_ids), view.story.num_steps
    who = f"{count:,} request{'' if count == 1 else 's'}"
    if view.by == "request":
        return f"{name}: {who}, one row each; grey is waiting"
    where = f"{num_steps:,} steps"
    window = (0.0, float(num_steps))
    if view.x == "step":
        window = view.window
        if view.window != (0, num_steps):
            where = f"steps {view.window[0] + 1:,.0f} to {view.window[1]:,.0f} of {num_steps:,}"
    share = useful_share(view.story.spans, window, view.num_rows)
    slots = f"{view.num_rows} slot{'' if view.num_rows == 1 else 's'}"
    return f"{name}: {who} in {slots}, {where}; {share:.1%} of the slots' steps did useful work"
