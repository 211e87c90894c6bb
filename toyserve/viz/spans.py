"""From a recording to spans: what each request was doing, from which step to which, in which slot.

A slot is a row of the batch. A request keeps its slot while it is in the batch, and a newcomer
takes the lowest free one, so a picture by slot shows who took whose place.
"""

from __future__ import annotations

import bisect
import heapq
import math
from dataclasses import dataclass, field
from typing import NamedTuple

from toyserve.recording import Recording, StepRecord
from toyserve.replay import Phase, Work, replay_work
from toyserve.request import FinishReason
from toyserve.viz.style import State

_STATES = {phase: State(phase) for phase in Phase}  # a look-up, as it runs once per token
OUTSIDE = (State.WAITING, State.PREEMPTED, State.SWAPPED)


class Span(NamedTuple):
    """``start`` and ``end`` in steps, half open, counted from 0; part of a step when a prompt and
    its padding share one. Times in seconds. ``slot`` is None outside the batch."""

    request: int  # place in ``Spans.request_ids``
    state: State
    start: float
    end: float
    num_tokens: int
    slot: int | None
    start_time: float
    end_time: float


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
    return _Builder(recording).build()


class _Raw(NamedTuple):
    request: int
    state: State
    start: float
    end: float
    num_tokens: int
    stay: int | None


@dataclass(slots=True)
class _Track:
    """One request while the run is replayed."""

    outside: State | None = None  # what it does outside the batch
    since: float = 0.0  # the step in which that began
    stay: int | None = None
    state: State | None = None  # the open span inside the batch
    start: float = 0.0
    end: float = 0.0
    num_tokens: int = 0
    num_sampled: int = 0


@dataclass
class _Builder:
    recording: Recording
    raw: list[_Raw] = field(default_factory=list)
    stays: list[list[int]] = field(default_factory=list)  # [request, start, end]
    moments: list[tuple[str, int, float, int | None]] = field(default_factory=list)

    def build(self) -> Spans:
        requests = self.recording.requests
        self.ids = list(requests)
        self.records = list(requests.values())
        self.starts = [step.start_time for step in self.recording.steps]
        self.ends = [step.end_time for step in self.recording.steps]
        arrivals = [bisect.bisect_left(self.starts, r.arrival_time) for r in self.records]
        index = {request_id: i for i, request_id in enumerate(self.ids)}
        self.tracks = [_Track(outside=State.WAITING, since=a) for a in arrivals]
        for number, (step, work) in enumerate(replay_work(self.recording)):
            self._step(number, step, work, index)
        self._close_all()
        slots = assign_slots([(start, end) for _, start, end in self.stays])
        return Spans(
            self.ids,
            len(self.starts),
            [self._timed(raw, slots) for raw in self.raw],
            [self._mark(moment, slots) for moment in self.moments],
            [Stay(r, s, e, slot) for (r, s, e), slot in zip(self.stays, slots, strict=True)],
            max(slots, default=-1) + 1,
        )

    # -- the replay -----------------------------------------------------------------------------

    def _step(self, i: int, step: StepRecord, work: list[Work], index: dict[str, int]) -> None:
        for request_id in step.preempted:
            self._leave(i, index[request_id], request_id in step.swapped_out)
        for request_id in step.admitted:
            self._enter(i, index[request_id])
        padded = step.num_padded_tokens
        for item in work:
            request, start, end = index[item.request_id], float(i), i + 1.0
            if padded and item.request_id in padded:
                useful = step.num_scheduled_tokens.get(item.request_id, 0)
                share = i + useful / (useful + padded[item.request_id])
                start, end = (share, end) if item.phase is Phase.PADDING else (start, share)
            self._work(request, _STATES[item.phase], start, end, item.num_tokens)
            if item.sampled:
                track = self.tracks[request]
                track.num_sampled += 1
                if track.num_sampled == 1:
                    self.moments.append(("first token", request, end, track.stay))
        for request_id in step.finished:
            request = index[request_id]
            track = self.tracks[request]
            self.moments.append(("finished", request, track.end, track.stay))

    def _work(self, request: int, state: State, start: float, end: float, num_tokens: int) -> None:
        track = self.tracks[request]
        if track.state is state and state is not State.PREFILL and track.end == start:
            track.end = end
            track.num_tokens += num_tokens
            return
        if track.stay is None:  # a scheduler that did not say whom it admitted
            self._enter(int(start), request)
        elif track.end < start:
            self._close(request)
            self.raw.append(_Raw(request, State.STALLED, track.end, start, 0, track.stay))
        else:
            self._close(request)
        track.state, track.start, track.end, track.num_tokens = state, start, end, num_tokens

    def _enter(self, i: int, request: int) -> None:
        track = self.tracks[request]
        if track.outside is not None:
            self.raw.append(_Raw(request, track.outside, track.since, i, 0, None))
        track.outside, track.stay = None, len(self.stays)
        track.state, track.end = None, float(i)
        self.stays.append([request, i, i + 1])
        self.moments.append(("admitted", request, float(i), track.stay))

    def _leave(self, i: int, request: int, swapped: bool) -> None:
        track = self.tracks[request]
        self._close(request)
        if track.stay is not None:
            if track.end < i:
                self.raw.append(_Raw(request, State.STALLED, track.end, i, 0, track.stay))
            self.stays[track.stay][2] = i
        track.outside = State.SWAPPED if swapped else State.PREEMPTED
        track.since, track.stay, track.state = i, None, None

    def _close(self, request: int) -> None:
        track = self.tracks[request]
        if track.state is None or track.stay is None:
            return
        raw = _Raw(request, track.state, track.start, track.end, track.num_tokens, track.stay)
        self.raw.append(raw)
        self.stays[track.stay][2] = math.ceil(track.end)
        track.state = None

    def _close_all(self) -> None:
        num_steps = len(self.starts)
        for request, (track, record) in enumerate(zip(self.tracks, self.records, strict=True)):
            self._close(request)
            gone = record.finish_reason in (FinishReason.REFUSED, FinishReason.ABORT)
            end: float = num_steps
            if gone and record.finish_time is not None:
                end = bisect.bisect_left(self.starts, record.finish_time)
                position = track.end if track.outside is None else max(track.since, end)
                self.moments.append(("refused", request, position, track.stay))
            if track.outside is not None and record.finish_reason is not FinishReason.REFUSED:
                end = max(track.since, end)
                self.raw.append(_Raw(request, track.outside, track.since, end, 0, None))

    # -- steps to seconds -----------------------------------------------------------------------

    def _timed(self, raw: _Raw, slots: list[int]) -> Span:
        outside = raw.state in OUTSIDE
        start_time = self._time(raw.start, opening=True)
        end_time = self._time(raw.end, opening=outside)
        if raw.state is State.WAITING:
            start_time = self.records[raw.request].arrival_time
        slot = None if raw.stay is None else slots[raw.stay]
        return Span(*raw[:5], slot, start_time, max(start_time, end_time))

    def _mark(self, moment: tuple[str, int, float, int | None], slots: list[int]) -> Mark:
        kind, request, position, stay = moment
        time = self._time(position, opening=kind == "admitted")
        if kind == "refused":
            time = self.records[request].finish_time or time
        return Mark(kind, request, position, time, None if stay is None else slots[stay])

    def _time(self, position: float, *, opening: bool) -> float:
        """Seconds at ``position``; at a boundary, the opening of the next step or the end of the
        one before (between them the engine may have been idle)."""
        if not self.starts:
            return 0.0
        whole = int(position)
        if position == whole:
            if opening and whole < len(self.starts):
                return self.starts[whole]
            return self.ends[whole - 1] if whole else self.starts[0]
        return self.starts[whole] + (position - whole) * (self.ends[whole] - self.starts[whole])


def assign_slots(stays: list[tuple[int, int]]) -> list[int]:
    """The lowest free slot for each stay ``[start, end)``; stays are in order of admission."""
    free: list[int] = []
    taken: list[tuple[int, int]] = []  # (end, slot)
    slots = []
    for start, end in stays:
        while taken and taken[0][0] <= start:
            heapq.heappush(free, heapq.heappop(taken)[1])
        slot = heapq.heappop(free) if free else len(taken)
        heapq.heappush(taken, (max(end, start + 1), slot))
        slots.append(slot)
    return slots
