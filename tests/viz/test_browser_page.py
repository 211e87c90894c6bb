"""The exported page in a real browser: it plays, scrubs and tells, and asks nobody for anything."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser_for_tests import Watch, chromium, needs_browser, playwright
from test_widget_data import a_run

from toyserve.engine import Engine
from toyserve.kv import PagedKV
from toyserve.recording import Recording
from toyserve.request import Request, SamplingParams
from toyserve.runners import SimulatedRunner
from toyserve.schedulers import ContinuousScheduler
from toyserve.viz import why
from toyserve.viz.blocks import block_map_at
from toyserve.viz.page import to_html

pytestmark = needs_browser
MODEL = "name => window.toyserve.model.get(name)"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


def opened(browser: Any, path: Path, **options: Any) -> tuple[Any, Watch]:
    page = browser.new_page(viewport={"width": 1200, "height": 1000}, **options)
    watch = Watch(page)
    page.goto(path.as_uri())
    page.locator(".ts-clock", has_text="step 1 of").wait_for()
    watch.external = [url for url in watch.external if url != path.as_uri()]
    return page, watch


def step_shown(page: Any) -> int:
    found = re.match(r"step ([\d,]+) of", page.locator(".ts-clock").inner_text())
    assert found
    return int(found[1].replace(",", ""))


def test_the_page_plays_pauses_steps_and_scrubs(browser: Any, tmp_path: Path) -> None:
    run = a_run()
    page, watch = opened(browser, to_html(run, tmp_path / "é run.html"))
    page.locator(".ts-play").click()
    page.wait_for_function("() => window.toyserve.model.get('step') > 3")
    page.keyboard.press("Space")
    page.wait_for_function("() => !window.toyserve.model.get('playing')")
    stopped = page.evaluate(MODEL, "step")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Shift+ArrowRight")
    page.keyboard.press("ArrowLeft")
    assert page.evaluate(MODEL, "step") == stopped + 10
    page.locator(".ts-scrub").fill("33")
    page.locator(".ts-clock", has_text="step 33 of").wait_for()
    page.keyboard.press("End")
    page.locator(".ts-clock", has_text=f"step {len(run.steps):,} of").wait_for()
    page.locator(".ts-play").click()  # at the end it begins again
    page.wait_for_function("() => window.toyserve.model.get('step') < 30")
    assert (watch.external, watch.errors) == ([], [])


def test_the_page_shows_the_steps_batch_queue_memory_and_decision(
    browser: Any, tmp_path: Path
) -> None:
    run = a_run(12)
    number = next(n for n, s in enumerate(run.steps, 1) if s.num_waiting and n > 20)
    page, watch = opened(browser, to_html(run, tmp_path / "run.html"))
    page.locator(".ts-scrub").fill(str(number))
    page.locator(".ts-clock", has_text=f"step {number} of").wait_for()
    decision = why(run, number)
    chips = page.locator(".ts-batch .ts-chip").all_inner_texts()
    assert {text.split()[0] for text in chips} == set(decision.ran)
    queue = page.locator(".ts-queue .ts-chip").all_inner_texts()
    assert queue == list(decision.waiting)
    words = page.locator(".ts-why").inner_text()
    for heading, sentence in decision.lines:
        assert heading == "Rule" or sentence in words
    used = 60 - run.steps[number - 1].num_free_blocks
    if not run.steps[number - 1].finished:
        assert f"{used} of 60 blocks held" in page.locator(".ts-memory-head").inner_text()
    assert (watch.external, watch.errors) == ([], [])


def test_pointing_tells_whose_cell_and_whose_block_it_is(browser: Any, tmp_path: Path) -> None:
    page, watch = opened(browser, to_html(a_run(6), tmp_path / "run.html"))
    page.keyboard.press("End")
    page.locator(".ts-scrub").fill("20")
    page.locator(".ts-clock", has_text="step 20 of").wait_for()
    page.locator(".ts-over").hover(position={"x": 80, "y": 20})
    tip = page.locator(".ts-tip")
    playwright.expect(tip).to_contain_text("r0: ")
    playwright.expect(tip).to_contain_text("in the cache, which fill")
    page.locator(".ts-map").hover(position={"x": 8, "y": 8})
    playwright.expect(tip).to_contain_text("block 0: r0 (its block 1)")
    page.mouse.move(5, 5)
    playwright.expect(tip).to_be_hidden()
    assert watch.errors == []


BLOCKS = """step => {
  const {header, grid} = window.toyserve.model.values, run = new Run(header, grid);
  const of = (run, step) => JSON.stringify(run.blocksAt(step - 1));
  const fresh = new Run(header, grid);
  of(run, header.num_steps);  // the end, and from there back
  return [of(run, step) === of(fresh, step), JSON.parse(of(run, step))];
}"""


def test_the_blocks_of_a_step_are_the_same_from_before_and_from_behind(
    browser: Any, tmp_path: Path
) -> None:
    run = a_run(12, prefix_caching=True)
    path = to_html(run, tmp_path / "run.html")
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("window.toyserve =", "window.Run = Run; window.toyserve ="))
    page, watch = opened(browser, path)
    for step in (len(run.steps), 150, 77, 20, 1):
        same, blocks = page.evaluate(BLOCKS, step)
        assert same
        memory = block_map_at(run, step)
        order = list(run.requests)
        assert len(blocks) == memory.num_blocks
        for number, block in enumerate(blocks):
            holders = block["holders"] if block else []
            held = [(order[holder["request"]], holder["page"]) for holder in holders]
            assert sorted(held) == sorted(memory.holders[number])
            assert (block["written"] if block else 0) == memory.num_written[number]
    assert watch.errors == []


CELL_COLOUR = """(canvas, [x, y]) => {
  const ratio = window.devicePixelRatio;
  return [...canvas.getContext('2d').getImageData(x * ratio, y * ratio, 1, 1).data].slice(0, 3);
}"""


def test_the_map_of_a_large_pool_says_what_a_cell_is_and_what_it_leaves_out(
    browser: Any, tmp_path: Path
) -> None:
    few, many = a_run(6, num_blocks=20_000), filled(20_000)
    page, watch = opened(browser, to_html(few, tmp_path / "few.html"))
    page.locator(".ts-scrub").fill("20")
    note, tip = page.locator(".ts-memory-note"), page.locator(".ts-tip")
    playwright.expect(note).to_have_text(
        "blocks 0 to 127; the other 19,872 are never taken in this run"
    )
    box = page.locator(".ts-map").bounding_box()
    assert 60 < box["height"] < 300 and box["width"] > 400
    page.locator(".ts-map").hover(position={"x": 8, "y": 8})
    playwright.expect(tip).to_contain_text("block 0: r0 (its block 1)")
    assert watch.errors == []
    page, watch = opened(browser, to_html(many, tmp_path / "many.html"))
    canvas, note, tip = (page.locator(f".ts-{name}") for name in ("map", "memory-note", "tip"))
    playwright.expect(note).to_have_text("1 cell = 4 blocks")
    box = canvas.bounding_box()
    assert 150 < box["height"] < 300
    canvas.hover(position={"x": 3, "y": 3})
    playwright.expect(tip).to_have_text("blocks 0 to 3\n4 held by r0: 64 of 64 slots written")
    canvas.hover(position={"x": box["width"] / 2, "y": box["height"] - 4})
    playwright.expect(tip).to_contain_text("4 free")
    held = canvas.evaluate(CELL_COLOUR, [2, 2])
    free = canvas.evaluate(CELL_COLOUR, [box["width"] / 2, box["height"] - 8])
    assert held == [0x77, 0xAA, 0xDD] and free == [255, 255, 255]
    assert watch.errors == []


def filled(num_blocks: int) -> Recording:
    """Two thirds of the pool are written in the first step."""
    engine = Engine(
        scheduler=ContinuousScheduler(8), kv=PagedKV(num_blocks, 16), runner=SimulatedRunner()
    )
    size = num_blocks * 16 * 2 // 3 // 8
    params = SamplingParams(max_tokens=4)
    return engine.run([Request(f"r{i}", [1] * size, params) for i in range(8)])


def test_the_page_zooms_and_the_window_follows_the_step(browser: Any, tmp_path: Path) -> None:
    page, watch = opened(browser, to_html(a_run(), tmp_path / "run.html"), color_scheme="dark")
    page.locator('[data-do="in"]').click()
    page.locator('[data-do="in"]').click()
    low, high = page.evaluate(MODEL, "zoom")
    assert low == 1
    page.locator(".ts-scrub").fill(str(high + 5))
    low, high = page.evaluate(MODEL, "zoom")
    assert low <= page.evaluate(MODEL, "step") <= high
    page.locator('[data-do="rows"]').click()
    assert page.evaluate(MODEL, "by") == "request"
    page.locator('[data-do="all"]').click()
    assert page.evaluate(MODEL, "zoom") == []
    background = page.evaluate(
        "() => getComputedStyle(document.querySelector('.toyserve-timeline')).backgroundColor"
    )
    assert background == "rgb(21, 23, 28)"
    assert watch.errors == []


def test_one_request_and_thousands_of_steps_both_play(browser: Any, tmp_path: Path) -> None:
    for n in (1, 600):
        run = a_run(n)
        page, watch = opened(browser, to_html(run, tmp_path / f"{n}.html"))
        page.locator(".ts-play").click()
        page.wait_for_function("() => window.toyserve.model.get('step') > 2")
        page.keyboard.press("Space")
        page.keyboard.press("End")
        page.locator(".ts-clock", has_text=f"step {len(run.steps):,} of").wait_for()
        assert step_shown(page) == len(run.steps)
        assert (watch.external, watch.errors) == ([], [])
        page.close()
