"""The pictures that come with a sentence, and those that a task shows: drawn when needed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from toyserve.course.checks.colleague import dashboard
from toyserve.course.checks.part import Picture
from toyserve.metrics import percentile, ttft
from toyserve.recording import Recording, RequestRecord


def two_timelines(expected: Recording, got: Recording) -> Picture:
    """The expected run above, the learner's below, from the first step that differs."""

    def draw() -> Any:
        from toyserve.viz.compare import compare

        return compare({"expected": expected, "yours": got}).figure

    return draw


def one_timeline(got: Recording, title: str, *, by: Any = "slot", x: Any = "step") -> Picture:
    """One run; by and x as of ``toyserve.viz.timeline``."""

    def draw() -> Any:
        from toyserve.viz import timeline

        return timeline(got, by=by, x=x, title=title)

    return draw


def two_maps(expected: Any, got: Any, step: int) -> Picture:
    """Who has which block in a step: expected at the left, the learner's at the right."""

    def draw() -> Any:
        from toyserve.viz import block_map
        from toyserve.viz.style import THEMES, new_axes

        axes = new_axes((10, 4), THEMES["light"], 2)
        block_map(expected, step, ax=axes[0], legend=False, title=f"Step {step}: expected")
        block_map(got, min(step, got.num_steps), ax=axes[1], title="yours")
        return axes[0].figure

    return draw


def by_second(records: Sequence[RequestRecord]) -> dict[int, list[float]]:
    """The TTFTs of those who came in second 0, 1, 2, …"""
    seconds: dict[int, list[float]] = {}
    for record in records:
        wait = ttft(record)
        if wait is not None:
            seconds.setdefault(math.floor(record.arrival_time), []).append(wait)
    return seconds


def draw_seconds(records: Sequence[RequestRecord], lines: Mapping[str, float]) -> Any:
    """A bar per second, its p95 of TTFT, with how many users came; a line per named number."""
    from toyserve.viz.style import THEMES, figure_of, new_axes, set_title

    look, seconds = THEMES["light"], by_second(records)
    (ax,) = new_axes((8, 3.2), look)
    heights = [percentile(waits, 95) for waits in seconds.values()]
    ax.bar(list(seconds), heights, color=look.series[0], label="p95 of one second")
    for (second, waits), height in zip(seconds.items(), heights, strict=True):
        ax.text(second, height, f"{len(waits)} users", ha="center", va="bottom", fontsize=8)
    for number, (name, value) in enumerate(lines.items(), 1):
        color = look.series[number % len(look.series)]
        ax.axhline(value, color=color, linestyle="--", label=f"{name}: {value:.2f} s")
    ax.set(xlabel="second of arrival", ylabel="TTFT, p95 (s)", xticks=list(seconds))
    ax.legend(frameon=False, fontsize=9)
    set_title(ax, "One bar per second: how many users stand behind it?", look)
    return figure_of(ax)


def board_picture(run: Recording) -> Any:
    """The timeline, and what the dashboard says under it."""
    from toyserve.viz import timeline
    from toyserve.viz.style import THEMES, new_axes

    look = THEMES["light"]
    above, below = new_axes((10, 5), look, 2, [2, 1])
    timeline(run, ax=above, title="Four rows, and below them what the dashboard calls served")
    edges = np.arange(run.num_steps + 1)  # a step is drawn from its number - 1 to its number
    below.stairs(dashboard(run), edges, fill=True, color=look.series[1])
    below.set(xlabel="step", ylabel="tokens 'served'", ylim=(0, None))
    return below.figure
