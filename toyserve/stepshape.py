"""What of a step decides how long it takes: how many positions, reading how much KV."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from toyserve.schedulers.output import SchedulerOutput

# prefill: requests read their prompts, whole or in pieces, and whoever has read the last position
# gets a first token. decode: each request in the batch runs its newest token and gets the next.
# mixed: some do the one and some the other.
StepPhase = Literal["prefill", "decode", "mixed"]


class StepShape(NamedTuple):
    """The work of one step, padding included. All counts are of token positions, except ``*_rows``.

    A row is one request. One position of it is a decode (also where it is the last one of a
    prompt: it costs the same); more are a prefill. ``*_context`` counts the KV tokens that a row's
    attention touches, the new ones included; ``prefill_pairs`` the (query, key) pairs.
    """

    num_tokens: int
    decode_rows: int
    decode_context: int
    prefill_rows: int
    prefill_context: int
    prefill_pairs: int

    @property
    def num_rows(self) -> int:
        return self.decode_rows + self.prefill_rows

    @property
    def phase(self) -> StepPhase:
        if not self.prefill_rows:
            return "decode"
        return "mixed" if self.decode_rows else "prefill"

    @classmethod
    def of_plan(cls, plan: SchedulerOutput, window: int | None = None) -> StepShape:
        """Of a plan that has not run yet: ``num_computed_tokens`` is still what it was before.

        Padding attends like any other position: it is computed for nothing, but it is computed.
        """
        scheduled = plan.num_scheduled_tokens
        if window is not None or plan.num_padded_tokens:
            return cls.of_rows(_rows(plan), window)
        # The common case, written out: this runs for every request in every simulated step.
        num_tokens = decode_context = prefill_rows = prefill_context = prefill_pairs = 0
        for request, n in scheduled.items():
            if n == 1:
                decode_context += request.num_computed_tokens
            else:
                end = request.num_computed_tokens + n
                num_tokens += n
                prefill_rows += 1
                prefill_context += end
                prefill_pairs += n * end - n * (n - 1) // 2
        decode_rows = len(scheduled) - prefill_rows
        return cls(
            num_tokens + decode_rows,
            decode_rows,
            decode_context + decode_rows,
            prefill_rows,
            prefill_context,
            prefill_pairs,
        )

    @classmethod
    def of_rows(cls, rows: Iterable[tuple[int, int]], window: int | None = None) -> StepShape:
        """Of (tokens already computed, tokens to run) per row. window: of sliding attention."""
        num_tokens = decode_rows = decode_context = 0
        prefill_rows = prefill_context = prefill_pairs = 0
        for context, n in rows:
            num_tokens += n
            if window is not None:
                context = min(context, window - 1)  # what lies before the window is not read
            if n == 1:
                decode_rows += 1
                decode_context += context + 1
            else:
                prefill_rows += 1
                prefill_context += context + n
                prefill_pairs += _num_pairs(context, n, window)
        return cls(
            num_tokens, decode_rows, decode_context, prefill_rows, prefill_context, prefill_pairs
        )


def _rows(plan: SchedulerOutput) -> Iterable[tuple[int, int]]:
    """One row per request, as wide as its tokens and its padding together."""
    padded = plan.num_padded_tokens
    for request, n in plan.num_scheduled_tokens.items():
        yield request.num_computed_tokens, n + padded.get(request, 0)
    for request, n in padded.items():
        if request not in plan.num_scheduled_tokens:
            yield request.num_computed_tokens, n


def _num_pairs(context: int, n: int, window: int | None) -> int:
    """Sum over the n new positions of the keys that each attends to, itself included."""
    if window is None or context + n <= window:
        return n * context + n * (n + 1) // 2
    growing = window - context  # the positions before the window is full
    return growing * context + growing * (growing + 1) // 2 + (n - growing) * window
