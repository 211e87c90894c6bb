"""A recording as a trace for the Perfetto viewer (ui.perfetto.dev) or chrome://tracing.

The Trace Event Format's JSON: "X" is a slice with a start and a length, "C" a counter, "M" names a
track; times in microseconds. Process 1 is the engine (its steps and counters), process 2 holds one
track per request, in order of arrival.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from toyserve.metrics import end_time
from toyserve.recording import Recording, StepRecord
from toyserve.replay import Work, replay_work
from toyserve.request import FinishReason
from toyserve.utilization import kv_used

Event = dict[str, Any]

ENGINE, REQUESTS = 1, 2  # process ids
_REASONS = {"slots": "a slot", "memory": "memory", "budget": "budget", "batch": "the batch"}


def to_perfetto(recording: Recording, path: str | Path) -> None:
    """Write the trace. Raises ValueError if the recording kept no steps."""
    events = trace_events(recording)
    with open(path, "w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit":"ms","otherData":')
        file.write(json.dumps(recording.meta, default=str))
        file.write(',"traceEvents":[\n')
        for number, event in enumerate(events):
            file.write((",\n" if number else "") + json.dumps(event, separators=(",", ":")))
        file.write("\n]}\n")


def trace_events(recording: Recording) -> list[Event]:
    """The events, in no particular order but names first. Raises as ``to_perfetto``."""
    if recording.num_steps and not recording.steps:
        raise ValueError(
            f"this recording kept none of its {recording.num_steps} steps (keep_steps=False): "
            f"there is nothing to trace"
        )
    tracks = {request_id: i for i, request_id in enumerate(recording.requests, 1)}
    return [
        *_names(recording, tracks),
        *_steps(recording),
        *_work(recording, tracks),
        *_waits(recording, tracks),
    ]


def _us(seconds: float) -> float:
    """Microseconds in whole nanoseconds, so that neighbouring slices touch and never overlap."""
    return round(seconds * 1e9) / 1e3


def _slice(
    process: int, track: int, name: str, start: float, end: float, args: dict[str, Any]
) -> Event:
    duration = (round(end * 1e9) - round(start * 1e9)) / 1e3
    return {
        "ph": "X",
        "pid": process,
        "tid": track,
        "name": name,
        "cat": name.split()[0],
        "ts": _us(start),
        "dur": duration,
        "args": args,
    }


def _counter(name: str, time: float, **values: float) -> Event:
    return {"ph": "C", "pid": ENGINE, "name": name, "ts": _us(time), "args": values}


def _names(recording: Recording, tracks: dict[str, int]) -> Iterator[Event]:
    def name(kind: str, process: int, track: int, **args: Any) -> Event:
        return {"ph": "M", "pid": process, "tid": track, "name": kind, "args": args}

    meta = recording.meta
    parts = [str(meta[key]) for key in ("scheduler", "kv", "policy") if key in meta]
    yield name("process_name", ENGINE, 0, name=f"engine ({', '.join(parts)})")
    yield name("process_sort_index", ENGINE, 0, sort_index=ENGINE)
    yield name("thread_name", ENGINE, 1, name="steps")
    yield name("process_name", REQUESTS, 0, name="requests")
    yield name("process_sort_index", REQUESTS, 0, sort_index=REQUESTS)
    for request_id, track in tracks.items():
        yield name("thread_name", REQUESTS, track, name=request_id)
        yield name("thread_sort_index", REQUESTS, track, sort_index=track)


def _steps(recording: Recording) -> Iterator[Event]:
    """The engine's own track, and the counters, each with its value from the step's start on."""
    used, last = kv_used(recording), None
    num_blocks = recording.meta.get("num_blocks")
    for step, num_used in zip(recording.steps, used, strict=True):
        scheduled = sum(step.num_scheduled_tokens.values())
        padded = sum(step.num_padded_tokens.values())
        args: dict[str, Any] = {
            "tokens": scheduled,
            "padding": padded,
            "requests": list(step.num_scheduled_tokens),
            "admitted": list(step.admitted),
            "preempted": list(step.preempted),
            "finished": list(step.finished),
        }
        if step.waiting_for is not None:
            args["queue waits for"] = _REASONS.get(step.waiting_for, step.waiting_for)
        yield _slice(ENGINE, 1, f"step {step.index + 1}", step.start_time, step.end_time, args)
        start = step.start_time
        yield _counter("queue", start, requests=step.num_waiting)
        yield _counter("running", start, requests=len(step.num_scheduled_tokens))
        yield _counter("tokens in the step", start, useful=scheduled, padding=padded)
        if num_blocks is not None:
            yield _counter("KV blocks", start, used=num_used)
        last = step
    if last is not None:
        yield _counter("running", last.end_time, requests=0)
        yield _counter("tokens in the step", last.end_time, useful=0, padding=0)


def _work(recording: Recording, tracks: dict[str, int]) -> Iterator[Event]:
    """What each request did in each step; a row with tokens and padding is one slice."""
    for step, work in replay_work(recording):
        for item in work:
            padding = step.num_padded_tokens.get(item.request_id, 0)
            if item.phase == "padding" and item.request_id in step.num_scheduled_tokens:
                continue  # told with the row's own slice
            yield _work_slice(step, item, padding, tracks[item.request_id])


def _work_slice(step: StepRecord, item: Work, padding: int, track: int) -> Event:
    args = {
        "step": step.index + 1,
        "tokens": item.num_tokens,
        "context": item.context_len,
        "new token": item.sampled,
    }
    if padding and item.phase != "padding":
        args["padding"] = padding
    name = str(item.phase.value)
    return _slice(REQUESTS, track, name, step.start_time, step.end_time, args)


def _waits(recording: Recording, tracks: dict[str, int]) -> Iterator[Event]:
    """Time in the queue, before the first admission ("waiting") and after a preemption."""
    requests = recording.requests
    since = {
        request_id: (record.arrival_time, "waiting")
        for request_id, record in requests.items()
        if record.finish_reason is not FinishReason.REFUSED
    }

    def wait(request_id: str, end: float) -> Iterator[Event]:
        start, name = since.pop(request_id)
        if end > start:
            yield _slice(REQUESTS, tracks[request_id], name, start, end, {})

    for step in recording.steps:
        for request_id in step.preempted:
            since.setdefault(request_id, (step.start_time, "preempted"))
        for request_id in step.admitted:
            if request_id in since:
                yield from wait(request_id, step.start_time)
    end = max(end_time(requests.values()), recording.steps[-1].end_time if recording.steps else 0.0)
    for request_id in list(since):
        finish = requests[request_id].finish_time
        yield from wait(request_id, end if finish is None else finish)
