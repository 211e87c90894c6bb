"""Priority classes, with aging: the urgent go first, but not for ever."""

from __future__ import annotations

import math
from collections.abc import Sequence

from toyserve.request import Request


class Priority:
    """Lower ``request.priority`` is more urgent; it may take the slot or memory of a running one.

    aging: waiting makes more urgent; so many seconds are worth one class. A request of class p that
    came at time t stands where one of class 0 stands that came at ``t + p * aging``. Both age
    alike, so the order of two requests never changes, and nobody pushes out whoever pushed it out.
    Guarantees: of two that came together the more urgent goes first. And, with aging, a bound:
    whoever comes more than ``(p - q) * aging`` seconds after a request of class p is behind it,
    even if its class is q; the wait is at most first-come-first-served's with that much later work
    in front.
    Harms: the less urgent. With ``aging=math.inf`` (strict priority) they may wait without bound.
    displacing=False: urgency counts in the queue only, nobody is pushed out.
    """

    def __init__(self, aging: float = 60.0, *, displacing: bool = True) -> None:
        if isinstance(aging, bool) or not isinstance(aging, int | float) or not aging > 0:
            raise ValueError(f"aging is {aging!r}: it must be above 0 seconds (math.inf: none)")
        self.aging = aging
        self.displacing = displacing

    def _key(self, request: Request) -> tuple[float, float]:
        """Smaller goes first. It does not depend on the time, as all grow old at the same rate."""
        if math.isinf(self.aging):
            return request.priority, request.arrival_time
        return request.arrival_time + request.priority * self.aging, request.arrival_time

    def next(self, waiting: Sequence[Request], now: float) -> Request:
        return min(waiting, key=self._key)

    def victim(self, running: Sequence[Request], now: float) -> Request:
        return max(reversed(running), key=self._key)  # of equals, the last admitted

    def displaces(self, candidate: Request, victim: Request, now: float) -> bool:
        """Only a more urgent class pushes out, and only whoever is behind it in the queue too."""
        more_urgent = candidate.priority < victim.priority
        return self.displacing and more_urgent and self._key(candidate) < self._key(victim)
