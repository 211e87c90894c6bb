"""Lesson 01 from a clean kernel: it runs, and what it says is what it computes."""

from __future__ import annotations

from typing import Any

import pytest
from lesson_runs import assert_committed_is_today_s, printed, run_changed, run_lesson

NAME = "01_one_request"
PROBE = """
print(json.dumps({
    "forgetful": work, "kept": work_kept, "same": tokens == answer,
    "engine": loop_says == engine_says.token_ids, "solved": [solved, served],
    "saved": saved, "alone": alone, "results": results, "blocked": blocked,
    "steps": [run.num_steps, llm.recording.num_steps], "texts": [out.text for out in outputs],
    "says": says, "felt": felt, "hidden": hidden, "capacity": 1 / one,
    "office": {"mean": mean, "p50": p50, "p99": p99, "near": near},
    "you": [ttft(you), tpot(you), e2e(you), you.first_scheduled_time - you.arrival_time],
}))
"""


@pytest.fixture(scope="module")
def values() -> dict[str, Any]:
    return run_lesson(NAME, PROBE)[1]


@pytest.mark.slow
def test_the_cache_makes_the_same_tokens_from_19_positions_instead_of_124(
    values: dict[str, Any],
) -> None:
    assert values["forgetful"] == list(range(12, 20))
    assert values["kept"] == [12] + [1] * 7
    assert values["same"]
    assert values["engine"]
    assert values["steps"] == [216, 216]
    assert all(text.strip() for text in values["texts"])


@pytest.mark.slow
def test_on_a_big_gpu_the_cache_pays_only_for_long_prompts(values: dict[str, Any]) -> None:
    assert values["saved"]["12"] == pytest.approx(1, abs=0.01)
    assert values["saved"]["4000"] > 10


@pytest.mark.slow
def test_c_waits_for_a_and_b_and_only_the_order_changes_that(values: dict[str, Any]) -> None:
    alone, results = values["alone"], values["results"]
    assert results["ABC"]["C"] == pytest.approx(sum(alone.values()))
    assert values["blocked"] == pytest.approx(27, abs=1)  # what the quiz accepts
    ends = [max(order.values()) for order in results.values()]
    assert max(ends) == pytest.approx(min(ends), rel=1e-3)
    assert min(sum(order.values()) for order in results.values()) == sum(results["CAB"].values())


@pytest.mark.slow
def test_the_four_numbers_add_up(values: dict[str, Any]) -> None:
    first, per_token, whole, queue = values["you"]
    assert whole == pytest.approx(first + 4 * per_token)
    assert 0 < queue < first < whole


@pytest.mark.slow
def test_the_dashboard_hides_the_queue(values: dict[str, Any]) -> None:
    assert max(values["says"]) < 0.02
    assert values["felt"] == sorted(values["felt"])
    assert values["hidden"] > 100
    assert 2 < values["capacity"] < 3  # "fewer than three", says the quiz


@pytest.mark.slow
def test_the_mean_describes_nobody(values: dict[str, Any]) -> None:
    office = values["office"]
    assert office["p99"] > 3 * office["mean"] > 30 * office["p50"]
    assert office["near"] < 0.05


@pytest.mark.slow
def test_the_learner_s_cells_start_unsolved_and_the_lesson_goes_on(values: dict[str, Any]) -> None:
    assert values["solved"] == [False, False]


@pytest.mark.slow
def test_the_committed_outputs_are_today_s() -> None:
    assert_committed_is_today_s(NAME, run_lesson(NAME, PROBE)[0])


@pytest.mark.slow
def test_a_learner_who_solves_it_is_told_so_and_goes_on_with_the_own_code() -> None:
    forgetful = """        new, notes = token_ids, Notes()
        # ↑
        token = next_token(new, num_computed, notes)
"""
    own = """        new = token_ids[num_computed:]
        token = next_token(new, num_computed, notes)
        num_computed = len(token_ids)
"""
    nobody = "        # ↓ nobody is ever admitted\n"
    admits = """        if not self.running and self.waiting:
            self.admit(plan, self.next_waiting())
"""
    changes = {
        forgetful: own,
        nobody: admits,
        "    return record.token_times[0] - record.first_scheduled_time  # ← a fault": (
            "    times = record.token_times\n"
            "    return times[0] - record.arrival_time if times else None"
        ),
        "    return (times[-1] - times[0]) / len(times)  # ← another": (
            "    return (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else None"
        ),
    }
    notebook, last = run_changed(NAME, changes, "try_out(my_ttft, my_tpot)")
    everything = "".join(
        printed(notebook, i) for i in range(last) if "outputs" in notebook.cells[i]
    )
    assert "✓ The same tokens from 19 positions" in everything
    assert "✓ A, B, C, one after the other, and D later." in everything
    assert printed(notebook, last).count("✓") == 4
    shown = next(c for c in notebook.cells if c.source == "show_source(Mine, SequentialScheduler)")
    assert "MyServer" in shown.outputs[0].data["text/plain"]
