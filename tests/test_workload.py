"""Workloads: the seeded mixes, the lessons' scenarios step by step, and recorded traces."""

import dataclasses
import os
from pathlib import Path

import numpy as np
import pytest

from toyserve.clock import VirtualClock
from toyserve.costs import cost_model
from toyserve.engine import Engine
from toyserve.kv import PagedKV
from toyserve.runners import SimulatedRunner, TimedRunner
from toyserve.schedulers import ChunkedScheduler, ContinuousScheduler, StaticScheduler
from toyserve.workload import (
    WORKLOADS,
    Lengths,
    Workload,
    WorkloadRequest,
    azure_like,
    burst,
    make_workload,
    poisson,
    read_azure_trace,
    standard_mix,
)


def simulate(workload, scheduler, num_blocks=4096, clock="h100", model="llama-3-8b"):
    time = VirtualClock()
    runner = TimedRunner(SimulatedRunner(workload.output_lens), cost_model(clock, model), time)
    engine = Engine(scheduler=scheduler, kv=PagedKV(num_blocks), runner=runner, clock=time)
    return engine.run(workload.requests_for_engine())


# -- the seeded mixes -----------------------------------------------------------------------------


def test_the_standard_mix_is_always_the_same_32_requests():
    workload = standard_mix()
    answers = [8, 8, 9, 11, 13, 13, 13, 14, 15, 18, 20, 24, 26, 29, 30, 36, 37, 46, 49, 62, 63]
    answers += [68, 74, 81, 96, 103, 110, 146, 158, 182, 235, 256]
    assert sorted(workload.output_lens.values()) == answers
    assert sum(r.num_prompt_tokens for r in workload.requests) == 5067
    assert {r.max_tokens for r in workload.requests} == {256}
    assert {r.arrival_time for r in workload.requests} == {0.0}


def test_a_static_batch_of_eight_keeps_31_percent_of_its_slots_busy_on_the_standard_mix():
    answers = list(standard_mix().output_lens.values())
    steps = sum(max(answers[i : i + 8]) for i in range(0, 32, 8))
    assert sum(answers) / (8 * steps) == pytest.approx(0.31, abs=0.005)


def test_the_arrival_rate_changes_when_and_never_what():
    slow, fast = standard_mix(rate=1), standard_mix(rate=16)
    assert slow.output_lens == fast.output_lens == standard_mix().output_lens
    assert slow.requests[0].arrival_time == 0
    last = slow.requests[-1].arrival_time
    assert last == pytest.approx(16 * fast.requests[-1].arrival_time)
    many = poisson(n=4000, rate=5, seed=3)
    assert many.requests[-1].arrival_time == pytest.approx(800, rel=0.1)


def test_seed_lengths_and_users():
    assert burst(8, seed=1) == burst(8, seed=1) != burst(8, seed=2)
    short = burst(50, lengths=Lengths(4, 6, 2, 3, output_median=2.5), users=3)
    assert {r.num_prompt_tokens for r in short.requests} == {4, 5, 6}
    assert set(short.output_lens.values()) == {2, 3}
    assert [r.user for r in short.requests[:4]] == ["user-0", "user-1", "user-2", "user-0"]


def test_engine_requests_hide_the_true_length_and_are_fresh_each_time():
    workload = standard_mix()
    first, again = (workload.requests_for_engine(vocab_size=2048) for _ in range(2))
    for mine, theirs, spec in zip(first, again, workload.requests, strict=True):
        assert mine is not theirs
        assert mine.token_ids == theirs.token_ids
        assert len(mine.token_ids) == spec.num_prompt_tokens
        assert max(mine.token_ids) < 2047  # never the end token
        assert mine.params.max_tokens == 256
        assert mine.params.ignore_eos
        assert mine.params.greedy
    assert workload.requests_for_engine(seed=1)[0].token_ids != first[0].token_ids


def test_prompts_may_be_text_or_ids():
    workload = Workload(
        "mine",
        (
            WorkloadRequest("ids", prompt=(5, 6, 7), output_len=4),
            WorkloadRequest("text", prompt="to be", max_tokens=9, arrival_time=1.0),
        ),
    )
    with pytest.raises(ValueError, match="tokenize is needed"):
        workload.requests_for_engine()
    ids, text = workload.requests_for_engine(tokenize=lambda text: [ord(c) for c in text])
    assert ids.token_ids == [5, 6, 7]
    assert (ids.params.max_tokens, ids.params.ignore_eos) == (4, True)
    assert text.token_ids == [116, 111, 32, 98, 101]
    assert not text.params.ignore_eos  # its length is the model's own affair
    assert workload.output_lens == {"ids": 4}


def test_targets_and_descriptions():
    workload = standard_mix().with_targets(ttft=0.2, tpot=0.05)
    made = workload.requests_for_engine()[3]
    assert (made.ttft_target, made.tpot_target) == (0.2, 0.05)
    assert workload.describe().startswith("burst: 32 requests, all at once, prompts ")
    assert Workload("none", ()).describe() == "none: no requests"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"num_prompt_tokens": 0}, "num_prompt_tokens is 0: it must be at least 1"),
        ({"output_len": 0}, "output_len is 0"),
        ({"max_tokens": 2.5}, "max_tokens is 2.5"),
        ({"arrival_time": float("nan")}, "arrival_time is nan"),
        ({"num_prompt_tokens": None}, "a prompt or num_prompt_tokens"),
        ({"output_len": None}, "an output_len or max_tokens"),
        ({"prompt": (1, 2), "num_prompt_tokens": 3}, "has 2 token ids"),
    ],
)
def test_a_bad_request_is_refused_by_name(fields, words):
    with pytest.raises(ValueError, match=f"'x'.*{words}"):
        WorkloadRequest(**{"request_id": "x", "num_prompt_tokens": 4, "output_len": 4} | fields)


def test_two_requests_cannot_share_an_id():
    one = WorkloadRequest("x", num_prompt_tokens=4, output_len=4)
    with pytest.raises(ValueError, match="two requests are 'x'"):
        Workload("w", (one, one))


# -- the scenarios --------------------------------------------------------------------------------


def rows(recording, step):
    """Who ran in the step, counted from 1, as the lessons count."""
    return list(recording.steps[step - 1].num_scheduled_tokens)


def test_static_example_loses_its_users_one_by_one():
    recording = simulate(make_workload("static_example"), StaticScheduler(4))
    assert len(recording.steps) == 100
    assert rows(recording, 8) == ["A", "B", "C", "D"]
    assert rows(recording, 9) == rows(recording, 10) == ["A", "B", "C"]
    assert rows(recording, 11) == rows(recording, 60) == ["A", "C"]
    assert rows(recording, 61) == rows(recording, 100) == ["A"]


def test_continuous_example_fills_d_at_step_9_and_b_at_step_11():
    workload = make_workload("continuous_example")
    scheduler = ContinuousScheduler(workload.settings["max_running"])
    recording = simulate(workload, scheduler)
    assert set(rows(recording, 8)) == {"A", "B", "C", "D"}
    assert set(rows(recording, 9)) == set(rows(recording, 10)) == {"A", "B", "C", "E"}
    assert set(rows(recording, 11)) == {"A", "C", "E", "F"}
    assert list(recording.steps[8].admitted) == ["E"]
    assert list(recording.steps[10].admitted) == ["F"]


@pytest.mark.parametrize("model", ["toy", "llama-3-8b"])
@pytest.mark.parametrize("clock", ["h200", "laptop"])
def test_budget_example_leaves_two_tokens_a_step_for_g(model, clock):
    workload = make_workload("budget_example")
    settings = workload.settings
    scheduler = ChunkedScheduler(settings["max_running"], settings["token_budget"])
    recording = simulate(workload, scheduler, clock=clock, model=model)
    assert recording.steps[1].num_scheduled_tokens == dict.fromkeys("ABCDEF", 1) | {"G": 2}
    chunks = [s.num_scheduled_tokens["G"] for s in recording.steps[1:51]]
    assert chunks == [2] * 50
    assert recording.steps[51].num_scheduled_tokens == dict.fromkeys("ABCDEFG", 1)


@pytest.mark.parametrize("num_decoding", [0, 6])
def test_long_prompt_runs_as_256_256_256_232(num_decoding):
    workload = make_workload(f"long_prompt:num_decoding={num_decoding}")
    settings = workload.settings
    scheduler = ChunkedScheduler(
        settings["max_running"], settings["token_budget"], max_chunk=settings["max_chunk"]
    )
    recording = simulate(workload, scheduler)
    chunks = [s.num_scheduled_tokens["G"] for s in recording.steps if "G" in rows_of(s)]
    assert chunks[:5] == [256, 256, 256, 232, 1]
    assert len(recording.steps[2].num_scheduled_tokens) == num_decoding + 1


def rows_of(step):
    return step.num_scheduled_tokens


def test_freeze_stalls_fifty_streams_when_the_prompt_runs_whole_and_hardly_in_chunks():
    workload = make_workload("freeze")
    settings = workload.settings
    gaps = {}
    for scheduler in (ContinuousScheduler(51), ChunkedScheduler(51, 512)):
        recording = simulate(workload, scheduler, settings["num_blocks"], model="llama-3.1-8b")
        assert not any(s.preempted for s in recording.steps)
        times = recording.requests["user-7"].token_times
        assert times[0] < 1.0 < times[-1]  # it is reading when the prompt comes
        gaps[type(scheduler)] = np.diff(times).max()
    assert gaps[ContinuousScheduler] > 1.0
    assert gaps[ChunkedScheduler] < 0.1


def test_head_of_line_makes_c_wait_behind_a_and_b():
    recording = simulate(make_workload("head_of_line"), ContinuousScheduler(1))
    assert recording.requests["C"].token_times[0] > recording.requests["B"].token_times[-1]
    lens = {r.request_id: (r.num_prompt_tokens, r.output_len) for r in head_requests()}
    assert lens["A"][0] > 10 * lens["B"][0]
    assert lens["B"][1] > 10 * lens["A"][1]
    assert lens["C"] == (lens["B"][0], lens["A"][1])


def head_requests():
    return make_workload("head_of_line").requests


def test_preemption_example_fills_the_pool_before_the_urgent_request_comes():
    workload = make_workload("preemption_example")
    settings = workload.settings
    recording = simulate(
        workload, ContinuousScheduler(settings["max_running"]), settings["num_blocks"]
    )
    assert recording.steps[0].num_free_blocks == 0
    assert rows(recording, 1) == ["A", "B", "C", "D"]
    assert recording.steps[1].waiting_for == "memory"  # no policy here that would make room for E
    urgent = workload.requests[-1]
    assert urgent.request_id == "E"
    assert urgent.priority < min(r.priority for r in workload.requests[:-1])


def test_scenarios_fit_the_bundled_model_except_freeze():
    for name in WORKLOADS:
        if name in ("azure", "azure_like", "freeze"):
            continue
        for item in make_workload(name).requests:
            assert item.num_prompt_tokens + item.max_tokens <= 1024 + 16, name
            assert item.num_prompt_tokens + item.output_len <= 1024, name


# -- by name --------------------------------------------------------------------------------------


def test_names_with_parameters():
    assert make_workload("burst:n=16,seed=1") == burst(16, 1)
    assert make_workload("burst") == standard_mix()
    assert make_workload(" poisson : rate = 8 , n=64 ") == poisson(n=64, rate=8)
    assert make_workload("standard_mix:rate=None") == standard_mix()
    made = make_workload("poisson:rate=2.5,prompt_max=32,output_median=10")
    assert made == poisson(rate=2.5, lengths=Lengths(prompt_max=32, output_median=10.0))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("nonsense", "the known ones are burst, poisson, standard_mix, static_example"),
        ("", "unknown workload ''"),
        ("burst:m=3", "no parameter 'm=3': it takes n, seed, users, prompt_min"),
        ("burst:3", "no parameter '3'"),
        ("burst:lengths=3", "no parameter 'lengths=3'"),
        ("static_example:n=3", "it takes none"),
        ("burst:n=many", "n is 'many': it must be a whole number"),
        ("burst:n=2.5", "n is '2.5': it must be a whole number"),
        ("burst:n=0", "n is 0"),
        ("burst:prompt_min=9,prompt_max=3", "prompt_min is 9 and prompt_max is 3"),
        ("poisson:rate=0", "rate is 0"),
        ("poisson:rate=nan", "rate is nan"),
        ("poisson:rate=fast", "rate is 'fast': it must be a number"),
        ("long_prompt:num_decoding=-1", "num_decoding is -1"),
        ("azure", "write azure:PATH"),
        ("azure:limit=3", "write azure:PATH"),
        ("azure:a.csv,path=b.csv", "no parameter"),
        ("azure_like:n=0", "n is 0"),
    ],
)
def test_a_bad_specification_is_answered_in_one_sentence(spec, words):
    with pytest.raises(ValueError, match=words) as caught:
        make_workload(spec)
    assert "\n" not in str(caught.value)


# -- traces ---------------------------------------------------------------------------------------

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


@pytest.fixture
def trace(tmp_path):
    def write(text):
        path = tmp_path / "trace.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def test_a_trace_starts_at_zero_in_order_and_keeps_its_lengths(trace):
    path = trace(
        HEADER
        + "2023-11-16 18:15:50.9951690,396,109\r\n"
        + "2023-11-16 18:15:46.6805900+00:00,374,44\r\n\n"
    )
    workload = read_azure_trace(path)
    assert [(r.num_prompt_tokens, r.output_len) for r in workload.requests] == [
        (374, 44),
        (396, 109),
    ]
    assert workload.requests[0].arrival_time == 0
    assert workload.requests[1].arrival_time == pytest.approx(4.314579, abs=1e-6)
    assert {r.max_tokens for r in workload.requests} == {109}  # nobody declares what is true
    twice = make_workload(f"azure:{path},rate_scale=2,limit=2")
    assert twice.requests[1].arrival_time == pytest.approx(4.314579 / 2, abs=1e-6)
    assert len(read_azure_trace(path, limit=1)) == 1


def test_a_trace_is_cut_to_the_models_context(trace):
    path = trace(HEADER + "2023-11-16 18:15:46,4000,100\n2023-11-16 18:15:47,1000,100\n")
    for item in read_azure_trace(path, max_model_len=1024).requests:
        assert item.num_prompt_tokens + item.max_tokens <= 1024
        assert 1 <= item.output_len <= item.max_tokens
    assert read_azure_trace(path, max_model_len=1024).requests[1].output_len == 24


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty: expected the columns TIMESTAMP"),
        ("a,b,c\n1,2,3\n", "line 1 has the columns 'a,b,c': expected TIMESTAMP"),
        (HEADER, "holds no requests"),
        (HEADER + "2023-11-16 18:15:46,374\n", "line 2 is '2023-11-16 18:15:46,374': expected"),
        (HEADER + "2023-11-16 18:15:46,374,4,4\n", "line 2 is"),
        (HEADER + "2023-11-16 18:15:46,3,3\nyesterday,374,44\n", "line 3 is 'yesterday,374,44'"),
        (HEADER + "2023-11-16 18:15:46,many,44\n", "two whole numbers"),
        (HEADER + "2023-11-16 18:15:46,374,0\n", "line 2 has 374 prompt and 0 answer tokens"),
        (HEADER + "2023-11-16 18:15:46,-4,3\n", "at least 1"),
        (b"\xff\xfe\x00binary", "cannot be read as a trace"),
    ],
)
def test_a_bad_trace_names_file_line_and_what_is_expected(trace, text, words):
    path = trace(text)
    with pytest.raises(ValueError, match=words) as caught:
        read_azure_trace(path)
    assert str(path) in str(caught.value)


def test_a_missing_trace_says_where_to_get_one(tmp_path):
    with pytest.raises(ValueError, match="Azure/AzurePublicDataset"):
        read_azure_trace(tmp_path / "absent.csv")
    with pytest.raises(ValueError, match="Azure/AzurePublicDataset"):
        read_azure_trace(tmp_path)


def test_bad_limits_are_refused(trace):
    path = trace(HEADER + "2023-11-16 18:15:46,374,44\n")
    for bad in ({"limit": 0}, {"max_model_len": 1}, {"rate_scale": 0}, {"max_tokens": 0}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            read_azure_trace(path, **bad)


def test_the_generated_trace_has_the_shape_of_the_conversation_trace():
    workload = azure_like(20_000, seed=1)
    prompts = [r.num_prompt_tokens for r in workload.requests]
    answers = list(workload.output_lens.values())
    assert np.percentile(prompts, [50, 90, 99]) == pytest.approx([1020, 2735, 4142], rel=0.05)
    assert np.percentile(answers, [50, 90, 99]) == pytest.approx([129, 424, 601], rel=0.05)
    assert len(workload) / workload.requests[-1].arrival_time == pytest.approx(5.53, rel=0.05)
    assert azure_like(50, seed=1) == azure_like(50, seed=1) != azure_like(50, seed=2)
    assert max(r.num_prompt_tokens for r in azure_like(200, max_model_len=1024).requests) <= 1023


def test_the_real_trace():
    folder = os.environ.get("TOYSERVE_AZURE_TRACES")
    if folder is None:
        pytest.skip("set TOYSERVE_AZURE_TRACES to the folder with the Azure traces to read them")
    workload = read_azure_trace(Path(folder) / "AzureLLMInferenceTrace_conv.csv")
    assert len(workload) == 19_366
    prompts = [r.num_prompt_tokens for r in workload.requests]
    assert np.percentile(prompts, [50, 90, 99]).round().tolist() == [1020, 2734, 4142]
    code = read_azure_trace(Path(folder) / "AzureLLMInferenceTrace_code.csv", limit=100)
    assert len(code) == 100
    assert dataclasses.replace(code.requests[0], arrival_time=1.0) != code.requests[0]
