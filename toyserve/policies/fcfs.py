"""First come, first served: the policy that needs no policy."""

from __future__ import annotations

from collections.abc import Sequence

from toyserve.request import Request


class FCFS:
    """First come, first served; the youngest gives way.

    Guarantees: nobody is overtaken, so every wait is bounded by the work that came before.
    Harms: a short request behind a long one (head-of-line blocking).
    """

    def next(self, waiting: Sequence[Request], now: float) -> Request:
        return waiting[0]

    def victim(self, running: Sequence[Request], now: float) -> Request:
        return running[-1]
