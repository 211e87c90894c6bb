"""Preemption: pausing by recompute and by swap loses nothing, ends, and is written down."""

from __future__ import annotations

import pytest
from sim import Job, Served, ToyModel, make_engine, serve

from toyserve.kv import ContiguousKV, PagedKV
from toyserve.policies import FCFS, Priority, ShortestFirst
from toyserve.replay import Phase, replay_work
from toyserve.request import Request, RequestStatus
from toyserve.schedulers import ChunkedScheduler, ContinuousScheduler, SchedulerOutput

ENDLESS = ToyModel(end_every=0)
BOTH = pytest.mark.parametrize("swap", [False, True], ids=["recompute", "swap"])


def memory(swap: bool, num_host_blocks: int = 64) -> dict:
    return {"preemption": "swap", "num_host_blocks": num_host_blocks} if swap else {}


def num_preemptions(served: Served) -> int:
    return sum(r.num_preemptions for r in served.requests)


def num_recomputed(served: Served) -> int:
    """Tokens that were run more than once."""
    needed = sum(r.num_tokens - 1 for r in served.requests)
    return served.runner.num_computed - needed


def blocks_moved(served: Served) -> tuple[int, int]:
    steps = served.recording.steps
    out = sum(len(b) for s in steps for b in s.swapped_out.values())
    return out, sum(len(b) for s in steps for b in s.swapped_in.values())


# -- the scripted scenario ------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("full", ["slots", "memory"])
@pytest.mark.parametrize("chunked", [False, True])
def test_an_urgent_request_pauses_the_last_of_four_and_gives_its_place_back(
    swap: bool, full: str, chunked: bool
) -> None:
    jobs = [Job((i, 1, 2, 3), 13, priority=5) for i in range(4)]
    jobs.append(Job((9, 1, 2, 3), 5, arrival_time=10.0, priority=0))
    slots, blocks = (4, 100) if full == "slots" else (8, 16)
    if chunked:
        scheduler = ChunkedScheduler(slots, 4 if full == "slots" else 32, **memory(swap))
    else:
        scheduler = ContinuousScheduler(slots, **memory(swap))
    served = serve(jobs, scheduler, PagedKV(blocks, 4), policy=Priority(), model=ENDLESS)
    *_, d, e = served.requests
    assert [r.num_preemptions for r in served.requests] == [0, 0, 0, 1, 0]
    paused = next(s for s in served.recording.steps if s.preempted)
    assert paused.preempted == ["r3"]
    assert "r4" in paused.admitted  # in the same step
    assert paused.waiting_for == full
    back = next(s for s in served.recording.steps if "r3" in s.admitted and s is not paused
                and s.index > paused.index)  # fmt: skip
    assert d.finish_time > e.finish_time
    assert bool(paused.swapped_out) == bool(back.swapped_in) == swap
    assert (num_recomputed(served) == 0) == swap
    # On its return a swapped request goes on decoding; a recomputed one prefills again.
    work = {s.index: w for s, w in replay_work(served.recording)}[back.index]
    phase = next(w.phase for w in work if w.request_id == "r3")
    assert phase is (Phase.DECODE if swap else Phase.PREFILL)


def test_nobody_is_paused_for_an_urgent_request_that_would_not_fit_all_the_same() -> None:
    jobs = [Job((1, 2, 3, 4), 9, priority=0), Job((1, 2, 3), 6, priority=5)]
    jobs.append(Job(tuple(range(24)), 1, arrival_time=2.0, priority=1))
    served = serve(jobs, ContinuousScheduler(4), PagedKV(6, 4), policy=Priority(), model=ENDLESS)
    assert num_preemptions(served) == 0


def test_equal_priorities_do_not_push_each_other_out() -> None:
    jobs = [Job((1, 2), 8, arrival_time=float(i), priority=3) for i in range(5)]
    served = serve(jobs, ContinuousScheduler(2), PagedKV(50, 4), policy=Priority(), model=ENDLESS)
    assert num_preemptions(served) == 0


# -- exactly at the borders (O2) ------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("kv", [PagedKV, ContiguousKV, "prefix"])
@pytest.mark.parametrize("block_size", [1, 2, 4])
@pytest.mark.parametrize("length", [3, 4, 5, 8, 9])
def test_no_token_is_lost_or_doubled_however_the_pause_falls(
    swap: bool, kv, block_size: int, length: int
) -> None:
    paused = set()
    for num_slots in range(length + 11, 2 * (length + 11)):
        num_blocks = -(-num_slots // block_size)
        pool = (
            PagedKV(num_blocks, block_size, prefix_caching=True)
            if kv == "prefix"
            else kv(num_blocks, block_size)
        )
        jobs = [Job(tuple(range(length)), 12), Job(tuple(range(1, length + 1)), 12)]
        scheduler = ContinuousScheduler(2, **memory(swap))
        served = serve(jobs, scheduler, pool, model=ENDLESS)  # checks the tokens and every slot
        paused |= {n for r in served.requests for n in [r.num_preemptions] if n}
    assert paused


@BOTH
def test_a_request_paused_between_chunks_of_its_prompt_or_before_its_last_token(swap: bool) -> None:
    urgent = [Job((9,), 2, arrival_time=float(t), priority=0) for t in range(1, 24, 4)]
    jobs = [Job(tuple(range(10)), 4, priority=5), *urgent]
    scheduler = ChunkedScheduler(1, 3, **memory(swap))
    served = serve(jobs, scheduler, PagedKV(20, 2), policy=Priority(), model=ENDLESS)
    assert served.requests[0].num_preemptions >= 2
    if swap:
        assert num_recomputed(served) == 0


def test_an_abort_of_a_swapped_request_frees_its_host_blocks() -> None:
    jobs = [Job((1, 2, 3, 4), 20, priority=5, abort_at=8)]
    jobs.append(Job((9, 1, 2, 3), 20, arrival_time=4.0, priority=0))
    scheduler = ContinuousScheduler(1, preemption="swap", num_host_blocks=4)
    served = serve(jobs, scheduler, PagedKV(8, 4), policy=Priority(), model=ENDLESS)
    assert served.requests[0].num_preemptions == 1
    assert len(scheduler.swap.free_blocks) == 4
    assert served.requests[0].num_output_tokens == 4


# -- thrash and a full swap space (O14) -----------------------------------------------------------


def demand_of_three_pools() -> list[Job]:
    return [Job(tuple(range(i % 5 + 4)), 26 + i % 3, arrival_time=float(i // 4)) for i in range(30)]


@pytest.mark.parametrize("num_host_blocks", [0, 1, 4, 16, 200])
def test_whatever_the_swap_space_all_end_and_what_does_not_fit_is_recomputed(
    num_host_blocks: int,
) -> None:
    scheduler = ContinuousScheduler(16, preemption="swap", num_host_blocks=num_host_blocks)
    served = serve(demand_of_three_pools(), scheduler, PagedKV(80, 4), model=ENDLESS, max_steps=900)
    out, back = blocks_moved(served)
    assert out == back  # nobody was aborted: what went out came back
    assert num_preemptions(served) > 0
    assert (out == 0) == (num_host_blocks < 2)
    if num_host_blocks == 200:
        assert num_recomputed(served) == 0
    if num_host_blocks == 0:
        assert num_recomputed(served) > 0


def test_swapped_requests_return_before_new_ones_are_admitted() -> None:
    scheduler = ContinuousScheduler(16, preemption="swap", num_host_blocks=200)
    served = serve(demand_of_three_pools(), scheduler, PagedKV(80, 4), model=ENDLESS)
    outside: set[str] = set()
    for step in served.recording.steps:
        new = [r for r in step.admitted if r not in step.swapped_in]
        outside |= set(step.swapped_out)
        outside -= set(step.swapped_in)
        assert not (new and outside), (step.index, new, outside)


@BOTH
def test_the_watermark_stops_thrash(swap: bool) -> None:
    jobs = [
        Job(tuple(range(i % 5 + 24)), 30 + i % 7, arrival_time=float(i // 3)) for i in range(40)
    ]
    counts = {}
    for watermark in (0.0, 0.1, 0.3):
        scheduler = ContinuousScheduler(16, watermark=watermark, **memory(swap, 200))
        served = serve(jobs, scheduler, PagedKV(80, 4), model=ENDLESS)
        moved = sum(blocks_moved(served))
        counts[watermark] = (num_preemptions(served), moved if swap else num_recomputed(served))
    # Recompute: 34 preemptions and 1044 tokens computed again, 12 and 412, 6 and 276.
    assert counts[0.1][0] <= counts[0.0][0] / 2, counts
    assert counts[0.1][1] <= counts[0.0][1] / 2, counts
    assert counts[0.3][0] <= counts[0.0][0] / 4, counts


def test_preemptions_are_told_by_the_recording() -> None:
    served = serve(demand_of_three_pools(), ContinuousScheduler(16), PagedKV(80, 4), model=ENDLESS)
    told = [r for step in served.recording.steps for r in step.preempted]
    for request in served.requests:
        assert told.count(request.request_id) == request.num_preemptions


def test_every_step_says_why_the_head_of_the_queue_waits() -> None:
    served = serve(demand_of_three_pools(), ContinuousScheduler(16), PagedKV(80, 4), model=ENDLESS)
    for step in served.recording.steps:
        assert (step.waiting_for is not None) == (step.num_waiting > 0), step


def test_a_preemption_by_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match="preemption is 'drop'"):
        ContinuousScheduler(4, preemption="drop")  # type: ignore[arg-type]


# -- what only an odd policy or an odd moment brings about ----------------------------------------


def test_a_step_that_copies_in_from_the_host_copies_nothing_out_after_it() -> None:
    """The host block that one leaves could be the one that the other fills, before it is read."""
    scheduler = ContinuousScheduler(4, preemption="swap", num_host_blocks=8)
    kv = PagedKV(20, 4)
    engine, _ = make_engine(scheduler, kv, model=ENDLESS)
    a, b = Job((1, 2), 9).request("a"), Job((1, 2), 9).request("b")
    engine.add_request(a)
    engine.add_request(b)
    engine.step()
    plan = SchedulerOutput(swapped_in={b: [(1, 0)]})
    scheduler.preempt(plan, a)
    assert a.status is RequestStatus.PREEMPTED
    assert not plan.swap_out
    assert a.num_computed_tokens == 0
    scheduler.preempt(SchedulerOutput(), b)
    assert b.status is RequestStatus.SWAPPED


def test_swapped_requests_return_first_though_the_policy_likes_the_new_ones_better() -> None:
    jobs = [Job((1,) * 4, 30 + i, arrival_time=float(i)) for i in range(4)]
    jobs += [Job((1,) * 4, 3, arrival_time=8.0 + i) for i in range(30)]
    scheduler = ContinuousScheduler(8, preemption="swap", num_host_blocks=200)
    served = serve(jobs, scheduler, PagedKV(24, 4), policy=ShortestFirst(), model=ENDLESS)
    outside: set[str] = set()
    for step in served.recording.steps:
        outside -= set(step.swapped_in)
        assert not outside or set(step.admitted) <= set(step.swapped_in)
        outside |= set(step.swapped_out)
    assert any(step.swapped_in for step in served.recording.steps)


class Pushy(FCFS):
    """Breaks the rule that two must not push each other out."""

    def displaces(self, candidate: Request, victim: Request, now: float) -> bool:
        return True


@BOTH
def test_even_a_policy_that_lets_all_push_each_other_out_gets_right_answers(swap: bool) -> None:
    jobs = [Job((i, 1, 2), 6, arrival_time=float(i)) for i in range(6)]
    scheduler = ContinuousScheduler(2, **memory(swap, 3))
    serve(jobs, scheduler, PagedKV(8, 2), policy=Pushy(), model=ENDLESS, max_steps=400)


def test_whoever_comes_in_with_a_step_is_not_pushed_out_of_it() -> None:
    """Its blocks may be the target of a copy that this very plan orders."""
    scheduler = ContinuousScheduler(1)
    engine, _ = make_engine(scheduler, PagedKV(20, 4), policy=Pushy(), model=ENDLESS)
    for name in ("a", "b"):
        engine.add_request(Job((1, 2), 9).request(name))
    plan = SchedulerOutput()
    assert scheduler.admit(plan, scheduler.next_waiting())
    assert not scheduler.displace(plan, scheduler.next_waiting())
    assert not plan.preempted
