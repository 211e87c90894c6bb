"""Scheduling changes when a token is computed, never which: greedy ids are transformers' own."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from models_for_tests import EOS, generate, oracle, random_gpt2

from toyserve import LLM, SamplingParams
from toyserve.models.weights import TOY_FOLDER
from toyserve.schedulers import ChunkedScheduler, ContinuousScheduler

PROMPTS = ["ROMEO:\n", "HAMLET:\nTo be, or not", "KING HENRY VI:\n", "Nurse.", "JULIET:\nO " * 9]


def schedulers_of(max_running: int = 4) -> dict[str, dict[str, object]]:
    return {
        "sequential": {"scheduler": "sequential"},
        "static": {"scheduler": "static", "max_running": max_running},
        "continuous": {"scheduler": "continuous", "max_running": max_running},
        "chunked": {"scheduler": "chunked", "max_running": max_running, "token_budget": 7},
    }


@pytest.mark.parametrize("kv", ["paged", "reserved"])
@pytest.mark.parametrize("name", schedulers_of())
def test_bundled_model_answers_as_transformers_does(name: str, kv: str) -> None:
    llm = LLM(
        "toy", kv=kv, num_blocks=256, block_size=16, max_model_len=256, **schedulers_of()[name]
    )
    outputs = llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=40))
    for output in outputs:
        assert output.token_ids == generate(TOY_FOLDER, output.prompt_token_ids, 40)
    assert any(o.finish_reason == "stop" for o in outputs)
    assert llm.kv.num_free_blocks == 256


def test_last_layer_logits_agree_with_transformers_within_1e_4() -> None:
    llm = LLM("toy", scheduler="chunked", token_budget=16, max_running=4)
    output = llm.generate(PROMPTS[4], SamplingParams(temperature=0, max_tokens=30, logprobs=20))[0]
    ids = torch.tensor([output.prompt_token_ids + output.token_ids])
    logits = oracle(TOY_FOLDER)(ids).logits[0, len(output.prompt_token_ids) - 1 : -1]
    expected = logits.log_softmax(-1)
    assert output.logprobs is not None
    for row, entry in zip(expected, output.logprobs, strict=True):
        assert abs(row[entry.token_id].item() - entry.logprob) < 1e-4
        for token_id, logprob in entry.top.items():
            assert abs(row[token_id].item() - logprob) < 1e-4


@pytest.mark.parametrize("n_head", [1, 2, 3])
@pytest.mark.parametrize("block_size", [1, 3, 16])
@pytest.mark.parametrize("name", schedulers_of())
def test_random_models_block_sizes_and_forced_preemption(
    tmp_path_factory: pytest.TempPathFactory, name: str, block_size: int, n_head: int
) -> None:
    folder = random_gpt2(tmp_path_factory.mktemp("gpt2"), n_head=n_head)
    rng = random.Random(n_head)
    prompts = [[rng.randrange(EOS) for _ in range(n)] for n in (1, 7, 30, 13, 8, 21)]
    llm = LLM(
        folder,
        num_blocks=-(-44 // block_size),  # one long request and little else: the others must pause
        block_size=block_size,
        check=True,
        **schedulers_of(3)[name],
    )
    params = SamplingParams(temperature=0, max_tokens=14, ignore_eos=True)
    outputs = llm.generate(prompts, params)
    for prompt, output in zip(prompts, outputs, strict=True):
        assert output.token_ids == generate(folder, prompt, 14, ignore_eos=True)
    preempted = sum(o.metrics.num_preemptions for o in outputs)
    assert (preempted > 0) == (name in ("continuous", "chunked"))


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(data=st.data())
def test_any_workload_pool_and_budget_gives_the_oracles_ids(
    tiny_gpt2: Path, data: st.DataObject
) -> None:
    block_size = data.draw(st.integers(1, 9), label="block_size")
    max_running = data.draw(st.integers(1, 5), label="max_running")
    num_requests = data.draw(st.integers(1, 6), label="num_requests")
    lens = data.draw(st.lists(st.integers(1, 60), min_size=num_requests, max_size=num_requests))
    outs = data.draw(st.lists(st.integers(1, 12), min_size=num_requests, max_size=num_requests))
    longest = max(min(p + o, 64) - 1 for p, o in zip(lens, outs, strict=True))
    fewest = -(-longest // block_size)
    num_blocks = data.draw(st.integers(fewest, 3 * fewest), label="num_blocks")
    name = data.draw(st.sampled_from(["sequential", "static", "continuous", "chunked"]))
    settings_ = dict(schedulers_of(max_running)[name])
    if name == "chunked":
        settings_["token_budget"] = max_running + data.draw(st.integers(0, 9), label="budget")
    llm = LLM(tiny_gpt2, num_blocks=num_blocks, block_size=block_size, check=True, **settings_)
    rng = random.Random(sum(lens))
    prompts = [[rng.randrange(EOS) for _ in range(n)] for n in lens]
    params = [SamplingParams(temperature=0, max_tokens=o) for o in outs]
    for prompt, param, output in zip(prompts, params, llm.generate(prompts, params), strict=True):
        assert output.token_ids == generate(tiny_gpt2, prompt, param.max_tokens)
        assert output.finish_reason in ("stop", "length")
    assert llm.kv.num_free_blocks == num_blocks


def test_seeded_sampling_draws_the_same_tokens_under_every_scheduler(tiny_gpt2: Path) -> None:
    rng = random.Random(5)
    prompts = [[rng.randrange(EOS) for _ in range(n)] for n in (5, 17, 2, 30, 9)]
    params = [
        SamplingParams(temperature=1.5, top_k=k, top_p=p, seed=i, max_tokens=20)
        for i, (k, p) in enumerate([(0, 1.0), (5, 1.0), (0, 0.7), (9, 0.5), (0, 0.9)])
    ]
    answers = []
    for settings_ in schedulers_of(3).values():
        for num_blocks in (16, 60):
            llm = LLM(tiny_gpt2, num_blocks=num_blocks, block_size=4, check=True, **settings_)
            answers.append([o.token_ids for o in llm.generate(prompts, params)])
    assert all(a == answers[0] for a in answers)
    alone = LLM(tiny_gpt2, scheduler="sequential", num_blocks=60, block_size=4)
    assert alone.generate(prompts[3], params[3])[0].token_ids == answers[0][3]


def test_seeded_row_ignores_its_mates_and_unseeded_rows_differ(tiny_gpt2: Path) -> None:
    llm = LLM(tiny_gpt2, max_running=8)
    seeded = SamplingParams(temperature=2.0, seed=7, max_tokens=12, ignore_eos=True)
    free = SamplingParams(temperature=2.0, max_tokens=12, ignore_eos=True)
    prompt = [1, 2, 3]
    alone = llm.generate(prompt, seeded)[0].token_ids
    mixed = llm.generate([prompt] * 4, [free, free, seeded, free])
    assert mixed[2].token_ids == alone
    again = llm.generate([prompt] * 2, free)
    assert len({tuple(o.token_ids) for o in [*mixed, *again]}) == 6


def test_static_batch_rows_are_as_they_would_be_alone(tiny_gpt2: Path) -> None:
    """Padding shifts no position and is not attended to; an end token may occur in a prompt."""
    prompts = [[EOS], [3, EOS, 9, 9, 1, EOS, 4], list(range(30))]
    llm = LLM(tiny_gpt2, scheduler="static", max_running=3, num_blocks=64, block_size=4)
    outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=20))
    for prompt, output in zip(prompts, outputs, strict=True):
        assert output.token_ids == generate(tiny_gpt2, prompt, 20)
    recording = llm.recording
    padded = sum(sum(s.num_padded_tokens.values()) for s in recording.steps)
    assert padded >= 29 + 23, "prompts of 1 and 7 tokens are padded to 30"
    served = sum(len(r.token_times) for r in recording.requests.values())
    assert served == sum(len(o.token_ids) for o in outputs), "padding is not served to anybody"


@pytest.mark.parametrize("total", [7, 8, 9, 16, 17])
@pytest.mark.parametrize("scheduler", [ContinuousScheduler(4), ChunkedScheduler(4, 6)])
def test_no_token_is_lost_or_doubled_when_preempted_at_a_block_boundary(
    tiny_gpt2: Path, scheduler: object, total: int
) -> None:
    """A request is paused when its length is one below, at and one above a block's end."""
    import copy

    from toyserve.schedulers.base import Scheduler

    wrapped = copy.deepcopy(scheduler)
    assert isinstance(wrapped, Scheduler)
    plan_of = wrapped.schedule

    def schedule():  # type: ignore[no-untyped-def]
        plan = plan_of()
        for request in list(wrapped.running):
            if request.num_tokens == total and request.num_preemptions < 2:
                wrapped.preempt(plan, request)
        return plan

    wrapped.schedule = schedule  # type: ignore[method-assign]
    llm = LLM(tiny_gpt2, scheduler=wrapped, num_blocks=40, block_size=8, check=True)
    prompts = [[5, 6, 7], [9, 8, 7, 6, 5], list(range(20, 27))]
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    deltas: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for delta in llm.stream(prompts, params):
        deltas[delta.index] += delta.token_ids
    assert sum(r.num_preemptions for r in llm.recording.requests.values()) >= 2
    for i, prompt in enumerate(prompts):
        assert deltas[i] == generate(tiny_gpt2, prompt, 12, ignore_eos=True)
