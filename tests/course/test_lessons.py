"""The committed lessons: within the house's limits, up to date, and free of what varies."""

from __future__ import annotations

import json
from pathlib import Path

import nbformat
import pytest

from toyserve.course import lint
from toyserve.course.builder import find_sources, read_source, source_digest, target_of

LESSONS = Path(__file__).resolve().parents[2] / "lessons"
SOURCES = find_sources(LESSONS, [])


@pytest.mark.parametrize("source", SOURCES, ids=lambda s: s.stem)
def test_a_lesson_keeps_the_limits_on_prose_and_code(source: Path) -> None:
    assert lint.lint_notebook(read_source(source)) == []


@pytest.mark.parametrize("source", SOURCES, ids=lambda s: s.stem)
def test_a_committed_notebook_is_that_of_its_source(source: Path) -> None:
    notebook = nbformat.reads(target_of(source).read_text(encoding="utf-8"), as_version=4)
    assert notebook.metadata.toyserve.source_sha256 == source_digest(source)
    assert [c.source for c in notebook.cells] == [c.source for c in read_source(source).cells]


@pytest.mark.parametrize("source", SOURCES, ids=lambda s: s.stem)
def test_a_committed_notebook_is_executed_and_carries_no_stale_state(source: Path) -> None:
    text = target_of(source).read_text(encoding="utf-8")
    notebook = json.loads(text)
    code = [c for c in notebook["cells"] if c["cell_type"] == "code"]
    assert [c["execution_count"] for c in code] == list(range(1, len(code) + 1))
    assert any("image/png" in o.get("data", {}) for c in code for o in c["outputs"])
    assert all(o["output_type"] != "error" for c in code for o in c["outputs"])
    assert "widgets" not in notebook["metadata"]
    assert "widget-view" not in text
    assert len(text) < 2_000_000


def notebook_of(*cells: nbformat.NotebookNode) -> nbformat.NotebookNode:
    title = nbformat.v4.new_markdown_cell("# Title")
    return nbformat.v4.new_notebook(cells=[title, *cells])


def test_the_linter_finds_long_prose_long_code_and_our_own_talk() -> None:
    prose = nbformat.v4.new_markdown_cell("word " * 121)
    code = nbformat.v4.new_code_cell("x = 1\n" * 26)
    talk = nbformat.v4.new_markdown_cell("as issue 6 says, see " + "/work" + "/main")
    path = nbformat.v4.new_code_cell('open("/tmp/x")')
    problems = lint.lint_notebook(notebook_of(prose, code, talk, path))
    expected = ["121 words", "26 lines", "issue 6", "absolute"]
    assert len(problems) == len(expected)
    assert all(what in problem for what, problem in zip(expected, problems, strict=True))


def test_the_linter_does_not_count_tables_code_and_addresses() -> None:
    table = "| a | b |\n|---|---|\n" + "| word | word |\n" * 100
    fence = "```\n" + "word " * 200 + "\n```\n"
    assert lint.count_words(table + fence + "[two words](https://example.org/a-b-c)") == 2
    assert lint.count_lines("x = 1\n\n\ny = 2\n") == 2
