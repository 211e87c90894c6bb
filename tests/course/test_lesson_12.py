"""Lesson 12 from a clean kernel: it runs, and what it says is what it computes."""

from __future__ import annotations

from typing import Any

import nbformat
import pytest
from lesson_runs import assert_committed_is_today_s, printed, run_changed, run_lesson

NAME = "12_prefix_caching"
PROBE = """
print(json.dumps({
    "computed": [computed(plain), computed(cached), computed(mine)],
    "held": [blocks_held(plain), blocks_held(cached)], "hits": hits, "texts": texts,
    "whole": [found, *ran.values(), step_copies], "rates": rates,
    "popular": popular, "in_turn": in_turn, "gains": [ttft_gain, tpot_gain],
    "back": [again[full, "without"], again[full, "with"], again[slots, "with"]],
    "paused": paused, "same_on_return": same_on_return,
    "leak": [roomy[0].text, roomy[1].text, roomy[2].text, leaked], "repaired": repaired,
    "chains": chains, "solved": solved,
}))
"""
FIND = {
    """        found = self.look_up(None, tuple(request.token_ids[:size]))
        if found is not None:
            chain.append(found)
""": """        end, found = size, None
        while end <= request.num_tokens:
            found = self.look_up(found, tuple(request.token_ids[end - size : end]))
            if found is None:
                break
            chain.append(found)
            end += size
"""
}
NO_CHAIN = {
    """        found = self.look_up(None, tuple(request.token_ids[:size]))
        if found is not None:
            chain.append(found)
""": """        for start in range(0, request.num_tokens, size):
            tokens = tuple(request.token_ids[start : start + size])
            chain += [c for c in self.by_name.values() if c.token_ids == tokens]
"""
}
A_LIST = {"self.look_up(None, tuple(request.token_ids[:size]))": "self.look_up(None, [1, 2])"}
FAULT = "        super().forget(cached)  # ← something is still missing here"
CLEARS = FAULT + "\n        self.by_name.clear()"
MENDS = FAULT + "\n        del self.by_name[cached.name]"

Lesson = tuple[nbformat.NotebookNode, dict[str, Any]]


@pytest.fixture(scope="module")
def lesson() -> Lesson:
    return run_lesson(NAME, PROBE)


@pytest.mark.slow
def test_shared_instructions_are_computed_and_held_once(lesson: Lesson) -> None:
    values = lesson[1]
    assert values["computed"] == [456, 136, 136]
    assert values["held"] == [36, 16]
    assert values["hits"] == [0, 64, 64]
    assert values["texts"]["with"] == values["texts"]["without"]
    assert all(text.strip() for text in values["texts"]["with"])


@pytest.mark.slow
def test_of_a_prompt_that_is_cached_whole_one_token_is_run(lesson: Lesson) -> None:
    assert lesson[1]["whole"] == [63, 1, 1]


@pytest.mark.slow
def test_hit_rate_by_what_stands_in_front_and_by_pool_size(lesson: Lesson) -> None:
    values = lesson[1]
    assert values["rates"]["the time in front"] == 0 < values["rates"]["the time at the end"]
    assert values["in_turn"]["80"] == 0
    assert values["in_turn"]["110"] > 0.7
    curve = [values["popular"][str(size)] for size in range(20, 121, 10)]
    assert curve == sorted(curve)
    assert 0.2 < values["popular"]["40"] < 0.9


@pytest.mark.slow
def test_the_first_token_comes_sooner_and_the_others_do_not(lesson: Lesson) -> None:
    ttft, tpot = lesson[1]["gains"]
    assert ttft > 4
    assert tpot == pytest.approx(1, abs=0.05)


@pytest.mark.slow
def test_a_hit_on_resume(lesson: Lesson) -> None:
    values = lesson[1]
    (none, recomputed), (some, fewer), (most, fewest) = values["back"]
    assert (none, some, most) == (0, 16, 48)
    assert (recomputed - fewer, recomputed - fewest) == (some, most)
    assert values["paused"] == ["D"]
    assert values["same_on_return"] is True


@pytest.mark.slow
def test_the_seeded_faults_break_the_text(lesson: Lesson) -> None:
    values = lesson[1]
    hamlet, antony, again, leaked = values["leak"]
    assert hamlet == again != antony
    assert leaked is True
    assert values["repaired"] is False
    assert len(set(values["chains"].values())) == 2


@pytest.mark.slow
def test_the_committed_outputs_are_today_s(lesson: Lesson) -> None:
    assert lesson[1]["solved"] is False
    assert_committed_is_today_s(NAME, lesson[0])


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "right"), [(FIND, True), (NO_CHAIN, False), (A_LIST, False)])
def test_an_answer_is_judged(answer: dict[str, str], right: bool) -> None:
    notebook, end = run_changed(NAME, answer, "solved = try_out(MyPool)")
    assert ("✓ it finds them all" in printed(notebook, end)) is right
    assert ("✗" in printed(notebook, end)) is not right


@pytest.mark.slow
@pytest.mark.parametrize(("repair", "num_wrong"), [(CLEARS, 1), (MENDS, 0)])
def test_a_repair_must_forget_one_prefix_and_keep_the_others(repair: str, num_wrong: int) -> None:
    notebook, end = run_changed(NAME, {FAULT: repair}, "repaired = judge(Mended)")
    assert printed(notebook, end).count("✗") == num_wrong
