"""Two or more runs of one workload: where their decisions part, and what that cost whom."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from matplotlib.figure import Figure

from toyserve.metrics import e2e
from toyserve.recording import Recording, StepRecord
from toyserve.viz.cells import View
from toyserve.viz.costtable import MAX_REQUEST_ROWS, cost_table, table_html
from toyserve.viz.latency import Runs, name_runs
from toyserve.viz.spans import spans_of
from toyserve.viz.style import (
    State,
    add_legend,
    check_choice,
    figure_of,
    new_axes,
    set_title,
    theme_of,
)
from toyserve.viz.timeline import draw, legend_handles, timeline_height
from toyserve.viz.words import format_seconds, listing, require_steps
from toyserve.words import counted


@dataclass(frozen=True)
class Comparison:
    """``step``: the first that differs, counted from 1, None if none does. ``table``: one dict per
    request or class, times in ms; "change" columns are against the first run."""

    figure: Figure
    sentence: str
    step: int | None
    table: list[dict[str, Any]]

    def __str__(self) -> str:
        return self.sentence

    def _repr_html_(self) -> str:
        png, size = self.figure._repr_png_()  # type: ignore[attr-defined]
        picture = base64.b64encode(png).decode("ascii")
        return (
            f"<p>{html.escape(self.sentence)}</p>"
            f'<img alt="timelines of the compared runs" width="{size["width"]}" '
            f'src="data:image/png;base64,{picture}"/>{table_html(self.table)}'
        )


def compare(
    *runs: Runs,
    x: Literal["step", "time"] = "step",
    by: Literal["slot", "request"] | None = None,
    group: Literal["request", "user", "priority", "all"] | None = None,
    context: int = 3,
    theme: str = "light",
) -> Comparison:
    """Line up runs of one workload from the first decision in which they differ.

    runs: recordings, or one mapping from label to recording. x: align by step or by time. by: rows
    are slots or requests (None: requests while they are few). group: what a row of the table is
    (None: each request while they are few, else users, priorities or all together).
    context: how many steps before the difference to show.
    Raises ValueError if the runs did not serve the same requests.
    """
    check_choice("x", x, ("step", "time"))
    named = _named(runs)
    _check_same_workload(named)
    recordings = list(named.values())
    step = first_difference(recordings)
    few = len(recordings[0].requests) <= MAX_REQUEST_ROWS
    rows = by or ("request" if few else "slot")
    check_choice("by", rows, ("slot", "request"))
    table = cost_table(named, group)
    sentence = f"{_what_differed(named, step)} {_who_pays(named)}".strip()
    figure = _figure(named, step, x, rows, context, theme)
    return Comparison(figure, sentence, step, table)


def first_difference(recordings: list[Recording]) -> int | None:
    """The first step, counted from 1, whose decision is not the same in all; None if all agree.

    A decision is who runs how many tokens and who is paused; only where these agree to the end is
    a difference in padding looked for.
    """
    for decision in (_who_runs, _what_is_padded):
        for number, steps in enumerate(zip(*(r.steps for r in recordings), strict=False), 1):
            if any(decision(step) != decision(steps[0]) for step in steps[1:]):
                return number
        lengths = {len(recording.steps) for recording in recordings}
        if len(lengths) > 1:
            return min(lengths) + 1
    return None


def _who_runs(step: StepRecord) -> tuple[Mapping[str, int], set[str]]:
    return step.num_scheduled_tokens, set(step.preempted)


def _what_is_padded(step: StepRecord) -> Mapping[str, int]:
    return step.num_padded_tokens


def _named(runs: tuple[Runs, ...]) -> dict[str, Recording]:
    if len(runs) == 1 and not isinstance(runs[0], Recording):
        named = name_runs(runs[0])
    else:
        named = name_runs([run for run in runs if isinstance(run, Recording)])
    if len(named) < 2:
        raise ValueError(f"{counted(len(named), 'recording')} given: a comparison needs at least 2")
    for recording in named.values():
        require_steps(recording)
    return named


def _check_same_workload(named: dict[str, Recording]) -> None:
    (first, base), *others = (
        (name, {k: (r.num_prompt_tokens, r.max_tokens) for k, r in run.requests.items()})
        for name, run in named.items()
    )
    for name, requests in others:
        odd = [k for k in {**base, **requests} if base.get(k) != requests.get(k)]
        if odd:
            raise ValueError(
                f"{first} and {name} did not serve the same workload: they differ in "
                f"{counted(len(odd), 'request')}, such as {odd[0]!r}"
            )


# -- words --------------------------------------------------------------------------------------


def _what_differed(named: dict[str, Recording], step: int | None) -> str:
    names = list(named)
    if step is None:
        count = counted(len(next(iter(named.values())).steps), "step")
        return f"{listing(names)} took the same decisions in all {count}."
    base_name, base = names[0], named[names[0]]
    other_name = next(n for n in names if first_difference([base, named[n]]) == step)
    other = named[other_name]
    if step > min(len(base.steps), len(other.steps)):
        short, long = sorted((base_name, other_name), key=lambda name: len(named[name].steps))
        return (
            f"The decisions are the same until {short} has finished; "
            f"{long} goes on with step {step:,}."
        )
    a, b = base.steps[step - 1], other.steps[step - 1]
    return (
        f"Step {step:,} is the first that differs: {base_name} {_does(a, b)}, "
        f"while {other_name} {_does(b, a)}."
    )


def _does(mine: StepRecord, theirs: StepRecord) -> str:
    """What ``mine`` does that ``theirs`` does not."""
    parts = []
    runs, other = mine.num_scheduled_tokens, theirs.num_scheduled_tokens
    alone = [name for name in runs if name not in other]
    new = [name for name in alone if name in mine.admitted]
    old = [name for name in alone if name not in mine.admitted]
    if new:
        parts.append(f"lets {listing(new)} in ({_tokens(mine, new)})")
    if old:
        parts.append(f"runs {listing(old)} ({_tokens(mine, old)})")
    changed = [name for name in runs if name in other and runs[name] != other[name]]
    for name in changed[:3]:
        parts.append(f"runs {counted(runs[name], 'token')} of {name}")
    paused = [name for name in mine.preempted if name not in theirs.preempted]
    if paused:
        parts.append(f"pauses {listing(paused)}")
    if mine.num_padded_tokens and mine.num_padded_tokens != theirs.num_padded_tokens:
        count = sum(mine.num_padded_tokens.values())
        parts.append(f"computes {counted(count, 'token')} of padding")
    missing = [name for name in other if name not in runs]
    if missing and not alone:
        parts.append(f"leaves {listing(missing)} out{_for(mine)}")
    return " and ".join(parts) if parts else f"runs only {listing(list(runs))}"


def _tokens(step: StepRecord, names: list[str]) -> str:
    return counted(sum(step.num_scheduled_tokens[name] for name in names), "token")


def _for(step: StepRecord) -> str:
    reasons = {
        "slots": " for want of a slot",
        "memory": " for want of memory",
        "budget": ": the token budget is spent",
        "batch": ": the batch must end first",
        "quota": ": the quota is used up",
    }
    return reasons.get(step.waiting_for or "", "")


def _who_pays(named: dict[str, Recording]) -> str:
    """Whoever lost and won most, between the first run and the last."""
    (first, a), *_, (last, b) = named.items()
    before, after = a.requests, b.requests
    changes = {}
    for name in before:
        old, new = e2e(before[name]), e2e(after[name])
        if old is not None and new is not None:
            changes[name] = new - old
    if not changes or not any(changes.values()):
        return "Nobody's answer is ready at another time."
    loser, winner = max(changes, key=changes.__getitem__), min(changes, key=changes.__getitem__)
    parts = []
    if changes[winner] < 0:
        parts.append(f"{winner} gains most, done {format_seconds(-changes[winner])} earlier")
    if changes[loser] > 0:
        parts.append(f"{loser} pays most, done {format_seconds(changes[loser])} later")
    return f"With {last} instead of {first}, {'; '.join(parts)}."


# -- the picture --------------------------------------------------------------------------------


def _figure(
    named: dict[str, Recording], step: int | None, x: str, by: str, context: int, theme: str
) -> Figure:
    look = theme_of(theme)
    stories = {name: spans_of(run) for name, run in named.items()}
    low = max(0, (step or 1) - 1 - context)
    views = {}
    for name, run in named.items():
        start: float = low
        end: float = max(len(r.steps) for r in named.values())
        if x == "time":
            start = run.steps[min(low, len(run.steps) - 1)].start_time if run.steps else 0.0
            end = max(r.steps[-1].end_time for r in named.values() if r.steps)
        views[name] = View(run, stories[name], by, x, (start, max(end, start + 1e-9)))
    if x == "time":
        start = min(view.window[0] for view in views.values())
        views = {
            n: View(v.recording, v.story, by, x, (start, v.window[1])) for n, v in views.items()
        }
    heights = [timeline_height(view.num_rows) - 0.6 for view in views.values()]
    axes = new_axes((10, min(12.0, sum(heights) + 0.6)), look, len(views), height_ratios=heights)
    states: set[State] = set()
    marks: set[str] = set()
    for ax, (name, view) in zip(axes, views.items(), strict=True):
        some_states, some_marks = draw(ax, view, look)
        states, marks = states | some_states, marks | some_marks
        text = name
        if step is not None and step <= len(view.recording.steps):
            place = view.recording.steps[step - 1].start_time if x == "time" else step - 1
            ax.axvline(
                place, color=look.ink, linestyle="--", linewidth=1.3, zorder=6, gid="parting"
            )
            text += f" (dashed: step {step:,}, the first that differs)" if ax is axes[0] else ""
        set_title(ax, text, look)
        if ax is not axes[-1]:
            ax.set_xlabel("")
    add_legend(axes[-1], legend_handles(states, marks, look), look)
    return figure_of(axes[0])
