"""A recording that a server can keep for weeks: of what is long over, nothing stays.

Nothing is made up: a shortened recording is a true one of fewer requests. Old steps stay only as
far as a request that outlived them took part, so every picture and metric can still be drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from toyserve.kv.manager import BlockEvent
from toyserve.recording import Recording, StepRecord


def shorten(recording: Recording, max_steps: int) -> None:
    """Forget, in place, whoever had ended before the last ``max_steps`` steps."""
    steps = recording.steps
    if len(steps) <= max_steps:
        return
    cut = len(steps) - max_steps
    start = steps[cut].start_time
    ended = {
        request_id
        for request_id, record in recording.records.items()
        if record.finish_time is not None and record.finish_time < start
    }
    # Whoever ended in the last step before the cut gives its blocks back in the step after it.
    for step in steps[cut:]:
        ended.difference_update(step.num_scheduled_tokens, step.preempted, step.num_padded_tokens)
        ended.difference_update(e.request_id for e in _events(step))
    recording.steps = [*_old_steps(steps[:cut], ended), *steps[cut:]]
    for request_id in ended:
        del recording.records[request_id]


def latest(recording: Recording, num_steps: int) -> Recording:
    """A copy of the end of a recording that may go on: its last steps, and who took part."""
    copy = Recording(recording.meta)
    copy.steps = list(recording.steps)
    copy.records = dict(recording.requests)
    copy.num_steps = len(copy.steps)
    shorten(copy, num_steps)
    copy.num_steps = len(copy.steps)
    return copy


def _old_steps(steps: Sequence[StepRecord], ended: set[str]) -> list[StepRecord]:
    kept = []
    cached = _last_cached(steps)
    for number, step in enumerate(steps):
        matters = (
            any(r not in ended for r in step.num_scheduled_tokens)
            or any(r not in ended for r in step.preempted)
            or any(r not in ended for r in step.num_padded_tokens)
            or any(_stays(e, ended, cached, number) for e in _events(step))
        )
        if matters:
            kept.append(_without(step, ended, cached, number))
    return kept


def _stays(event: BlockEvent, ended: set[str], cached: dict[int, int], number: int) -> bool:
    if event.kind in ("cache", "evict"):
        return cached.get(event.block) == number
    return event.request_id not in ended


def _without(step: StepRecord, ended: set[str], cached: dict[int, int], number: int) -> StepRecord:
    def events(old: Sequence[BlockEvent]) -> list[BlockEvent]:
        return [event for event in old if _stays(event, ended, cached, number)]

    return replace(
        step,
        num_scheduled_tokens=_left(step.num_scheduled_tokens, ended),
        num_padded_tokens=_left(step.num_padded_tokens, ended),
        admitted=_left(step.admitted, ended),
        preempted=[r for r in step.preempted if r not in ended],
        finished=[r for r in step.finished if r not in ended],
        swapped_out={r: n for r, n in step.swapped_out.items() if r not in ended},
        swapped_in={r: n for r, n in step.swapped_in.items() if r not in ended},
        block_events=events(step.block_events),
        block_events_after=events(step.block_events_after),
    )


def _left(numbers: object, ended: set[str]) -> dict[str, int]:
    return {r: n for r, n in dict(numbers).items() if r not in ended}  # type: ignore[call-overload]


def _last_cached(steps: Sequence[StepRecord]) -> dict[int, int]:
    """block -> the step in which it was last put into the cache; those evicted since are left out.

    A block that is cached in one step and evicted in the same keeps both events there.
    """
    cached: dict[int, int] = {}
    for number, step in enumerate(steps):
        for event in _events(step):
            if event.kind == "cache":
                cached[event.block] = number
            elif event.kind == "evict":
                cached.pop(event.block, None)
    return cached


def _events(step: StepRecord) -> list[BlockEvent]:
    return [*step.block_events, *step.block_events_after]
