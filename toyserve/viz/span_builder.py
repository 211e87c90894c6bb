"""From a recording to spans, a step at a time, so that a run can be followed while it grows."""

from __future__ import annotations

import bisect
import heapq
import math
from dataclasses import dataclass
from itertools import islice

from toyserve.recording import Recording, RequestRecord, StepRecord
from toyserve.replay import Phase, Work, WorkReplay
from toyserve.request import FinishReason
from toyserve.viz.spans import OUTSIDE, Mark, Span, Stay
from toyserve.viz.style import State

# Once per token: an Enum's own look-up, hash and comparison would be most of the work.
_PREFILL, _DECODE, _PADDING = Phase.PREFILL, Phase.DECODE, Phase.PADDING
_READS, _WRITES, _PADS = State.PREFILL, State.DECODE, State.PADDING


@dataclass(slots=True, eq=False)
class _Track:
    """One request while the run is replayed."""

    request_id: str
    request: int
    outside: State | None = State.WAITING  # what it does outside the batch
    since: float = 0.0  # the step in which that began
    slot: int | None = None  # while it is in the batch
    stay: int = 0  # place of its latest stay
    state: State | None = None  # the open span inside the batch
    start: float = 0.0
    end: float = 0.0
    num_tokens: int = 0
    context: int = 0


class Slots:
    """The lowest free slot for whoever enters."""

    def __init__(self) -> None:
        self.num_slots = 0
        self._free: list[int] = []

    def take(self) -> int:
        if self._free:
            return heapq.heappop(self._free)
        self.num_slots += 1
        return self.num_slots - 1

    def give_back(self, slot: int) -> None:
        heapq.heappush(self._free, slot)


class SpanBuilder:
    """Spans and marks of a recording that may still grow: each ``advance`` reads only what is new.

    ``spans`` and ``marks`` hold what is over, and are only ever added to; ``unfinished`` says the
    rest as it stands. ``counts[i]`` is how many tokens request i has been given so far.
    """

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.ids: list[str] = []
        self.counts: list[int] = []
        self.spans: list[Span] = []
        self.marks: list[Mark] = []
        self.slots = Slots()
        self.work: list[list[Work]] = []  # of the steps that the latest ``advance`` read
        self._replay = WorkReplay(recording.records)
        self._starts: list[float] = []
        self._ends: list[float] = []
        self._tracks: dict[str, _Track] = {}
        self._open: dict[str, _Track] = {}  # those with something to be told by ``unfinished``
        self._to_come: list[tuple[float, int, _Track]] = []  # a heap by arrival
        self._leaving: list[_Track] = []  # ended, but a static batch may go on padding them
        self._stays: list[list[int]] = []  # [request, start, end, slot]

    @property
    def num_steps(self) -> int:
        return len(self._starts)

    def advance(self) -> None:
        """Read the requests and steps that have been added since the last time."""
        for record in islice(self.recording.records.values(), len(self.ids), None):
            self._add(record)
        gone = [track for track in self._open.values() if _is_gone(self._record(track))]
        gone.sort(key=lambda track: -self._finish_time(track))  # the next to go is the last
        self.work = []
        for step in islice(self.recording.steps, self.num_steps, None):
            self._starts.append(step.start_time)
            self._ends.append(step.end_time)
            self.work.append(self._replay.next(step))
            self._release(step, gone)
            self._step(self.num_steps - 1, step, self.work[-1])

    def unfinished(self) -> tuple[list[Span], list[Mark]]:
        """What is under way after the last step that was read."""
        for _, _, track in self._to_come:
            track.since = self.num_steps
        pairs = [self._rest(track) for track in self._open.values()]
        return [s for spans, _ in pairs for s in spans], [m for _, marks in pairs for m in marks]

    def stays(self) -> list[Stay]:
        for track in self._open.values():
            if track.slot is not None:
                self._stays[track.stay][2] = self._stay_end(track)
        return [Stay(*stay) for stay in self._stays]

    def _add(self, record: RequestRecord) -> None:
        track = _Track(record.request_id, len(self.ids))
        self.ids.append(record.request_id)
        self.counts.append(0)
        self._tracks[record.request_id] = self._open[record.request_id] = track
        if self._starts and record.arrival_time <= self._starts[-1]:
            track.since = bisect.bisect_left(self._starts, record.arrival_time)
        else:
            heapq.heappush(self._to_come, (record.arrival_time, track.request, track))

    def _record(self, track: _Track) -> RequestRecord:
        return self.recording.records[track.request_id]

    def _finish_time(self, track: _Track) -> float:
        return self._record(track).finish_time or 0.0

    # -- the replay -----------------------------------------------------------------------------

    def _step(self, i: int, step: StepRecord, work: list[Work]) -> None:
        while self._to_come and self._to_come[0][0] <= step.start_time:
            heapq.heappop(self._to_come)[2].since = i
        for request_id in step.preempted:
            self._leave(i, self._tracks[request_id], request_id in step.swapped_out)
        for request_id, num_cached in step.admitted.items():
            self._enter(i, self._tracks[request_id])
            if request_id not in step.swapped_in:
                self._tracks[request_id].context = num_cached
        padded = step.num_padded_tokens
        for item in work:
            track = self._tracks[item.request_id]
            mixed = padded and item.request_id in padded
            if item.phase is _DECODE and track.state is _WRITES and track.end == i and not mixed:
                track.end = i + 1.0  # one more token of many: what nearly all the work is
                track.num_tokens += item.num_tokens
                track.context = item.context_len
                self.counts[track.request] += item.sampled
                continue
            start, end = float(i), i + 1.0
            if mixed:
                useful = step.num_scheduled_tokens.get(item.request_id, 0)
                share = i + useful / (useful + padded[item.request_id])
                start, end = (share, end) if item.phase is _PADDING else (start, share)
            self._work(track, item, start, end)
        for request_id in step.finished:
            track = self._tracks[request_id]
            self._leaving.append(track)
            self.marks.append(self._mark("finished", track, track.end))

    def _work(self, track: _Track, item: Work, start: float, end: float) -> None:
        phase = item.phase
        state = _WRITES if phase is _DECODE else _READS if phase is _PREFILL else _PADS
        if track.state is state and state is not _READS and track.end == start:
            track.end = end
            track.num_tokens += item.num_tokens
        else:
            if track.slot is None:  # a scheduler that did not say whom it admitted
                self._enter(int(start), track)
            self._close(track, until=start)
            track.state, track.start, track.end = state, start, end
            track.num_tokens = item.num_tokens
        track.context = item.context_len
        if item.sampled:
            self.counts[track.request] += 1
            if self.counts[track.request] == 1:
                self.marks.append(self._mark("first token", track, end))

    def _enter(self, i: int, track: _Track) -> None:
        if track.outside is not None:
            self.spans.append(self._span(track, track.outside, track.since, i, 0))
        track.outside, track.state, track.end = None, None, float(i)
        if track.slot is None:
            track.slot, track.stay = self.slots.take(), len(self._stays)
            self._stays.append([track.request, i, i + 1, track.slot])
        self._open[track.request_id] = track
        self.marks.append(self._mark("admitted", track, float(i)))

    def _leave(self, i: int, track: _Track, swapped: bool) -> None:
        self._close(track, until=i)
        if track.slot is not None:
            self._stays[track.stay][2] = i
            self.slots.give_back(track.slot)
        track.outside = State.SWAPPED if swapped else State.PREEMPTED
        track.since, track.slot = i, None
        if not swapped:
            track.context = 0

    def _release(self, step: StepRecord, gone: list[_Track]) -> None:
        """Let go of those who have ended, unless still padded; takes them out of ``gone``."""
        while gone and self._finish_time(gone[-1]) <= step.start_time:
            self._leaving.append(gone.pop())
        if not self._leaving:
            return
        leaving, self._leaving = self._leaving, []
        for track in leaving:
            name = track.request_id
            if name in step.num_padded_tokens or name in step.num_scheduled_tokens:
                self._leaving.append(track)
                continue
            spans, marks = self._rest(track)
            self.spans += spans
            self.marks += marks
            if track.slot is not None:
                self._stays[track.stay][2] = self._stay_end(track)
                self.slots.give_back(track.slot)
            track.outside, track.slot, track.state = None, None, None
            self._open.pop(track.request_id, None)

    def _close(self, track: _Track, until: float) -> None:
        """End the open span; what lies between it and ``until`` was STALLED."""
        if track.state is not None:
            span = self._span(track, track.state, track.start, track.end, track.num_tokens)
            self.spans.append(span)
        if track.slot is not None and track.end < until:
            self.spans.append(self._span(track, State.STALLED, track.end, until, 0))
        track.state = None

    def _rest(self, track: _Track) -> tuple[list[Span], list[Mark]]:
        """The open span of one request, up to now or to its end."""
        spans, marks, record = [], [], self._record(track)
        if track.state is not None:
            span = self._span(track, track.state, track.start, track.end, track.num_tokens)
            spans.append(span)
        end: float = self.num_steps
        if _is_gone(record) and record.finish_time is not None:
            end = bisect.bisect_left(self._starts, record.finish_time)
            position = track.end if track.outside is None else max(track.since, end)
            marks.append(self._mark("refused", track, position))
        if track.outside is not None and record.finish_reason is not FinishReason.REFUSED:
            spans.append(self._span(track, track.outside, track.since, max(track.since, end), 0))
        return spans, marks

    def _stay_end(self, track: _Track) -> int:
        return max(math.ceil(track.end), self._stays[track.stay][1] + 1)

    # -- steps to seconds -----------------------------------------------------------------------

    def _span(self, track: _Track, state: State, start: float, end: float, num_tokens: int) -> Span:
        outside = state in OUTSIDE
        start_time = self._time(start, opening=True)
        if state is State.WAITING:
            start_time = self._record(track).arrival_time
        end_time = max(start_time, self._time(end, opening=outside))
        slot = None if outside else track.slot
        request, context = track.request, track.context
        return Span(request, state, start, end, num_tokens, slot, start_time, end_time, context)

    def _mark(self, kind: str, track: _Track, position: float) -> Mark:
        time = self._time(position, opening=kind == "admitted")
        if kind == "refused":
            time = self._record(track).finish_time or time
        return Mark(kind, track.request, position, time, track.slot)

    def _time(self, position: float, *, opening: bool) -> float:
        """Seconds at ``position``; at a boundary, the opening of the next step or the end of the
        one before (between them the engine may have been idle)."""
        starts, ends = self._starts, self._ends
        if not starts:
            return 0.0
        whole = int(position)
        if position == whole:
            if opening and whole < len(starts):
                return starts[whole]
            return ends[whole - 1] if whole else starts[0]
        return starts[whole] + (position - whole) * (ends[whole] - starts[whole])


def _is_gone(record: RequestRecord) -> bool:
    """Refused, or left by its user: no step says so."""
    return record.finish_reason in (FinishReason.REFUSED, FinishReason.ABORT)
