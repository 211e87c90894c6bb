"""Lesson 11 from a clean kernel: it runs, and what it says is what it computes."""

from __future__ import annotations

from typing import Any

import pytest
from lesson_runs import assert_committed_is_today_s, printed, run_changed, run_lesson

from toyserve.course.quiz import load_question

NAME = "11_latency_under_load"
PROBE = """
print(json.dumps({
    "edge": edge, "knee": seen, "solved": solved, "mended_by_you": mended_by_you,
    "queue": [first, last], "good": list(good.values()), "dollars": list(dollars.values()),
    "best": RATES.index(best), "mean": mean, "tail": tail, "below": below,
    "lift": lift, "worse": worse, "growth": growth, "modelled": medians[1] / medians[0],
    "hidden": hidden, "steps": token_p99 / step_p99, "optimism": optimism,
    "bisections": [try_out(my_bisect), try_out(bisect)],
}))
"""


@pytest.fixture(scope="module")
def values() -> dict[str, Any]:
    return run_lesson(NAME, PROBE)[1]


@pytest.mark.slow
def test_the_knee_is_within_ten_per_cent_of_the_rate_found_by_bisection(
    values: dict[str, Any],
) -> None:
    assert values["knee"] == pytest.approx(values["edge"], rel=0.10)
    assert 4 < values["edge"] < 40


@pytest.mark.slow
def test_past_the_edge_the_queue_grows_and_goodput_collapses(values: dict[str, Any]) -> None:
    first, last = values["queue"]
    assert last > 3 * first
    good, best = values["good"], values["best"]
    assert 0 < best < len(good) - 1
    assert good[-1] < 0.6 * good[best]
    assert values["dollars"][0] > 3 * values["dollars"][best]


@pytest.mark.slow
def test_averages_and_throughput_hide_the_tail(values: dict[str, Any]) -> None:
    assert values["tail"] > 4 * values["mean"]
    assert values["below"] > 0.6
    assert load_question("11.average").judge(values["tail"] / values["mean"]).right
    assert values["lift"] > 1.02
    assert values["worse"] > 2


@pytest.mark.slow
def test_the_seeded_faults_hide_what_they_say(values: dict[str, Any]) -> None:
    assert values["hidden"] > 20  # timed from the first schedule
    assert values["steps"] > 5  # p99 over steps
    assert values["optimism"] > 5  # closed loop


@pytest.mark.slow
def test_both_clocks_drown_past_capacity(values: dict[str, Any]) -> None:
    assert values["modelled"] > 2
    assert values["growth"] > 0


@pytest.mark.slow
def test_the_learner_s_cells_start_unsolved_and_the_lesson_goes_on(values: dict[str, Any]) -> None:
    assert values["solved"] is False
    assert values["mended_by_you"] is False
    told, nothing = values["bisections"]
    assert "says 4" in told
    assert nothing is None


@pytest.mark.slow
def test_the_committed_outputs_are_today_s() -> None:
    assert_committed_is_today_s(NAME, run_lesson(NAME, PROBE)[0])


OWN = """        middle = (low + high) / 2
        if meets(middle):
            low = middle
        else:
            high = middle
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("own", "said"),
    [
        (OWN, "✓ it finds the edge"),
        (OWN.replace("if meets", "if not meets"), "Not yet: with the edge at"),
        (OWN.replace("high = middle", "high = high"), "Not yet: it asked 40 times"),
    ],
    ids=["right", "the wrong half", "never ends"],
)
def test_a_learner_is_told_whether_it_is_right(own: str, said: str) -> None:
    notebook, end = run_changed(NAME, {"        break\n": own}, "def try_out(bisect)")
    assert said in printed(notebook, end)
