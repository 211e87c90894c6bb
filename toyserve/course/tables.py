"""Small text tables from a recording, for lessons: who sat where, and when each came in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from toyserve.recording import Recording
from toyserve.viz.spans import spans_of


def step_table(recording: Recording, steps: Iterable[int]) -> str:
    """One line per step (counted from 1), one column per slot; ``-`` is a slot that did nothing
    useful (empty, or computing padding)."""
    story = spans_of(recording)
    width = max((len(name) for name in story.request_ids), default=1)
    places = max(story.num_slots, recording.meta.get("max_running") or 0)
    lines = []
    for number in steps:
        row = ["-"] * places
        working = recording.steps[number - 1].num_scheduled_tokens
        for stay in story.stays:
            name = story.request_ids[stay.request]
            if stay.start < number <= stay.end and name in working:
                row[stay.slot] = name
        lines.append(f"step {number:>3}: " + " ".join(name.ljust(width) for name in row).rstrip())
    return "\n".join(lines)


def entry_steps(recording: Recording) -> dict[str, int]:
    """Request -> the step (counted from 1) that let it in, the first if there were several."""
    entries: dict[str, int] = {}
    for step in recording.steps:
        for request_id in step.admitted:
            entries.setdefault(request_id, step.index + 1)
    return entries


def text_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Columns under their names: the first to the left, numbers to the right."""
    cells = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = []
    for first, *rest in cells:
        columns = [cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *columns]).rstrip())
    return "\n".join([lines[0], "─" * len(lines[0]), *lines[1:]])
