"""A recording's arrays for the browser, kept up to date while the run goes on.

Each ``refresh`` reads only the steps that are new, so it costs the same late in a long run as at
its beginning (but for copying the bytes).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toyserve.recording import Recording, RequestRecord, StepRecord
from toyserve.replay import Phase, Work
from toyserve.viz.span_builder import SpanBuilder
from toyserve.viz.spans import Mark, Span
from toyserve.viz.style import MARKS, STATES

WAITS = ("slots", "memory", "budget", "batch", "quota")
TYPES = {"f8": np.float64, "f4": np.float32, "u4": np.uint32, "u1": np.uint8}
# The tables and their columns, (name, type) each. ``event_key`` is twice the step, plus 1 for after
# the step; ``step_wait`` is 0 if nobody waits, else 1 + the place in WAITS; ``span_context`` is the
# tokens in the cache at its end; a slot means nothing outside the batch.
COLUMNS = {
    "step": "start:f8 end:f8 prefill:u4 decode:u4 padding:u4 waiting:u4 free:u4 wait:u1",
    "span": "start:f4 end:f4 request:u4 tokens:u4 context:u4 slot:u4 state:u1",
    "mark": "position:f4 request:u4 slot:u4 kind:u1 in_slot:u1",
    "event": "key:u4 block:u4 request:u4 kind:u1",
    "request": "arrival:f8 prompt:u4 output:u4",
}
_EVENT = {kind: number for number, kind in enumerate(("take", "drop", "cache", "evict"))}
_STATE = {state: number for number, state in enumerate(STATES)}
_DECODE, _PREFILL = Phase.DECODE, Phase.PREFILL
_MARK = {kind: number for number, kind in enumerate(MARKS)}


class GrowingPack:
    """``refresh`` gives (names and lengths of the arrays, their bytes) of what has run so far."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self._num_forgotten = _num_forgotten(recording)
        self.story = SpanBuilder(recording)
        self._tables = {name: _Table(name, columns) for name, columns in COLUMNS.items()}
        self._index: dict[str, int] = {}  # request id -> its number
        self._num_spans = self._num_marks = 0  # how many of the story's are in the tables

    def refresh(self) -> tuple[list[list[Any]], bytes]:
        """[name, type, length] of each array, in the order in which they lie in the bytes."""
        first = self.story.num_steps
        self.story.advance()
        self._add_requests()
        steps = list(islice(self.recording.steps, first, self.story.num_steps))
        self._tables["step"].add(map(_step_row, steps, self.story.work))
        self._tables["event"].add(self._event_rows(first, steps))
        story, tables = self.story, self._tables
        tables["span"].add(map(_span_row, islice(story.spans, self._num_spans, None)))
        tables["mark"].add(map(_mark_row, islice(story.marks, self._num_marks, None)))
        self._num_spans, self._num_marks = len(story.spans), len(story.marks)
        spans, marks = story.unfinished()
        open_rows = {"span": map(_span_row, spans), "mark": map(_mark_row, marks)}
        arrays: list[tuple[str, str, NDArray[Any]]] = []
        for name, table in tables.items():
            arrays += table.arrays(list(open_rows.get(name, ())))
        arrays.sort(key=lambda array: -int(array[1][1]))  # widest first, so that each is aligned
        names = [[name, kind, len(values)] for name, kind, values in arrays]
        return names, b"".join(values.tobytes() for _, _, values in arrays)

    @property
    def is_outdated(self) -> bool:
        """The recording has let go of steps (a server's does): what was read is no longer in it."""
        return _num_forgotten(self.recording) != self._num_forgotten

    @property
    def num_touched_blocks(self) -> int:
        """No block of this or a higher number has changed hands so far."""
        events = self._tables["event"]
        return int(events.columns["block"][: events.length].max()) + 1 if events.length else 0

    def _add_requests(self) -> None:
        table, known = self._tables["request"], len(self._index)
        records = list(islice(self.recording.records.values(), known, len(self.story.ids)))
        for number, record in enumerate(records, known):
            self._index[record.request_id] = number
        table.add(map(_request_row, records))
        table.columns["output"][: len(self._index)] = self.story.counts

    def _event_rows(self, first: int, steps: list[StepRecord]) -> Iterator[tuple[float, ...]]:
        index = self._index
        for number, step in enumerate(steps, first):
            for after, events in enumerate((step.block_events, step.block_events_after)):
                for kind, block, request_id in events:
                    yield 2 * number + after, block, index.get(request_id, 0), _EVENT[kind]


def _num_forgotten(recording: Recording) -> int:
    return recording.num_steps - len(recording.steps)


class _Table:
    """Columns of numbers that grow: room is doubled when it runs out."""

    def __init__(self, name: str, columns: str) -> None:
        self.name, self.length = name, 0
        self.kinds = dict(column.split(":") for column in columns.split())
        self.columns = {c: np.zeros(64, TYPES[kind]) for c, kind in self.kinds.items()}

    def add(self, rows: Iterable[tuple[float, ...]]) -> None:
        columns = list(zip(*rows, strict=True))
        if not columns:
            return
        end = self.length + len(columns[0])
        for name, values in zip(self.columns, columns, strict=True):
            if end > len(self.columns[name]):
                more = np.zeros(max(end, len(self.columns[name])), TYPES[self.kinds[name]])
                self.columns[name] = np.concatenate([self.columns[name], more])
            self.columns[name][self.length : end] = values
        self.length = end

    def arrays(self, more: list[tuple[float, ...]]) -> list[tuple[str, str, NDArray[Any]]]:
        """(name, type, numbers) of each column, with ``more`` rows that are not kept."""
        length = self.length
        self.add(more)
        end, self.length = self.length, length
        return [
            (f"{self.name}_{column}", self.kinds[column], values[:end])
            for column, values in self.columns.items()
        ]


# -- a row each -----------------------------------------------------------------------------------


def _step_row(step: StepRecord, work: list[Work]) -> tuple[float, ...]:
    prefill = decode = padding = 0
    for _, phase, num_tokens, _, _ in work:
        if phase is _DECODE:
            decode += num_tokens
        elif phase is _PREFILL:
            prefill += num_tokens
        else:
            padding += num_tokens
    waits = WAITS.index(step.waiting_for) + 1 if step.waiting_for in WAITS else 0
    counts = (prefill, decode, padding, step.num_waiting, step.num_free_blocks, waits)
    return (step.start_time, step.end_time, *counts)


def _span_row(span: Span) -> tuple[float, ...]:
    numbers = (span.request, span.num_tokens, span.context, span.slot or 0)
    return (span.start, span.end, *numbers, _STATE[span.state])


def _mark_row(mark: Mark) -> tuple[float, ...]:
    slot, inside = mark.slot or 0, mark.slot is not None
    return (mark.position, mark.request, slot, _MARK[mark.kind], inside)


def _request_row(record: RequestRecord) -> tuple[float, ...]:
    return (record.arrival_time, record.num_prompt_tokens, 0)
