"""Answers that grow in a notebook while the engine runs: who writes, who waits, who is done."""

from __future__ import annotations

import html
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from toyserve.request import RequestStatus

if TYPE_CHECKING:
    from toyserve.llm import LLM
    from toyserve.recording import StepRecord
    from toyserve.request import Request

# Seen on a light and on a dark page; the word says it without the colour.
_COLORS = {
    "waiting": "rgba(128,128,128,.25)",
    "reading its prompt": "rgba(230,159,0,.45)",
    "writing": "rgba(0,114,178,.35)",
    "done": "transparent",
}
_CELL = "text-align:left;vertical-align:top;padding:3px 10px"


def watch(llm: LLM, requests: Sequence[Request], *, pace: float = 0.04) -> list[str]:
    """Serve ``requests`` with every answer shown as it grows, in one table that changes in place.

    Begins a new recording, ``llm.recording``; returns the texts. pace: seconds to look at each
    step, so that an eye can follow; on a wall clock they count.
    """
    from IPython.display import HTML, display

    shown = display(HTML(_table(0, _rows(llm, requests, {}))), display_id=True)

    def look(record: StepRecord) -> None:
        if shown is not None:
            shown.update(HTML(_table(record.index + 1, _rows(llm, requests, record.admitted))))
        time.sleep(pace)

    llm.engine.restart()
    llm.engine.on_step.append(look)
    try:
        llm.engine.run(requests)
    finally:
        llm.engine.on_step.remove(look)
    return [llm.tokenizer.decode(request.output_token_ids) for request in requests]


def _rows(
    llm: LLM, requests: Sequence[Request], admitted: Mapping[str, int]
) -> list[tuple[str, str, str]]:
    """Name, state and text so far of each."""
    return [
        (r.request_id, _state(r, admitted), llm.tokenizer.decode(r.output_token_ids))
        for r in requests
    ]


def _state(request: Request, admitted: Mapping[str, int]) -> str:
    if request.is_finished:
        return "done"
    if request.status is not RequestStatus.RUNNING:
        return "waiting"
    return "reading its prompt" if request.request_id in admitted else "writing"


def _table(step: int, rows: Sequence[tuple[str, str, str]]) -> str:
    states = [state for _, state, _ in rows]
    lines = "".join(
        f'<tr><td style="{_CELL}"><b>{html.escape(name)}</b></td>'
        f'<td style="{_CELL};white-space:nowrap;background:{_COLORS[state]}">{state}</td>'
        f'<td style="{_CELL};width:75%">{html.escape(_in_one_line(text))}</td></tr>'
        for name, state, text in rows
    )
    counts = ", ".join(f"{states.count(state)} {state}" for state in _COLORS if state in states)
    return f"<b>step {step}</b>: {counts}<table>{lines}</table>"


def _in_one_line(text: str) -> str:
    return " / ".join(line.strip() for line in text.strip().splitlines())
