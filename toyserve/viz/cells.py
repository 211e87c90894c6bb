"""Painting spans one by one: boxes, the words in them, and the marks beside them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.transforms import ScaledTranslation

from toyserve.recording import Recording
from toyserve.viz.spans import Mark, Span, Spans, Stay
from toyserve.viz.style import MARKS, STATES, State, Theme, figure_of

MAX_MARKS = 400


@dataclass
class View:
    """Which part of a run, in which rows and units."""

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

    def visible_stays(self) -> list[Stay]:
        """Those that are in the batch some time inside the window."""
        low, high = self.window
        if self.x == "time" and self.story.num_steps:
            starts = [step.start_time for step in self.recording.steps]
            low, high = bisect_right(starts, low) - 1, bisect_left(starts, high)
        return [stay for stay in self.story.stays if stay.end > low and stay.start <= high]

    def extent(self, span: Span) -> tuple[float, float]:
        if self.x == "time":
            return span.start_time, span.end_time
        return span.start, span.end

    def row(self, item: Span | Mark) -> int | None:
        return item.request if self.by == "request" else item.slot


def paint_cells(ax: Axes, view: View, spans: list[Span], theme: Theme) -> list[Mark]:
    """Draws into ``ax``; returns the marks it drew."""
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


def _separate_steps(ax: Axes, view: View, theme: Theme) -> None:
    """Thin lines between steps, where there are few enough, and where a slot changes hands."""
    low, high = view.window
    if view.x == "step" and high - low <= 64:
        for step in range(int(low), int(high) + 1):
            ax.axvline(step, color=theme.background, linewidth=0.7, zorder=2)
    if view.by == "slot":
        for stay in view.visible_stays():
            start = float(stay.start)
            if view.x == "time":
                start = view.recording.steps[stay.start].start_time
            ends = [stay.slot - 0.42, stay.slot + 0.42]
            ax.plot([start, start], ends, color=theme.background, linewidth=2, zorder=3)


def _write_in_cells(ax: Axes, view: View, spans: list[Span], theme: Theme) -> None:
    """Token counts in prefill chunks and, by slot, the request's name in its longest span."""
    named: dict[tuple[int, int], Span] = {}
    for span in spans:
        start, end = view.extent(span)
        if span.state is State.PREFILL:
            look = STATES[span.state]
            _fit_text(ax, view, start, end, view.row(span), str(span.num_tokens), look.text(theme))
    if view.by == "request":
        return
    own: dict[tuple[int, int | None], list[Span]] = {}
    for span in spans:
        if span.state not in (State.PADDING, State.PREFILL):
            own.setdefault((span.request, span.slot), []).append(span)
    for stay in view.visible_stays():
        spans_here = own.get((stay.request, stay.slot), ())
        free = [s for s in spans_here if stay.start <= s.start < stay.end]
        if free:
            named[stay.request, stay.start] = max(free, key=lambda s: s.end - s.start)
    for span in named.values():
        start, end = view.extent(span)
        text, color = view.story.request_ids[span.request], STATES[span.state].text(theme)
        _fit_text(ax, view, start, end, span.slot, text, color, weight="bold")


def _fit_text(
    ax: Axes, view: View, start: float, end: float, row: int | None, text: str, color: str,
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


def _paint_marks(ax: Axes, view: View, theme: Theme) -> list[Mark]:
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
