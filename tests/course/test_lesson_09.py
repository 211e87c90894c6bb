"""Lesson 09 from a clean kernel: it runs, and what it says is what it computes."""

from __future__ import annotations

from typing import Any

import nbformat
import pytest
from lesson_runs import assert_committed_is_today_s, printed, run_changed, run_lesson

NAME = "09_preemption"
PROBE = """
print(json.dumps({
    "chosen": chosen, "solved": solved, "E_enters": [before + 1, out], "pause": [out, back],
    "ran_again": ran_again, "equal": equal, "gpu": GPU,
    "pauses": [undisturbed["D"].metrics.num_preemptions,
               recomputed["D"].metrics.num_preemptions, swapped["D"].metrics.num_preemptions],
    "texts": [answer.text for answer in recomputed.values()],
    "moved": [real.steps[out - 1].swapped_out["D"], real.steps[back - 1].swapped_in["D"]],
    "careful": count(careful), "bold": count(bold), "crossover": crossover,
    "swap_2048": swap_time(2048), "again": again,
    "sweep": {str(m): figures[m] for m in marks}, "same": same, "holes": holes, "books": table,
    "leak": other["D"].token_ids != broken["D"].token_ids,
    "no_leak": right["D"].token_ids == recomputed["D"].token_ids,
    "here": list(here), "later": later,
}))
"""


@pytest.fixture(scope="module")
def run() -> tuple[nbformat.NotebookNode, dict[str, Any]]:
    return run_lesson(NAME, PROBE)


@pytest.fixture(scope="module")
def values(run: tuple[nbformat.NotebookNode, dict[str, Any]]) -> dict[str, Any]:
    return run[1]


@pytest.mark.slow
def test_d_pauses_for_e_and_comes_back_with_one_prefill(values: dict[str, Any]) -> None:
    assert values["E_enters"] == [48, 38]
    assert values["pause"] == [38, 46]
    assert values["ran_again"] == 17 + 37
    assert values["later"] == [8, 8]  # as many steps as E was in, and not one more


@pytest.mark.slow
def test_d_s_tokens_are_equal_with_and_without_pause(values: dict[str, Any]) -> None:
    assert values["pauses"] == [0, 1, 1]
    assert all(map(all, values["equal"].values())) or values["gpu"]
    assert set(values["equal"]) == {"recompute", "swap"}
    assert all(text.strip() for text in values["texts"])
    out, back = values["moved"]
    assert out == back
    assert len(out) == 4


@pytest.mark.slow
def test_recompute_is_cheaper_for_short_contexts_and_swap_for_long_ones(
    values: dict[str, Any],
) -> None:
    assert 200 < values["crossover"] < 400
    assert 1e3 * values["swap_2048"] == pytest.approx(2 * 2048 * 131072 / 51.2e6)
    assert values["here"] == [64, 256, 900]


@pytest.mark.slow
def test_being_bold_pays_and_the_watermark_stops_thrash(values: dict[str, Any]) -> None:
    careful, bold = values["careful"], values["bold"]
    assert careful[1] == 0 < bold[1]
    assert bold[3] > 1.3 * careful[3]
    sweep = values["sweep"]
    assert sweep["0.05"][1] < sweep["0"][1] / 3
    assert sweep["0.05"][3] > 0.98 * sweep["0"][3]
    assert sweep["0.5"][3] < 0.75 * sweep["0"][3]
    again = values["again"]
    assert again["longest"] == max(again.values())


@pytest.mark.slow
def test_the_seeded_fault_spoils_d_and_d_alone_and_leaks_what_e_wrote(
    values: dict[str, Any],
) -> None:
    assert "D" not in values["same"]
    assert set(values["same"]) == set("ABCE") or values["gpu"]
    assert values["leak"]
    assert values["no_leak"] or values["gpu"]
    assert values["books"] == [[37, 1, 53, 53], [46, 17, 17, 17], [47, 1, 18, 54], [48, 1, 19, 55]]
    assert values["holes"] == 36


@pytest.mark.slow
def test_the_learner_s_cell_starts_unsolved_and_the_lesson_goes_on(values: dict[str, Any]) -> None:
    assert values["solved"] is False
    assert values["chosen"] == ["A", "A"]


@pytest.mark.slow
def test_the_committed_outputs_are_today_s(
    run: tuple[nbformat.NotebookNode, dict[str, Any]],
) -> None:
    assert_committed_is_today_s(NAME, run[0])


@pytest.mark.slow
def test_a_learner_who_solves_it_is_told_so_and_goes_on_with_the_own_class() -> None:
    own = "        return max(reversed(running), key=lambda r: r.priority)\n        # ↑"
    notebook, end = run_changed(NAME, {"        return running[0]\n        # ↑": own}, "chosen = [")
    assert printed(notebook, end).count("✓") == 2


@pytest.mark.slow
def test_a_rule_that_ignores_who_came_last_is_told_what_is_wrong() -> None:
    own = "        return max(running, key=lambda r: r.priority)\n        # ↑"
    notebook, end = run_changed(NAME, {"        return running[0]\n        # ↑": own}, "chosen = [")
    text = printed(notebook, end)
    assert "✗ all of class 1: your victim is A (wanted: D)" in text


@pytest.mark.slow
def test_a_rule_that_ignores_urgency_is_told_what_is_wrong() -> None:
    own = "        return running[-1]\n        # ↑"
    notebook, end = run_changed(NAME, {"        return running[0]\n        # ↑": own}, "chosen = [")
    text = printed(notebook, end)
    assert "✓ all of class 1" in text
    assert "✗ B and C of class 2: your victim is D (wanted: C)" in text


@pytest.mark.slow
def test_a_class_that_fails_gets_its_error_as_a_sentence() -> None:
    own = "        return running[99]\n        # ↑"
    notebook, end = run_changed(NAME, {"        return running[0]\n        # ↑": own}, "chosen = [")
    assert "an error, IndexError" in printed(notebook, end)


@pytest.mark.slow
def test_a_learner_who_mends_the_fault_is_told_so() -> None:
    old = "num_tokens = request.num_prompt_tokens\n        return"
    read_all = {
        old: "num_tokens = None\n        return",
        "request.num_computed_tokens = request.num_tokens - 1\n        return finished\n\n\ndef": (
            "pass\n        return finished\n\n\ndef"
        ),
    }
    notebook, end = run_changed(NAME, read_all, "try_out(Mended)")
    assert printed(notebook, end).count("✓") == 2
