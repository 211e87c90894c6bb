"""How much of the machine's capacity did useful work: slots, token budget, KV blocks.

Every definition is in ``summarize_steps``; averages are over steps, each counting once.
"""

from __future__ import annotations

from collections.abc import Iterable

from toyserve.kv.manager import BlockEvent
from toyserve.recording import Recording
from toyserve.replay import Phase, replay_work

_METRICS = (
    "mean_running",
    "budget_used",
    "slots_used",
    "padding_share",
    "kv_used_max",
    "kv_used_mean",
    "num_recomputed_tokens",
)


def summarize_steps(recording: Recording) -> dict[str, float | None]:
    """Averages over the steps, each step counting once however long it took; shares are 0 .. 1.

    mean_running: requests per step that had a token computed, padding excluded.
    slots_used: mean_running over the scheduler's max_running.
    budget_used: the share of a step's capacity that did useful work. With a token budget, scheduled
    tokens over the budget; without one, slots_used. Padding is never useful.
    padding_share: padded positions over all positions computed, in the whole run.
    kv_used_max, kv_used_mean: blocks that some request refers to while the step runs, over all.
    num_recomputed_tokens: positions computed more than once, because a preemption threw them away.
    All None when the recording kept no steps.
    """
    steps = recording.steps
    if not steps:
        return dict.fromkeys(_METRICS)
    num_steps = len(steps)
    rows = sum(len(s.num_scheduled_tokens) for s in steps)
    scheduled = sum(sum(s.num_scheduled_tokens.values()) for s in steps)
    padded = sum(sum(s.num_padded_tokens.values()) for s in steps)
    slots, budget = recording.meta.get("max_running"), recording.meta.get("token_budget")
    slots_used = rows / (num_steps * slots) if slots else None
    used = kv_used(recording)
    num_blocks = recording.meta.get("num_blocks")
    return {
        "mean_running": rows / num_steps,
        "budget_used": scheduled / (num_steps * budget) if budget else slots_used,
        "slots_used": slots_used,
        "padding_share": padded / (scheduled + padded) if scheduled + padded else 0.0,
        "kv_used_max": max(used) / num_blocks if num_blocks else None,
        "kv_used_mean": sum(used) / (num_steps * num_blocks) if num_blocks else None,
        "num_recomputed_tokens": num_recomputed_tokens(recording),
    }


def kv_used(recording: Recording) -> list[int]:
    """Per step: how many blocks some request refers to while it runs (a shared block counts once).

    From the block events alone, so that a block which is only cached counts as free.
    """
    references: dict[int, int] = {}
    used = []
    for step in recording.steps:
        _apply(references, step.block_events)
        used.append(len(references))
        _apply(references, step.block_events_after)
    return used


def _apply(references: dict[int, int], events: Iterable[BlockEvent]) -> None:
    for kind, block, _ in events:
        if kind == "take":
            references[block] = references.get(block, 0) + 1
        elif kind == "drop":
            references[block] -= 1
            if not references[block]:
                del references[block]


def num_recomputed_tokens(recording: Recording) -> int:
    """Positions that were computed again after a preemption had thrown their KV away."""
    if not any(step.preempted for step in recording.steps):
        return 0
    furthest: dict[str, int] = {}
    num_again = 0
    for _, work in replay_work(recording):
        for item in work:
            if item.phase is not Phase.PADDING:
                before = furthest.get(item.request_id, 0)
                start = item.context_len - item.num_tokens
                num_again += max(0, min(before, item.context_len) - start)
                furthest[item.request_id] = max(before, item.context_len)
    return num_again
