"""Lesson 00 from a clean kernel: it runs, and what it says is what it computes."""

from __future__ import annotations

from typing import Any

import pytest
from lesson_runs import assert_committed_is_today_s, printed, run_changed, run_lesson

NAME = "00_serving_engine"
PROBE = """
print(json.dumps({
    "steps": llm.recording.num_steps, "table": table, "asked": ASKED, "solved": solved,
    "texts": texts, "same": [a == b for a, b in zip(texts, broken)],
    "free": thrifty.num_free_blocks,
    "rows": {r: record.num_prompt_tokens for r, record in llm.recording.requests.items()},
}))
"""


@pytest.fixture(scope="module")
def values() -> dict[str, Any]:
    return run_lesson(NAME, PROBE)[1]


@pytest.mark.slow
def test_the_burst_and_its_steps(values: dict[str, Any]) -> None:
    assert values["steps"] == 48
    assert values["table"] == {"1": 160, "2": 84, "3": 60, "4": 48, "8": 40}
    assert sum(values["asked"].values()) == 160
    assert all(text.strip() for text in values["texts"])


@pytest.mark.slow
def test_the_seeded_fault_damages_only_answers_of_more_than_a_page(values: dict[str, Any]) -> None:
    assert not all(values["same"])
    for (name, wanted), same in zip(values["asked"].items(), values["same"], strict=True):
        if values["rows"][name] + wanted - 1 <= 16:  # the last token is never stored
            assert same, name
    assert values["free"] == 70


@pytest.mark.slow
def test_the_learner_s_cells_start_unsolved(values: dict[str, Any]) -> None:
    assert values["solved"] is False
    notebook, _ = run_lesson(NAME, PROBE)
    text = "".join(printed(notebook, i) for i, c in enumerate(notebook.cells) if "outputs" in c)
    assert "with the check on: block 0 is in the tables of 'ROMEO' and 'HAMLET'" in text
    assert text.count("✗ 70 of 64 pages free") == 1
    assert text.count("✓ 8 of 8 answers are right") == 1


@pytest.mark.slow
def test_the_committed_outputs_are_today_s() -> None:
    assert_committed_is_today_s(NAME, run_lesson(NAME, PROBE)[0])


@pytest.mark.slow
def test_a_learner_who_finds_the_number_and_mends_the_fault_is_told_so() -> None:
    fault = """        if granted and request.num_output_tokens > 0:
            self.pool.free_blocks.append(request.block_table[0])  # ← the fault
"""
    changes = {"PLACES = 2  #": "PLACES = 3  #", fault: ""}
    notebook, last = run_changed(NAME, changes, "try_out(Mended(64))")
    everything = "".join(
        printed(notebook, i) for i in range(last) if "outputs" in notebook.cells[i]
    )
    assert "✓ Three places do it" in everything
    assert "✓ 8 of 8" in printed(notebook, last)
    assert "✓ 64 of 64" in printed(notebook, last)
