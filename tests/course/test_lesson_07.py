"""Lesson 07 from a clean kernel: it runs, and what it says is what it computes."""

from __future__ import annotations

from typing import Any

import nbformat
import pytest
from lesson_runs import assert_committed_is_today_s, printed, run_changed, run_lesson

NAME = "07_paged_kv"
PROBE = """
print(json.dumps({
    "enters": enters, "table": taken, "slots": {p: to_slot(E_TABLE, p, 16) for p in WANTED},
    "mapped": mapped, "solved": solved, "bills": {k: vars(b) for k, b in bills.items()},
    "gain": gain, "over_slabs": over_slabs, "empty": empty, "one_user": one_user,
    "equal": [equal, len(plain)], "texts": [out.text for out in answers],
    "first_wrong": first_wrong, "unwritten": unwritten, "repaired": repaired,
    "colleague": colleague(E_TABLE, 32, 16),
}))
"""
MAPPING = {
    "    return position\n": "    return block_table[position // block_size] * block_size "
    "+ position % block_size\n",
    "need = -(-request.max_num_tokens // self.block_size)": "end = request.num_computed_tokens "
    "+ num_tokens\n        need = (end + self.block_size - 1) // self.block_size",
}
OFF_BY_ONE = {
    "need = -(-request.max_num_tokens // self.block_size)": "need = 1 + (request."
    "num_computed_tokens + num_tokens) // self.block_size"
}
FAULT = "    page = max(0, (position - 1) // block_size)  # ← the fault\n"

Lesson = tuple[nbformat.NotebookNode, dict[str, Any]]


@pytest.fixture(scope="module")
def lesson() -> Lesson:
    return run_lesson(NAME, PROBE)


@pytest.mark.slow
def test_the_walk_of_the_syllabus(lesson: Lesson) -> None:
    values = lesson[1]
    assert values["table"] == [17, 42, 9, 31]
    assert values["slots"]["37"] == 9 * 16 + 5
    assert values["slots"]["16"] == 42 * 16
    assert values["enters"] == {"slabs": 9, "pages": 5}


@pytest.mark.slow
def test_utilisation_against_the_lesson_before(lesson: Lesson) -> None:
    values = lesson[1]
    reserved, slabs, paged = values["bills"].values()
    assert reserved["tokens"] < slabs["tokens"] < paged["tokens"]
    assert paged["tokens"] > 0.9
    assert paged["apart"] == 0
    assert paged["empty"] < 0.06 < 0.5 < reserved["empty"]
    assert values["gain"] > 1.8
    assert values["over_slabs"] > 1.1
    assert values["empty"]["1"] == 0
    assert values["empty"]["16"] < values["empty"]["64"] < values["empty"]["256"]


@pytest.mark.slow
def test_one_request_gets_no_faster(lesson: Lesson) -> None:
    assert lesson[1]["one_user"] == 1


@pytest.mark.slow
def test_scattered_memory_changes_no_text(lesson: Lesson) -> None:
    equal, of = lesson[1]["equal"]
    assert equal == of == 4
    assert all(text.strip() for text in lesson[1]["texts"])


@pytest.mark.slow
def test_the_seeded_fault_breaks_the_text_behind_the_first_page(lesson: Lesson) -> None:
    values = lesson[1]
    assert all(16 < position < 33 for position in values["first_wrong"])
    assert values["unwritten"] == 1
    assert values["colleague"] // 16 == 42  # position 32 in page 1's block
    assert values["repaired"] is False


@pytest.mark.slow
def test_the_committed_outputs_are_today_s(lesson: Lesson) -> None:
    assert lesson[1]["mapped"] is lesson[1]["solved"] is False
    assert_committed_is_today_s(NAME, lesson[0])


@pytest.mark.slow
def test_a_learner_who_solves_both_is_told_so_and_goes_on_with_the_own_code() -> None:
    notebook, end = run_changed(NAME, MAPPING, "E's block table")
    told = "".join(
        printed(notebook, i) for i in range(end + 1) if notebook.cells[i].cell_type == "code"
    )
    assert "✓ all positions" in told
    assert "✓ on demand" in told
    assert "✗" not in told
    assert "E's block table: {0: 17, 1: 42, 2: 9, 3: 31}" in told


@pytest.mark.slow
def test_a_block_too_many_at_the_boundary_is_not_accepted() -> None:
    notebook, end = run_changed(NAME, OFF_BY_ONE, "solved = try_out(MyKV)")
    assert "✗ the 32nd token still fits into them" in printed(notebook, end)
    assert "Not yet" in printed(notebook, end)


@pytest.mark.slow
def test_code_that_raises_gets_its_error_as_a_sentence_and_the_lesson_goes_on() -> None:
    slips = dict(zip(MAPPING, ("    return block_table[position]\n", "need = up(1)"), strict=True))
    notebook, end = run_changed(NAME, slips, "E's block table")
    told = "".join(
        printed(notebook, i) for i in range(end + 1) if notebook.cells[i].cell_type == "code"
    )
    assert "✗ yours says IndexError('list index out of range'); position 15" in told
    assert "✗ an error: NameError: name 'up' is not defined" in told
    assert "E's block table: {0: 17, 1: 42, 2: 9, 3: 31}" in told


@pytest.mark.slow
def test_the_repair_is_recognised() -> None:
    notebook, end = run_changed(
        NAME, {FAULT: "    page = position // block_size\n"}, "repaired = judge(mended)"
    )
    assert "✗" not in printed(notebook, end)
    assert printed(notebook, end).count("✓") == 6
