"""Earliest deadline first: each request is due when its user was promised its next token."""

from __future__ import annotations

import math
from collections.abc import Sequence

from toyserve.request import Request


class Deadline:
    """The request that is due first goes first; the one that is due last gives way.

    Before its first token a request is due at arrival + ttft_target; after it, each further token
    is due tpot_target later. Without a target it is never due and comes after all that are.
    Guarantees: if some order meets all targets of requests that each need one slot for the same
    time, this one does (Liu and Layland, JACM 1973, for the preemptive case).
    Harms: whoever has no target; and under overload everybody, for it runs first what is already
    late (the domino effect).
    """

    def due(self, request: Request) -> float:
        """When a request's user was promised the next token, in seconds on the engine's clock."""
        num_tokens = request.num_output_tokens
        if num_tokens == 0:
            target = request.ttft_target
            return math.inf if target is None else request.arrival_time + target
        if request.tpot_target is None:
            return math.inf
        first = request.token_times[0]
        if request.ttft_target is not None:  # an early first token earns no earlier second one
            first = max(first, request.arrival_time + request.ttft_target)
        return first + num_tokens * request.tpot_target

    def _key(self, request: Request) -> tuple[float, float]:
        return self.due(request), request.arrival_time

    def next(self, waiting: Sequence[Request], now: float) -> Request:
        return min(waiting, key=self._key)

    def victim(self, running: Sequence[Request], now: float) -> Request:
        return max(reversed(running), key=self._key)  # of equals, the last admitted
