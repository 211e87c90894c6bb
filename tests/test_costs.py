"""The roofline: bytes and FLOPs of a step by hand, its limits, and the fit to measured steps."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toyserve.costs import (
    HARDWARE,
    MODELS,
    HardwareSpec,
    ModelSpec,
    RooflineCostModel,
    StepSample,
    StepShape,
    cost_model,
    fit_cost_model,
    get_hardware,
    get_model,
)
from toyserve.fitted import features_of, nonnegative_least_squares
from toyserve.request import Request, SamplingParams
from toyserve.schedulers.output import SchedulerOutput


def request(num_prompt: int, num_computed: int = 0) -> Request:
    made = Request(f"p{num_prompt}c{num_computed}", [1] * num_prompt, SamplingParams(max_tokens=8))
    made.num_computed_tokens = num_computed
    return made


# A machine and a model with numbers that can be multiplied in the head.
ROUND = HardwareSpec("round", 1e9, 1000.0, {"fp32": 1e6, "fp16": 2e6}, 0.5, 100.0)
TINY = ModelSpec(
    "tiny", 2, 4, 2, 1, 2, 8, 10, 64, gated_mlp=False, weight_dtype="fp16", kv_dtype="fp16"
)
BOUND = RooflineCostModel(
    ROUND, TINY, memory_efficiency=1, linear_efficiency=1, attention_efficiency=1
)


def test_a_step_by_hand():
    # per layer: Q and O 4x4, K and V 4x2 = 48; MLP 2 x 4 x 8 = 64; head 10 x 4 = 40
    assert TINY.attention_params == 48
    assert TINY.expert_params == 64
    assert TINY.total_params == 2 * 112 + 2 * 40
    assert TINY.kv_bytes_per_token == 2 * 2 * 1 * 2 * 2
    # one decode with 9 computed, one prompt of 3: 4 positions, 2 rows
    plan = SchedulerOutput({request(9, 9): 1, request(3): 3})
    shape = StepShape.of_plan(plan)
    assert shape == StepShape(4, 1, 10, 1, 3, 6)
    bill = BOUND.breakdown(plan)
    assert bill.linear.num_bytes == pytest.approx((2 * 112 + 40) * 2)
    assert bill.linear.num_flops == 2 * (4 * 224 + 2 * 40)
    assert bill.attention.num_bytes == (10 + 3) * 16
    assert bill.attention.num_flops == (10 + 6) * 4 * 2 * 2 * 2
    assert bill.linear.time == pytest.approx(0.528)
    assert bill.linear.bound == "memory"
    assert bill.attention.time == pytest.approx(0.208)
    assert bill.time == pytest.approx(0.5 + 0.528 + 0.208)
    assert BOUND.step_time(plan) == pytest.approx(bill.time)


def test_padding_is_computed_and_charged():
    short, long = request(3), request(7)
    padded = SchedulerOutput({short: 3, long: 7}, {short: 4})
    assert StepShape.of_plan(padded) == StepShape.of_rows([(0, 7), (0, 7)])
    finished = request(5, 5)
    idle = SchedulerOutput({request(9, 9): 1}, {finished: 1})
    assert StepShape.of_plan(idle) == StepShape.of_rows([(9, 1), (5, 1)])


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 40)), max_size=8),
    st.one_of(st.none(), st.integers(1, 30)),
)
def test_shapes_equal_counting_one_by_one(rows, window):
    limit = window or 10**9
    shape = StepShape.of_rows(rows, window)
    pairs = [sum(min(c + i + 1, limit) for i in range(n)) for c, n in rows]
    assert shape.num_tokens == sum(n for _, n in rows)
    assert shape.prefill_pairs == sum(p for p, (_, n) in zip(pairs, rows, strict=True) if n > 1)
    assert shape.decode_context == sum(p for p, (_, n) in zip(pairs, rows, strict=True) if n == 1)
    requests = {Request(f"r{i}", [1] * 100): row for i, row in enumerate(rows)}
    for made, (context, _) in requests.items():
        made.num_computed_tokens = context
    plan = SchedulerOutput({made: n for made, (_, n) in requests.items()})
    assert StepShape.of_plan(plan, window) == shape


@given(
    st.sampled_from(sorted(HARDWARE)),
    st.sampled_from(sorted(MODELS)),
    st.lists(st.tuples(st.integers(0, 900), st.integers(1, 300)), min_size=1, max_size=6),
)
def test_step_time_is_the_sum_of_its_breakdown_and_never_shrinks_with_more_work(gpu, model, rows):
    cost = cost_model(gpu, model)
    shape = StepShape.of_rows(rows, cost.model.sliding_window)
    assert cost.time_of(shape) == pytest.approx(cost.breakdown(shape).time)
    assert cost.time_of_rows([*rows, (10, 1)]) >= cost.time_of_rows(rows)
    assert cost.time_of_rows(rows) >= cost.hardware.launch_time


def test_an_empty_step_costs_nothing():
    assert BOUND.step_time(SchedulerOutput()) == 0
    assert BOUND.breakdown(SchedulerOutput()).time == 0


def test_batching_raises_the_total_and_lowers_each_share():
    cost = cost_model("h100", "llama-3-8b")
    both = [cost.decode_throughput(batch, 1024) for batch in (1, 8, 32, 128)]
    totals, each = zip(*both, strict=True)
    assert list(totals) == sorted(totals)
    assert list(each) == sorted(each, reverse=True)
    assert 100 < totals[0] < 200  # tokens per second, one user
    assert 5 < totals[1] / totals[0] <= 8


def test_decode_is_bound_by_memory_and_a_long_prompt_by_arithmetic():
    cost = cost_model("h100", "llama-3-8b")
    assert cost.breakdown(StepShape.of_rows([(1000, 1)] * 8)).bound == "memory"
    prefill = cost.breakdown(StepShape.of_rows([(0, 4000)]))
    assert prefill.linear.bound == prefill.attention.bound == "compute"
    assert prefill.linear.intensity > cost.hardware.ridge("bf16")
    assert cost_model("h100", "toy").breakdown(StepShape.of_rows([(10, 1)])).bound == "launch"


def test_published_parameter_counts():
    published = {  # billions, from the model cards
        "gpt2": 0.124,
        "gpt2-xl": 1.56,
        "llama-3-8b": 8.03,
        "llama-3-70b": 70.6,
        "mistral-7b": 7.24,
        "mixtral-8x7b": 46.7,
    }
    for name, billions in published.items():
        assert get_model(name).total_params / 1e9 == pytest.approx(billions, rel=0.01), name
    assert get_model("mixtral-8x7b").active_params / 1e9 == pytest.approx(12.9, rel=0.01)


def test_experts_few_tokens_read_few_of_them_many_read_all():
    cost = cost_model("h100", "mixtral-8x7b")

    def linear_bytes(batch):
        return cost.breakdown(StepShape.of_rows([(100, 1)] * batch)).linear.num_bytes

    embedding = cost.model.head_params * 2
    assert linear_bytes(1) == pytest.approx(cost.model.active_params * 2 - embedding, rel=1e-3)
    assert linear_bytes(200) == pytest.approx(cost.model.weight_bytes - embedding, rel=1e-3)


def test_a_sliding_window_bounds_what_a_decode_reads():
    cost = cost_model("h100", "mistral-7b")
    assert cost.decode_time(32, 30_000) == cost.decode_time(32, 4095)
    assert cost.decode_time(32, 4000) < cost.decode_time(32, 4095)


def test_narrow_weights_decode_faster_and_more_gpus_too():
    plain = cost_model("h100", "llama-3-8b")
    narrow = cost_model("h100", plain.model.with_dtypes(weight="int4"))
    assert narrow.decode_time(1, 100) < plain.decode_time(1, 100) / 2
    two = dataclasses.replace(plain, num_gpus=2)
    assert two.decode_time(1, 100) < plain.decode_time(1, 100)


def test_a_type_without_a_unit_runs_at_the_next_wider_rate():
    t4, laptop = get_hardware("t4"), get_hardware("laptop")
    assert t4.peak_flops_for("bf16") == t4.peak_flops["fp16"]
    assert get_hardware("a100").peak_flops_for("fp8") == 312e12
    assert laptop.peak_flops_for("int4") == laptop.peak_flops["fp32"]
    assert cost_model("laptop", "toy").model.weight_dtype == "fp32"


def test_swap_time_is_bytes_over_pcie():
    assert BOUND.swap_time(250) == pytest.approx(2.5)


def test_swapped_kv_is_charged_to_the_step_that_moves_it():
    work = {request(9, 9): 1}
    plain = BOUND.step_time(SchedulerOutput(dict(work)))
    victim, back = request(25, 25), request(50, 50)
    out = SchedulerOutput(dict(work), swapped_out={victim: [(0, 0)]})
    both = SchedulerOutput(dict(work), swapped_out={victim: [(0, 0)]}, swapped_in={back: [(1, 1)]})
    assert BOUND.step_time(out) - plain == pytest.approx(25 * 16 / 100)
    assert BOUND.step_time(both) - plain == pytest.approx(75 * 16 / 100)
    # a step may do nothing else
    assert BOUND.step_time(SchedulerOutput(swapped_out={victim: []})) == pytest.approx(4)


def test_names_in_any_case_and_specs_pass_through():
    assert get_hardware("H100") is get_hardware("h100-sxm") is get_hardware(HARDWARE["h100"])
    assert get_model("Llama-3-8B") is MODELS["llama-3-8b"]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: get_hardware("b9000"), "t4, l4, a100, h100, h200, laptop"),
        (lambda: get_model("gpt5"), "toy, gpt2"),
        (lambda: get_model("toy").with_dtypes(weight="fp7"), "fp32, fp16, bf16"),
        (lambda: dataclasses.replace(TINY, num_layers=0), "num_layers is 0"),
        (lambda: dataclasses.replace(TINY, num_kv_heads=3), "3 KV heads"),
        (lambda: dataclasses.replace(TINY, experts_per_token=2), "2 experts"),
        (lambda: dataclasses.replace(ROUND, bandwidth=0), "bandwidth is 0"),
        (lambda: dataclasses.replace(ROUND, bandwidth=float("nan")), "bandwidth is nan"),
        (lambda: dataclasses.replace(ROUND, peak_flops={"fp16": 1.0}), "no 'fp32'"),
        (lambda: dataclasses.replace(BOUND, memory_efficiency=1.5), "memory_efficiency is 1.5"),
        (lambda: dataclasses.replace(BOUND, num_gpus=0), "num_gpus is 0"),
        (lambda: dataclasses.replace(BOUND, launch_time=-1), "launch_time is -1"),
        (lambda: BOUND.decode_throughput(0, 5), "batch_size is 0"),
        (lambda: ModelSpec.from_gpt2_config({"n_embd": 8}), "n_head"),
    ],
)
def test_bad_numbers_are_named(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_gpt2_configuration_with_and_without_an_inner_width():
    config = {"n_embd": 768, "n_head": 12, "n_layer": 12, "vocab_size": 50257, "n_positions": 1024}
    spec = ModelSpec.from_gpt2_config({**config, "n_inner": None})
    assert (spec.intermediate, spec.head_dim, spec.weight_dtype) == (3072, 64, "fp32")
    assert ModelSpec.from_gpt2_config({**config, "n_inner": 100}).intermediate == 100
    assert spec.total_params == get_model("gpt2").total_params


# -- the fit --------------------------------------------------------------------------------------


def random_shapes(n, seed=0):
    rng = np.random.default_rng(seed)
    shapes = []
    for i in range(n):
        decodes = [(int(c), 1) for c in rng.integers(1, 800, rng.integers(1, 40))]
        prompts = [(0, int(k)) for k in rng.integers(2, 300, rng.integers(1, 4))]
        shapes.append(StepShape.of_rows((decodes, prompts, decodes + prompts)[i % 3]))
    return shapes


def test_a_fit_recovers_a_roofline_in_every_phase():
    truth = cost_model("laptop", "gpt2")
    samples = [StepSample(s, truth.time_of(s)) for s in random_shapes(300)]
    fitted = fit_cost_model(samples)
    assert set(fitted.errors) == {"prefill", "decode", "mixed"}
    assert sum(e.num_samples for e in fitted.errors.values()) == 75
    for phase, error in fitted.errors.items():
        assert error.median < 0.05, (phase, fitted.explain())
    assert "not used for the fit" in fitted.explain()


def test_a_fit_with_noise_finds_the_prices_and_states_the_noise_as_its_error():
    rng = np.random.default_rng(1)
    samples = [
        StepSample(s, (1e-3 + 2e-5 * s.num_tokens) * rng.uniform(0.9, 1.1))
        for s in random_shapes(400)
    ]
    fitted = fit_cost_model(samples)
    assert all(price >= 0 for price in fitted.prices)
    assert fitted.time_of(StepShape.of_rows([(0, 200)])) == pytest.approx(5e-3, rel=0.1)
    for error in fitted.errors.values():
        assert 0.03 < error.median < 0.08
        assert abs(error.bias) < 0.05


def test_a_fitted_model_prices_a_plan_like_any_cost_model():
    fitted = fit_cost_model([StepSample(s, 1e-3) for s in random_shapes(40)])
    plan = SchedulerOutput({request(9, 9): 1})
    assert fitted.step_time(plan) == pytest.approx(1e-3, rel=1e-3)
    assert fitted.step_time(SchedulerOutput()) == 0
    assert len(fitted.prices) == len(features_of(StepShape.of_rows([(1, 1)])))


def test_too_few_or_impossible_samples_are_refused():
    shape = StepShape.of_rows([(1, 1)])
    with pytest.raises(ValueError, match="3 measured steps are too few"):
        fit_cost_model([StepSample(shape, 1.0)] * 3)
    with pytest.raises(ValueError, match=r"took 0\.0 s"):
        StepSample(shape, 0.0)
    with pytest.raises(ValueError, match="held_out is 1"):
        fit_cost_model([StepSample(shape, 1.0)] * 9, held_out=1)


@settings(max_examples=50)
@given(st.integers(1, 6), st.integers(0, 10_000))
def test_nonnegative_least_squares_is_the_best_of_all_subsets(k, seed):
    rng = np.random.default_rng(seed)
    matrix, target = rng.normal(size=(12, k)), rng.normal(size=12)
    x = nonnegative_least_squares(matrix, target)
    assert (x >= 0).all()
    best = np.linalg.norm(target)
    for subset in range(1, 2**k):
        chosen = [i for i in range(k) if subset >> i & 1]
        solution = np.linalg.lstsq(matrix[:, chosen], target, rcond=None)[0]
        if (solution >= 0).all():
            best = min(best, np.linalg.norm(target - matrix[:, chosen] @ solution))
    assert np.linalg.norm(target - matrix @ x) <= best + 1e-9
