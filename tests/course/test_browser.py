"""Lesson 04 in a real browser, the way a learner opens it: ``toyserve lab``, Run All, a quiz."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from browser_for_tests import (
    SCROLL,
    TOKEN,
    Watch,
    chromium,
    jupyterlab,
    needs_browser,
    playwright,
    prepare,
    run_all,
    saved,
    shots_folder,
)

LESSON = "lessons/04_continuous_batching.ipynb"
pytestmark = [*needs_browser, pytest.mark.slow]


@pytest.fixture
def course(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """JupyterLab as ``toyserve lab`` starts it; its address, and the lesson, without outputs."""
    folder = tmp_path / "mein Kurs é"
    prepare(folder, tmp_path)
    lesson = folder / LESSON
    notebook = nbformat.reads(lesson.read_text(encoding="utf-8"), as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    lesson.write_text(nbformat.writes(notebook), encoding="utf-8")
    with jupyterlab(folder, tmp_path) as address:
        yield address, lesson


def answer_quizzes(page: Any, shots: Path) -> None:
    page.evaluate(SCROLL, 'quiz("04.first-entry")')
    quiz = page.locator(".jp-OutputArea-output", has_text="In which step does E get").first
    quiz.get_by_placeholder("a number").fill("8")
    quiz.get_by_role("button", name="Check").click()
    playwright.expect(quiz.get_by_text("that step makes its 8th token")).to_be_visible()
    playwright.expect(quiz.get_by_role("button", name="Show the answer")).to_be_visible()
    page.screenshot(path=shots / "quiz-wrong.png")
    quiz.get_by_placeholder("a number").fill("9")
    quiz.get_by_role("button", name="Check").click()
    playwright.expect(quiz.get_by_text("D's 8th token comes out of step 8")).to_be_visible()
    page.screenshot(path=shots / "quiz-right.png")
    page.evaluate(SCROLL, 'quiz("04.no-gain")')
    quiz = page.locator(".jp-OutputArea-output", has_text="finish no earlier").first
    quiz.get_by_label("16 requests of 40 tokens each, all there at the start").check()
    quiz.get_by_role("button", name="Check").click()
    playwright.expect(quiz.get_by_text("there is no hole to fill")).to_be_visible()
    page.screenshot(path=shots / "quiz-choice.png")


@pytest.mark.timeout(300)
def test_lesson_04_runs_from_the_menu_and_its_quizzes_answer(
    course: tuple[str, Path], tmp_path: Path
) -> None:
    address, lesson = course
    shots = shots_folder(tmp_path)
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        watch = Watch(page)
        page.goto(f"{address}/lab/tree/{LESSON}?token={TOKEN}")
        page.get_by_role("heading", name="04 · Continuous batching").wait_for(timeout=60_000)
        page.screenshot(path=shots / "opened.png")
        run_all(page, limit=180)
        answer_quizzes(page, shots)
        page.evaluate(SCROLL, "continuous = simulate(Mine")
        page.locator(".jp-RenderedImage img").first.wait_for()
        page.screenshot(path=shots / "picture.png")
        notebook = saved(page, lesson)
    outputs = [o for cell in notebook.cells if cell.cell_type == "code" for o in cell.outputs]
    assert [o for o in outputs if o.output_type == "error"] == []
    assert sum("image/png" in o.get("data", {}) for o in outputs) >= 8
    assert "E takes D" in json.dumps(outputs) or "Not yet" in json.dumps(outputs)
    assert watch.external == []
    assert watch.errors == []
