"""Code shown beside code, and the difference as the few lines it is."""

from __future__ import annotations

import html
import linecache

import pytest

from toyserve.course.show import show_diff, show_source, source_of
from toyserve.schedulers import ContinuousScheduler, StaticScheduler

CELL = '''
class Mine(Base):
    """What it says."""

    def schedule(self):
        """And here."""
        return 1 < 2


class Other:
    def schedule(self):
        return "other"
'''


@pytest.fixture
def mine() -> type:
    """A class as a notebook cell makes one: no file, source only in linecache."""
    name = "<ipykernel cell>"
    linecache.cache[name] = (len(CELL), None, CELL.splitlines(keepends=True), name)
    space: dict[str, object] = {"__name__": "__main__", "Base": object}
    exec(compile(CELL, name, "exec"), space)
    made = space["Mine"]
    assert isinstance(made, type)
    return made


def test_a_class_of_a_notebook_cell_is_found_alone(mine: type) -> None:
    code = source_of(mine)
    assert code.startswith("class Mine(Base):")
    assert "Other" not in code


def test_docstrings_are_left_out_unless_wanted(mine: type) -> None:
    assert "And here" not in show_source(mine).text
    assert "And here" in show_source(mine, docstrings=True).text
    assert "return 1 &lt; 2" in show_source(mine).html


def test_two_sources_stand_beside_each_other_and_say_whose_they_are(mine: type) -> None:
    shown = show_source(mine, ContinuousScheduler)
    assert "Mine (this notebook)" in shown.html
    assert "ContinuousScheduler (toyserve/schedulers/continuous.py)" in shown.html
    assert shown.html.count("<pre") == 2
    assert "Every running request" not in shown.html


def test_a_diff_marks_lines_by_sign_as_well_as_colour() -> None:
    shown = show_diff(StaticScheduler.schedule, ContinuousScheduler.schedule)
    rows = shown.text.splitlines()[1:]
    assert "+     while self.waiting and not plan.preempted:" in rows
    assert "-     if not self.batch:" in rows
    assert {row[:1] for row in rows} == {"+", "-", " "}
    assert f"{sum(row[0] == '-' for row in rows)} lines out" in shown.text
    for row in rows:
        assert html.escape(row) in shown.html


def test_no_colour_is_fixed_so_that_a_dark_page_stays_readable() -> None:
    shown = show_diff(StaticScheduler.schedule, ContinuousScheduler.schedule)
    assert "color:inherit" in shown.html
    assert "#fff" not in shown.html


def test_what_has_no_code_says_so() -> None:
    cls = type("Made", (), {})
    cls.__module__ = "__main__"
    with pytest.raises(ValueError, match="Made is not to be found"):
        show_source(cls)
