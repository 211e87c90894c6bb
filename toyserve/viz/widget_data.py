"""A recording as a browser wants it: a small header, and everything long as one string of bytes.

The header is JSON: names, colours, and the table ``arrays`` of (name, type, length) in the order in
which the numbers lie in the bytes, widest type first so that each is aligned. The interactive
timeline and the self-contained page draw from these two alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from toyserve.recording import Recording
from toyserve.replay import Phase, replay_work
from toyserve.viz.spans import OUTSIDE, Span, Spans, spans_of
from toyserve.viz.style import MARKS, MEMORY, OWNERS, STATES, THEMES, Look, State
from toyserve.viz.why import decision_lines
from toyserve.viz.words import require_steps, run_name

MAX_EXPLAINED_STEPS = 500
_EVENTS = ("take", "drop", "cache", "evict")
_WAITS = ("slots", "memory", "budget", "batch", "quota")
_TYPES = {"f8": np.float64, "f4": np.float32, "u4": np.uint32, "u1": np.uint8}


def pack(recording: Recording, *, explain: bool = False) -> tuple[dict[str, Any], bytes]:
    """(header, bytes). explain: with every step's decision in words, up to MAX_EXPLAINED_STEPS.

    Raises ValueError if the recording threw its steps away.
    """
    require_steps(recording)
    story = spans_of(recording)
    arrays: dict[str, tuple[str, Any]] = {
        **_steps(recording),
        **_spans(recording, story),
        **_marks(story),
        **_events(recording, story),
        **_requests(recording),
    }
    order = sorted(arrays, key=lambda name: -int(arrays[name][0][1]))
    header = _header(recording, story)
    header["arrays"] = [[name, arrays[name][0], len(arrays[name][1])] for name in order]
    if explain and len(recording.steps) <= MAX_EXPLAINED_STEPS:
        header["why"] = explanations(recording, story)
    data = b"".join(
        np.asarray(arrays[name][1], dtype=_TYPES[arrays[name][0]]).tobytes() for name in order
    )
    return header, data


def unpack(header: dict[str, Any], data: bytes) -> dict[str, NDArray[Any]]:
    """The arrays by name, as the browser reads them."""
    result, offset = {}, 0
    for name, kind, length in header["arrays"]:
        result[name] = np.frombuffer(data, _TYPES[kind], length, offset)
        offset += result[name].nbytes
    return result


def _header(recording: Recording, story: Spans) -> dict[str, Any]:
    meta = recording.meta
    places = meta.get("max_running") or 0
    return {
        "name": run_name(recording),
        "ids": story.request_ids,
        "num_steps": story.num_steps,
        "num_slots": max(1, story.num_slots, places if places <= 16 else 0),
        "num_blocks": int(meta.get("num_blocks") or 0),
        "block_size": int(meta.get("block_size") or 1),
        "max_running": meta.get("max_running"),
        "token_budget": meta.get("token_budget"),
        "states": {str(state): look_of(look) for state, look in STATES.items()},
        "memory": {name: look_of(look) for name, look in MEMORY.items()},
        "marks": {kind: meaning for kind, (_, _, meaning) in MARKS.items()},
        "owners": list(OWNERS),
        "waits": list(_WAITS),
        "themes": {
            name: {"background": t.background, "ink": t.ink, "faint": t.faint}
            for name, t in THEMES.items()
        },
    }


def look_of(look: Look) -> dict[str, Any]:
    return {
        "meaning": look.meaning,
        "hatch": look.hatch,
        "light": {"fill": look.light, "edge": look.hatch_light, "text": look.text_light},
        "dark": {"fill": look.dark, "edge": look.hatch_dark, "text": look.text_dark},
    }


# -- the arrays ---------------------------------------------------------------------------------


def _steps(recording: Recording) -> dict[str, tuple[str, Any]]:
    steps = recording.steps
    tokens = {phase: np.zeros(len(steps), np.uint32) for phase in Phase}
    for number, (_, work) in enumerate(replay_work(recording)):
        for item in work:
            tokens[item.phase][number] += item.num_tokens
    waits = [_WAITS.index(s.waiting_for) + 1 if s.waiting_for else 0 for s in steps]
    return {
        "step_start": ("f8", [s.start_time for s in steps]),
        "step_end": ("f8", [s.end_time for s in steps]),
        "step_prefill": ("u4", tokens[Phase.PREFILL]),
        "step_decode": ("u4", tokens[Phase.DECODE]),
        "step_padding": ("u4", tokens[Phase.PADDING]),
        "step_waiting": ("u4", [s.num_waiting for s in steps]),
        "step_free": ("u4", [s.num_free_blocks for s in steps]),
        "step_wait": ("u1", waits),  # 0: nobody waits; else 1 + the place in ``waits``
    }


def _spans(recording: Recording, story: Spans) -> dict[str, tuple[str, Any]]:
    spans, kinds = story.spans, {state: n for n, state in enumerate(STATES)}
    return {
        "span_start": ("f4", [s.start for s in spans]),
        "span_end": ("f4", [s.end for s in spans]),
        "span_request": ("u4", [s.request for s in spans]),
        "span_tokens": ("u4", [s.num_tokens for s in spans]),
        "span_context": ("u4", _contexts(recording, story)),  # tokens in the cache at its end
        "span_slot": ("u4", [s.slot or 0 for s in spans]),  # means nothing outside the batch
        "span_state": ("u1", [kinds[s.state] for s in spans]),
    }


def _contexts(recording: Recording, story: Spans) -> list[int]:
    """For each span, how many tokens of its request are in the cache when it ends."""
    entries = {}
    for number, step in enumerate(recording.steps):
        for request_id, num_cached in step.admitted.items():
            if request_id not in step.swapped_in:
                entries[request_id, number] = num_cached
    contexts = [0] * len(story.spans)
    now: dict[int, int] = {}
    for place in sorted(range(len(story.spans)), key=lambda i: story.spans[i].start):
        span: Span = story.spans[place]
        entered = entries.get((story.request_ids[span.request], int(span.start)))
        if entered is not None and span.state not in OUTSIDE and span.start == int(span.start):
            now[span.request] = entered
        if span.state is State.PREEMPTED:
            now[span.request] = 0
        if span.state in (State.PREFILL, State.DECODE):
            now[span.request] = now.get(span.request, 0) + span.num_tokens
        contexts[place] = now.get(span.request, 0)
    return contexts


def _marks(story: Spans) -> dict[str, tuple[str, Any]]:
    marks, kinds = story.marks, {kind: n for n, kind in enumerate(MARKS)}
    return {
        "mark_position": ("f4", [m.position for m in marks]),
        "mark_request": ("u4", [m.request for m in marks]),
        "mark_slot": ("u4", [m.slot or 0 for m in marks]),
        "mark_kind": ("u1", [kinds[m.kind] for m in marks]),
        "mark_in_slot": ("u1", [m.slot is not None for m in marks]),
    }


def _events(recording: Recording, story: Spans) -> dict[str, tuple[str, Any]]:
    """Blocks that change hands. ``event_key`` is twice the step, plus 1 for after the step."""
    index = {request_id: n for n, request_id in enumerate(story.request_ids)}
    keys, blocks, requests, kinds = [], [], [], []
    for number, step in enumerate(recording.steps):
        for after, events in enumerate((step.block_events, step.block_events_after)):
            for event in events:
                keys.append(2 * number + after)
                blocks.append(event.block)
                requests.append(index.get(event.request_id, 0))
                kinds.append(_EVENTS.index(event.kind))
    return {
        "event_key": ("u4", keys),
        "event_block": ("u4", blocks),
        "event_request": ("u4", requests),
        "event_kind": ("u1", kinds),
    }


def _requests(recording: Recording) -> dict[str, tuple[str, Any]]:
    records = list(recording.requests.values())
    return {
        "request_arrival": ("f8", [r.arrival_time for r in records]),
        "request_prompt": ("u4", [r.num_prompt_tokens for r in records]),
        "request_output": ("u4", [len(r.token_times) for r in records]),
    }


# -- words --------------------------------------------------------------------------------------


def explanations(recording: Recording, story: Spans) -> list[list[list[str]]]:
    """``why`` of every step as [heading, sentence] pairs: the same words, in one pass."""
    outside = [span for span in story.spans if span.state in OUTSIDE]
    paused = [span for span in outside if span.state is not State.WAITING]
    fresh = [span for span in outside if span.state is State.WAITING]
    paused.sort(key=lambda span: -span.start)
    fresh.sort(key=lambda span: span.start_time)
    queue_order = (*paused, *fresh)
    held = {name: r.num_prompt_tokens for name, r in recording.requests.items()}
    result = []
    for number, (record, work) in enumerate(replay_work(recording)):
        queue = [story.request_ids[s.request] for s in queue_order if s.start <= number < s.end]
        lines = decision_lines(recording, number + 1, record, work, queue, held)
        result.append([[heading, text] for heading, text in lines])
        for item in work:
            held[item.request_id] += item.sampled
    return result
