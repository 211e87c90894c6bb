"""How many requests fit: the arithmetic by hand, and what each architecture changes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toyserve.capacity import (
    kv_bytes_per_request,
    kv_bytes_per_token,
    num_that_fit,
    plan,
    requests_that_fit,
)
from toyserve.costs import HARDWARE, MODELS


def test_a_hundred_sequences_of_500_mb_do_not_fit_beside_50_gb_of_weights():
    assert 100 * 500e6 == 50e9  # what they would need
    assert num_that_fit(80e9, 50e9, 500e6) == 60
    assert num_that_fit(40e9, 50e9, 500e6) == 0


def test_kv_bytes_are_two_times_layers_heads_dimension_and_bytes():
    assert kv_bytes_per_token("llama-3-8b") == 2 * 32 * 8 * 128 * 2
    assert kv_bytes_per_token("gpt2") == 2 * 12 * 12 * 64 * 2
    assert kv_bytes_per_token("llama-3-8b", "fp8") == 2 * 32 * 8 * 128
    assert kv_bytes_per_request("llama-3-8b", 100) == 100 * 131072
    assert kv_bytes_per_request("llama-3-8b", 100, block_size=16) == 112 * 131072


def test_a_sliding_window_caps_the_request():
    assert kv_bytes_per_request("mistral-7b", 30_000) == kv_bytes_per_request("mistral-7b", 4096)
    assert kv_bytes_per_request("mistral-7b", 4000) < kv_bytes_per_request("mistral-7b", 4096)


def test_a_plan_by_hand():
    it = plan("llama-3-8b", "h100", 2048)
    assert it.usable_bytes == 72e9
    assert it.weight_bytes == MODELS["llama-3-8b"].total_params * 2
    assert it.num_blocks == int((72e9 - it.weight_bytes) // (131072 * 16))
    assert it.num_requests == it.num_blocks // 128
    words = it.explain()
    for part in ("8.03 billion", "131,072 bytes", "4 query heads", f"fits: {it.num_requests:,} "):
        assert part in words, words


def test_grouped_heads_narrow_numbers_and_more_gpus_make_room():
    base = requests_that_fit("llama-3-8b", "h100")
    assert requests_that_fit("llama-3-8b", "h100", kv_dtype="fp8") >= 2 * base
    assert requests_that_fit("llama-3-8b", "h100", weight_dtype="int4") > base
    assert requests_that_fit("llama-3-8b", "h200") > base
    assert requests_that_fit("llama-3-8b", "h100", num_gpus=2) > 2 * base
    # 40 times as large, but with grouped heads its token is less than twice as large
    assert kv_bytes_per_token("llama-3-70b") < 1.1 * kv_bytes_per_token("gpt2-xl")


def test_weights_that_do_not_fit_leave_no_room_and_say_what_would():
    it = plan("llama-3-70b", "h100")
    assert it.num_requests == it.num_blocks == 0
    assert it.kv_memory_bytes == 0
    assert "do not fit" in it.explain()
    assert "take 2 GPUs" in it.explain()
    assert requests_that_fit("llama-3-70b", "h100", num_gpus=4) > 0


def test_all_experts_must_be_held_though_few_are_used():
    it = plan("mixtral-8x7b", "h200", 4096)
    assert it.weight_bytes == pytest.approx(93.4e9, rel=0.01)
    assert "12.9 billion" in it.explain()


def test_more_gpus_than_kv_heads_hold_a_head_several_times():
    eight, sixteen = (plan("llama-3-70b", "h100", num_gpus=n) for n in (8, 16))
    assert eight.kv_bytes_per_token == sixteen.kv_bytes_per_token


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"model": "gpt5"}, "the known ones are toy, gpt2"),
        ({"hardware": "abacus"}, "the known ones are t4"),
        ({"context_len": 9000}, "takes at most 8192"),
        ({"context_len": 0}, "context_len is 0"),
        ({"num_gpus": 3}, "32 heads cannot be cut evenly"),
        ({"num_gpus": True}, "num_gpus is True"),
        ({"kv_dtype": "fp3"}, "fp32, fp16"),
        ({"memory_utilization": 1.5}, "memory_utilization is 1.5"),
        ({"block_size": -1}, "block_size is -1"),
    ],
)
def test_bad_input_is_named(arguments, words):
    with pytest.raises(ValueError, match=words):
        plan(**{"model": "llama-3-8b", "hardware": "h100", **arguments})


@given(
    st.sampled_from(sorted(MODELS)),
    st.sampled_from(sorted(HARDWARE)),
    st.integers(1, 1024),
    st.integers(1, 64),
)
def test_what_is_planned_fits_and_one_more_does_not(model, gpu, context_len, block_size):
    it = plan(model, gpu, context_len, block_size=block_size)
    held = it.num_requests * it.kv_bytes_per_request
    assert held <= it.kv_memory_bytes * (1 + 1e-12)
    if it.kv_memory_bytes > 0:
        assert held + it.kv_bytes_per_request > it.kv_memory_bytes - it.kv_bytes_per_token * (
            block_size
        )
    assert it.explain()
