"""An exercise in JupyterLab, as a learner meets it: untouched, answered, and answered with a loop
that never ends."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser_for_tests import (
    READY,
    SCROLL,
    TOKEN,
    Watch,
    chromium,
    jupyterlab,
    needs_browser,
    playwright,
    prepare,
    run_all,
    shots_folder,
)

NAME = "04_continuous_batching"
pytestmark = [*needs_browser, pytest.mark.slow, pytest.mark.timeout(600)]

ANSWER = """
class JoinLimit(Scheduler):
    max_joins = 1

    def schedule(self):
        plan = SchedulerOutput()
        for request in list(self.running):
            self.run(plan, request, request.num_uncomputed_tokens)
        while self.waiting and len(self.running) < self.max_running:
            if {limit}not self.admit(plan, self.next_waiting()):
                break
        return plan
"""
RIGHT = ANSWER.format(limit="len(plan.admitted) == self.max_joins or ")
WRONG = ANSWER.format(limit="")
ENDLESS = WRONG.replace("if not self.admit(plan, self.next_waiting()):", "if self.waiting is None:")
# Another text for the first cell that has this in it, and run it with the check below it.
ANSWER_AND_RUN = """async ([mark, source]) => {
  const {content, sessionContext} = window.jupyterapp.shell.currentWidget;
  const index = content.widgets.findIndex(
    w => w.model.sharedModel.getMetadata('nbgrader')?.grade_id === mark);
  content.widgets[index].model.sharedModel.setSource(source);
  content.deselectAll();
  content.activeCellIndex = index;
  await window.jupyterapp.commands.execute('notebook:run-cell-and-select-next');
  await window.jupyterapp.commands.execute('notebook:run-cell');
  await content.scrollToItem(index, 'start');
}"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home = tmp_path_factory.mktemp("jupyter")
    prepare(home / "lab", home)
    with jupyterlab(home / "lab", home) as address:
        yield address


@pytest.fixture(scope="module")
def page(lab: str) -> Iterator[Any]:
    """The exercise, opened and run from top to bottom without an answer in it."""
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 1000})
        page.goto(f"{lab}/lab/tree/exercises/{NAME}.ipynb?token={TOKEN}")
        page.locator(".jp-Notebook .jp-Cell").first.wait_for(timeout=60_000)
        page.watch = Watch(page)
        run_all(page, 180)
        yield page


def check_output(page: Any, key: str) -> Any:
    """What stands below the check cell of a part."""
    page.evaluate(SCROLL, f'check("{key}")')
    cell = page.locator(".jp-Notebook .jp-CodeCell").filter(
        has=page.locator(".jp-InputArea", has_text=f'check("{key}")')
    )
    return cell.locator(".jp-OutputArea").first


def answered(page: Any, source: str) -> Any:
    """The check's output when 04.1 has this answer."""
    page.evaluate(ANSWER_AND_RUN, ["ex04-1-answer", source.strip()])
    page.wait_for_function(READY, timeout=60_000)
    return check_output(page, "04.1")


def test_an_untouched_exercise_runs_through_and_says_what_is_to_be_written(
    page: Any, tmp_path: Path
) -> None:
    for key in ("04.1", "04.2", "04.3", "04.4", "04.5"):
        output = check_output(page, key)
        playwright.expect(output.get_by_text(f"{key}, ")).to_be_visible()
        said = output.inner_text()
        assert re.search("still to be written|Nothing is called", said), said
        assert "Traceback" not in said
    page.screenshot(path=shots_folder(tmp_path) / "exercise-untouched.png")
    assert page.watch.external == []


def test_a_wrong_answer_is_told_what_is_wrong_and_shown_beside_the_right_run(
    page: Any, tmp_path: Path
) -> None:
    output = answered(page, WRONG)
    playwright.expect(output.get_by_text("max_joins is 1")).to_be_visible()
    playwright.expect(output.get_by_text("The smallest case that shows it")).to_be_visible()
    picture = output.locator("img")
    playwright.expect(picture).to_be_visible()
    assert picture.evaluate("image => image.naturalWidth") > 300
    page.screenshot(path=shots_folder(tmp_path) / "exercise-wrong.png")


def test_a_right_answer_is_told_so_and_what_comes_next(page: Any, tmp_path: Path) -> None:
    output = answered(page, RIGHT)
    playwright.expect(output.get_by_text("04.1 is right")).to_be_visible()
    playwright.expect(output.get_by_text("Next: 04.2")).to_be_visible()
    assert output.locator("img").count() == 0
    page.screenshot(path=shots_folder(tmp_path) / "exercise-right.png")


def test_an_endless_loop_is_stopped_and_the_kernel_lives(page: Any, tmp_path: Path) -> None:
    output = answered(page, ENDLESS)
    playwright.expect(output.get_by_text("had not ended after")).to_be_visible(timeout=20_000)
    playwright.expect(output.get_by_text("It was stopped in the line")).to_be_visible()
    page.screenshot(path=shots_folder(tmp_path) / "exercise-endless.png")
    playwright.expect(answered(page, RIGHT).get_by_text("04.1 is right")).to_be_visible()
