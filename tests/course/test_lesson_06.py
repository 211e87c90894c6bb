"""Lesson 06 from a clean kernel: it runs, and what it says is what it computes."""

from __future__ import annotations

from typing import Any

import nbformat
import pytest
from lesson_runs import assert_committed_is_today_s, printed, run_changed, run_lesson

NAME = "06_kv_memory"
PROBE = """
print(json.dumps({
    "bytes": [toy_bytes, llama_bytes], "pool": list(pool.shape), "fit": fit, "need": need,
    "enters": enters, "waits": waits, "most": at_once, "solved": solved,
    "bills": {k: vars(b) for k, b in bills.items()}, "gpu_gain": gpu_gain,
    "texts": list(texts.values()), "message": message, "mended": mended, "one_book": one_book,
    "books": books, "compaction": move / step,
}))
"""
FIRST_FIT = {
    """        taken = [block for block, owner in enumerate(self.owners) if owner is not None]
        start = taken[-1] + 1 if taken else 0
        return start if start + num_blocks <= len(self.owners) else None
""": """        in_a_row = 0
        for block, owner in enumerate(self.owners):
            in_a_row = 0 if owner else in_a_row + 1
            if in_a_row == num_blocks:
                return block + 1 - num_blocks
        return None
"""
}
FAULT = "        self.gaps.append((start, length))  # ← the fault\n"
ONE_SIDE = """        for gap in self.gaps:
            if sum(gap) == start:
                self.gaps.remove(gap)
                start, length = gap[0], gap[1] + length
        self.gaps.append((start, length))
"""
BOTH_SIDES = """        merged = []
        for first, size in sorted([*self.gaps, (start, length)]):
            if merged and sum(merged[-1]) == first:
                first, size = merged[-1][0], merged.pop()[1] + size
            merged.append((first, size))
        self.gaps = merged
"""

Lesson = tuple[nbformat.NotebookNode, dict[str, Any]]


@pytest.fixture(scope="module")
def lesson() -> Lesson:
    return run_lesson(NAME, PROBE)


@pytest.mark.slow
def test_the_sums_of_the_syllabus(lesson: Lesson) -> None:
    values = lesson[1]
    assert values["pool"][3:] == [2, 4, 64]
    assert values["bytes"] == [2 * 6 * 4 * 64 * 4, 2 * 32 * 8 * 128 * 2]
    assert (values["fit"], values["need"]) == (60, 100)


@pytest.mark.slow
def test_e_waits_beside_three_free_blocks(
    lesson: Lesson,
) -> None:
    notebook, values = lesson
    lines = next(
        printed(notebook, i) for i, c in enumerate(notebook.cells) if "def brackets" in c.source
    ).splitlines()
    assert lines[0] == "[A A A A][B B][C C C][D D D D][.]"
    assert lines[1].startswith("[A A A A][. .][C C C][D D D D][.]")
    assert lines[2] == "room for E? False"
    assert values["enters"] == 9
    assert values["waits"] == [5, 6, 7, 8]
    assert values["most"] == {"one slab each": 4, "reserved": 2}


@pytest.mark.slow
def test_both_kinds_of_waste_are_measured(
    lesson: Lesson,
) -> None:
    reserved, slabs = lesson[1]["bills"].values()
    for bill in (reserved, slabs):
        assert sum(bill.values()) == pytest.approx(1)
    assert reserved["empty"] > 0.5 > reserved["tokens"]
    assert reserved["apart"] == 0
    assert slabs["apart"] > 0.05 > slabs["empty"]
    assert slabs["tokens"] > 1.8 * reserved["tokens"]
    assert lesson[1]["gpu_gain"] > 1.4
    assert 0.5 < lesson[1]["compaction"] < 2


@pytest.mark.slow
def test_where_the_kv_lies_changes_no_text(
    lesson: Lesson,
) -> None:
    reserved, slabs = lesson[1]["texts"]
    assert reserved == slabs
    assert all(text.strip() for _, text in slabs)


@pytest.mark.slow
def test_the_seeded_fault_stops_the_server_with_an_empty_memory(
    lesson: Lesson,
) -> None:
    values = lesson[1]
    assert "20 of 20 blocks free" in values["message"]
    known, there = values["books"][-1]
    assert known < there == 20
    assert values["mended"].startswith("stopped")  # the learner has not mended it yet
    assert values["one_book"] == "all 21 served in 26 steps"


@pytest.mark.slow
def test_the_committed_outputs_are_today_s(
    lesson: Lesson,
) -> None:
    assert lesson[1]["solved"] is False
    assert_committed_is_today_s(NAME, lesson[0])


@pytest.mark.slow
def test_a_learner_who_solves_it_is_told_so_and_goes_on_with_the_own_class() -> None:
    notebook, end = run_changed(NAME, FIRST_FIT, "Mine = MyKV if solved")
    told = next(i for i, c in enumerate(notebook.cells) if "solved = try_out(MyKV)" in c.source)
    assert "✗" not in printed(notebook, told)
    assert "✓ first fit" in printed(notebook, told)
    assert end > told


@pytest.mark.slow
def test_a_method_that_raises_gets_its_error_as_a_sentence_and_the_lesson_goes_on() -> None:
    slip = dict.fromkeys(FIRST_FIT, "        return self.owner.index(None)\n")
    notebook, end = run_changed(NAME, slip, "Mine = MyKV if solved")
    told = next(i for i, c in enumerate(notebook.cells) if "solved = try_out(MyKV)" in c.source)
    assert "✗ an error: AttributeError" in printed(notebook, told)
    assert end > told


@pytest.mark.slow
@pytest.mark.parametrize(("repair", "num_wrong"), [(ONE_SIDE, 2), (BOTH_SIDES, 0)])
def test_a_repair_is_judged_on_both_neighbours(repair: str, num_wrong: int) -> None:
    notebook, end = run_changed(NAME, {FAULT: repair}, "mended = try_gaps(Mended)")
    assert printed(notebook, end).count("✗ right") + printed(notebook, end).count("✗ the") == (
        num_wrong
    )
