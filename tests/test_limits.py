"""Requests at and over every limit: one clear sentence, and the others are served."""

from __future__ import annotations

import math
import warnings
from pathlib import Path

import numpy as np
import pytest
from models_for_tests import EOS, generate

from toyserve import LLM, Request, SamplingParams
from toyserve.kv import PagedKV
from toyserve.policies import Quota, Quotas
from toyserve.schedulers import ContinuousScheduler, Scheduler, SchedulerOutput

GREEDY5 = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
GOOD = [4, 5, 6]


def served(llm: LLM, folder: Path, bad: object, params: SamplingParams = GREEDY5) -> str:
    """Put ``bad`` between two good prompts; the good ones are answered; returns bad's error."""
    with pytest.warns(UserWarning, match="was refused"):
        first, refused, last = llm.generate([GOOD, bad, GOOD[:2]], [GREEDY5, params, GREEDY5])
    assert first.token_ids == generate(folder, GOOD, 5, ignore_eos=True)
    assert last.token_ids == generate(folder, GOOD[:2], 5, ignore_eos=True)
    assert refused.finish_reason == "refused"
    assert refused.token_ids == [] and refused.text == ""
    assert refused.metrics.ttft is None and refused.metrics.e2e is None
    assert llm.kv.num_free_blocks == llm.kv.num_blocks
    assert refused.error
    return refused.error


@pytest.mark.parametrize("empty", ["", []])
def test_empty_prompt_is_refused(tiny_gpt2: Path, empty: object) -> None:
    assert "empty" in served(LLM(tiny_gpt2), tiny_gpt2, empty)


@pytest.mark.parametrize("scheduler", ["sequential", "static", "continuous", "chunked"])
@pytest.mark.parametrize("length", [64, 65, 200])
def test_prompt_at_and_over_the_context_is_refused_with_both_numbers(
    tiny_gpt2: Path, length: int, scheduler: str
) -> None:
    error = served(LLM(tiny_gpt2, scheduler=scheduler), tiny_gpt2, [1] * length)
    assert str(length) in error and "64" in error and "63" in error


@pytest.mark.parametrize("max_tokens", [1, 50])
def test_the_longest_prompt_gets_one_token_and_the_reason_length(
    tiny_gpt2: Path, max_tokens: int
) -> None:
    prompt = [i % EOS for i in range(63)]
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    out = LLM(tiny_gpt2, check=True).generate([prompt], params)[0]
    assert out.token_ids == generate(tiny_gpt2, prompt, 1, ignore_eos=True)
    assert out.finish_reason == "length"


def test_decoding_runs_to_the_context_limit_even_when_preempted_near_it(tiny_gpt2: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=500, ignore_eos=True)
    prompts = [[7] * 40, [8] * 39]
    llm = LLM(tiny_gpt2, num_blocks=26, block_size=4, max_running=2, check=True)
    outputs = llm.generate(prompts, params)
    for prompt, out in zip(prompts, outputs, strict=True):
        assert out.token_ids == generate(tiny_gpt2, prompt, 500, ignore_eos=True)
        assert len(prompt) + len(out.token_ids) == 64 and out.finish_reason == "length"
    assert sum(o.metrics.num_preemptions for o in outputs) > 0


def test_context_of_the_bundled_model_is_1024() -> None:
    llm = LLM("toy", num_blocks=70)
    outs = llm.generate([[5] * 1022], SamplingParams(temperature=0, max_tokens=9, ignore_eos=True))
    assert len(outs[0].token_ids) == 2 and outs[0].finish_reason == "length"
    with pytest.warns(UserWarning, match="1024"):
        assert llm.generate([[5] * 1024], GREEDY5)[0].finish_reason == "refused"


@pytest.mark.parametrize("length, fits", [(31, True), (32, True), (33, True), (34, False)])
@pytest.mark.parametrize("scheduler", ["sequential", "static", "continuous", "chunked"])
def test_what_cannot_fit_the_pool_is_refused_at_once_and_blocks_nobody(
    tiny_gpt2: Path, scheduler: str, length: int, fits: bool
) -> None:
    """Pool of 37 slots: a prompt of 33 with 5 tokens needs 37 (the last token needs no slot)."""
    llm = LLM(tiny_gpt2, scheduler=scheduler, num_blocks=37, block_size=1, check=True)
    if fits:
        outs = llm.generate([[3] * length, GOOD], GREEDY5)
        assert outs[0].token_ids == generate(tiny_gpt2, [3] * length, 5, ignore_eos=True)
    else:
        error = served(llm, tiny_gpt2, [3] * length)
        assert "38" in error and "37" in error and "num_blocks" in error


def test_a_prompt_longer_than_budget_or_chunk_is_chunked_not_stuck(tiny_gpt2: Path) -> None:
    for budget, chunk in ((4, None), (9, 4), (16, 100)):
        llm = LLM(tiny_gpt2, max_running=4, token_budget=budget, max_chunk=chunk, check=True)
        for n in (budget - 1, budget, budget + 1, 3 * budget):
            prompt = [i % EOS for i in range(n)]
            out = llm.generate([prompt, GOOD], GREEDY5)[0]
            assert out.token_ids == generate(tiny_gpt2, prompt, 5, ignore_eos=True)
            ran = [s.num_scheduled_tokens.get(out.request_id, 0) for s in llm.recording.steps]
            assert sum(ran) == n + 4, "every prompt token runs exactly once"
            assert max(ran) <= (chunk or budget)


def test_max_tokens_one_gives_exactly_one_token(tiny_gpt2: Path) -> None:
    one = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    out = LLM(tiny_gpt2).generate([GOOD], one)[0]
    assert out.token_ids == generate(tiny_gpt2, GOOD, 1, ignore_eos=True)
    assert out.finish_reason == "length"
    assert out.metrics.tpot is None and out.metrics.ttft == out.metrics.e2e


def test_end_token_as_the_first_token_is_an_answer_of_one_token_and_no_text(
    tiny_gpt2: Path,
) -> None:
    llm = LLM(tiny_gpt2)
    first = llm.generate([GOOD], SamplingParams(temperature=0, max_tokens=9))[0].token_ids[0]
    params = SamplingParams(temperature=0, max_tokens=9, stop_token_ids=[first])
    out = llm.generate([GOOD], params)[0]
    assert out.token_ids == [first] and out.text == "" and out.finish_reason == "stop"


@pytest.mark.parametrize(
    "bad",
    [
        {"max_tokens": 0},
        {"max_tokens": -3},
        {"max_tokens": 2.5},
        {"max_tokens": True},
        {"temperature": math.nan},
        {"temperature": -1},
        {"temperature": math.inf},
        {"temperature": "hot"},
        {"top_p": 0},
        {"top_p": 1.5},
        {"top_p": math.nan},
        {"top_k": -1},
        {"top_k": 1.5},
        {"min_tokens": 70},
        {"stop": ("",)},
        {"stop": (3,)},
        {"stop_token_ids": (-1,)},
        {"logprobs": 50},
        {"seed": 1.5},
    ],
    ids=str,
)
def test_meaningless_sampling_parameters_raise_with_their_value(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError) as error:
        SamplingParams(**bad)  # type: ignore[arg-type]
    (value,) = bad.values()
    assert str(value) in str(error.value) and str(error.value).count("\n") == 0


def test_extreme_temperatures_leave_the_batch_alone(tiny_gpt2: Path) -> None:
    llm = LLM(tiny_gpt2, max_running=8)
    greedy = generate(tiny_gpt2, GOOD, 6, ignore_eos=True)
    temperatures = [0, 1e-6, 1e-4, 100, 1e-320, 1e300]
    params = [
        SamplingParams(temperature=t, top_p=p, max_tokens=6, ignore_eos=True, seed=1)
        for t in temperatures
        for p in (1.0, 1e-4)
    ]
    outs = llm.generate([GOOD] * len(params), params)
    for param, out in zip(params, outs, strict=True):
        assert len(out.token_ids) == 6
        if param.temperature <= 1e-4 or param.top_p < 1:
            assert out.token_ids == greedy


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"scheduler": "clever"}, ["'clever'", "chunked"]),
        ({"kv": "magic"}, ["'magic'", "paged"]),
        ({"policy": "nepotism"}, ["'nepotism'", "fcfs"]),
        ({"preemption": "kill"}, ["'kill'", "recompute"]),
        ({"clock": "abacus"}, ["abacus", "h100"]),
        ({"num_blocks": 0}, ["num_blocks", "0"]),
        ({"block_size": -2}, ["block_size", "-2"]),
        ({"max_running": 0}, ["max_running", "0"]),
        ({"max_running": 20, "token_budget": 8}, ["20", "8", "token_budget"]),
        ({"scheduler": "continuous", "token_budget": 64}, ["token_budget", "continuous"]),
        ({"scheduler": "chunked", "max_wait": 1.0}, ["max_wait", "chunked"]),
        ({"max_model_len": 65}, ["65", "64"]),
        ({"max_model_len": 1}, ["1", "64"]),
        ({"kv": "reserved", "num_blocks": 2}, ["64", "2 blocks"]),
        ({"dtype": "int8"}, ["int8", "float32"]),
        ({"device": "cuda"}, ["cuda"]),
    ],
    ids=str,
)
def test_unknown_names_and_impossible_combinations_raise_one_sentence(
    tiny_gpt2: Path, arguments: dict[str, object], words: list[str]
) -> None:
    import torch

    if arguments == {"device": "cuda"} and torch.cuda.is_available():
        pytest.skip("this machine has a CUDA GPU")
    with pytest.raises(ValueError) as error:
        LLM(tiny_gpt2, **arguments)  # type: ignore[arg-type]
    message = str(error.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_unknown_argument_is_refused(tiny_gpt2: Path) -> None:
    with pytest.raises(TypeError, match="max_num_seqs"):
        LLM(tiny_gpt2, max_num_seqs=4)  # type: ignore[call-arg]


@pytest.mark.parametrize("prompts", [3, [3.5], [None], [[70]], [[-1]], [["a"]], [b"x"]], ids=str)
def test_prompts_of_the_wrong_kind_raise(tiny_gpt2: Path, prompts: object) -> None:
    with pytest.raises(ValueError, match="prompt"):
        LLM(tiny_gpt2).generate(prompts, GREEDY5)  # type: ignore[arg-type]


def test_engine_serves_on_after_bad_input(tiny_gpt2: Path) -> None:
    llm = LLM(tiny_gpt2)
    with pytest.raises(ValueError, match="70"):
        llm.generate([GOOD, [70]], GREEDY5)
    with pytest.raises(ValueError, match="2 entries for 1 prompts"):
        llm.generate([GOOD], [GREEDY5, GREEDY5])
    assert llm.generate([GOOD], GREEDY5)[0].token_ids == generate(
        tiny_gpt2, GOOD, 5, ignore_eos=True
    )


def test_requests_refuse_priorities_and_times_that_are_not_numbers() -> None:
    with pytest.raises(ValueError, match="priority"):
        Request("a", [1], priority=1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="arrival_time"):
        Request("a", [1], arrival_time=math.nan)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"scheduler": ContinuousScheduler}, ["class ContinuousScheduler", "ContinuousScheduler("]),
        ({"scheduler": []}, ["schedule()"]),
        ({"kv": PagedKV}, ["class PagedKV"]),
        ({"policy": 3}, ["policy is 3", "next()"]),
        ({"clock": None}, ["clock is None", "wall"]),
        ({"max_model_len": "9"}, ["max_model_len is '9'"]),
        ({"num_blocks": "7"}, ["num_blocks is '7'"]),
        ({"max_running": 2.0}, ["max_running is 2.0"]),
    ],
    ids=str,
)
def test_arguments_of_the_wrong_kind_raise_one_sentence(
    tiny_gpt2: Path, arguments: dict[str, object], words: list[str]
) -> None:
    with pytest.raises(ValueError) as error:
        LLM(tiny_gpt2, **arguments)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("model", [None, 3])
def test_a_model_that_is_no_name_is_refused(model: object) -> None:
    with pytest.raises(ValueError, match="model is"):
        LLM(model)  # type: ignore[arg-type]


def test_numpy_integers_are_as_good_as_pythons(tiny_gpt2: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=np.int64(5), ignore_eos=True)
    out = LLM(tiny_gpt2).generate([[np.int64(i) for i in GOOD]], params)[0]
    assert out.token_ids == generate(tiny_gpt2, GOOD, 5, ignore_eos=True)
    assert all(type(i) is int for i in out.prompt_token_ids)
    assert type(params.max_tokens) is int


def test_params_and_times_of_the_wrong_kind_raise(tiny_gpt2: Path) -> None:
    llm = LLM(tiny_gpt2)
    with pytest.raises(ValueError, match="SamplingParams"):
        llm.generate([GOOD], {"temperature": 0})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="arrival_time is 'x'"):
        llm.generate([GOOD], GREEDY5, arrival_times=["x"])  # type: ignore[list-item]
    for bad in ({"temperature": True}, {"stop": 3}, {"stop_token_ids": 3}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            SamplingParams(**bad)  # type: ignore[arg-type]


class Forgets(Scheduler):
    def schedule(self):  # type: ignore[no-untyped-def,override]
        SchedulerOutput()


class Crowds(Scheduler):
    def schedule(self) -> SchedulerOutput:
        plan = SchedulerOutput()
        while self.waiting:
            self.admit(plan, self.next_waiting())
        return plan


class Sleeps(Scheduler):
    def schedule(self) -> SchedulerOutput:
        return SchedulerOutput()


class Repeats(ContinuousScheduler):
    def schedule(self) -> SchedulerOutput:
        plan = super().schedule()
        for request in plan.num_scheduled_tokens:
            plan.num_scheduled_tokens[request] += 1
        return plan


class NoInit(Scheduler):
    def __init__(self) -> None:
        pass


@pytest.mark.parametrize(
    ("scheduler", "words"),
    [
        (Forgets, "returned None.*return its plan"),
        (Crowds, "lets 3 requests run; max_running is 2"),
        (Sleeps, "planned nothing while 3 requests wait"),
        (Repeats, "only 3 of its tokens are uncomputed"),
        (NoInit, r"must call super\(\)\.__init__"),
    ],
)
def test_a_learners_scheduler_is_told_what_is_wrong(
    tiny_gpt2: Path, scheduler: type[Scheduler], words: str
) -> None:
    def serve() -> None:
        part = scheduler() if scheduler is NoInit else scheduler(2)
        LLM(tiny_gpt2, scheduler=part).generate([GOOD] * 3, GREEDY5)

    with pytest.raises((ValueError, RuntimeError), match=words):
        serve()


def test_an_interrupted_step_or_abandoned_stream_leaves_nothing_behind(tiny_gpt2: Path) -> None:
    llm = LLM(tiny_gpt2)
    forward, calls = llm.model.forward, 0

    def fails_once(*args: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return forward(*args)  # type: ignore[arg-type]

    llm.model.forward = fails_once  # type: ignore[assignment,method-assign]
    with pytest.raises(KeyboardInterrupt):
        llm.generate([GOOD, GOOD[:2]], GREEDY5)
    stream = llm.stream([GOOD], GREEDY5)
    next(stream)
    with pytest.raises(ValueError, match="unfinished"):
        llm.generate([GOOD], GREEDY5)
    del stream
    assert not llm.engine.has_unfinished
    assert llm.kv.num_free_blocks == llm.kv.num_blocks
    assert llm.generate([GOOD], GREEDY5)[0].token_ids == generate(
        tiny_gpt2, GOOD, 5, ignore_eos=True
    )


@pytest.mark.parametrize(
    "params",
    [
        {"stop_token_ids": [50256], "min_tokens": 1},  # an id the model has not
        {"stop_token_ids": range(64), "min_tokens": 1, "temperature": 1.0},  # every token ends it
        {"temperature": 1.0, "top_p": 1e-46},
        {"temperature": 1e39, "min_tokens": 2},
        {"temperature": 1.0, "top_k": 10**400},
    ],
    ids=str,
)
def test_one_requests_extreme_numbers_leave_the_batch_alone(
    tiny_gpt2: Path, params: dict[str, object]
) -> None:
    odd = SamplingParams(max_tokens=4, **params)  # type: ignore[arg-type]
    first, out, last = LLM(tiny_gpt2).generate([GOOD, GOOD, GOOD[:2]], [GREEDY5, odd, GREEDY5])
    assert first.token_ids == generate(tiny_gpt2, GOOD, 5, ignore_eos=True)
    assert last.token_ids == generate(tiny_gpt2, GOOD[:2], 5, ignore_eos=True)
    assert out.finish_reason in ("stop", "length")
    assert all(0 <= i < 64 for i in out.token_ids)


def test_a_temperature_beyond_every_float_is_refused_when_built() -> None:
    with pytest.raises(ValueError, match="temperature"):
        SamplingParams(temperature=10**400)


@pytest.mark.filterwarnings("ignore:request")
def test_a_stream_closed_at_a_refused_request_leaves_the_llm_usable(tiny_gpt2: Path) -> None:
    llm = LLM(tiny_gpt2)
    stream = llm.stream([[], GOOD], GREEDY5)
    assert next(stream).finish_reason == "refused"
    stream.close()
    assert len(llm.generate([GOOD], GREEDY5)[0].token_ids) == 5


def test_a_refusal_warning_made_an_error_leaves_the_llm_usable(tiny_gpt2: Path) -> None:
    llm = LLM(tiny_gpt2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="refused"):
            llm.generate([GOOD, []], GREEDY5)
    assert llm.kv.num_free_blocks == llm.kv.num_blocks
    assert len(llm.generate([GOOD], GREEDY5)[0].token_ids) == 5


def test_static_rows_charged_as_padding_are_really_computed_and_leave_nothing(
    tiny_gpt2: Path,
) -> None:
    llm = LLM(tiny_gpt2, scheduler="static", max_running=3)
    forward, computed = llm.model.forward, []

    def counting(token_ids, *rest):  # type: ignore[no-untyped-def]
        computed.append(len(token_ids))
        return forward(token_ids, *rest)

    llm.model.forward = counting  # type: ignore[method-assign]
    lens = [1, 5, 9]
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in lens]
    llm.generate([[1], [2] * 7, [3] * 20], params)
    steps = llm.recording.steps
    charged = [
        sum(s.num_scheduled_tokens.values()) + sum(s.num_padded_tokens.values()) for s in steps
    ]
    assert computed == charged == [60] + [3] * 8
    assert not llm._torch_runner.tables._rows
    assert not llm._torch_runner.sampler._generators


def test_a_token_quota_does_not_remember_the_run_before(tiny_gpt2: Path) -> None:
    policy = Quotas({"default": Quota(tokens_per_second=50)})
    llm = LLM(tiny_gpt2, policy=policy, clock="t4")
    firsts = []
    for _ in range(4):
        outputs = llm.generate([GOOD] * 6, SamplingParams(temperature=0, max_tokens=20))
        firsts.append([o.metrics.ttft for o in outputs])
    assert all(f == firsts[0] for f in firsts)


def test_top_k_and_tpot_mean_what_they_say(tiny_gpt2: Path) -> None:
    llm = LLM(tiny_gpt2, clock="t4")
    hot = {"temperature": 1e6, "max_tokens": 1, "ignore_eos": True, "logprobs": 3}
    drawn, best = set(), set()
    for seed in range(40):
        out = llm.generate([GOOD], SamplingParams(top_k=2, seed=seed, **hot))[0]  # type: ignore[arg-type]
        drawn |= set(out.token_ids)
        best = set(list(out.logprobs[0].top)[:2])  # type: ignore[index]
    assert drawn == best, "both of the two likeliest, and no third"
    metrics = llm.generate([GOOD], GREEDY5)[0].metrics
    assert metrics.tpot == pytest.approx(sum(metrics.itl) / 4)
