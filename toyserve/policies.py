"""Who goes next, and who gives way when memory runs out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from toyserve.request import Request


class Policy(Protocol):
    """Asked by a scheduler; must not change the requests or the queues."""

    def next(self, waiting: Sequence[Request], now: float) -> Request:
        """The request to admit first. ``waiting`` is not empty, and in order of arrival."""
        ...

    def victim(self, running: Sequence[Request], now: float) -> Request:
        """The request to preempt first. ``running`` is not empty, and in order of admission."""
        ...


class FCFS:
    """First come, first served; the youngest gives way.

    Guarantees: nobody is overtaken, so every wait is bounded by the work that came before.
    Harms: a short request behind a long one (head-of-line blocking).
    """

    def next(self, waiting: Sequence[Request], now: float) -> Request:
        return waiting[0]

    def victim(self, running: Sequence[Request], now: float) -> Request:
        return running[-1]
