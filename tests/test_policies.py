"""Policies: what each guarantees, by numbers, and whom it harms."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sim import Job, Served, ToyModel, serve

from toyserve.kv import PagedKV
from toyserve.policies import (
    FCFS,
    POLICIES,
    Deadline,
    FairShare,
    Policy,
    Priority,
    Quota,
    Quotas,
    ShortestFirst,
    make_policy,
)
from toyserve.request import FinishReason, Request, SamplingParams
from toyserve.schedulers import ChunkedScheduler, ContinuousScheduler, SequentialScheduler

ENDLESS = ToyModel(end_every=0)


def run(jobs: list[Job], policy: Policy, slots: int = 2, *, blocks: int = 400) -> Served:
    return serve(jobs, ContinuousScheduler(slots), PagedKV(blocks, 4), policy=policy, model=ENDLESS)


def waits(served: Served) -> list[float]:
    return [(r.first_scheduled_time or 0) - r.arrival_time for r in served.requests]


def order(served: Served) -> list[int]:
    """Indices of the requests, in the order in which they were let in."""
    return [int(r[1:]) for step in served.recording.steps for r in step.admitted]


# -- by name ------------------------------------------------------------------------------------


def test_every_name_makes_a_policy_and_an_unknown_one_names_them() -> None:
    for name, cls in POLICIES.items():
        assert type(make_policy(name)) is cls
        assert "Guarantees:" in (cls.__doc__ or "")
        assert "Harms:" in (cls.__doc__ or "")
    with pytest.raises(ValueError, match=r"policy is 'lifo'.*fcfs, shortest_first, priority"):
        make_policy("lifo")


# -- each in turn -------------------------------------------------------------------------------


def test_fcfs_lets_nobody_pass() -> None:
    served = run([Job((1,), 9 - i, float(i) / 4) for i in range(6)], FCFS(), 1)
    assert order(served) == [0, 1, 2, 3, 4, 5]


def test_shortest_first_has_the_least_mean_wait_and_starves_the_long() -> None:
    jobs = [Job((1,), 3), Job((1,), 30, 1.0)]
    jobs += [Job((1,), 3, 1.0 + 3 * i) for i in range(20)]
    fcfs, shortest = waits(run(jobs, FCFS(), 1)), waits(run(jobs, ShortestFirst(), 1))
    assert sum(shortest) < sum(fcfs) / 5
    assert shortest[1] == max(shortest) >= 60  # it waits for all that are short
    assert fcfs[1] <= 2


@pytest.mark.parametrize(("by", "first"), [("prompt", 1), ("answer", 2), ("both", 3)])
def test_shortest_first_measures_what_it_is_told_to(by, first: int) -> None:
    jobs = [Job((1,), 5), Job((1,), 40, 1.0), Job((1,) * 40, 2, 1.0), Job((1,) * 8, 8, 1.0)]
    assert order(run(jobs, ShortestFirst(by), 1))[1] == first


def test_the_longest_wait_under_aging_is_bounded_and_under_strict_priority_it_is_not() -> None:
    # An endless stream of urgent requests fills the server; one of class 9 comes at the start.
    jobs = [Job((1,), 4, 2.0 * (i // 2), priority=0) for i in range(150)]
    jobs.append(Job((1,), 4, 1.0, priority=9))
    found = {}
    for aging in (2.0, 10.0, math.inf):
        last = run(jobs, Priority(aging), 4).requests[-1]
        found[aging] = (last.finish_time or 0) - last.arrival_time
    # Behind it is whoever comes more than 9 * aging later; the queue itself is short.
    assert found[2.0] <= 9 * 2 + 8
    assert 9 * 2 + 8 < found[10.0] <= 9 * 10 + 8
    assert found[math.inf] >= 145


def test_an_urgent_one_does_not_wait_when_every_slot_is_taken_by_the_less_urgent() -> None:
    jobs = [Job((1,), 50, priority=5) for _ in range(4)]
    jobs.append(Job((1,), 2, 7.0, priority=0))
    assert waits(run(jobs, Priority(), 4))[-1] <= 1
    assert waits(run(jobs, Priority(displacing=False), 4))[-1] >= 40


def test_who_has_waited_longer_than_the_class_is_worth_is_not_pushed_out() -> None:
    old = Request("old", [1], arrival_time=0.0, priority=5)
    for arrival, displaces in ((4.0, True), (6.0, False)):
        urgent = Request("urgent", [1], arrival_time=arrival, priority=0)
        assert Priority(aging=1.0).displaces(urgent, old, now=50.0) is displaces
        assert Priority(aging=math.inf).displaces(urgent, old, now=50.0)
        assert not Priority(aging=1.0).displaces(old, urgent, now=50.0)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 4), st.integers(1, 12)), min_size=2,
             max_size=12),
    st.sampled_from([0.5, 3.0, 20.0]),
)  # fmt: skip
def test_nobody_is_let_in_after_whoever_comes_too_late_to_pass(
    rows: list[tuple[int, int, int]], aging: float
) -> None:
    jobs = [Job((1,), n, float(arrival), priority=p) for arrival, p, n in rows]
    served = run(jobs, Priority(aging), 2)
    first = {r: r.first_scheduled_time or 0.0 for r in served.requests}
    for a in served.requests:
        for b in served.requests:
            if b.arrival_time > a.arrival_time + (a.priority - b.priority) * aging:
                late = b.arrival_time > a.arrival_time
                assert first[a] <= first[b] or not late


def test_deadlines_that_can_be_met_are_met_and_fcfs_misses_them() -> None:
    jobs = [Job((1,), 10, 0.0, ttft_target=90.0) for _ in range(6)]
    jobs += [Job((1,), 2, 1.0, ttft_target=15.0), Job((1,), 2, 1.0, ttft_target=13.0)]

    def met(policy: Policy) -> int:
        served = run(jobs, policy, 1)
        return sum(
            r.token_times[0] - r.arrival_time <= (r.ttft_target or 0) for r in served.requests
        )

    assert met(Deadline()) == 8
    assert met(FCFS()) == 6


def test_after_its_first_token_a_request_is_due_by_its_tpot_target() -> None:
    policy = Deadline()
    request = Request("a", [1, 2], SamplingParams(), 3.0, ttft_target=2.0, tpot_target=0.5)
    assert policy.due(request) == 5.0
    request.token_ids += [1, 1]
    request.token_times += [4.0, 4.5]
    assert policy.due(request) == 6.0
    assert policy.due(Request("b", [1])) == math.inf


# -- fair share ---------------------------------------------------------------------------------


def tokens_by(served: Served, user: str, until: float) -> int:
    times = [t for r in served.requests if r.user == user for t in r.token_times]
    return sum(t <= until for t in times)


def test_fcfs_starves_a_small_user_and_fair_share_does_not() -> None:
    # ann sends 40 requests at once; bob sends one after the other, each as the last has ended.
    jobs = [Job((1,), 20, 0.0, user="ann") for _ in range(40)]
    jobs += [Job((1,), 5, 10.0 + 25 * i, user="bob") for i in range(8)]
    longest = {}
    for policy in (FCFS(), FairShare()):
        bob = [
            w for w, job in zip(waits(run(jobs, policy)), jobs, strict=True) if job.user == "bob"
        ]
        longest[type(policy)] = max(bob)
    assert longest[FCFS] >= 380
    assert longest[FairShare] <= 25  # at most one of ann's requests must end


@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_users_who_keep_the_queue_busy_get_tokens_by_their_weights(weight: float) -> None:
    jobs = [Job((1,) * 4, 40, 0.0, user="ann") for _ in range(20)]
    jobs += [Job((1,) * 4, 5, 0.0, user="bob") for _ in range(160)]
    served = run(jobs, FairShare({"bob": weight}), 4)
    both_busy = 180.0
    ann, bob = (tokens_by(served, user, both_busy) for user in ("ann", "bob"))
    # Equal counters: a request of ann's costs 4 + 2 * 40, one of bob's 4 + 2 * 5.
    served_to_ann, served_to_bob = ann * 84 / 40, bob * 14 / 5
    one_batch = 4 * 84
    assert abs(served_to_ann - served_to_bob / weight) <= one_batch


def test_a_user_back_from_idling_has_saved_no_credit() -> None:
    jobs = [Job((1,), 10, 0.0, user="ann") for _ in range(60)]
    jobs += [Job((1,), 10, 100.0, user="bob") for _ in range(30)]  # silent for 100 s
    served = run(jobs, FairShare())
    ann = tokens_by(served, "ann", 200.0) - tokens_by(served, "ann", 100.0)
    bob = tokens_by(served, "bob", 200.0)
    assert abs(ann - bob) <= 40


def test_tokens_computed_twice_are_charged_once() -> None:
    jobs = [Job((1,) * 4, 20, 0.0, user=u) for u in ("ann", "bob", "ann", "bob")]
    policy = FairShare()
    served = run(jobs, policy, 4, blocks=14)
    assert sum(r.num_preemptions for r in served.requests) > 0
    assert policy.counters == {"ann": 2 * (4 + 40), "bob": 2 * (4 + 40)}


# -- quotas -------------------------------------------------------------------------------------


def running_by_step(served: Served, user: str) -> list[list[Request]]:
    requests = {r.request_id: r for r in served.requests}
    now: list[Request] = []
    result = []
    for step in served.recording.steps:
        now = [r for r in now if r.request_id not in step.preempted]
        now += [requests[i] for i in step.admitted if requests[i].user == user]
        result.append(list(now))
        now = [r for r in now if r.request_id not in step.finished]
    return result


@pytest.mark.parametrize("inner", [FCFS(), ShortestFirst(), Priority(), FairShare(), Deadline()])
def test_a_quota_is_never_passed_whatever_policy_it_goes_with(inner: Policy) -> None:
    jobs = [Job((1,) * 3, 12 + i % 3, float(i // 3), user="ann", priority=i % 3) for i in range(9)]
    jobs += [Job((1,) * 3, 6, float(i), user="bob") for i in range(9)]
    policy = Quotas({"ann": Quota(max_running=3, max_kv_blocks=9)}, inner, block_size=4)
    served = run(jobs, policy, 5)
    by_step = running_by_step(served, "ann")
    assert max(map(len, by_step)) <= 3
    most = max(sum(-(-(r.max_num_tokens - 1) // 4) for r in running) for running in by_step)
    assert most <= 9
    assert max(map(len, running_by_step(served, "bob"))) >= 2


def test_a_rate_is_kept_on_average_and_others_go_on() -> None:
    jobs = [Job((1,) * 2, 10, 0.0, user="ann") for _ in range(10)]
    jobs += [Job((1,) * 2, 10, 0.0, user="bob") for _ in range(3)]
    policy = Quotas({"ann": Quota(tokens_per_second=0.5)}, block_size=4)
    served = run(jobs, policy, 2)
    last = max(r.finish_time or 0 for r in served.requests)
    assert 12 * 9 / 0.5 <= last <= 12 * 10 / 0.5 + 20  # idle in between: it waits on the clock
    bob = [r for r in served.requests if r.user == "bob"]
    assert max(r.finish_time or 0 for r in bob) <= 40
    reasons = {s.waiting_for for s in served.recording.steps if s.num_waiting}
    assert "quota" in reasons


def test_a_request_larger_than_its_users_quota_is_refused_and_others_are_served() -> None:
    policy = Quotas({"ann": Quota(max_kv_blocks=3)}, block_size=4)
    jobs = [Job((1,) * 8, 6, user="ann"), Job((1,) * 8, 5, user="ann"), Job((1,) * 8, 6)]
    served = serve(jobs, SequentialScheduler(), PagedKV(8, 4), policy=policy, model=ENDLESS)
    first, second, third = served.requests
    assert first.finish_reason is FinishReason.REFUSED
    assert "4 KV blocks" in (first.error or "")
    assert "is 3" in (first.error or "")
    assert {second.finish_reason, third.finish_reason} == {FinishReason.LENGTH}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Quota(max_running=0), "max_running is 0"),
        (lambda: Quota(max_kv_blocks=0), "max_kv_blocks is 0"),
        (lambda: Quota(max_running=1.5), "max_running is 1.5"),  # type: ignore[arg-type]
        (lambda: Quota(tokens_per_second=-2.0), "tokens_per_second is -2.0"),
        (lambda: Quota(tokens_per_second=math.nan), "tokens_per_second is nan"),
        (lambda: FairShare({"ann": -1.0}), "weight of user 'ann' is -1.0"),
        (lambda: FairShare({"ann": 0.0}), "weight of user 'ann' is 0.0"),
        (lambda: FairShare(answer_cost=math.inf), "answer_cost is inf"),
        (lambda: Priority(aging=0.0), "aging is 0.0"),
        (lambda: ShortestFirst("prefix"), "by is 'prefix'"),  # type: ignore[arg-type]
        (lambda: Request("a", [1], priority=1.5), "priority is 1.5"),  # type: ignore[arg-type]
        (lambda: Request("a", [1], priority=True), "priority is True"),
    ],
)
def test_bad_input_is_refused_with_the_value(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


# -- starvation under chunked prefill (O13) -----------------------------------------------------


def test_a_long_prompt_stops_nobodys_stream_and_is_not_stopped_by_a_stream_of_short_ones() -> None:
    jobs = [Job((i,), 120, 0.0) for i in range(4)]
    jobs.append(Job(tuple(range(90)), 2, 5.0))
    jobs += [Job((5, 5), 3, 6.0 + i) for i in range(60)]
    served = serve(jobs, ChunkedScheduler(6, 10), PagedKV(300, 4), model=ENDLESS)
    for request in served.requests[:4]:
        gaps = [b - a for a, b in zip(request.token_times, request.token_times[1:], strict=False)]
        assert max(gaps) == 1
    long = served.requests[4]
    assert long.token_times[0] - long.arrival_time <= 90 / (10 - 5) + 2
    behind = served.requests[5]  # with max_chunk a new request comes in while older prompts run
    shared = serve(jobs, ChunkedScheduler(6, 10, max_chunk=4), PagedKV(300, 4), model=ENDLESS)
    assert shared.requests[5].token_times[0] < behind.token_times[0]
