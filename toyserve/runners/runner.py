"""The line between deciding and computing."""

from __future__ import annotations

from typing import Protocol

from toyserve.request import Request
from toyserve.schedulers.output import SchedulerOutput, StepResult


class Runner(Protocol):
    """Runs the planned tokens of every request through the model, all in one step."""

    def execute(self, plan: SchedulerOutput) -> StepResult:
        """Compute positions ``num_computed_tokens .. + n`` of each planned request, write their KV
        to the slots of its block table, and sample a token for each request whose known tokens are
        then all computed. Reads requests, changes none."""
        ...

    def forget(self, request: Request) -> None:
        """The request has ended; whatever is kept for it (a random generator) may go."""
        ...
