"""Whatever arrives, whatever runs it: each request ends, with the tokens it would get alone."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st
from sim import Job, ToyModel, serve

from toyserve.kv import ContiguousKV, KVManager, PagedKV, ReservedKV
from toyserve.policies import (
    FCFS,
    Deadline,
    FairShare,
    Policy,
    Priority,
    Quota,
    Quotas,
    ShortestFirst,
)
from toyserve.schedulers import (
    ChunkedScheduler,
    ContinuousScheduler,
    Scheduler,
    SequentialScheduler,
    StaticScheduler,
)

MAX_LEN = 48  # the model's context in these tests
ABORT_STEPS = [None] * 30 + [0, 1, 2, 5, 9, 14, 22, 30]


@st.composite
def jobs(draw: st.DrawFn, *, max_jobs: int = 9) -> list[Job]:
    """Prompts that share prefixes, of lengths around block borders, at any time, some aborted."""
    stems = draw(
        st.lists(st.lists(st.integers(0, 2), min_size=4, max_size=20), min_size=1, max_size=3)
    )
    result = []
    for _ in range(draw(st.integers(min(4, max_jobs), max_jobs))):
        stem = draw(st.sampled_from(stems))
        tail = draw(st.lists(st.integers(0, 2), min_size=1, max_size=8))
        prompt = tuple(stem[: draw(st.sampled_from([0, 1, 4, 8, 12, 20]))] + tail)
        result.append(
            Job(
                prompt,
                max_tokens=draw(st.integers(1, 40)),
                arrival_time=float(draw(st.integers(0, 8))),
                abort_at=draw(st.sampled_from(ABORT_STEPS)),
                user=draw(st.sampled_from(["ann", "bob", "cyd"])),
                priority=draw(st.integers(0, 3)),
                ttft_target=draw(st.sampled_from([None, 1.0, 5.0])),
                tpot_target=draw(st.sampled_from([None, 1.0, 3.0])),
            )
        )
    return result


@st.composite
def schedulers(draw: st.DrawFn) -> Scheduler:
    kind = draw(st.sampled_from(["sequential", "static", "continuous", "chunked", "chunked"]))
    if kind == "sequential":
        return SequentialScheduler()
    max_running = draw(st.integers(2, 7))
    if kind == "static":
        return StaticScheduler(max_running, max_wait=float(draw(st.integers(0, 5))))
    memory = {"watermark": draw(st.sampled_from([0.0, 0.0, 0.1, 0.5]))}
    if draw(st.booleans()):
        memory |= {"preemption": "swap", "num_host_blocks": draw(st.sampled_from([0, 1, 4, 30]))}
    if kind == "continuous":
        return ContinuousScheduler(max_running, **memory)
    budget = draw(st.integers(max_running, max_running + 12))
    max_chunk = draw(st.none() | st.integers(1, 8))
    return ChunkedScheduler(max_running, budget, max_chunk=max_chunk, **memory)


@st.composite
def managers(draw: st.DrawFn) -> KVManager:
    kind = draw(st.sampled_from(["reserved", "contiguous", "paged", "prefix", "prefix"]))
    block_size = draw(st.sampled_from([1, 2, 4, 4, 16]))
    if kind == "reserved":
        per_request = -(-(MAX_LEN - 1) // block_size)
        return ReservedKV(
            draw(st.integers(per_request, 4 * per_request)), block_size, max_model_len=MAX_LEN
        )
    smallest, largest = -(-30 // block_size), -(-70 // block_size)
    num_blocks = draw(st.integers(smallest, largest))
    if kind == "contiguous":
        return ContiguousKV(num_blocks, block_size)
    return PagedKV(num_blocks, block_size, prefix_caching=kind == "prefix")


@st.composite
def policies(draw: st.DrawFn, block_size: int = 4) -> Policy:
    inner = draw(
        st.one_of(
            st.builds(FCFS),
            st.builds(ShortestFirst, st.sampled_from(["prompt", "answer", "both"])),
            st.builds(Priority, st.sampled_from([2.0, 30.0, math.inf]), displacing=st.booleans()),
            st.builds(Priority, st.sampled_from([0.5, 9.0, math.inf])),
            st.builds(Deadline),
            st.builds(FairShare, st.fixed_dictionaries({"ann": st.sampled_from([0.5, 1.0, 4.0])})),
        )
    )
    if not draw(st.booleans()):
        return inner
    quota = st.builds(
        Quota,
        max_running=st.sampled_from([None, 1, 2]),
        max_kv_blocks=st.sampled_from([None, 4, 12, 40]),
        tokens_per_second=st.sampled_from([None, 0.3, 2.0, 8.0]),
    )
    return Quotas({"ann": draw(quota)}, inner, default=draw(quota), block_size=block_size)


@settings(max_examples=600, deadline=None, derandomize=True)
@given(st.data(), jobs(), schedulers(), managers(), st.sampled_from([0, 40, 12]))
def test_every_request_ends_with_the_tokens_it_would_get_alone(
    data: st.DataObject, jobs: list[Job], scheduler: Scheduler, kv: KVManager, end_every: int
) -> None:
    policy = data.draw(policies(kv.block_size))
    model = ToyModel(end_every=end_every)
    serve(jobs, scheduler, kv, policy=policy, model=model, max_model_len=MAX_LEN)
