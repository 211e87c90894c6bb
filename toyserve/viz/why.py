"""One step's decision in words: who ran and by which rule, who waited and for what."""

from __future__ import annotations

import bisect
import html
import importlib
from dataclasses import dataclass
from itertools import islice
from typing import Any

from toyserve.recording import Recording, RequestRecord, StepRecord
from toyserve.replay import Phase, Work, replay_work
from toyserve.viz.spans import OUTSIDE, Spans, spans_of
from toyserve.viz.style import State
from toyserve.viz.words import format_seconds, listing, require_steps
from toyserve.words import counted


@dataclass(frozen=True)
class Decision:
    """What one step decided. ``lines`` pairs a heading with a sentence; print it, or look at it."""

    step: int  # counted from 1
    ran: tuple[str, ...]
    admitted: tuple[str, ...]
    waiting: tuple[str, ...]
    preempted: tuple[str, ...]
    waiting_for: str | None
    lines: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        width = max(len(heading) for heading, _ in self.lines)
        return "\n".join(f"{heading:<{width}}  {text}" for heading, text in self.lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th style='text-align:left;vertical-align:top'>{html.escape(heading)}</th>"
            f"<td style='text-align:left'>{html.escape(text)}</td></tr>"
            for heading, text in self.lines
        )
        return f"<table>{rows}</table>"


def why(recording: Recording, step: int) -> Decision:
    """The decision of step ``step``, counted from 1 as in the pictures, in words."""
    require_steps(recording)
    if not 1 <= step <= len(recording.steps):
        raise ValueError(f"step is {step}: this run has steps 1 to {len(recording.steps)}")
    return decide(recording, step, spans_of(recording))


def decide(recording: Recording, step: int, story: Spans) -> Decision:
    """``why``, for whoever asks about many steps: ``story`` is the run's ``spans_of``."""
    record, work = next(islice(replay_work(recording), step - 1, None))
    queue = _waiting_in(story, step)
    return Decision(
        step,
        tuple(record.num_scheduled_tokens),
        tuple(record.admitted),
        tuple(queue),
        tuple(record.preempted),
        record.waiting_for,
        decision_lines(recording, step, record, work, queue, _num_held_tokens(recording, step)),
    )


def decision_lines(
    recording: Recording,
    step: int,
    record: StepRecord,
    work: list[Work],
    queue: list[str],
    held: dict[str, int],
) -> tuple[tuple[str, str], ...]:
    """(heading, sentence) pairs. queue: who waits, in order; held: tokens of each request so far"""
    lines = [
        (f"Step {step}", _headline(recording, record)),
        ("Rule", _rules(recording)),
        ("Runs", _ran(recording, record, work)),
        ("Chosen", _chosen(recording, record, queue)),
        ("Waits", _waits(recording, record, queue, held)),
        ("Gives way", _preempted(recording, record)),
        ("Spent", _spent(recording, record)),
    ]
    return tuple((heading, text) for heading, text in lines if text)


def _waiting_in(story: Spans, step: int) -> list[str]:
    """Who has come and is not in the batch in step ``step``, counted from 1.

    In the queue's order: whoever was paused comes first, the last one paused before the others.
    """
    outside = [s for s in story.spans if s.state in OUTSIDE and s.start <= step - 1 < s.end]
    paused = [s for s in outside if s.state is not State.WAITING]
    fresh = [s for s in outside if s.state is State.WAITING]
    paused.sort(key=lambda s: -s.start)
    fresh.sort(key=lambda s: s.start_time)
    return [story.request_ids[span.request] for span in (*paused, *fresh)]


def _num_held_tokens(recording: Recording, step: int) -> dict[str, int]:
    """Tokens that each request has by step ``step``: its prompt and the answer so far."""
    start = recording.steps[step - 1].start_time
    return {
        name: r.num_prompt_tokens + bisect.bisect_right(r.token_times, start)
        for name, r in recording.requests.items()
    }


# -- the sentences ------------------------------------------------------------------------------


def _headline(recording: Recording, step: StepRecord) -> str:
    lasts = format_seconds(step.end_time - step.start_time)
    finished = f"; {listing(step.finished)} finished in it" if step.finished else ""
    return f"began at {format_seconds(step.start_time)} and took {lasts}{finished}."


def _rules(recording: Recording) -> str:
    meta = recording.meta
    scheduler = _first_line("toyserve.schedulers", meta.get("scheduler"))
    policy = _first_line("toyserve.policies", meta.get("policy"))
    return " ".join(part for part in (scheduler, policy) if part)


def _first_line(module: str, name: Any) -> str:
    """``Name: what it does``, from its own docstring if toyserve knows a class of that name."""
    if not name:
        return ""
    doc = getattr(getattr(importlib.import_module(module), str(name), None), "__doc__", None)
    return f"{name}: {doc.strip().splitlines()[0].replace('`', '')}" if doc else f"{name}."


def _ran(recording: Recording, step: StepRecord, work: list[Work]) -> str:
    parts = []
    decodes = [item.request_id for item in work if item.phase is Phase.DECODE]
    if decodes:
        one = len(decodes) == 1
        parts.append(
            f"{listing(decodes)} decode{'s' if one else ''}, 1 token{'' if one else ' each'}"
        )
    reads = [_read(recording, item) for item in work if item.phase is Phase.PREFILL]
    parts += reads if len(reads) <= 8 else [*reads[:7], f"{len(reads) - 7:,} more read theirs"]
    padding = [item for item in work if item.phase is Phase.PADDING]
    if padding:
        count = counted(sum(item.num_tokens for item in padding), "token")
        parts.append(f"{count} of padding for {listing([item.request_id for item in padding])}")
    return "; ".join(parts) + "."


def _read(recording: Recording, item: Work) -> str:
    """A prefill, a chunk of one, or a prefill again after a pause."""
    name, num_prompt = item.request_id, recording.requests[item.request_id].num_prompt_tokens
    tokens = counted(item.num_tokens, "token")
    if item.context_len > num_prompt:
        return f"{name} reads prompt and answer so far again ({tokens})"
    if item.context_len == item.num_tokens == num_prompt:
        return f"{name} reads its prompt ({tokens})"
    first, last = item.context_len - item.num_tokens + 1, item.context_len
    which = f"token {last:,}" if first == last else f"tokens {first:,} to {last:,}"
    return f"{name} reads {which} of its {num_prompt:,}-token prompt"


def _chosen(recording: Recording, step: StepRecord, queue: list[str]) -> str:
    if not step.admitted:
        return "nobody new." if queue else ""
    texts = []
    for name, num_cached in step.admitted.items():
        record = recording.requests[name]
        waited = step.start_time - record.arrival_time
        again = (record.first_scheduled_time or 0.0) < step.start_time
        text = f"{name} {'comes back' if again else 'enters'}"
        text += f", {format_seconds(waited)} after it arrived" if waited > 0 else " as it arrives"
        if name in step.swapped_in:
            text += ", its KV copied back from the host"
        elif num_cached:
            text += f", with {counted(num_cached, 'token')} already cached"
        texts.append(text)
    if len(texts) > 6:
        texts = [*texts[:5], f"and {len(texts) - 5:,} more"]
    last = max(_arrived(recording, name) for name in step.admitted)
    passed = [name for name in queue if _arrived(recording, name) < last]
    policy = recording.meta.get("policy", "the scheduler")
    tail = f" They came before {listing(passed)}, who arrived earlier: so {policy} chose."
    return "; ".join(texts) + "." + (tail if passed else "")


def _arrived(recording: Recording, name: str) -> float:
    return recording.requests[name].arrival_time


def _waits(
    recording: Recording, step: StepRecord, queue: list[str], num_tokens: dict[str, int]
) -> str:
    if not step.num_waiting and not queue:
        return "nobody."
    names = queue if len(queue) == step.num_waiting else queue[: step.num_waiting]
    who = listing(names) if names else counted(step.num_waiting, "request")
    first = recording.requests[names[0]] if names else None
    return f"{who}: {_reason(recording, step, first, num_tokens)}"


def _reason(
    recording: Recording, step: StepRecord, first: RequestRecord | None, num_tokens: dict[str, int]
) -> str:
    meta, why_not = recording.meta, step.waiting_for
    in_batch = len({*step.num_scheduled_tokens, *step.num_padded_tokens})
    if why_not == "slots":
        return f"all {meta.get('max_running') or in_batch} slots are taken."
    if why_not == "batch":
        return "the batch under way must end before anybody new may enter."
    if why_not == "budget":
        return f"the budget of {counted(meta.get('token_budget') or 0, 'token')} is spent."
    if why_not == "quota":
        return "its user has used up the quota."
    if why_not == "memory":
        free, total = step.num_free_blocks, meta.get("num_blocks")
        need = ""
        if first is not None and meta.get("block_size"):
            tokens = num_tokens[first.request_id]
            blocks = -(-tokens // int(meta["block_size"]))
            need = (
                f" ({first.request_id} has {counted(tokens, 'token')}, which fill "
                f"{counted(blocks, 'block')})"
            )
        return f"memory is short: {free} of {total} blocks stay free{need}."
    if step.preempted:
        return "memory was short, so nobody is let in while somebody is put out."
    return f"{why_not}." if why_not else "the scheduler gave no reason."


def _preempted(recording: Recording, step: StepRecord) -> str:
    if not step.preempted:
        return ""
    policy = recording.meta.get("policy", "the policy")
    cause = "a running request needed a block and none was free"
    if step.admitted:
        cause = f"room was made for {listing(list(step.admitted))}"
    swapped = " Its KV went to the host." if step.swapped_out else ""
    named = f"{cause}; {policy} named whom to pause."
    return f"{listing(step.preempted)}: {named}{swapped} No token is lost."


def _spent(recording: Recording, step: StepRecord) -> str:
    meta = recording.meta
    tokens = sum(step.num_scheduled_tokens.values()) + sum(step.num_padded_tokens.values())
    slots = len({*step.num_scheduled_tokens, *step.num_padded_tokens})
    budget, places, blocks = (meta.get(k) for k in ("token_budget", "max_running", "num_blocks"))
    parts = [
        f"{tokens:,} of {budget:,} budgeted tokens" if budget else counted(tokens, "token"),
        f"{slots} of {places} slots" if places else counted(slots, "slot"),
    ]
    if blocks:
        parts.append(f"{blocks - step.num_free_blocks:,} of {blocks:,} blocks still taken after it")
    return ", ".join(parts) + "."
