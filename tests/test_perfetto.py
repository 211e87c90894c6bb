"""Traces for the Perfetto viewer: the format's rules, and that the picture in it is the run's."""

import json
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toyserve.clock import VirtualClock
from toyserve.costs import cost_model
from toyserve.engine import Engine
from toyserve.kv import PagedKV
from toyserve.perfetto import ENGINE, REQUESTS, to_perfetto, trace_events
from toyserve.recording import Recording
from toyserve.request import Request, SamplingParams
from toyserve.runners import SimulatedRunner, TimedRunner
from toyserve.schedulers import ChunkedScheduler, ContinuousScheduler, StaticScheduler
from toyserve.workload import make_workload


def run(requests, scheduler, num_blocks=64, block_size=4, recording=None, output_lens=None):
    clock = VirtualClock()
    cost = cost_model("h100", "gpt2")
    return Engine(
        scheduler=scheduler,
        kv=PagedKV(num_blocks, block_size),
        runner=TimedRunner(SimulatedRunner(output_lens), cost, clock),
        clock=clock,
        recording=recording,
    ).run(requests)


def request(name, prompt_len=4, max_tokens=3, arrival=0.0):
    return Request(name, [1] * prompt_len, SamplingParams(max_tokens=max_tokens), arrival)


def slices(events, process):
    """Per track name: its slices in order of time."""
    names = {
        e["tid"]: e["args"]["name"]
        for e in events
        if e["name"] == "thread_name" and e["pid"] == process
    }
    tracks = defaultdict(list)
    for event in sorted((e for e in events if e["ph"] == "X"), key=lambda e: e["ts"]):
        if event["pid"] == process:
            tracks[names[event["tid"]]].append(event)
    return tracks


def check_format(events):
    for event in events:
        assert event["ph"] in ("X", "C", "M")
        assert isinstance(event["pid"], int)
        assert isinstance(event["name"], str)
        assert isinstance(event["args"], dict)
        if event["ph"] != "M":
            assert event["ts"] >= 0
        if event["ph"] == "X":
            assert isinstance(event["tid"], int)
            assert event["dur"] >= 0
        if event["ph"] == "C":
            assert event["args"]
            assert all(isinstance(v, int | float) for v in event["args"].values())


def check_no_overlap(tracks):
    """Slices of one track must nest or follow each other; here they follow, to the nanosecond."""
    for name, track in tracks.items():
        end = 0
        for event in track:
            start = round(event["ts"] * 1000)
            assert start >= end, (name, event)
            end = start + round(event["dur"] * 1000)


def test_the_file_is_a_trace_that_the_viewer_takes(tmp_path):
    recording = run([request("a"), request("b", 9, arrival=0.0001)], ChunkedScheduler(2, 4))
    path = tmp_path / "trace.json"
    to_perfetto(recording, path)
    trace = json.loads(path.read_text())
    assert trace["displayTimeUnit"] == "ms"
    assert trace["otherData"]["scheduler"] == "ChunkedScheduler"
    check_format(trace["traceEvents"])
    assert trace["traceEvents"] == trace_events(recording)
    loaded_path = tmp_path / "run.jsonl"
    recording.save(loaded_path)
    assert trace_events(Recording.load(loaded_path)) == trace["traceEvents"]


def test_slices_of_a_request_say_what_it_did():
    recording = run([request("a", 6, 3), request("b", 4, 2)], ChunkedScheduler(1, 4))
    tracks = slices(trace_events(recording), REQUESTS)
    assert [e["name"] for e in tracks["a"]] == ["prefill", "prefill", "decode", "decode"]
    assert [e["args"]["tokens"] for e in tracks["a"]] == [4, 2, 1, 1]
    assert [e["name"] for e in tracks["b"]] == ["waiting", "prefill", "decode"]
    wait, finish = tracks["b"][0], recording.requests["a"].finish_time
    assert wait["ts"] == 0
    assert wait["dur"] == pytest.approx(finish * 1e6, abs=0.001)
    steps = slices(trace_events(recording), ENGINE)["steps"]
    assert [e["name"] for e in steps] == [f"step {i}" for i in range(1, 7)]
    assert steps[2]["args"]["queue waits for"] == "a slot"


def test_padding_and_preemption_are_seen():
    workload = make_workload("static_example")
    padded = run(workload.requests_for_engine(), StaticScheduler(4), 512, 4, None, {"D": 8})
    names = [e["name"] for e in slices(trace_events(padded), REQUESTS)["D"]]
    assert names.count("decode") == 7
    assert names[-1] == "padding"
    tight = run([request("a", 7, 6), request("b", 7, 6)], ContinuousScheduler(2), num_blocks=4)
    names = [e["name"] for e in slices(trace_events(tight), REQUESTS)["b"]]
    assert "preempted" in names
    assert names.index("preempted") < len(names) - 1


def test_counters_follow_the_run():
    recording = run([request(k) for k in "abc"], ContinuousScheduler(2), 16)
    counters = defaultdict(list)
    for event in trace_events(recording):
        if event["ph"] == "C":
            counters[event["name"]].append(event["args"])
    assert [c["requests"] for c in counters["running"]] == [2, 2, 2, 1, 1, 1, 0]
    assert [c["requests"] for c in counters["queue"]] == [1, 1, 1, 0, 0, 0]
    assert counters["tokens in the step"][0] == {"useful": 8, "padding": 0}
    assert [c["used"] for c in counters["KV blocks"]] == [2, 4, 4, 1, 2, 2]


def test_refused_and_empty_runs_have_a_trace_and_one_without_steps_says_so(tmp_path):
    check_format(trace_events(Recording()))
    refused = trace_events(run([request("big", 10_000)], ContinuousScheduler(2)))
    check_format(refused)
    assert not slices(refused, REQUESTS)["big"]
    bare = run([request("a")], ContinuousScheduler(2), recording=Recording(keep_steps=False))
    with pytest.raises(ValueError, match="none of its 3 steps"):
        to_perfetto(bare, tmp_path / "x.json")


@given(
    st.lists(
        st.tuples(st.integers(1, 20), st.integers(1, 8), st.floats(0, 0.01)),
        min_size=1,
        max_size=8,
    ),
    st.sampled_from([ContinuousScheduler, StaticScheduler, ChunkedScheduler]),
    st.integers(2, 12),
)
def test_any_run_makes_a_valid_trace(sizes, scheduler, num_blocks):
    requests = [request(f"r{i}", p, n, t) for i, (p, n, t) in enumerate(sizes)]
    recording = run(requests, scheduler(3), num_blocks)
    events = trace_events(recording)
    check_format(events)
    check_no_overlap(slices(events, REQUESTS))
    check_no_overlap(slices(events, ENGINE))
    sampled = sum(e["args"].get("new token", False) for e in events if e["ph"] == "X")
    assert sampled == sum(len(r.token_times) for r in recording.requests.values())
