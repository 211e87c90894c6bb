"""Latency against rate, throughput against batch, the roofline: the numbers behind the lines."""

import numpy as np
import pytest
from runs import crowd, run, static

from toyserve.costs import RooflineCostModel, cost_model
from toyserve.hardware import get_hardware
from toyserve.modelspecs import get_model
from toyserve.replay import replay_work
from toyserve.schedulers import ChunkedScheduler, ContinuousScheduler
from toyserve.viz import latency_vs_rate, roofline, throughput_vs_batch
from toyserve.viz.load import knee
from toyserve.viz.roofline import step_points


def summary(p50, p95, p99):
    return {"ttft_ms": {"p50": p50, "p95": p95, "p99": p99}}


POINTS = [
    (1, summary(10, 20, 30)),
    (4, summary(11, 30, 50)),
    (2, summary(10, 25, 40)),
    (8, summary(40, 200, 400)),
]


def lines(ax):
    return {line.get_gid(): line for line in ax.get_lines() if line.get_gid()}


def test_the_knee_is_the_last_rate_before_the_limit_is_passed():
    assert knee([(1, 10), (2, 20), (3, 31), (4, 12)], 30) == 2
    assert knee([(1, 10), (2, 20)], 30) is None
    assert knee([(1, 31)], 30) is None


def test_latency_against_rate_is_sorted_and_its_knee_marked():
    (ax,) = latency_vs_rate(POINTS).axes
    drawn = lines(ax)
    assert list(drawn["p95"].get_xdata()) == [1, 2, 4, 8]
    assert list(drawn["p95"].get_ydata()) == [20, 25, 30, 200]
    assert drawn["knee"].get_xdata()[0] == 4
    assert "4 requests/s" in ax.get_title(loc="left")


def test_a_target_decides_the_knee_and_a_missed_one_is_said():
    (ax,) = latency_vs_rate(POINTS, target=0.026).axes
    assert lines(ax)["knee"].get_xdata()[0] == 2
    (ax,) = latency_vs_rate(POINTS, target=0.005).axes
    assert "past the limit already at 1" in ax.get_title(loc="left")
    (ax,) = latency_vs_rate(POINTS[:3]).axes
    assert "no knee up to 4" in ax.get_title(loc="left")


def test_recordings_can_be_points_of_latency_against_rate():
    recording = crowd(30, ContinuousScheduler(4))
    (ax,) = latency_vs_rate([(30, recording)], metric="e2e").axes
    assert lines(ax)["p99"].get_ydata()[0] == recording.summary()["e2e_ms"]["p99"]


def test_throughput_is_shown_for_all_and_for_each():
    series = [(1, 100), (8, 600), (32, 1500), (128, 2500)]
    figure = throughput_vs_batch({"modelled": series, "measured": series[:2]})
    together, each = figure.axes
    assert list(lines(together)["modelled"].get_ydata()) == [100, 600, 1500, 2500]
    assert list(lines(each)["modelled"].get_ydata()) == [100, 75, 46.875, 19.53125]
    assert list(lines(each)["measured"].get_xdata()) == [1, 8]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: latency_vs_rate([]), "no points"),
        (lambda: latency_vs_rate([(1, {})]), "no entry 'ttft_ms'"),
        (lambda: latency_vs_rate(POINTS, metric="x"), "metric is 'x'"),
        (lambda: throughput_vs_batch([]), "no points"),
        (lambda: throughput_vs_batch({str(i): [(1, 1)] for i in range(5)}), "5 series"),
        (lambda: roofline("h1000", "gpt2"), "unknown hardware 'h1000'"),
    ],
)
def test_a_wrong_argument_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_no_step_on_its_own_clock_rises_above_the_roof():
    from toyserve.clock import VirtualClock
    from toyserve.engine import Engine
    from toyserve.kv import PagedKV
    from toyserve.request import Request, SamplingParams
    from toyserve.runners import SimulatedRunner, TimedRunner

    cost, clock = cost_model("h100", "llama-3-8b"), VirtualClock()
    engine = Engine(
        scheduler=ChunkedScheduler(8, 512), kv=PagedKV(2000, 16), clock=clock,
        runner=TimedRunner(SimulatedRunner(), cost, clock),
    )  # fmt: skip
    recording = engine.run(
        Request(f"r{i}", [0] * (50 + 300 * i), SamplingParams(max_tokens=20)) for i in range(8)
    )
    gpu, model = get_hardware("h100"), get_model("llama-3-8b")
    points = step_points(cost, recording)
    assert sum(map(len, points.values())) == recording.num_steps
    assert points["decode"] and points["mixed"]
    for intensity, flops in (p for some in points.values() for p in some):
        assert flops <= 1.0001 * min(gpu.peak_flops_for("bf16"), intensity * gpu.bandwidth)
    (ax,) = roofline(gpu, model, recording).axes
    (roof,) = [line for line in ax.get_lines() if line.get_gid() == "roof"]
    assert max(roof.get_ydata()) == gpu.peak_flops_for("bf16")
    drawn = lines(ax)["decode"]
    assert np.allclose(drawn.get_xdata(), [i for i, _ in points["decode"]])


def test_padding_is_on_the_roofline_as_the_row_that_was_computed():
    recording = static()
    model = RooflineCostModel(get_hardware("t4"), get_model("gpt2"))
    positions = sum(item.num_tokens for _, work in replay_work(recording) for item in work)
    points = step_points(model, recording)
    per_step = [len(some) for some in points.values()]
    assert sum(per_step) == recording.num_steps
    assert positions > sum(sum(s.num_scheduled_tokens.values()) for s in recording.steps)


def test_a_roofline_without_a_run_is_the_roof_alone():
    (ax,) = roofline("t4", "gpt2", theme="dark").axes
    assert {"roof", "ridge"} == set(lines(ax))
    assert run(ContinuousScheduler(1), {"A": 2}).num_steps == 2
