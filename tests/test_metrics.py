"""Every number against a timeline worked out by hand."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toyserve import metrics
from toyserve.clock import VirtualClock
from toyserve.engine import Engine
from toyserve.kv import PagedKV
from toyserve.recording import Recording
from toyserve.request import FinishReason, Request, SamplingParams
from toyserve.runners import SimulatedRunner, TimedRunner
from toyserve.schedulers import ChunkedScheduler, ContinuousScheduler, StaticScheduler


class OneSecond:
    """Every step lasts one second."""

    def step_time(self, plan):
        return 1.0


def request(name, prompt_len=4, max_tokens=10, arrival=0.0, **more):
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    return Request(name, [1] * prompt_len, params, arrival, **more)


def run(requests, scheduler=None, num_blocks=64, block_size=4, output_lens=None, **more):
    clock = VirtualClock()
    engine = Engine(
        scheduler=scheduler or ContinuousScheduler(4),
        kv=PagedKV(num_blocks, block_size),
        runner=TimedRunner(SimulatedRunner(output_lens), OneSecond(), clock),
        clock=clock,
        check=True,
        **more,
    )
    return engine.run(requests)


def test_a_timeline_by_hand():
    """Two slots. a: 3 tokens at 1 2 3. b: 1 token at 1. c arrives at 0.5, runs at 1: 2 3 4 5."""
    recording = run(
        [request("a", 4, 3), request("b", 4, 1), request("c", 4, 4, arrival=0.5)],
        ContinuousScheduler(2),
    )
    times = {k: r.token_times for k, r in recording.requests.items()}
    assert times == {"a": [1, 2, 3], "b": [1], "c": [2, 3, 4, 5]}
    got = metrics.summarize(recording)
    assert (got["num_requests"], got["num_finished"], got["num_steps"]) == (3, 3, 5)
    assert got["num_preemptions"] == got["num_recomputed_tokens"] == 0
    assert got["output_tokens"] == 8
    assert got["makespan_s"] == 5
    assert got["output_tokens_per_s"] == pytest.approx(8 / 5)
    # TTFT 1, 1, 1.5: from arrival, the wait for the slot included
    assert got["ttft_ms"] == {
        "p50": 1000,
        "p95": pytest.approx(1450),
        "p99": pytest.approx(1490),
        "max": 1500,
        "mean": pytest.approx(3500 / 3),
        "count": 3,
        "num_unmeasured": 0,
    }
    # b has one token: its TPOT is undefined, left out and counted
    assert got["tpot_ms"]["count"] == 2
    assert got["tpot_ms"]["num_unmeasured"] == 1
    assert got["tpot_ms"]["mean"] == got["itl_ms"]["max"] == 1000
    assert got["itl_ms"]["count"] == 2 + 3
    assert got["e2e_ms"]["max"] == 4500
    assert got["longest_wait_s"] == 0.5
    # rows per step 2 2 2 1 1
    assert got["mean_running"] == pytest.approx(8 / 5)
    assert got["budget_used"] == got["slots_used"] == pytest.approx(8 / 10)
    assert got["padding_share"] == 0
    assert got["goodput"] is None
    # blocks of 4 while each step runs: a and b 1+1, a and c 2+1, then a 2 (6 tokens) and c 2, 2, 2
    assert metrics.kv_used(recording) == [2, 3, 4, 2, 2]
    assert got["kv_used_max"] == 4 / 64
    assert got["kv_used_mean"] == pytest.approx(13 / 5 / 64)


def test_the_holes_of_a_static_batch():
    """100, 10, 60 and 8 tokens: of 400 slots 178 do useful work."""
    lens = {"A": 100, "B": 10, "C": 60, "D": 8}
    recording = run([request(k, 4, 128) for k in lens], StaticScheduler(4), 256, output_lens=lens)
    got = metrics.summarize(recording)
    assert got["num_steps"] == 100
    assert got["slots_used"] == got["budget_used"] == pytest.approx(178 / 400)
    assert got["padding_share"] == pytest.approx(222 / (222 + 178 + 4 * 3))


def test_budget_used_counts_scheduled_tokens_over_the_budget():
    recording = run([request("a", 10, 2)], ChunkedScheduler(2, 4))
    # chunks 4 4 2, then one decode: 11 of 16
    assert metrics.summarize(recording)["budget_used"] == pytest.approx(11 / 16)


def test_a_preemption_resets_no_clock_and_is_counted():
    recording = run([request("a", 7, 6), request("b", 7, 6)], ContinuousScheduler(2), num_blocks=4)
    got = metrics.summarize(recording)
    assert got["num_preemptions"] >= 1
    late = recording.requests["b"]
    assert late.num_preemptions >= 1
    # every position but the last of 13 must be computed once; the rest was computed again
    computed = sum(sum(s.num_scheduled_tokens.values()) for s in recording.steps)
    assert got["num_recomputed_tokens"] == computed - 2 * 12 > 0
    gaps = [b - a for a, b in itertools.pairwise(late.token_times)]
    assert got["itl_ms"]["max"] == 1000 * max(gaps) > 1000
    assert metrics.ttft(late) == 1


def test_goodput_counts_who_met_every_target_it_carries():
    recording = run(
        [
            request("in time", max_tokens=3, ttft_target=1.0, tpot_target=1.0),
            request("one token", max_tokens=1, ttft_target=1.0, tpot_target=1e-9),
            request("slow start", max_tokens=3, ttft_target=0.9),
            request("slow tokens", max_tokens=3, tpot_target=0.9),
            request("no targets", max_tokens=3),
            request("refused", prompt_len=1000, ttft_target=1e9),
        ],
        ContinuousScheduler(8),
    )
    got = metrics.summarize(recording)
    assert got["goodput"] == {
        "num_with_targets": 5,
        "num_met": 2,
        "share": 0.4,
        "requests_per_s": pytest.approx(2 / 3),
    }
    assert (got["num_refused"], got["num_finished"]) == (1, 5)


def test_nothing_measured_is_none_and_never_zero():
    nothing = metrics.summarize(Recording())
    assert nothing["ttft_ms"] == dict.fromkeys(("p50", "p95", "p99", "max", "mean")) | {
        "count": 0,
        "num_unmeasured": 0,
    }
    for name in ("output_tokens_per_s", "longest_wait_s", "mean_running", "kv_used_max"):
        assert nothing[name] is None
    refused = metrics.summarize(run([request("big", 1000)]))
    assert refused["num_refused"] == refused["ttft_ms"]["num_unmeasured"] == 1
    assert refused["e2e_ms"]["mean"] is None
    assert refused["longest_wait_s"] is None
    assert metrics.format_table(nothing)


def test_an_aborted_request_counts_its_tokens_and_wait_but_not_as_finished():
    clock = VirtualClock()
    engine = Engine(
        scheduler=ContinuousScheduler(1),
        kv=PagedKV(16, 4),
        runner=TimedRunner(SimulatedRunner(), OneSecond(), clock),
        clock=clock,
    )
    engine.add_request(request("a", max_tokens=5))
    engine.add_request(request("b"))
    engine.step()
    engine.step()
    engine.abort("a")
    engine.abort("b")
    got = metrics.summarize(engine.recording)
    assert (got["num_aborted"], got["num_finished"], got["output_tokens"]) == (2, 0, 2)
    assert got["longest_wait_s"] == 2  # b, until it gave up
    assert got["e2e_ms"]["count"] == 1


def test_a_request_that_still_waits_has_waited_until_now():
    recording = run(
        [request("a", max_tokens=2), request("b", max_tokens=2)], ContinuousScheduler(1)
    )
    del recording.steps[2:]
    late = recording.requests["b"]
    late.first_scheduled_time = late.finish_time = late.finish_reason = None
    assert metrics.queue_wait(late, now=7.0) == 7.0


def test_without_steps_only_what_requests_tell():
    full = [request("a", max_tokens=3), request("b", max_tokens=2)]
    kept = metrics.summarize(run(full))
    bare = metrics.summarize(
        run(
            [request("a", max_tokens=3), request("b", max_tokens=2)],
            recording=Recording(keep_steps=False),
        )
    )
    assert bare["num_steps"] == kept["num_steps"] == 3
    missing = {k for k, v in bare.items() if v is None} - {"goodput"}
    assert missing == set(metrics.summarize_steps(Recording()))
    assert {k: v for k, v in kept.items() if k not in missing} == {
        k: v for k, v in bare.items() if k not in missing
    }


def test_groups_by_user_and_priority():
    recording = run(
        [
            request("a", max_tokens=2, user="ann", priority=1),
            request("b", max_tokens=4, user="bob"),
            request("c", max_tokens=6, user="ann", arrival=1.0),
        ]
    )
    users = metrics.by_user(recording)
    assert list(users) == ["ann", "bob"]
    assert users["ann"]["output_tokens"] == 8
    assert users["ann"]["makespan_s"] == users["bob"]["makespan_s"] == 7
    assert users["bob"]["output_tokens_per_s"] == pytest.approx(4 / 7)
    classes = metrics.by_priority(recording)
    assert list(classes) == [0, 1]
    assert classes[0]["num_requests"] == 2


def test_jain_index():
    assert metrics.jain_index([5, 5, 5]) == 1
    assert metrics.jain_index([1, 0, 0, 0]) == pytest.approx(1 / 4)
    assert metrics.jain_index([4, 2]) == pytest.approx(36 / 40)
    assert metrics.jain_index([0, 0]) == 1
    assert metrics.jain_index([]) is None
    with pytest.raises(ValueError, match="negative"):
        metrics.jain_index([1, -2])


@given(st.lists(st.floats(0, 1e300), min_size=1, max_size=20))
def test_jain_index_lies_between_one_over_n_and_one(shares):
    index = metrics.jain_index(shares)
    assert 1 / len(shares) - 1e-9 <= index <= 1 + 1e-9


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), st.floats(0, 100))
def test_percentile_is_numpys_linear_method(values, q):
    expected = np.percentile(values, q, method="linear")
    assert metrics.percentile(values, q) == pytest.approx(expected, rel=1e-9, abs=1e-6)


def test_percentile_refuses_nothing_and_nonsense():
    with pytest.raises(ValueError, match="no values"):
        metrics.percentile([], 50)
    with pytest.raises(ValueError, match="q is 101"):
        metrics.percentile([1.0], 101)


@given(
    st.lists(
        st.tuples(st.integers(1, 20), st.integers(1, 8), st.floats(0, 10)), min_size=1, max_size=8
    ),
    st.sampled_from([ContinuousScheduler, StaticScheduler, ChunkedScheduler]),
    st.integers(2, 12),
)
def test_a_file_says_the_same_as_the_run(tmp_path_factory, sizes, scheduler, num_blocks):
    requests = [
        request(f"r{i}", prompt, answer, arrival, ttft_target=3.0, user=f"u{i % 2}")
        for i, (prompt, answer, arrival) in enumerate(sizes)
    ]
    recording = run(requests, scheduler(3), num_blocks)
    path = tmp_path_factory.mktemp("run") / "run.jsonl"
    recording.save(path)
    loaded = Recording.load(path)
    live = metrics.summarize(recording)
    assert metrics.summarize(loaded) == live
    assert metrics.by_user(loaded) == metrics.by_user(recording)
    assert json.loads(json.dumps(live)) == live
    for share in ("budget_used", "slots_used", "padding_share", "kv_used_max", "kv_used_mean"):
        assert live[share] is None or 0 <= live[share] <= 1
    done = sum(live[f"num_{how}"] for how in ("finished", "refused", "aborted"))
    assert done == live["num_requests"]
    refused = [r for r in recording.requests.values() if r.finish_reason is FinishReason.REFUSED]
    assert live["ttft_ms"]["num_unmeasured"] == len(refused)


def test_the_table_reads_well():
    recording = run([request("a", max_tokens=3, ttft_target=2.0), request("b", max_tokens=1)])
    rows = dict(metrics.format_table(metrics.summarize(recording)))
    assert rows["TTFT, ms"] == "p50 1000.0  p95 1000.0  p99 1000.0  max 1000.0"
    assert rows["goodput"] == "1 of 1 met their targets (100%)"
    assert rows["makespan"] == "3.000 s"
    assert rows["output tokens per second"] == "1.3"
    assert rows["slots used"] == "33.3%"
