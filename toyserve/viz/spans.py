"""What a timeline is drawn from: each request's spans, from which step to which, in which slot.

A slot is a row of the batch. A request keeps its slot while it is in the batch, and a newcomer
takes the lowest free one, so a picture by slot shows who took whose place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from toyserve.recording import Recording
from toyserve.viz.style import State

OUTSIDE = (State.WAITING, State.PREEMPTED, State.SWAPPED)


class Span(NamedTuple):
    """``start`` and ``end`` in steps, half open, counted from 0; part of a step when a prompt and
    its padding share one. Times in seconds. ``slot`` is None outside the batch. ``context``: tokens
    of the request in the cache at the end."""

    request: int  # place in ``Spans.request_ids``
    state: State
    start: float
    end: float
    num_tokens: int
    slot: int | None
    start_time: float
    end_time: float
    context: int


class Mark(NamedTuple):
    """A moment: ``position`` in steps (a boundary between two, or inside one), ``time`` in s."""

    kind: str
    request: int
    position: float
    time: float
    slot: int | None


class Stay(NamedTuple):
    """One visit of a request to the batch."""

    request: int
    start: int
    end: int
    slot: int


@dataclass
class Spans:
    """Everything a timeline draws."""

    request_ids: list[str]
    num_steps: int
    spans: list[Span]
    marks: list[Mark]
    stays: list[Stay]
    num_slots: int


def spans_of(recording: Recording) -> Spans:
    """One pass over the run; cost is proportional to the tokens' steps, not to requests x steps."""
    builder = SpanBuilder(recording)
    builder.advance()
    spans, marks = builder.unfinished()
    return Spans(
        builder.ids,
        builder.num_steps,
        builder.spans + spans,
        builder.marks + marks,
        builder.stays(),
        builder.slots.num_slots,
    )


# At the end: the builder is written in terms of the spans above.
from toyserve.viz.span_builder import SpanBuilder  # noqa: E402
