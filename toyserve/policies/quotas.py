"""Quotas: what one user may have at once, whatever the policy that orders the rest."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from toyserve.policies.fcfs import FCFS
from toyserve.policies.policy import Hooks, Policy
from toyserve.request import Request
from toyserve.sampling_params import is_int, is_number


@dataclass(frozen=True)
class Quota:
    """The most that one user may have, in requests, KV blocks or tokens per second; None: no limit.

    max_running: requests at a time. max_kv_blocks: KV blocks at a time, each request counted at the
    longest it may become, so that the limit is never passed. tokens_per_second: on average;
    ``burst`` tokens may be used at once (one second's worth, unless given).
    """

    max_running: int | None = None
    max_kv_blocks: int | None = None
    tokens_per_second: float | None = None
    burst: float | None = None

    def __post_init__(self) -> None:
        for name in ("max_running", "max_kv_blocks"):
            value = getattr(self, name)
            if value is not None and not (is_int(value) and value >= 1):
                raise ValueError(
                    f"{name} is {value!r}: a quota must be a whole number, at least 1, or no "
                    f"request of that user could ever run"
                )
        for name in ("tokens_per_second", "burst"):
            value = getattr(self, name)
            if value is not None and not (is_number(value) and value > 0):
                raise ValueError(f"{name} is {value!r}: it must be above 0 and finite")

    @property
    def bucket(self) -> float:
        return self.burst if self.burst is not None else self.tokens_per_second or 0.0


@dataclass
class _Account:
    """What a user has now."""

    running: set[Request] = field(default_factory=set)
    credit: float = 0.0  # tokens that may still be used; below 0 is debt
    credit_time: float = 0.0  # when that was so


class Quotas:
    """Lets ``policy`` choose among the requests whose users are within their quotas.

    quotas: per user; ``default``: for everybody else. block_size: of the KV manager.
    Guarantees: max_running and max_kv_blocks are never passed. Of tokens_per_second, a user's
    admissions stop while in debt; what runs is never interrupted, so the rate is kept on average.
    Harms: everybody a little: slots and memory may stand empty while a user waits for quota.
    """

    def __init__(
        self,
        quotas: Mapping[str, Quota],
        policy: Policy | None = None,
        *,
        default: Quota | None = None,
        block_size: int = 16,
    ) -> None:
        if not isinstance(quotas, Mapping):
            raise ValueError(f"quotas is {quotas!r}: it must be a map from user to Quota")
        for user, quota in quotas.items():
            if not isinstance(quota, Quota):
                raise ValueError(f"the quota of user {user!r} is {quota!r}: it must be a Quota(…)")
        self.quotas, self.default = dict(quotas), default or Quota()
        self.policy: Policy = policy if policy is not None else FCFS()
        self.block_size = block_size
        self.accounts: dict[str, _Account] = {}
        self._inner = Hooks(self.policy)
        self._blocked: list[str] = []  # users that the last next() passed over for their rate

    def quota_of(self, user: str) -> Quota:
        return self.quotas.get(user, self.default)

    # -- what a policy answers ------------------------------------------------------------------

    def next(self, waiting: Sequence[Request], now: float) -> Request | None:
        self._blocked = []
        allowed = [request for request in waiting if self._allows(request, now)]
        return self.policy.next(allowed, now) if allowed else None

    def victim(self, running: Sequence[Request], now: float) -> Request:
        return self.policy.victim(running, now)

    def displaces(self, candidate: Request, victim: Request, now: float) -> bool:
        return self._inner.displaces is not None and self._inner.displaces(candidate, victim, now)

    def ready_time(self, now: float) -> float | None:
        """When the first of those who wait only for their rate is out of debt."""
        times = []
        for user in self._blocked:
            rate, credit = self.quota_of(user).tokens_per_second, self._credit(user, now)
            assert rate is not None
            # A little more than the debt, so that rounding cannot leave a crumb of it; and late in
            # a long run that little must still move the clock.
            times.append(max(now + (1e-6 - credit) / rate, math.nextafter(now, math.inf)))
        return min(times, default=None)

    def refusal(self, request: Request) -> str | None:
        limit = self.quota_of(request.user).max_kv_blocks
        need = self._max_blocks(request)
        if limit is not None and need > limit:
            return (
                f"the request may grow to {need} KV blocks and the quota of user "
                f"{request.user!r} is {limit}: lower max_tokens or shorten the prompt"
            )
        return self._inner.refusal(request)

    # -- the books ------------------------------------------------------------------------------

    def on_arrival(self, request: Request, waiting: Collection[Request], now: float) -> None:
        if self._inner.on_arrival:
            self._inner.on_arrival(request, waiting, now)

    def on_admit(self, request: Request, now: float) -> None:
        self._account(request.user).running.add(request)
        if request.num_preemptions == 0:
            self._spend(request.user, request.num_prompt_tokens - request.num_cached_tokens, now)
        if self._inner.on_admit:
            self._inner.on_admit(request, now)

    def on_leave(self, request: Request, now: float) -> None:
        self._account(request.user).running.discard(request)
        if self._inner.on_leave:
            self._inner.on_leave(request, now)

    def on_tokens(self, requests: Collection[Request], now: float) -> None:
        for request in requests:
            self._spend(request.user, 1, now)
        if self._inner.on_tokens:
            self._inner.on_tokens(requests, now)

    def restart(self) -> None:
        """The clock begins anew, and with it everybody's allowance."""
        for user, account in self.accounts.items():
            account.credit, account.credit_time = self.quota_of(user).bucket, 0.0
        restart = getattr(self.policy, "restart", None)
        if restart:
            restart()

    def _allows(self, request: Request, now: float) -> bool:
        quota, running = self.quota_of(request.user), self._account(request.user).running
        if quota.max_running is not None and len(running) >= quota.max_running:
            return False
        if quota.max_kv_blocks is not None:
            blocks = sum(map(self._max_blocks, running)) + self._max_blocks(request)
            if blocks > quota.max_kv_blocks:
                return False
        if quota.tokens_per_second is not None and self._credit(request.user, now) <= 0:
            self._blocked.append(request.user)
            return False
        return True

    def _max_blocks(self, request: Request) -> int:
        return -(-(request.max_num_tokens - 1) // self.block_size)  # the last token needs no slot

    def _account(self, user: str) -> _Account:
        if user not in self.accounts:
            self.accounts[user] = _Account(credit=self.quota_of(user).bucket)
        return self.accounts[user]

    def _credit(self, user: str, now: float) -> float:
        """A token bucket: it fills with the time, up to ``bucket``."""
        quota, account = self.quota_of(user), self._account(user)
        if quota.tokens_per_second is not None:
            earned = (now - account.credit_time) * quota.tokens_per_second
            account.credit = min(quota.bucket, account.credit + earned)
            account.credit_time = now
        return account.credit

    def _spend(self, user: str, num_tokens: int, now: float) -> None:
        if self.quota_of(user).tokens_per_second is not None:
            self._credit(user, now)
            self._account(user).credit -= num_tokens
