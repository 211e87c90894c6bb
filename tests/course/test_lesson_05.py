"""Lesson 05 from a clean kernel: it runs, and what it says is what it computes."""

from __future__ import annotations

from typing import Any

import pytest
from lesson_runs import assert_committed_is_today_s, printed, run_changed, run_lesson

from toyserve.course.quiz import load_question

NAME = "05_chunked_prefill"
PROBE = """
print(json.dumps({
    "two": [g.count(2), g.index(2) + 1, last], "chunks": chunks, "solved": solved,
    "whole": before, "sides": table, "sweep": sweep, "lonely": lonely, "triangle": triangle,
    "best_for": best_for, "equal": equal, "steps": steps, "gpu": gpu, "here": here,
    "texts": [answers[0], answers[1], right], "lost": broken_chunks,
    "repairs": [read_tokens(cls, n) for cls in (MendedChunks, ChunkedScheduler) for n in (6, 3)],
    "starved": stood / smooth, "bend": [flat, double],
}))
"""


@pytest.fixture(scope="module")
def values() -> dict[str, Any]:
    return run_lesson(NAME, PROBE)[1]


@pytest.mark.slow
def test_the_syllabus_numbers(values: dict[str, Any]) -> None:
    assert values["two"] == [50, 2, 51]  # fifty steps of two tokens, beside six decodes
    assert values["chunks"] == [256, 256, 256, 232]
    assert load_question("05.two-tokens").answer == values["two"][0]
    assert load_question("05.last-chunk").answer == values["chunks"][-1]


@pytest.mark.slow
def test_mixing_saves_the_streams_and_the_document_pays_little(values: dict[str, Any]) -> None:
    gap, document = 1, 3
    sides = values["sides"]
    mixed, prefill, decode = sides["mixed, 512"], sides["AllPrefill"], sides["AllDecode"]
    assert prefill[gap] > 50 * mixed[gap]
    assert decode[gap] < mixed[gap]
    assert prefill[document] < mixed[document] < 1.15 * prefill[document]
    assert decode[document] > 2 * prefill[document]
    assert values["whole"][gap] == pytest.approx(prefill[gap], rel=0.01)
    price = load_question("05.price").judge(mixed[document] / prefill[document])
    assert price.right


@pytest.mark.slow
def test_the_two_misconceptions_are_measured(values: dict[str, Any]) -> None:
    done, document, speed = 2, 3, 4
    small, whole, tiny = (values["sweep"][n] for n in ("256", "65536", "64"))
    assert small[done] < whole[done]
    assert small[document] > whole[document]
    assert small[speed] > max(whole[speed], tiny[speed])
    lonely = list(values["lonely"].values())
    assert lonely == sorted(lonely, reverse=True)  # alone, every smaller budget is slower
    assert lonely[0] > 2 * lonely[-1]


@pytest.mark.slow
def test_no_budget_is_best_for_all_three(values: dict[str, Any]) -> None:
    ttft, tpot, throughput = values["best_for"]
    assert tpot < min(ttft, throughput)
    assert values["bend"][0] < 1.2
    assert values["bend"][1] > 1.8


@pytest.mark.slow
def test_the_real_model_says_the_same_in_chunks(values: dict[str, Any]) -> None:
    assert values["equal"] == 7
    assert list(values["steps"].values()) == [[600], [64] * 9 + [24]]
    for whole, chunked, later in (values["gpu"], values["here"]):
        assert whole > 1
        assert chunked > 0.9
        assert later > 0
    assert values["gpu"][0] > values["gpu"][1]
    assert values["gpu"][2] > 1


@pytest.mark.slow
def test_the_seeded_faults_cost_what_they_say(values: dict[str, Any]) -> None:
    assert values["lost"] == [58] * 9 + [24]
    assert load_question("05.lost").answer == sum(values["lost"])
    first, second, right = values["texts"]
    assert right not in (first, second)
    assert values["repairs"] == [546, 573, 600, 600]
    assert values["starved"] > 20


@pytest.mark.slow
def test_the_learner_s_cell_starts_unsolved_and_the_lesson_goes_on(values: dict[str, Any]) -> None:
    assert values["solved"] is False


@pytest.mark.slow
def test_the_committed_outputs_are_today_s() -> None:
    assert_committed_is_today_s(NAME, run_lesson(NAME, PROBE)[0])


WHOLE = """        for request in list(self.running):
            self.run(plan, request, request.num_uncomputed_tokens)
        while self.waiting and len(self.running) < self.max_running:
            if not self.admit(plan, self.next_waiting()):
                break
        # ↑
"""
OWN = """        for request in sorted(self.running, key=lambda r: r.is_prefilling):
            n = min(request.num_uncomputed_tokens, self.token_budget - plan.total_tokens)
            if n:
                self.run(plan, request, n)
        while self.waiting and len(self.running) < self.max_running:
            n = self.token_budget - plan.total_tokens
            if n == 0 or not self.admit(plan, self.next_waiting(), n):
                break
        # ↑
"""


@pytest.mark.slow
def test_a_learner_who_solves_it_is_told_so() -> None:
    notebook, end = run_changed(NAME, {WHOLE: OWN}, "def try_out(cls)")
    assert "✓ decodes first, then 256 + 256 + 256 + 232" in printed(notebook, end)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        # prompts under way before decodes: A is starved
        (OWN.replace("key=lambda r: r.is_prefilling", "key=lambda r: not r.is_prefilling"), "A, w"),
        # two tokens of a prompt, whatever is left: right for G's 100 tokens and no others
        (
            OWN.replace("self.token_budget - plan.total_tokens)", "2)"),
            "are cut into [256, 2, 2, 2]",
        ),
    ],
    ids=["prompts first", "always two"],
)
def test_a_learner_s_usual_slips_get_a_sentence(wrong: str, told: str) -> None:
    notebook, end = run_changed(NAME, {WHOLE: wrong}, "def try_out(cls)")
    said = printed(notebook, end)
    assert "Not yet: " in said
    assert told in said
