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
from toyserve.replay import replay_work
from toyserve.viz.blockgrid import num_shown_blocks
from toyserve.viz.growing import TYPES, WAITS, GrowingPack
from toyserve.viz.span_builder import SpanBuilder
from toyserve.viz.spans import OUTSIDE, Span
from toyserve.viz.style import MARKS, MEMORY, OWNERS, STATES, THEMES, Look, State
from toyserve.viz.why import decision_lines
from toyserve.viz.words import require_steps, run_name

MAX_EXPLAINED_STEPS = 500


def pack(recording: Recording, *, explain: bool = False) -> tuple[dict[str, Any], bytes]:
    """(header, bytes). explain: with every step's decision in words, up to MAX_EXPLAINED_STEPS.

    Raises ValueError if the recording threw its steps away.
    """
    require_steps(recording)
    growing = GrowingPack(recording)
    header, data = refreshed(growing)
    if explain and len(recording.steps) <= MAX_EXPLAINED_STEPS:
        header["why"] = explanations(recording, growing.story)
    return header, data


def refreshed(growing: GrowingPack) -> tuple[dict[str, Any], bytes]:
    """``pack`` of a run that goes on, without words."""
    arrays, data = growing.refresh()
    header = _header(growing.recording, growing.story)
    header["num_shown_blocks"] = num_shown_blocks(header["num_blocks"], growing.num_touched_blocks)
    return {**header, "arrays": arrays}, data


def unpack(header: dict[str, Any], data: bytes) -> dict[str, NDArray[Any]]:
    """The arrays by name, as the browser reads them."""
    result, offset = {}, 0
    for name, kind, length in header["arrays"]:
        result[name] = np.frombuffer(data, TYPES[kind], length, offset)
        offset += result[name].nbytes
    return result


def _header(recording: Recording, story: SpanBuilder) -> dict[str, Any]:
    meta = recording.meta
    places = meta.get("max_running") or 0
    return {
        "name": run_name(recording),
        "ids": list(story.ids),
        "num_steps": story.num_steps,
        "num_slots": max(1, story.slots.num_slots, places if places <= 16 else 0),
        "num_blocks": int(meta.get("num_blocks") or 0),
        "block_size": int(meta.get("block_size") or 1),
        "max_running": meta.get("max_running"),
        "token_budget": meta.get("token_budget"),
        # Lists, as a saved notebook's JSON does not keep the order of a dict.
        "state_names": [str(state) for state in STATES],
        "mark_names": list(MARKS),
        "states": {str(state): look_of(look) for state, look in STATES.items()},
        "memory": {name: look_of(look) for name, look in MEMORY.items()},
        "marks": {kind: meaning for kind, (_, _, meaning) in MARKS.items()},
        "owners": list(OWNERS),
        "waits": list(WAITS),
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


# -- words --------------------------------------------------------------------------------------


def explanations(recording: Recording, story: SpanBuilder) -> list[list[list[str]]]:
    """``why`` of every step as [heading, sentence] pairs: the same words, in one pass."""
    spans: list[Span] = story.spans + story.unfinished()[0]
    outside = [span for span in spans if span.state in OUTSIDE]
    paused = [span for span in outside if span.state is not State.WAITING]
    fresh = [span for span in outside if span.state is State.WAITING]
    paused.sort(key=lambda span: -span.start)
    fresh.sort(key=lambda span: span.start_time)
    queue_order = (*paused, *fresh)
    held = {name: r.num_prompt_tokens for name, r in recording.requests.items()}
    result = []
    for number, (record, work) in enumerate(replay_work(recording)):
        queue = [story.ids[s.request] for s in queue_order if s.start <= number < s.end]
        lines = decision_lines(recording, number + 1, record, work, queue, held)
        result.append([[heading, text] for heading, text in lines])
        for item in work:
            held[item.request_id] += item.sampled
    return result
