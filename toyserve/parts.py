"""Names to parts: "chunked" to a ChunkedScheduler, "paged" to a PagedKV, "h100" to a virtual clock.

Wherever a name may stand, an object of the same protocol may stand, so a class from a notebook cell
plugs in. No torch here: the command line builds simulated engines with the same functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from toyserve import policies
from toyserve.kv import ContiguousKV, KVManager, PagedKV, ReservedKV
from toyserve.policies import Policy
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
KV_MANAGERS = ("reserved", "contiguous", "paged")
PREEMPTIONS = ("recompute", "swap")
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
    preemption: str = "recompute",
    num_host_blocks: int = 0,
) -> Scheduler:
    """token_budget and max_chunk belong to chunked, max_wait (seconds) to static; watermark,
    preemption and num_host_blocks to continuous and chunked, the two that preempt. Given to another
    scheduler they raise, since they would do nothing."""
    if preemption not in PREEMPTIONS:
        raise unknown("preemption", preemption, PREEMPTIONS)
    given = {
        "token_budget": token_budget is not None,
        "max_chunk": max_chunk is not None,
        "max_wait": max_wait is not None,
        "watermark": watermark != 0.0,
        "preemption": preemption != "recompute",
        "num_host_blocks": num_host_blocks != 0,
    }
    memory = ("watermark", "preemption", "num_host_blocks")
    uses = {
        "sequential": (),
        "static": ("max_wait",),
        "continuous": memory,
        "chunked": ("token_budget", "max_chunk", *memory),
    }
    if not isinstance(scheduler, str):
        _refuse_extra(type(scheduler).__name__, given, ())
        _refuse_class("scheduler", scheduler, "schedule")
        if not hasattr(scheduler, "running"):
            name = type(scheduler).__name__
            raise ValueError(f"{name} has no queues: its __init__ must call super().__init__()")
        return scheduler
    if scheduler not in uses:
        raise unknown("scheduler", scheduler, SCHEDULERS)
    _refuse_extra(f"the {scheduler} scheduler", given, uses[scheduler])
    if scheduler == "sequential":
        return SequentialScheduler()
    if scheduler == "static":
        return StaticScheduler(max_running, max_wait=max_wait or 0.0)
    pressure: dict[str, Any] = {
        "watermark": watermark,
        "preemption": preemption,
        "num_host_blocks": num_host_blocks,
    }
    if scheduler == "continuous":
        return ContinuousScheduler(max_running, **pressure)
    budget = DEFAULT_TOKEN_BUDGET if token_budget is None else token_budget
    return ChunkedScheduler(max_running, budget, max_chunk=max_chunk, **pressure)


def _refuse_class(kind: str, part: object, method: str) -> None:
    """An object is wanted, not its class, and one with the method that matters."""
    if isinstance(part, type):
        raise ValueError(f"{kind} is the class {part.__name__}: give an object, {part.__name__}(…)")
    if not callable(getattr(part, method, None)):
        raise ValueError(f"{kind} is {part!r}: it has no {method}() method")


def _refuse_extra(owner: str, given: dict[str, bool], allowed: tuple[str, ...]) -> None:
    extra = [name for name, is_given in given.items() if is_given and name not in allowed]
    if extra:
        raise ValueError(f"{' and '.join(extra)} would do nothing: {owner} does not use it")


def make_kv(
    kv: str | KVManager,
    *,
    num_blocks: int = 256,
    block_size: int = 16,
    max_model_len: int,
    prefix_caching: bool = False,
) -> KVManager:
    """max_model_len: what reserved KV sets aside for each. prefix_caching: paged KV only."""
    if prefix_caching and kv != "paged":
        raise ValueError(f"prefix_caching works with kv='paged', not with {kv!r}")
    if not isinstance(kv, str):
        _refuse_class("kv", kv, "allocate")
        return kv
    if kv == "paged":
        return PagedKV(num_blocks, block_size, prefix_caching=prefix_caching)
    if kv == "contiguous":
        return ContiguousKV(num_blocks, block_size)
    if kv == "reserved":
        return ReservedKV(num_blocks, block_size, max_model_len=max_model_len)
    raise unknown("kv", kv, KV_MANAGERS)


def make_policy(policy: str | Policy) -> Policy:
    if not isinstance(policy, str):
        _refuse_class("policy", policy, "next")
        return policy
    return policies.make_policy(policy)


def make_cost_model(clock: str, model: Any) -> RooflineCostModel:
    """The cost model behind clock="h100" and its like; ``model`` is a ModelSpec or its name."""
    from toyserve.costs import cost_model

    return cost_model(clock, model)
