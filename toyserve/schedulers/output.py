"""What crosses the line between scheduler and runner: the plan of one step, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from toyserve.request import Request, TokenLogprobs

WaitReason = Literal["slots", "memory", "budget", "batch"]


@dataclass(slots=True)
class SchedulerOutput:
    """The plan of one step.

    ``num_scheduled_tokens`` says how many of its next tokens each request runs; there is no prefill
    flag and no decode flag. A request whose tokens are then all computed gets a new one sampled.
    """

    num_scheduled_tokens: dict[Request, int] = field(default_factory=dict)
    # Positions computed for nothing: a static batch's padding and its finished rows.
    num_padded_tokens: dict[Request, int] = field(default_factory=dict)
    admitted: list[Request] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    # Why whoever is first in the queue was not admitted; None when nobody waits.
    waiting_for: WaitReason | None = None
    # An empty plan may ask to be called again at this time (a static batch that waits to fill up).
    wait_until: float | None = None

    @property
    def total_tokens(self) -> int:
        """Token positions the runner will compute, padding included."""
        return sum(self.num_scheduled_tokens.values()) + sum(self.num_padded_tokens.values())


@dataclass(slots=True)
class StepResult:
    """What the runner brings back: a token for every request whose last known token was run."""

    token_ids: dict[Request, int] = field(default_factory=dict)
    # Whose model said "this was the last token" (its end token, or one of stop_token_ids).
    ended: set[Request] = field(default_factory=set)
    logprobs: dict[Request, TokenLogprobs] = field(default_factory=dict)
