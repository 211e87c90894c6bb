"""When each token reached its user: a mark per token, so that a frozen stream is a visible gap."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from toyserve.recording import Recording
from toyserve.viz.style import (
    STATES,
    State,
    Theme,
    add_legend,
    claim_x,
    dress,
    figure_of,
    mark_line,
    new_axes,
    set_title,
    state_patch,
    theme_of,
)
from toyserve.viz.words import format_seconds, run_name, say_empty, short

MAX_ROWS, MAX_TOKENS = 64, 6000


@dataclass(frozen=True)
class Pause:
    """Between two neighbouring tokens of one request."""

    row: int
    start: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.start


def longest_pause(recording: Recording) -> Pause | None:
    """The longest time any user looked at a stream that stood still; None without two tokens."""
    longest = None
    for row, record in enumerate(recording.requests.values()):
        times = np.array(record.token_times)
        if len(times) > 1:
            at = int(np.diff(times).argmax())
            pause = Pause(row, float(times[at]), float(times[at + 1]))
            if longest is None or pause.seconds > longest.seconds:
                longest = pause
    return longest


def token_raster(
    recording: Recording,
    *,
    ax: Axes | None = None,
    title: str | None = None,
    legend: bool = True,
    theme: str = "light",
) -> Figure:
    """A row per request, a tick at the moment of each token; the grey line is the wait for the
    first. The longest pause inside an answer is marked. Large runs become an image."""
    look = theme_of(theme)
    records = list(recording.requests.values())
    num_tokens = sum(len(r.token_times) for r in records)
    if ax is None:
        ax = new_axes((10, min(8.0, 1.6 + 0.24 * max(3, len(records)))), look)[0]
    else:
        dress(ax, look)
    claim_x(ax, "time")
    large = len(records) > MAX_ROWS or num_tokens > MAX_TOKENS
    if large:
        _paint_image(ax, recording, look)
    else:
        _paint_ticks(ax, recording, look)
        _mark_pause(ax, recording, look)
    _label_rows(ax, recording)
    ax.set_xlabel("time (s)")
    if not num_tokens:
        say_empty(ax, recording, look)
    set_title(ax, title or _title(recording), look)
    if legend and num_tokens:
        handles = [
            state_patch(State.WAITING, look, "waiting for the first token"),
            state_patch(State.DECODE, look, "tokens"),
        ]
        add_legend(ax, handles if large else [*handles, mark_line("first token", look)], look)
    return figure_of(ax)


def _paint_ticks(ax: Axes, recording: Recording, theme: Theme) -> None:
    records = list(recording.requests.values())
    color = STATES[State.DECODE].fill(theme)
    for row, record in enumerate(records):
        end = record.token_times[0] if record.token_times else record.finish_time
        if end is not None:
            ax.plot(
                [record.arrival_time, end], [row, row], linewidth=3, solid_capstyle="butt",
                color=STATES[State.WAITING].fill(theme), zorder=1, gid="wait",
            )  # fmt: skip
    times = [record.token_times for record in records]
    ax.eventplot(
        [t if len(t) else [np.nan] for t in times], lineoffsets=range(len(times)),
        linelengths=0.7, linewidths=1.2, colors=color,
    )  # fmt: skip
    first = [(t[0], row) for row, t in enumerate(times) if len(t)]
    if first:
        ax.plot(
            *zip(*first, strict=True), linestyle="", marker="o", markersize=5, color=theme.ink,
            markerfacecolor=theme.background, zorder=4, gid="mark: first token",
        )  # fmt: skip
    ax.set_ylim(max(1, len(records)) - 0.5, -0.5)


def _mark_pause(ax: Axes, recording: Recording, theme: Theme) -> None:
    pause = longest_pause(recording)
    gaps = [g for r in recording.requests.values() for g in np.diff(r.token_times)]
    if pause is None or pause.seconds <= 2 * float(np.median(gaps)):
        return  # no pause that stands out
    ax.annotate(
        "", (pause.end, pause.row), (pause.start, pause.row), zorder=5,
        arrowprops={"arrowstyle": "<->", "color": theme.ink, "linewidth": 1.4, "shrinkA": 0,
                    "shrinkB": 0},
    )  # fmt: skip
    ax.text(
        (pause.start + pause.end) / 2, pause.row - 0.15, format_seconds(pause.seconds),
        ha="center", va="bottom", fontsize=8.5, color=theme.ink, zorder=6, gid="pause",
        bbox={"facecolor": theme.background, "linewidth": 0, "pad": 0.8, "alpha": 0.85},
    )  # fmt: skip


def _paint_image(ax: Axes, recording: Recording, theme: Theme) -> None:
    """Pixels as dark as the tokens that fall on them are many."""
    records = list(recording.requests.values())
    rows = np.repeat(np.arange(len(records)), [len(r.token_times) for r in records])
    times = np.concatenate([np.array(r.token_times) for r in records] or [np.zeros(0)])
    low = min((r.arrival_time for r in records), default=0.0)
    high = max(float(times.max(initial=low)), low + 1e-9)
    height, width = min(len(records), 500), 1000
    place = (times - low) / (high - low) * (width - 1)
    counts = _histogram(rows * height // max(1, len(records)), place.astype(int), (height, width))
    full = float(np.percentile(counts[counts > 0], 80)) if counts.any() else 1.0
    share = np.clip(counts / max(1.0, full), 0, 1)[:, :, None]
    background = np.array(to_rgb(theme.background))
    ink = np.array(to_rgb(STATES[State.DECODE].fill(theme)))
    image = background + share * (ink - background)
    _shade_waits(image, recording, low, high, theme)
    ax.imshow(
        image, aspect="auto", interpolation="nearest", gid="tokens",
        extent=(low, high, len(records) - 0.5, -0.5),
    )  # fmt: skip


def _histogram(
    rows: NDArray[np.int64], columns: NDArray[np.int64], shape: tuple[int, int]
) -> NDArray[np.int64]:
    flat = np.bincount(rows * shape[1] + columns, minlength=shape[0] * shape[1])
    return flat.reshape(shape)


def _shade_waits(
    image: NDArray[np.float64], recording: Recording, low: float, high: float, theme: Theme
) -> None:
    """Grey from arrival to first token, on pixels that no token has coloured."""
    height, width, _ = image.shape
    records = list(recording.requests.values())
    grey, background = to_rgb(STATES[State.WAITING].fill(theme)), to_rgb(theme.background)
    for row, record in enumerate(records):
        if record.token_times:
            ends = np.array([record.arrival_time, record.token_times[0]])
            start, end = ((ends - low) / (high - low) * (width - 1)).astype(int)
            line = image[row * height // len(records), start:end]
            line[(line == background).all(axis=1)] = grey


def _label_rows(ax: Axes, recording: Recording) -> None:
    names = list(recording.requests)
    if len(names) <= 40:
        ax.set_yticks(range(len(names)), [short(name) for name in names])
        ax.tick_params(axis="y", length=0)
        ax.set_ylabel("request")
    else:
        ax.yaxis.set_major_locator(MaxNLocator(6, integer=True))
        ax.set_ylabel("request (in order of arrival)")


def _title(recording: Recording) -> str:
    pause, name = longest_pause(recording), run_name(recording)
    if pause is None:
        return f"{name}: when each token came"
    who = short(list(recording.requests)[pause.row])
    seconds = format_seconds(pause.seconds)
    return f"{name}: when each token came; the longest pause in an answer is {seconds} ({who})"
