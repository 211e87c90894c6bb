"""The start page in a real browser: it opens first, shows the map, and its links lead on."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser_for_tests import (
    SCROLL,
    TOKEN,
    Watch,
    chromium,
    jupyterlab,
    needs_browser,
    prepare,
    run_all,
    shots_folder,
)

EXERCISE = "h1:has-text('Exercise 01')"

pytestmark = [*needs_browser, pytest.mark.slow]


@pytest.mark.timeout(240)
def test_the_start_page_opens_first_and_its_links_open_lessons(tmp_path: Path) -> None:
    folder = tmp_path / "mein Kurs é"
    prepare(folder, tmp_path)
    with jupyterlab(folder, tmp_path) as address, chromium() as browser:
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        watch = Watch(page)
        page.goto(f"{address}/?token={TOKEN}")  # where ``toyserve lab`` sends the browser
        heading = page.get_by_role("heading", name="How an LLM server shares one GPU")
        heading.wait_for(timeout=90_000)
        run_all(page, limit=90)
        page.evaluate(SCROLL, "lesson_table()")
        page.screenshot(path=shots_folder(tmp_path) / "start-page.png")
        page.locator(".jp-OutputArea-output a", has_text="04 · Continuous batching").first.click()
        page.get_by_role("heading", name="04 · Continuous batching").wait_for(timeout=60_000)
        for link, there in (
            (page.locator(".jp-OutputArea-output a", has_text="0 of 5").first, EXERCISE),
            (page.get_by_role("link", name="glossary").first, ".jp-MarkdownViewer h1"),
        ):
            page.locator(".lm-TabBar-tabLabel", has_text="index.ipynb").first.click()
            page.evaluate(SCROLL, "lesson_table()" if there == EXERCISE else "How a lesson works")
            link.click()
            page.locator(there).first.wait_for(timeout=60_000)
    assert watch.external == []
    assert watch.errors == []
