"""Lesson 10 from a clean kernel: it runs, and what it says is what it computes."""

from __future__ import annotations

from typing import Any

import nbformat
import pytest
from lesson_runs import assert_committed_is_today_s, printed, run_changed, run_lesson

NAME = "10_fairness"
PROBE = """
print(json.dumps({
    "long_wait": long_wait / own_time, "steps": four_long.num_steps,
    "steps_waited": list(steps_waited.values()), "solved": solved, "apart": comparison.step,
    "ann_gain": ann_gain, "bob_pays": bob_pays, "served": served,
    "jain": {name: jain_index(pair) for name, pair in served.items()},
    "same": same, "cuda": torch.cuda.is_available(),
    "texts": [out.text for name, out in taken.items()],
    "orders": [[r for step in run.steps for r in step.admitted] for run in (told_run, taken_run)],
    "silences": silences, "mended": mended, "means": means, "low_waits": low_waits,
    "kept": kept, "night": night_price, "longest": longest,
    "table": {n: [mean(waits(r, u)) for u in USERS] for n, r in every.items()},
    "pauses": {n: r.summary()["num_preemptions"] for n, r in every.items()},
}))
"""


@pytest.fixture(scope="module")
def run() -> tuple[nbformat.NotebookNode, dict[str, Any]]:
    return run_lesson(NAME, PROBE)


@pytest.fixture(scope="module")
def values(run: tuple[nbformat.NotebookNode, dict[str, Any]]) -> dict[str, Any]:
    return run[1]


@pytest.mark.slow
def test_ten_tokens_against_ten_thousand(values: dict[str, Any]) -> None:
    assert values["steps"] == 10_010
    assert values["long_wait"] > 1000
    assert values["steps_waited"] == [0, 9918, 9918, 0]  # the order of a queue frees no slot


@pytest.mark.slow
def test_the_counter_helps_the_light_user_and_the_heavy_one_pays(values: dict[str, Any]) -> None:
    assert values["ann_gain"] > 4
    assert 1 < values["bob_pays"] < 3
    assert values["apart"] is not None


@pytest.mark.slow
def test_fair_is_not_the_same_number_of_requests_and_shortest_first_is_not_fair(
    values: dict[str, Any],
) -> None:
    ann, bob = values["served"]["round robin"]
    assert ann / bob == pytest.approx(8, rel=0.1)
    jain = values["jain"]
    assert jain["counter"] > 0.97
    assert jain["round robin"] < 0.7
    assert jain["shortest first"] == pytest.approx(0.5)
    means = values["means"]
    assert means["knows the truth"] == min(means.values())
    assert means["everybody declares 256"] == means["FCFS"]


@pytest.mark.slow
def test_the_real_model_says_the_same_in_another_order(values: dict[str, Any]) -> None:
    assert values["same"] == 9 or values["cuda"]
    assert all(text.strip() for text in values["texts"])
    told, taken = values["orders"]
    assert sorted(told) == sorted(taken)
    assert told[-3:] == ["ann-JULIET", "ann-VIOLA", "ann-PORTIA"]
    assert taken.index("ann-PORTIA") < 5


@pytest.mark.slow
def test_without_the_lift_whoever_stayed_starves(values: dict[str, Any]) -> None:
    naive, lifted = values["silences"]
    assert naive > 3
    assert lifted < 0.5
    assert values["mended"] is False  # the learner's cell starts unmended


@pytest.mark.slow
def test_aging_bounds_the_wait_that_strict_priority_does_not(values: dict[str, Any]) -> None:
    *aged, strict = values["low_waits"]
    for aging, wait in zip((0.25, 0.5, 1.0, 2.0), aged, strict=True):
        assert aging < wait < 2 * aging + 0.6
    assert strict > 2 * max(aged)


@pytest.mark.slow
def test_deadlines_help_below_capacity_and_harm_above(values: dict[str, Any]) -> None:
    fcfs, edf = values["kept"]["FCFS"], values["kept"]["earliest deadline"]
    assert edf[1] > fcfs[1] + 10
    assert edf[-2] < fcfs[-2]


@pytest.mark.slow
def test_somebody_pays_for_every_policy(values: dict[str, Any]) -> None:
    table = values["table"]
    base = table["FCFS"]
    for name, row in table.items():
        if name != "FCFS":
            assert row[0] < base[0], name  # Ann gains
            assert any(mine > before for mine, before in zip(row, base, strict=True)), name
    assert min(values["longest"], key=values["longest"].get) == "FCFS"
    assert values["night"] > 1.8
    assert {n for n, count in values["pauses"].items() if count} == {
        "strict priority",
        "priority, aging 2 s",
    }


@pytest.mark.slow
def test_the_learner_s_cell_starts_unsolved_and_the_lesson_goes_on(values: dict[str, Any]) -> None:
    assert values["solved"] is False


@pytest.mark.slow
def test_the_committed_outputs_are_today_s(
    run: tuple[nbformat.NotebookNode, dict[str, Any]],
) -> None:
    assert_committed_is_today_s(NAME, run[0])


SOLVED = {
    "        return waiting[0]\n        # ↑": (
        "        return min(waiting, key=lambda r: self.points(r.user))\n        # ↑"
    ),
    "        pass\n        # ↑": (
        "        for request in requests:\n            self.charge(request.user, 2)\n        # ↑"
    ),
}


@pytest.mark.slow
def test_a_learner_who_solves_it_is_told_so() -> None:
    notebook, end = run_changed(NAME, SOLVED, "policy = MyCounter()")
    text = printed(notebook, end)
    assert text.count("✓") == 2
    assert "Not yet" not in text


@pytest.mark.slow
def test_a_counter_that_is_never_read_is_told_what_is_wrong() -> None:
    half = dict(list(SOLVED.items())[1:])
    notebook, end = run_changed(NAME, half, "policy = MyCounter()")
    text = printed(notebook, end)
    assert "✓ counters at the end" in text
    assert "✗ tokens in the first 1.5 s: ann 980, bob 0" in text


@pytest.mark.slow
def test_a_learner_who_lifts_the_counter_is_told_so_and_lowering_it_is_not_enough() -> None:
    hole = "            pass  # ← yours: lift self.counters[request.user]"
    lift = "            self.counters[request.user] = max(self.points(request.user), min(others))"
    notebook, end = run_changed(NAME, SOLVED | {hole: lift}, "mended = try_out(Mended)")
    assert printed(notebook, end).count("✓") == 2
    lower = "            self.counters[request.user] = min(others)"
    notebook, end = run_changed(NAME, SOLVED | {hole: lower}, "mended = try_out(Mended)")
    assert "✗ Ann has 500; Bob comes with 100 or 900: [500, 500]" in printed(notebook, end)
