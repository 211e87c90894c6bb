"""Lesson 13 from a clean kernel: it runs, and what it says is what it computes."""

from __future__ import annotations

from typing import Any

import pytest
from lesson_runs import assert_committed_is_today_s, printed, run_changed, run_lesson

from toyserve.capacity import plan, requests_that_fit
from toyserve.costs import MODELS

NAME = "13_models_meet_schedulers"
PROBE = """
print(json.dumps({
    "solved": solved, "fits": fits, "weighed": weighed, "gqa": list(gqa.values()),
    "gqa_gain": gqa_gain, "drift": drift, "texts": [outs[0].text for outs in spoken.values()],
    "narrow": narrow, "small_gpu": small_gpu, "window": list(window.items()),
    "step_times": [small, moe, large], "plan": [slots, real.num_requests, now],
    "trouble": [trouble["num_preemptions"], trouble["itl_ms"]["max"], again],
    "after": [after["num_preemptions"], after["itl_ms"]["max"]],
    "refused": [run.summary()["num_refused"] for run in (live, mended)],
    "ideas": ideas, "speed_ratio": speed_ratio,
}))
"""
SOLUTION = {
    "    return 2 * m.num_layers * m.hidden * dtype_bytes(m.kv_dtype)  # 2: K and V\n": (
        "    per_layer = m.num_kv_heads * m.head_dim\n"
        "    return dtype_bytes(m.kv_dtype) * 2 * per_layer * m.num_layers\n"
    ),
    "    room = 0.9 * memory_bytes\n    return int(": (
        "    room = max(0.0, 0.9 * memory_bytes - m.weight_bytes)\n"
        "    if m.sliding_window is not None:\n"
        "        context_len = min(context_len, m.sliding_window)\n"
        "    return int("
    ),
}
MENDED = {"m.active_params * dtype_bytes(m.weight_dtype)": "m.weight_bytes"}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def values() -> dict[str, Any]:
    return run_lesson(NAME, PROBE)[1]


def test_who_fits_is_what_the_library_says(values: dict[str, Any]) -> None:
    assert values["fits"] == {
        name: requests_that_fit(name, "h100", 1024) for name in values["fits"]
    }
    assert {"gpt2", "llama-3-8b", "llama-3-70b", "mixtral-8x7b", "mistral-7b"} <= set(
        values["fits"]
    )
    assert values["weighed"] == MODELS["toy"].with_dtypes(kv="fp32").kv_bytes_per_token


def test_grouped_heads_make_room_and_hardly_one_user_s_speed(values: dict[str, Any]) -> None:
    (_, kv_32, fit_32, all_32, one_32), (_, kv_8, fit_8, all_8, one_8), _ = values["gqa"]
    assert kv_32 == 4 * kv_8 == 4 * 131_072
    assert fit_8 > 4 * fit_32
    assert all_8 > 3 * all_32
    assert 1.06 < one_8 / one_32 < 1.18  # the quiz says 12 %, give or take 6
    assert values["gqa_gain"] > 1.3


def test_the_real_model_with_fewer_bits(values: dict[str, Any]) -> None:
    drift = values["drift"]
    assert drift["fp32"] == [12, 0]
    for what in ("KV", "weights"):
        assert 0 < drift[f"{what} int8"][1] < 0.1 < drift[f"{what} int4"][1]
        assert drift[f"{what} int8"][0] > drift[f"{what} int4"][0]
    assert all(text.strip() for text in values["texts"])


def test_what_fewer_bits_buy_and_what_they_do_not(values: dict[str, Any]) -> None:
    base, kv, weights = (values["narrow"][kind] for kind in ("bf16", "KV fp8", "weights int4"))
    assert kv[0] >= 2 * base[0]
    assert kv[1] / base[1] == pytest.approx(1, abs=0.02)
    assert 2 < weights[1] / base[1] < 4
    assert weights[2] / base[2] == pytest.approx(1, abs=0.05)
    assert weights[3] == pytest.approx(base[3], rel=0.02)
    assert values["small_gpu"]["weights int4"][1] > 2 * values["small_gpu"]["bf16"][1]


def test_a_window_helps_beyond_its_length_only(values: dict[str, Any]) -> None:
    for length, (windowed, full) in values["window"]:
        assert windowed == full if length <= 4096 else windowed >= 0.9 * full * length / 4096


def test_experts_read_like_a_small_model_alone_and_a_large_one_together(
    values: dict[str, Any],
) -> None:
    small, moe, large = values["step_times"]
    assert moe[0] == pytest.approx(small[0], rel=0.02)
    assert moe[-1] == pytest.approx(large[-1], rel=0.02)
    assert moe == sorted(moe)


def test_the_planted_fault_and_its_repair(values: dict[str, Any]) -> None:
    eight_bit = MODELS["mixtral-8x7b"].with_dtypes(weight="int8")
    slots, real, now = values["plan"]
    assert real == plan(eight_bit, "h100", 1024).num_requests
    assert abs(real - 188) <= 3  # the quiz
    assert now == slots > 2 * real
    preemptions, gap, again = values["trouble"]
    assert preemptions > 50
    assert again > 0.5
    assert values["after"][0] == 0
    assert values["after"][1] < gap / 20
    assert values["refused"] == [0, 0]
    assert values["speed_ratio"] < 1  # the surprise that the prose admits


def test_the_recap_s_ratios_are_the_lesson_s(values: dict[str, Any]) -> None:
    assert (
        values["ideas"]["KV in fp8"][0]
        == values["narrow"]["KV fp8"][0] / values["narrow"]["bf16"][0]
    )
    assert values["ideas"]["weights in int4"][1] > 2 > values["ideas"]["GQA, 8 for 32 heads"][1]


def test_the_learner_s_cell_starts_unsolved_and_the_lesson_goes_on(values: dict[str, Any]) -> None:
    assert values["solved"] is False


def test_the_committed_outputs_are_today_s() -> None:
    assert_committed_is_today_s(NAME, run_lesson(NAME, PROBE)[0])


def test_a_learner_who_solves_it_is_told_so() -> None:
    notebook, end = run_changed(NAME, SOLUTION, "complaint = judge")
    assert "✓ both formulas agree" in printed(notebook, end)


def test_a_learner_who_counts_query_heads_is_told_which_model_disagrees() -> None:
    only_room = dict(list(SOLUTION.items())[1:])
    notebook, end = run_changed(NAME, only_room, "complaint = judge")
    assert "Not yet. llama-3-8b, KV in bf16: 524,288 bytes per token, wanted 131,072" in printed(
        notebook, end
    )


def test_a_mended_plan_is_told_so() -> None:
    notebook, end = run_changed(NAME, MENDED, "wanted = real.num_requests")
    assert printed(notebook, end).startswith("✓ Mixtral")
