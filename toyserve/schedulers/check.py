"""Could a runner execute this plan on this memory? Asked of parts from a notebook cell."""

from __future__ import annotations

from toyserve.kv.manager import KVIntegrityError, check_table
from toyserve.request import Request, RequestStatus
from toyserve.schedulers.base import Scheduler
from toyserve.schedulers.output import SchedulerOutput


def check_plan(plan: SchedulerOutput, scheduler: Scheduler) -> None:
    """Raise ValueError, in words for the scheduler's author, on the first thing that is wrong."""
    name = f"{type(scheduler).__name__}.schedule()"
    if not isinstance(plan, SchedulerOutput):
        raise ValueError(f"{name} returned {plan!r}: it must return its plan")
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


def check_finished(finished: object, scheduler: Scheduler) -> None:
    """Raise ValueError unless ``update_from_output`` said who has finished."""
    if not isinstance(finished, list):
        raise ValueError(
            f"{type(scheduler).__name__}.update_from_output() returned {finished!r}: it must "
            f"return the list of requests that have finished, as super().update_from_output() does"
        )


def check_tables(scheduler: Scheduler) -> None:
    """Raise KVIntegrityError unless every block in a table exists and has one holder.

    The manager's own ``check_integrity`` knows more, but a learner's may know nothing. A manager
    that shares blocks (it has ``publish``) may well list one twice.
    """
    kv = scheduler.kv
    shares = hasattr(kv, "publish") and getattr(kv, "prefix_caching", True)
    holder: dict[int, Request] = {}
    for request in scheduler.holders():
        check_table(request, kv.block_size)
        for block in request.block_table:
            if not 0 <= block < kv.num_blocks:
                raise KVIntegrityError(
                    f"block {block} is in the table of {request.request_id!r}: the pool's blocks "
                    f"are 0 to {kv.num_blocks - 1}"
                )
            first = holder.setdefault(block, request)
            if not shares and (first is not request or request.block_table.count(block) > 1):
                raise KVIntegrityError(
                    f"block {block} is in the tables of {first.request_id!r} and "
                    f"{request.request_id!r}: each would overwrite the other's KV"
                )


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
