"""Lesson 03 from a clean kernel: it runs, and what it says is what it computes."""

from __future__ import annotations

from typing import Any

import pytest
from lesson_runs import assert_committed_is_today_s, printed, run_changed, run_lesson

from toyserve.course.quiz import load_question

NAME = "03_static_batching"
PROBE = """
print(json.dumps({
    "steps": [alone.num_steps, batch.num_steps], "holes": sum(padded(batch)), "solved": solved,
    "wasted": 1 - useful / places, "faster": faster, "fewer": fewer, "pair": hole,
    "table": step_table(batch, [8, 9, 10, 11, 60, 61, 100]).splitlines(),
    "prompt_price": prompt_price, "row_price": row_price, "equal": equal,
    "texts": [out.text for out in answers[1]],
    "saved": saved, "later": later, "sooner": sooner, "waits": waits, "here": here,
    "dearer": dearer, "gain32": gain32, "wasted32": wasted32, "found": found,
    "lengths": [len(p) for p in prompts], "mended_by_you": mended_by_you,
}))
"""


@pytest.fixture(scope="module")
def values() -> dict[str, Any]:
    return run_lesson(NAME, PROBE)[1]


@pytest.mark.slow
def test_the_syllabus_numbers(values: dict[str, Any]) -> None:
    assert values["steps"] == [178, 100]
    assert values["table"] == [
        "step   8: A B C D",
        "step   9: A B C -",
        "step  10: A B C -",
        "step  11: A - C -",
        "step  60: A - C -",
        "step  61: A - - -",
        "step 100: A - - -",
    ]
    assert values["wasted"] == pytest.approx(222 / 400)
    assert values["holes"] == 222
    assert load_question("03.steps").answer == values["steps"][1]
    assert load_question("03.wasted").judge(100 * values["wasted"]).right
    assert values["pair"] == pytest.approx(770 / 1600)


@pytest.mark.slow
def test_padding_costs_time_in_a_prompt_and_a_place_in_a_decode(values: dict[str, Any]) -> None:
    assert values["prompt_price"] > 5
    assert values["row_price"] < 1.02
    assert values["faster"] == pytest.approx(values["fewer"], rel=0.02)
    assert values["faster"] < 4


@pytest.mark.slow
def test_to_wait_or_to_run(values: dict[str, Any]) -> None:
    assert values["saved"] > 1.5
    assert values["later"] > 3
    assert min(values["sooner"]) > 1.05
    overrun = [v[1] for v in values["waits"]["60"].values()]
    assert max(overrun) < 1.05 * min(overrun)  # nobody ever waits, the GPU works as before
    assert values["dearer"] > 4


@pytest.mark.slow
def test_a_bigger_batch_is_not_always_better(values: dict[str, Any]) -> None:
    assert 1 < values["gain32"] < 16
    assert values["wasted32"] > 0.5


@pytest.mark.slow
def test_the_real_model_answers_the_same_in_a_batch(values: dict[str, Any]) -> None:
    assert values["equal"] == 4
    assert all(text.strip() for text in values["texts"])
    assert values["here"] > 0


@pytest.mark.slow
def test_the_seeded_faults_break_every_row_but_the_longest(values: dict[str, Any]) -> None:
    both, no_positions, no_mask = values["found"].values()
    assert all(both.values())
    for broken in (no_positions, no_mask):
        assert broken == {"A": False, "B": False, "C": True, "D": False}
    lengths = values["lengths"]
    assert load_question("03.murder").answer == max(lengths) == lengths[2]


@pytest.mark.slow
def test_the_learner_s_cells_start_unsolved_and_the_lesson_goes_on(values: dict[str, Any]) -> None:
    assert values["solved"] is False
    assert values["mended_by_you"] is False


@pytest.mark.slow
def test_the_committed_outputs_are_today_s() -> None:
    assert_committed_is_today_s(NAME, run_lesson(NAME, PROBE)[0])


FILL = """            if self.waiting:
                self.admit(plan, self.next_waiting())
"""
GO_ON = """                self.run(plan, request, 1)
            # ↑
"""
FILL_ALL = """            for _ in range(min(self.max_running, len(self.waiting))):
                self.admit(plan, self.next_waiting())
"""
GO_ON_PADDED = """                if request in self.running:
                    self.run(plan, request, 1)
                else:
                    plan.num_padded_tokens[request] = 1
            # ↑
"""


@pytest.mark.slow
def test_a_learner_who_solves_it_is_told_so_and_who_is_half_way_what_is_missing() -> None:
    notebook, end = run_changed(NAME, {FILL: FILL_ALL, GO_ON: GO_ON_PADDED}, "def try_out(cls)")
    assert "✓ four start together" in printed(notebook, end)
    notebook, end = run_changed(NAME, {FILL: FILL_ALL}, "def try_out(cls)")
    assert "Not yet: " in printed(notebook, end)
    notebook, end = run_changed(
        NAME, {FILL: FILL_ALL, GO_ON: "                pass\n"}, "def try_out"
    )
    assert "Not yet: " in printed(notebook, end)
