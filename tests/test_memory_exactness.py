"""Memory under pressure on the real model: pausing, swapping and sharing change no token."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from models_for_tests import EOS, generate

from toyserve import LLM, Request, SamplingParams
from toyserve.policies import POLICIES, Quota, Quotas
from toyserve.replay import replay_memory
from toyserve.schedulers import ContinuousScheduler
from toyserve.workload import Workload, WorkloadRequest

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


def prompts_with_shared_prefixes(rng: random.Random, lens: list[int]) -> list[list[int]]:
    """Most begin with (part of) one of two long texts, as chats do with a system prompt."""
    long = [[rng.randrange(EOS) for _ in range(40)] for _ in range(2)]
    out = []
    for n in lens:
        shared = rng.choice(long)[: rng.randint(0, n)]
        out.append(shared + [rng.randrange(EOS) for _ in range(n - len(shared))])
    return out


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(data=st.data())
def test_any_memory_and_any_policy_gives_the_oracles_ids(
    tiny_gpt2: Path, data: st.DataObject
) -> None:
    draw = data.draw
    block_size = draw(st.integers(1, 6), label="block_size")
    lens = draw(st.lists(st.integers(1, 40), min_size=1, max_size=7), label="lens")
    fewest = -(-(max(lens) + 11) // block_size)
    kv = draw(st.sampled_from(["paged", "prefix", "contiguous"]), label="kv")
    swap = draw(st.booleans(), label="swap")
    chunked = draw(st.booleans(), label="chunked")
    max_running = draw(st.integers(1, 4), label="max_running")
    llm = LLM(
        tiny_gpt2,
        scheduler="chunked" if chunked else "continuous",
        token_budget=max_running + draw(st.integers(1, 9)) if chunked else None,
        kv="contiguous" if kv == "contiguous" else "paged",
        prefix_caching=kv == "prefix",
        num_blocks=fewest + draw(st.integers(0, fewest), label="spare"),
        block_size=block_size,
        max_running=max_running,
        policy=draw(st.sampled_from(list(POLICIES)), label="policy"),
        preemption="swap" if swap else "recompute",
        num_host_blocks=draw(st.integers(0, 2 * fewest)) if swap else 0,
        watermark=draw(st.sampled_from([0.0, 0.2])),
        check=True,
    )
    prompts = prompts_with_shared_prefixes(random.Random(sum(lens)), lens)
    count = len(prompts)
    users = draw(st.lists(st.sampled_from("ab"), min_size=count, max_size=count))
    classes = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    for _ in range(2 if kv == "prefix" else 1):  # the second time the prompts are in the cache
        outputs = llm.generate(prompts, GREEDY, users=users, priorities=classes)
        for prompt, output in zip(prompts, outputs, strict=True):
            assert output.token_ids == generate(tiny_gpt2, prompt, 12, ignore_eos=True)
        assert llm.kv.num_free_blocks == llm.kv.num_blocks


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_urgent_e_pauses_d_who_comes_back_with_every_token(
    tiny_gpt2: Path, preemption: str
) -> None:
    """A B C D fill the pool; E is urgent: D pauses, E runs, D resumes; nobody's tokens change."""
    llm = LLM(
        tiny_gpt2,
        scheduler="continuous",
        policy="priority",
        preemption=preemption,
        num_host_blocks=20 if preemption == "swap" else 0,
        num_blocks=20,
        block_size=4,
        max_running=5,
        clock="h100",  # a step of so small a model takes half a millisecond there
        check=True,
    )
    prompts = [[i + 1] * 8 for i in range(5)]
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    outputs = llm.generate(
        prompts, params, arrival_times=[0, 0, 0, 0, 0.0051], priorities=[1, 1, 1, 2, 0]
    )
    for prompt, output in zip(prompts, outputs, strict=True):
        assert output.token_ids == generate(tiny_gpt2, prompt, 12, ignore_eos=True)
    d, e = outputs[3].request_id, outputs[4].request_id
    paused = next(s.index for s in llm.recording.steps if d in s.preempted)
    resumed = next(s.index for s in llm.recording.steps if d in s.admitted and s.index > paused)
    assert llm.recording.steps[paused - 1].num_free_blocks == 0, "A B C D fill the pool"
    assert e in llm.recording.steps[paused].admitted
    between = llm.recording.steps[paused:resumed]
    assert between, "D resumes in a later step"
    assert all(e in s.num_scheduled_tokens for s in between)
    assert not any(d in s.num_scheduled_tokens for s in between)
    swapped = any(s.swapped_out for s in llm.recording.steps)
    assert swapped == (preemption == "swap")


def test_a_prompt_found_whole_in_the_cache_still_runs_one_token_and_answers_the_same(
    tiny_gpt2: Path,
) -> None:
    for length in (1, 7, 8, 9, 16, 17):
        llm = LLM(tiny_gpt2, prefix_caching=True, num_blocks=30, block_size=8, check=True)
        prompt = [i % EOS for i in range(length)]
        expected = generate(tiny_gpt2, prompt, 12, ignore_eos=True)
        for _ in range(2):
            (output,) = llm.generate([prompt], GREEDY)
            assert output.token_ids == expected
            assert output.metrics.num_cached_tokens <= length - 1
        # All its full blocks; if that is the whole prompt, its last token runs in a copied block.
        assert output.metrics.num_cached_tokens == min(length - 1, length // 8 * 8)


def test_logprobs_are_the_same_with_a_cache_hit_with_chunks_and_in_a_batch(tiny_gpt2: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=3)
    prompt = [i % EOS for i in range(30)]
    others = [[i] * 9 for i in range(7)]

    def logprobs(llm: LLM, prompts: list[list[int]]) -> list[float]:
        entries = llm.generate(prompts, params)[0].logprobs
        assert entries is not None
        assert len(entries) == 8
        assert all(list(e.top.values()) == sorted(e.top.values(), reverse=True) for e in entries)
        return [e.logprob for e in entries]

    alone = logprobs(LLM(tiny_gpt2, block_size=8), [prompt])
    cached = LLM(tiny_gpt2, block_size=8, prefix_caching=True)
    logprobs(cached, [prompt])
    for other in (
        logprobs(cached, [prompt]),
        logprobs(LLM(tiny_gpt2, max_running=4, token_budget=7), [prompt]),
        logprobs(LLM(tiny_gpt2, max_running=8), [prompt, *others]),
    ):
        assert other == pytest.approx(alone, abs=1e-4)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"scheduler": "static", "preemption": "swap"}, ["preemption", "static"]),
        ({"num_host_blocks": 5}, ["num_host_blocks is 5", "recompute"]),
        ({"preemption": "swap", "num_host_blocks": -1}, ["num_host_blocks", "-1"]),
        ({"preemption": "swap", "num_host_blocks": 10**12}, ["1000000000000", "host has"]),
        ({"kv": "contiguous", "prefix_caching": True}, ["prefix_caching", "contiguous"]),
        ({"watermark": 1.5}, ["watermark", "1.5"]),
    ],
    ids=str,
)
def test_impossible_memory_settings_raise_one_sentence(
    tiny_gpt2: Path, arguments: dict[str, object], words: list[str]
) -> None:
    with pytest.raises(ValueError) as error:
        LLM(tiny_gpt2, **arguments)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)


def test_a_recording_that_begins_with_a_full_cache_shows_it(tiny_gpt2: Path) -> None:
    llm = LLM(tiny_gpt2, prefix_caching=True, num_blocks=30, block_size=8, check=True)
    prompt = [i % EOS for i in range(33)]
    llm.generate([prompt], GREEDY)
    llm.generate([prompt, [EOS - 1] * 3], GREEDY)
    first_step, memory = next(replay_memory(llm.recording))
    shared = llm.recording.requests
    held = {block for block, owners in enumerate(memory.owners) if owners}
    cached = {block for block, is_cached in enumerate(memory.cached) if is_cached}
    # 44 tokens were computed: five full blocks, of which the prompt begins with four.
    assert len(cached) == 5
    assert len(cached & held) == 4
    assert max(r.num_cached_tokens for r in shared.values()) == 32
    assert first_step.num_free_blocks == 30 - len(held)


def test_memory_moves_in_the_plans_order_before_the_forward(tiny_gpt2: Path) -> None:
    """Out, copy, in: a block that one line gives up may be filled by the next."""
    llm = LLM(tiny_gpt2, preemption="swap", num_host_blocks=4, num_blocks=8, block_size=4)
    runner, calls = llm._torch_runner, []
    for name in ("swap_out", "copy_blocks", "swap_in"):
        setattr(runner.attention.pool, name, lambda pairs, name=name: calls.append(name))
    forward = runner.model.forward
    runner.model.forward = lambda *a: calls.append("forward") or forward(*a)  # type: ignore[method-assign]
    llm.generate([[1, 2, 3]], SamplingParams(temperature=0, max_tokens=1, ignore_eos=True))
    assert calls == ["swap_out", "copy_blocks", "swap_in", "forward"]


def test_one_scheduler_cannot_serve_two_engines(tiny_gpt2: Path) -> None:
    scheduler = ContinuousScheduler(4)
    LLM(tiny_gpt2, scheduler=scheduler, num_blocks=20)
    with pytest.raises(ValueError, match="already serves an engine"):
        LLM(tiny_gpt2, scheduler=scheduler, num_blocks=60)


def test_text_and_workload_prompts_are_held_to_the_models_vocabulary(tiny_gpt2: Path) -> None:
    llm = LLM(tiny_gpt2)  # 64 tokens; the tokenizer beside it knows 2,048
    with pytest.raises(ValueError, match="from 0 to 63"):
        llm.generate("ROMEO", GREEDY)
    for ids in ([99999], [-5]):
        workload = Workload("w", (WorkloadRequest("a", prompt=ids, output_len=3),))
        with pytest.raises(ValueError, match="from 0 to 63"):
            llm.replay(workload)
    assert len(llm.generate([[1, 2]], GREEDY)[0].token_ids) == 12


def test_a_quota_of_running_requests_is_used_to_the_full_and_never_exceeded(
    tiny_gpt2: Path,
) -> None:
    policy = Quotas({"ann": Quota(max_running=2)})
    llm = LLM(tiny_gpt2, policy=policy, max_running=6, check=True)
    outputs = llm.generate([[i] * 3 for i in range(8)], GREEDY, users=["ann"] * 5 + ["bob"] * 3)
    assert all(len(o.token_ids) == 12 for o in outputs)
    anns = {o.request_id for o in outputs[:5]}
    assert max(len(anns & s.num_scheduled_tokens.keys()) for s in llm.recording.steps) == 2


def test_waiting_for_a_token_quota_moves_the_clock_late_in_a_long_run() -> None:
    now = 1e5  # seconds; neighbouring floats are 1.5e-11 apart there
    policy = Quotas({"default": Quota(tokens_per_second=1e6, burst=3)})
    request = Request("r", [1, 2, 3])
    assert policy.next([request], now) is request
    policy.on_admit(request, now)  # its three prompt tokens use the allowance up to the last
    assert policy.next([Request("s", [1])], now) is None
    ready = policy.ready_time(now)
    assert ready is not None
    assert ready > now
    assert policy.next([Request("s", [1])], ready) is not None


@pytest.mark.parametrize(("arrival", "starts"), [(0.3, 0.3), (0.9, 0.5)])
def test_a_static_batch_waits_to_fill_but_not_beyond_its_window(
    tiny_gpt2: Path, arrival: float, starts: float
) -> None:
    llm = LLM(tiny_gpt2, scheduler="static", max_running=2, max_wait=0.5, clock="t4")
    outputs = llm.generate([[1], [2]], GREEDY, arrival_times=[0.0, arrival])
    assert outputs[0].metrics.queue_time == pytest.approx(starts)
