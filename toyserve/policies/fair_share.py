"""Fair share: users, not requests, take turns, and what they have been served is counted in tokens.

Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024 (the Virtual Token Counter).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from toyserve.request import Request
from toyserve.sampling_params import is_number


class FairShare:
    """Whoever's user has been served least goes first; the user served most gives way.

    A user's counter grows by ``prompt_cost`` per prompt token (when a request is admitted; what the
    prefix cache had is free) and ``answer_cost`` per answer token, divided by the user's weight.
    Tokens that are computed twice because of a preemption are counted once.
    Guarantees: of two users who both keep the queue busy, the counters never differ by more than
    about what one full batch can add, however many requests each sends and however long.
    Harms: total throughput and mean latency a little; a user's own long requests delay their own
    short ones.
    """

    def __init__(
        self,
        weights: Mapping[str, float] | None = None,
        *,
        prompt_cost: float = 1.0,
        answer_cost: float = 2.0,
    ) -> None:
        if weights is not None and not isinstance(weights, Mapping):
            raise ValueError(f"weights is {weights!r}: it must be a map from user to weight")
        self.weights = dict(weights or {})
        for user, weight in self.weights.items():
            _check_positive(f"the weight of user {user!r}", weight)
        _check_positive("prompt_cost", prompt_cost)
        _check_positive("answer_cost", answer_cost)
        self.prompt_cost, self.answer_cost = prompt_cost, answer_cost
        self.counters: dict[str, float] = {}  # per user, in weighted tokens
        self._last_served = 0.0  # the counter of whoever was let in last

    def _key(self, request: Request) -> tuple[float, float]:
        return self.counters.get(request.user, 0.0), request.arrival_time

    def next(self, waiting: Sequence[Request], now: float) -> Request:
        return min(waiting, key=self._key)

    def victim(self, running: Sequence[Request], now: float) -> Request:
        return max(reversed(running), key=self._key)  # of equals, the last admitted

    def on_arrival(self, request: Request, waiting: Collection[Request], now: float) -> None:
        """A user with nothing queued is lifted to the least of those who have: being idle earns no
        credit, or a user back from a holiday would have the server alone for as long."""
        user = request.user
        queued = {other.user for other in waiting}
        counter = self.counters.setdefault(user, 0.0)
        if user not in queued:
            floor = min((self.counters[u] for u in queued), default=self._last_served)
            self.counters[user] = max(counter, floor)

    def on_admit(self, request: Request, now: float) -> None:
        self._last_served = self.counters.get(request.user, 0.0)
        if request.num_preemptions == 0:
            num_tokens = request.num_prompt_tokens - request.num_cached_tokens
            self._charge(request.user, self.prompt_cost * num_tokens)

    def on_tokens(self, requests: Collection[Request], now: float) -> None:
        for request in requests:
            self._charge(request.user, self.answer_cost)

    def _charge(self, user: str, cost: float) -> None:
        counter = self.counters.get(user, 0.0)
        self.counters[user] = counter + cost / self.weights.get(user, 1.0)


def _check_positive(name: str, value: float) -> None:
    if not (is_number(value) and value > 0):
        raise ValueError(f"{name} is {value!r}: it must be above 0 and finite")
