"""What crosses the line between scheduler and runner: the plan of one step, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from toyserve.request import Request, TokenLogprobs

# Why the head of the queue waits: every slot is taken, KV blocks are short, this step's tokens are
# all given away, a static batch is under way (or filling up), the policy lets nobody in.
WaitReason = Literal["slots", "memory", "budget", "batch", "quota"]


@dataclass(slots=True)
class SchedulerOutput:
    """The plan of one step.

    ``num_scheduled_tokens`` says how many of its next tokens each request runs; there is no prefill
    flag and no decode flag. A request whose tokens are then all computed gets a new one sampled.

    The runner first moves memory, in this order, for a block that one line gives up may be filled
    by the next: ``swap_out``, ``block_copies``, ``swap_in``; then it runs the tokens. A plan may
    swap out and run nothing.
    """

    num_scheduled_tokens: dict[Request, int] = field(default_factory=dict)
    # Positions computed for nothing: a static batch's padding and its finished rows.
    num_padded_tokens: dict[Request, int] = field(default_factory=dict)
    # Who came in, with how many of its tokens' KV there already (prefix-cache hit, swapped in).
    admitted: dict[Request, int] = field(default_factory=dict)
    preempted: list[Request] = field(default_factory=list)
    # Copy-on-write: a shared block is copied for the one who will write to it. (from, to), on the
    # device.
    block_copies: list[tuple[int, int]] = field(default_factory=list)
    # Per request (device block, host block), in the order of its sequence.
    swapped_out: dict[Request, list[tuple[int, int]]] = field(default_factory=dict)
    swapped_in: dict[Request, list[tuple[int, int]]] = field(default_factory=dict)
    # Why whoever is first in the queue was not admitted; None when nobody waits.
    waiting_for: WaitReason | None = None
    # An empty plan may ask to be called again at this time (a static batch that waits to fill up).
    wait_until: float | None = None

    @property
    def is_empty(self) -> bool:
        """Nothing runs and nobody was paused: there is nothing to do but wait."""
        return not self.num_scheduled_tokens and not self.preempted

    @property
    def has_work(self) -> bool:
        """Is there anything for the runner? (Not if all that happened was that somebody paused.)"""
        return bool(self.num_scheduled_tokens or self.swapped_out)

    @property
    def total_tokens(self) -> int:
        """Token positions the runner will compute, padding included."""
        return sum(self.num_scheduled_tokens.values()) + sum(self.num_padded_tokens.values())

    @property
    def swap_out(self) -> list[tuple[int, int]]:
        """(device block, host block): copy each from the device to the host."""
        return [pair for pairs in self.swapped_out.values() for pair in pairs]

    @property
    def swap_in(self) -> list[tuple[int, int]]:
        """(device block, host block): copy each from the host to the device."""
        return [pair for pairs in self.swapped_in.values() for pair in pairs]


@dataclass(slots=True)
class StepResult:
    """What the runner brings back: a token for every request whose last known token was run."""

    token_ids: dict[Request, int] = field(default_factory=dict)
    # Whose model said "this was the last token" (its end token, or one of stop_token_ids).
    ended: set[Request] = field(default_factory=set)
    logprobs: dict[Request, TokenLogprobs] = field(default_factory=dict)
