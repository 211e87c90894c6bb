"""Numbers of steps as bars: on the step axis or, as wide as they lasted, on the time axis.

Between two steps an engine may have had nothing to do. On the time axis that is a bar of its own,
and a bar that covers several steps is their mean by time.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from toyserve.recording import Recording, StepRecord
from toyserve.viz.words import step_axis

MAX_BARS = 700
Numbers = NDArray[Any]


@dataclass(frozen=True)
class Bars:
    """edges: one more than there are bars. bounds: of the pieces (steps and rests) behind them."""

    edges: NDArray[np.float64]
    bounds: NDArray[np.float64]
    is_step: NDArray[np.bool_]  # per piece; else the engine rested

    def heights(self, values: Numbers, resting: Numbers | None = None) -> NDArray[np.float64]:
        """One number per bar. values, resting: per step, while it runs and in a rest after it
        (None: nothing, so 0)."""
        if not len(values):
            return np.zeros(0)
        pieces = np.zeros(len(self.is_step))
        pieces[self.is_step] = values
        if resting is not None:
            before = np.cumsum(self.is_step) - 1  # the step that each piece is, or follows
            pieces[~self.is_step] = resting[before[~self.is_step]]
        if len(self.edges) == len(self.bounds):
            return pieces
        area = np.concatenate([[0.0], np.cumsum(pieces * np.diff(self.bounds))])
        return np.diff(np.interp(self.edges, self.bounds, area)) / np.diff(self.edges)


def bars_of(recording: Recording, x: str) -> Bars:
    """At most MAX_BARS bars over the whole run."""
    steps = recording.steps
    if not steps:
        edges = np.array([0.0, 1.0])
        return Bars(edges, edges, np.array([True]))
    if x == "step":
        bounds = np.arange(len(steps) + 1, dtype=float)
        num_bars = min(len(steps), MAX_BARS)
        edges = np.ceil(np.arange(num_bars + 1) * len(steps) / num_bars)
        return Bars(edges, bounds, np.ones(len(steps), dtype=bool))
    moments, is_step = [steps[0].start_time], []
    for step, following in zip_longest(steps, steps[1:]):
        goes_on = following is not None and _goes_on(step, following)
        moments.append(following.start_time if goes_on else step.end_time)
        is_step.append(True)
        if following is not None and following.start_time > moments[-1]:
            moments.append(following.start_time)
            is_step.append(False)
    bounds = np.array(moments)
    edges = bounds
    if len(is_step) > MAX_BARS and bounds[-1] > bounds[0]:
        edges = np.linspace(bounds[0], bounds[-1], MAX_BARS + 1)
    return Bars(edges, bounds, np.array(is_step))


def _goes_on(step: StepRecord, following: StepRecord) -> bool:
    """Somebody is in the batch of both: between them the engine only keeps its books."""
    batch = {*step.num_scheduled_tokens, *step.num_padded_tokens}
    return not batch.isdisjoint({*following.num_scheduled_tokens, *following.num_padded_tokens})


def x_axis(ax: Axes, x: str, edges: NDArray[np.float64]) -> None:
    """Limits, numbers and label of an x axis over the bars."""
    low, high = (float(edges[0]), float(edges[-1])) if len(edges) > 1 else (0.0, 1.0)
    ax.set_xlim(low, high if high > low else low + 1)
    if x == "time":
        ax.set_xlabel("time (s)")
        return
    step_axis(ax, low, high)
