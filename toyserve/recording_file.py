"""A recording as a file: JSON lines, in the order in which things happened.

One ``meta`` line, then ``arrival``, ``step`` and ``end`` lines. Every prefix that ends at a line's
end is itself a valid recording: a process that is killed loses nothing but its last line.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toyserve.kv.manager import BlockEvent
from toyserve.request import FinishReason

if TYPE_CHECKING:
    from toyserve.recording import Recording, RequestRecord, StepRecord

FORMAT_VERSION = 1

_ARRIVAL = (
    "request_id",
    "arrival_time",
    "num_prompt_tokens",
    "max_tokens",
    "user",
    "priority",
    "ttft_target",
    "tpot_target",
)
_END = ("request_id", "token_ids", "finish_time", "finish_reason", "error")
# What the steps tell; written only when no steps were kept.
_DERIVED = ("first_scheduled_time", "token_times", "num_preemptions", "num_cached_tokens")
_STEP = (
    "start_time",
    "end_time",
    "num_scheduled_tokens",
    "num_padded_tokens",
    "admitted",
    "preempted",
    "finished",
    "swapped_out",
    "swapped_in",
    "num_copied_blocks",
    "num_waiting",
    "waiting_for",
    "num_free_blocks",
    "block_events",
    "block_events_after",
)
_ALWAYS = {"start_time", "end_time", "num_scheduled_tokens", "num_free_blocks"}


def meta_line(meta: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "meta", "version": FORMAT_VERSION, "meta": meta}


def arrival_line(record: RequestRecord) -> dict[str, Any]:
    return {"kind": "arrival", **{name: getattr(record, name) for name in _ARRIVAL}}


def step_line(step: StepRecord) -> dict[str, Any]:
    """Without the index, which is the line's place, and without what is empty or 0."""
    fields = {name: getattr(step, name) for name in _STEP}
    kept = {name: value for name, value in fields.items() if value or name in _ALWAYS}
    return {"kind": "step", **kept}


def end_line(record: RequestRecord, *, steps_kept: bool = True) -> dict[str, Any]:
    names = _END if steps_kept else (*_END, *_DERIVED)
    return {"kind": "end", **{name: getattr(record, name) for name in names}}


def dump(line: dict[str, Any]) -> str:
    return json.dumps(line, separators=(",", ":")) + "\n"


def save(recording: Recording, path: Path) -> None:
    with open(path, "w", encoding="utf-8") as file:
        for line in _lines(recording):
            file.write(dump(line))


def _lines(recording: Recording) -> Iterable[dict[str, Any]]:
    requests = recording.requests
    yield meta_line(recording.meta)
    for record in requests.values():
        yield arrival_line(record)
    for step in recording.steps:
        yield step_line(step)
    for record in requests.values():
        yield end_line(record, steps_kept=recording.keep_steps)
    if not recording.keep_steps:
        yield {"kind": "totals", "num_steps": recording.num_steps}


def load(path: Path) -> Recording:
    """Raises ValueError naming the file and the line if it is not a recording."""
    from toyserve.recording import Recording
    from toyserve.replay import complete_requests

    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as a recording: {error}") from None
    recording = Recording()
    for number, text in enumerate(lines, 1):
        try:
            _read_line(recording, json.loads(text))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if number == len(lines) and number > 1:
                break  # cut short by a kill
            raise ValueError(f"{path}, line {number} is not a recording's: {error}") from None
    if not recording.meta:
        raise ValueError(f"{path} is not a recording: it has no meta line")
    complete_requests(recording)
    return recording


def _read_line(recording: Recording, line: dict[str, Any]) -> None:
    from toyserve.recording import RequestRecord, StepRecord

    kind = line.pop("kind")
    if kind == "meta":
        if line["version"] != FORMAT_VERSION:
            raise ValueError(f"version {line['version']}, this toyserve reads {FORMAT_VERSION}")
        recording.meta = line["meta"]
    elif kind == "arrival":
        recording.records[line["request_id"]] = RequestRecord(**line)
    elif kind == "step":
        for name in ("block_events", "block_events_after"):
            if name in line:
                line[name] = [BlockEvent(*event) for event in line[name]]
        recording.steps.append(StepRecord(recording.num_steps, **line))
        recording.num_steps += 1
    elif kind == "end":
        record = recording.records[line.pop("request_id")]
        for name, value in line.items():
            setattr(record, name, value)
        if record.finish_reason is not None:
            record.finish_reason = FinishReason(record.finish_reason)
    elif kind == "totals":
        recording.num_steps, recording.keep_steps = line["num_steps"], False
    else:
        raise ValueError(f"unknown kind of line {kind!r}")
