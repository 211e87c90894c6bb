"""From a recording's decisions back to what each request was doing, and who held which block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from toyserve.kv.manager import BlockEvent
from toyserve.recording import Recording, RequestRecord, StepRecord


class Phase(StrEnum):
    """What a request does in a step."""

    PREFILL = "prefill"  # (a chunk of) its prompt, or of prompt + answer after a preemption
    DECODE = "decode"
    PADDING = "padding"  # computed for nothing


class Work(NamedTuple):
    """One request's part of one step."""

    request_id: str
    phase: Phase
    num_tokens: int
    context_len: int  # tokens of it in the cache after the step
    sampled: bool  # a new token came out


@dataclass(slots=True)
class _Progress:
    num_computed: int = 0
    num_tokens: int = 0
    prefill_until: int = 0  # tokens that existed when it was admitted


class WorkReplay:
    """``replay_work`` a step at a time, for a recording that still grows.

    requests: the recording's own, to which later ones may be added.
    """

    def __init__(self, requests: Mapping[str, RequestRecord]) -> None:
        self.requests = requests
        self._progress: dict[str, _Progress] = {}

    def next(self, step: StepRecord) -> list[Work]:
        """What every request did in this step; to be called with each step, in order."""
        for request_id in step.preempted:
            if request_id not in step.swapped_out:
                self._of(request_id).num_computed = 0
        for request_id, num_cached in step.admitted.items():
            state = self._of(request_id)
            if request_id not in step.swapped_in:  # else it goes on where it was
                state.num_computed, state.prefill_until = num_cached, state.num_tokens
        work, known = [], self._progress
        prefill, decode = Phase.PREFILL, Phase.DECODE  # once per token: every look-up counts
        for request_id, num_tokens in step.num_scheduled_tokens.items():
            state = known.get(request_id) or self._of(request_id)
            phase = prefill if state.num_computed < state.prefill_until else decode
            state.num_computed += num_tokens
            sampled = state.num_computed == state.num_tokens
            state.num_tokens += sampled
            work.append(Work(request_id, phase, num_tokens, state.num_computed, sampled))
        for request_id, num_tokens in step.num_padded_tokens.items():
            context = self._of(request_id).num_computed
            work.append(Work(request_id, Phase.PADDING, num_tokens, context, False))
        return work

    def _of(self, request_id: str) -> _Progress:
        state = self._progress.get(request_id)
        if state is None:
            num_prompt = self.requests[request_id].num_prompt_tokens
            state = self._progress[request_id] = _Progress(0, num_prompt, num_prompt)
        return state


def replay_work(recording: Recording) -> Iterator[tuple[StepRecord, list[Work]]]:
    """Each step with what every request in it did, in the order of the plan; padding last."""
    replay = WorkReplay(recording.records)
    for step in recording.steps:
        yield step, replay.next(step)


def complete_requests(recording: Recording) -> None:
    """Fill in what a file leaves to be derived: token times, first scheduling, preemptions."""
    requests = recording.requests
    for step, work in replay_work(recording):
        for request_id in step.preempted:
            requests[request_id].num_preemptions += 1
        for request_id, num_cached in step.admitted.items():
            record = requests[request_id]
            if record.first_scheduled_time is None:
                record.first_scheduled_time = step.start_time
                record.num_cached_tokens = num_cached
        for item in work:
            if item.sampled:
                requests[item.request_id].token_times.append(step.end_time)


@dataclass(slots=True)
class MemoryMap:
    """Who holds each physical block after a step, and how many of its slots are written."""

    num_blocks: int
    block_size: int
    owners: list[tuple[str, ...]]  # per block, several if it is shared; () is free, or cached only
    num_written: list[int] = field(default_factory=list)  # per block, 0 .. block_size
    cached: list[bool] = field(default_factory=list)  # per block: kept for whoever begins the same

    @property
    def num_used_blocks(self) -> int:
        return sum(1 for owner in self.owners if owner)

    @property
    def num_wasted_slots(self) -> int:
        """Slots that are held but hold nothing: internal fragmentation."""
        held = self.num_used_blocks * self.block_size
        written = zip(self.owners, self.num_written, strict=True)
        return held - sum(num for owners, num in written if owners)


def replay_memory(recording: Recording) -> Iterator[tuple[StepRecord, MemoryMap]]:
    """The block map while each step runs: its own allocations done, the finished still there."""
    num_blocks = int(recording.meta["num_blocks"])
    block_size = int(recording.meta["block_size"])
    tables: dict[str, list[int]] = {}
    computed: dict[str, int] = {}
    cached: set[int] = set()
    for step, work in replay_work(recording):
        _apply(tables, cached, step.block_events)
        for item in work:
            computed[item.request_id] = item.context_len
        owners: list[list[str]] = [[] for _ in range(num_blocks)]
        written = [block_size if block in cached else 0 for block in range(num_blocks)]
        for request_id, table in tables.items():
            left = computed.get(request_id, 0)
            for block in table:
                owners[block].append(request_id)
                written[block] = max(written[block], min(block_size, max(0, left)))
                left -= block_size
        is_cached = [block in cached for block in range(num_blocks)]
        yield (
            step,
            MemoryMap(num_blocks, block_size, [tuple(o) for o in owners], written, is_cached),
        )
        _apply(tables, cached, step.block_events_after)


def _apply(tables: dict[str, list[int]], cached: set[int], events: Sequence[BlockEvent]) -> None:
    for event in events:
        if event.kind == "take":
            tables.setdefault(event.request_id, []).append(event.block)
        elif event.kind == "cache":
            cached.add(event.block)
        elif event.kind == "evict":
            cached.discard(event.block)
        else:
            table = tables[event.request_id]
            table.remove(event.block)
            if not table:
                del tables[event.request_id]
