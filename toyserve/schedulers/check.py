"""Is a plan one that a runner could execute? Asked of schedulers that come from a notebook cell."""

from __future__ import annotations

from toyserve.request import Request, RequestStatus
from toyserve.schedulers.base import Scheduler
from toyserve.schedulers.output import SchedulerOutput


def check_plan(plan: SchedulerOutput, scheduler: Scheduler) -> None:
    """Raise ValueError, in words for the scheduler's author, on the first thing that is wrong."""
    name = f"{type(scheduler).__name__}.schedule()"
    if len(scheduler.running) > scheduler.max_running:
        raise ValueError(
            f"{name} lets {len(scheduler.running)} requests run; max_running is "
            f"{scheduler.max_running}"
        )
    for request, num_tokens in plan.num_scheduled_tokens.items():
        problem = _problem(request, num_tokens)
        if problem:
            raise ValueError(f"{name} plans {num_tokens!r} tokens of {request!r}: {problem}")
    budget = getattr(scheduler, "token_budget", None)
    total = sum(plan.num_scheduled_tokens.values())
    if budget is not None and total > budget:
        raise ValueError(f"{name} plans {total} tokens in one step; token_budget is {budget}")


def _problem(request: Request, num_tokens: int) -> str | None:
    if isinstance(num_tokens, bool) or not isinstance(num_tokens, int) or num_tokens < 1:
        return "it must be a whole number, at least 1"
    if request.status is not RequestStatus.RUNNING:
        return f"it is {request.status.value}; admit() it first"
    if num_tokens > request.num_uncomputed_tokens:
        return f"only {request.num_uncomputed_tokens} of its tokens are uncomputed"
    if request.num_computed_tokens + num_tokens > request.num_slots:
        return f"it holds KV slots for {request.num_slots} tokens; use run(), which makes room"
    return None
