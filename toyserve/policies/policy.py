"""What a scheduler asks of a policy: two questions, and a few it asks only of those who answer."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Protocol

from toyserve.request import Request


class Policy(Protocol):
    """Asked by a scheduler; must not change the requests or the queues."""

    def next(self, waiting: Sequence[Request], now: float) -> Request | None:
        """The request to admit first; None to let nobody in now. ``waiting`` is not empty, and in
        order of arrival, but for whoever was preempted, which stands in front."""
        ...

    def victim(self, running: Sequence[Request], now: float) -> Request:
        """The request to preempt first. ``running`` is not empty, and in order of admission."""
        ...


class Displaces(Protocol):
    def __call__(self, candidate: Request, victim: Request, now: float) -> bool: ...


class OnArrival(Protocol):
    def __call__(self, request: Request, waiting: Collection[Request], now: float) -> None: ...


class OnChange(Protocol):
    def __call__(self, request: Request, now: float) -> None: ...


class OnTokens(Protocol):
    def __call__(self, requests: Collection[Request], now: float) -> None: ...


class Hooks:
    """The methods that a policy may have, or None where it has none (and then they cost nothing).

    displaces(candidate, victim, now): may ``candidate`` have the slot or the memory of ``victim``,
        which runs? It must be an order that does not change (never both ways), or two requests
        would push each other out for ever.
    on_arrival(request, waiting, now): before it joins the queue ``waiting``.
    on_admit(request, now): it has been let in. on_leave(request, now): it has been preempted, or
        has ended while it ran.
    on_tokens(requests, now): each of these has just been given one more token.
    ready_time(now): when ``next``, which now says None, may say something else, if time alone
        decides that.
    refusal(request): one sentence if the policy could never let it in, else None.
    """

    def __init__(self, policy: Any) -> None:
        self.displaces: Displaces | None = getattr(policy, "displaces", None)
        self.on_arrival: OnArrival | None = getattr(policy, "on_arrival", None)
        self.on_admit: OnChange | None = getattr(policy, "on_admit", None)
        self.on_leave: OnChange | None = getattr(policy, "on_leave", None)
        self.on_tokens: OnTokens | None = getattr(policy, "on_tokens", None)
        self._ready_time = getattr(policy, "ready_time", None)
        self._refusal = getattr(policy, "refusal", None)

    def ready_time(self, now: float) -> float | None:
        return self._ready_time(now) if self._ready_time else None

    def refusal(self, request: Request) -> str | None:
        return self._refusal(request) if self._refusal else None
