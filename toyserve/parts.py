"""Names to parts: "chunked" to a ChunkedScheduler, "paged" to a PagedKV, "h100" to a virtual clock.

Wherever a name may stand, an object of the same protocol may stand, so a class from a notebook cell
plugs in. No torch here: the command line builds simulated engines with the same functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from toyserve.kv import KVManager, PagedKV, ReservedKV
from toyserve.policies import FCFS, Policy
from toyserve.schedulers import (
    ChunkedScheduler,
    ContinuousScheduler,
    Scheduler,
    SequentialScheduler,
    StaticScheduler,
)

if TYPE_CHECKING:
    from toyserve.costs import RooflineCostModel

SCHEDULERS = ("sequential", "static", "continuous", "chunked")
KV_MANAGERS = ("reserved", "paged")
POLICIES = ("fcfs",)
PREEMPTIONS = ("recompute",)
DEFAULT_TOKEN_BUDGET = 256


def unknown(kind: str, value: object, known: tuple[str, ...]) -> ValueError:
    return ValueError(f"{kind} is {value!r}: it must be one of {', '.join(known)}")


def make_scheduler(
    scheduler: str | Scheduler,
    *,
    max_running: int = 16,
    token_budget: int | None = None,
    max_chunk: int | None = None,
    max_wait: float | None = None,
    watermark: float = 0.0,
) -> Scheduler:
    """token_budget and max_chunk belong to chunked, max_wait (seconds) to static, watermark to
    continuous and chunked; given to another they raise, since they would do nothing."""
    given = {
        "token_budget": token_budget is not None,
        "max_chunk": max_chunk is not None,
        "max_wait": max_wait is not None,
        "watermark": watermark != 0.0,
    }
    uses = {
        "sequential": (),
        "static": ("max_wait",),
        "continuous": ("watermark",),
        "chunked": ("token_budget", "max_chunk", "watermark"),
    }
    if not isinstance(scheduler, str):
        _refuse_extra(type(scheduler).__name__, given, ())
        if not callable(getattr(scheduler, "schedule", None)):
            raise ValueError(f"scheduler is {scheduler!r}: it has no schedule() method")
        return scheduler
    if scheduler not in uses:
        raise unknown("scheduler", scheduler, SCHEDULERS)
    _refuse_extra(f"the {scheduler} scheduler", given, uses[scheduler])
    if scheduler == "sequential":
        return SequentialScheduler()
    if scheduler == "static":
        return StaticScheduler(max_running, max_wait=max_wait or 0.0)
    if scheduler == "continuous":
        return ContinuousScheduler(max_running, watermark=watermark)
    budget = DEFAULT_TOKEN_BUDGET if token_budget is None else token_budget
    return ChunkedScheduler(max_running, budget, max_chunk=max_chunk, watermark=watermark)


def _refuse_extra(owner: str, given: dict[str, bool], allowed: tuple[str, ...]) -> None:
    extra = [name for name, is_given in given.items() if is_given and name not in allowed]
    if extra:
        raise ValueError(f"{' and '.join(extra)} would do nothing: {owner} does not use it")


def make_kv(
    kv: str | KVManager, *, num_blocks: int = 256, block_size: int = 16, max_model_len: int
) -> KVManager:
    if not isinstance(kv, str):
        if not callable(getattr(kv, "allocate", None)):
            raise ValueError(f"kv is {kv!r}: it has no allocate() method")
        return kv
    if kv == "paged":
        return PagedKV(num_blocks, block_size)
    if kv == "reserved":
        return ReservedKV(num_blocks, block_size, max_model_len=max_model_len)
    raise unknown("kv", kv, KV_MANAGERS)


def make_policy(policy: str | Policy) -> Policy:
    if not isinstance(policy, str):
        if not callable(getattr(policy, "next", None)):
            raise ValueError(f"policy is {policy!r}: it has no next() method")
        return policy
    if policy == "fcfs":
        return FCFS()
    raise unknown("policy", policy, POLICIES)


def make_cost_model(clock: str, model: Any) -> RooflineCostModel:
    """The cost model behind clock="h100" and its like; ``model`` is a ModelSpec or its name."""
    from toyserve.costs import RooflineCostModel, get_hardware, get_model

    return RooflineCostModel(get_hardware(clock), get_model(model))
