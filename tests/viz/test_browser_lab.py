"""The widgets in JupyterLab, as ``toyserve lab`` starts it: run, play, drag, stop, save, reopen."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import pytest
from browser_for_tests import (
    SCROLL,
    STATE,
    TOKEN,
    Watch,
    chromium,
    jupyterlab,
    needs_browser,
    playwright,
    prepare,
    python,
    saved,
    shots_folder,
    start_all,
    write_notebook,
)
from nbconvert import HTMLExporter
from nbformat.sign import NotebookNotary

from toyserve.recording import Recording
from toyserve.viz import why
from toyserve.viz.playground_run import Settings, run_settings

pytestmark = [*needs_browser, pytest.mark.slow, pytest.mark.timeout(900)]

EXPLORE, PLAYGROUND, LIVE, RUN, WITH = range(5)
CELLS = {
    EXPLORE: """\
from toyserve.viz import explore, live, playground
from toyserve.viz.playground_run import Settings, run_settings
view = explore(run_settings(Settings(num_requests=12)))
view""",
    PLAYGROUND: "board = playground(num_requests=40)\nboard",
    LIVE: """\
import time
from toyserve.engine import Engine
from toyserve.kv import PagedKV
from toyserve.request import Request, SamplingParams
from toyserve.runners import SimulatedRunner
from toyserve.schedulers import ContinuousScheduler
def make(delay):
    engine = Engine(scheduler=ContinuousScheduler(4), kv=PagedKV(400, 64), runner=SimulatedRunner())
    engine.on_step.append(lambda _: time.sleep(delay))
    return engine
def ask(engine, n):
    params = SamplingParams(max_tokens=n)
    return engine.run([Request(f"r{i}", [1] * 8, params) for i in range(8)])
endless = make(0.02)
live(endless)""",
    RUN: "print({str(r.finish_reason) for r in ask(endless, 5000).requests.values()})",
    WITH: "with live(make(0)) as shown:\n    ask(shown.engine, 30)",
}


@dataclass
class Seen:
    """The page after Run All, and what happened while the endless cell ran."""

    page: Any
    watch: Watch
    path: Path
    home: Path
    shots: Path
    clocks: list[str]
    status_while_running: str
    clock_of_scrubbed: str


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    home = tmp_path_factory.mktemp("widgets")
    folder = home / "mein Kurs é"
    prepare(folder, home)
    path = folder / "widgets.ipynb"
    write_notebook(path, list(CELLS.values()))
    with jupyterlab(folder, home) as address, chromium() as browser:
        context = browser.new_context(viewport={"width": 1400, "height": 1400})
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        page = context.new_page()
        watch = Watch(page)
        page.goto(f"{address}/lab/tree/widgets.ipynb?token={TOKEN}")
        wait_for_status(page, "idle")
        start_all(page)
        running = stop_the_endless_run(page)
        page.wait_for_function(f"({STATE})().done === {len(CELLS)}", timeout=60_000)
        yield Seen(page, watch, path, home, shots_folder(home), *running)


def stop_the_endless_run(page: Any) -> tuple[list[str], str, str]:
    page.wait_for_function(f"({STATE})().done === {RUN}", timeout=120_000)
    box = output(page, LIVE)
    stop = box.locator(".ts-stop")
    playwright.expect(stop).to_be_enabled(timeout=30_000)
    clocks: list[str] = []
    for _ in range(3):
        clocks.append(clock(box))
        page.wait_for_function(
            "old => ![...document.querySelectorAll('.ts-clock')].some(c => c.innerText === old)",
            arg=clocks[-1],
        )
    box.locator(".ts-scrub").fill("7")
    page.wait_for_timeout(1500)  # several pictures come in this time
    scrubbed, status = clock(box), page.evaluate(STATE)["status"]
    stop.click()
    playwright.expect(stop).to_be_disabled(timeout=30_000)
    return clocks, status, scrubbed


def output(page: Any, cell: int) -> Any:
    """The widget below a cell, scrolled into view."""
    page.evaluate(SCROLL, CELLS[cell].splitlines()[0])
    box = page.locator(".jp-Notebook .jp-CodeCell").nth(cell).locator(".toyserve-timeline")
    box.wait_for(timeout=120_000)
    return box


def clock(box: Any) -> str:
    return str(box.locator(".ts-clock").inner_text())


def step_of(box: Any) -> int:
    found = re.match(r"step ([\d,]+) of", clock(box))
    assert found
    return int(found[1].replace(",", ""))


def picture(box: Any) -> str:
    """What is painted on the timeline's canvas, as one string."""
    box.page.wait_for_timeout(150)  # two frames
    return str(box.locator(".ts-base").evaluate("canvas => canvas.toDataURL()"))


def colours(box: Any) -> set[str]:
    """Those that cover more than a hundredth of the timeline's canvas, however wide it is."""
    box.page.wait_for_timeout(150)
    found = box.locator(".ts-base").evaluate(
        """canvas => {
          const {data} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
          const counts = {};
          for (let i = 0; i < data.length; i += 4) {
            const name = `${data[i]},${data[i + 1]},${data[i + 2]}`;
            counts[name] = (counts[name] ?? 0) + 1;
          }
          return Object.keys(counts).filter(name => counts[name] > data.length / 400);
        }"""
    )
    return set(found)


def wait_for_status(page: Any, status: str) -> None:
    page.wait_for_function(f"() => ({STATE})()?.status === '{status}'", timeout=120_000)


def explored() -> Recording:
    return run_settings(Settings(num_requests=12))


# -- while a cell runs ----------------------------------------------------------------------------


def test_the_live_view_grows_while_its_cell_runs_and_its_button_ends_the_run(seen: Seen) -> None:
    assert seen.status_while_running == "busy"
    steps = [int(text.split()[1].replace(",", "")) for text in seen.clocks]
    assert steps == sorted(set(steps))
    assert all(re.match(r"step ([\d,]+) of \1 ", text) for text in seen.clocks)  # the newest
    assert re.match(
        r"step 7 of [\d,]+ ", seen.clock_of_scrubbed
    )  # whoever looks back is left there
    box = output(seen.page, LIVE)
    seen.page.screenshot(path=seen.shots / "live.png")
    total = int(clock(box).split()[3].replace(",", ""))
    assert max(steps) < total < 5000
    notebook = saved(seen.page, seen.path)
    assert notebook.cells[RUN].outputs[0].text == "{'abort'}\n"


def test_the_with_form_shows_the_finished_run_and_its_still_picture_is_of_all_of_it(
    seen: Seen,
) -> None:
    box = output(seen.page, WITH)
    assert re.match(r"step 60 of 60 ", clock(box))
    playwright.expect(box.locator(".ts-stop")).to_be_hidden()
    stills = saved(seen.page, seen.path).cells[WITH].outputs
    assert [out.data["text/plain"] for out in stills if "image/png" in out.data] == [
        "Live of Continuous: 8 requests, 60 steps"
    ]


# -- explore --------------------------------------------------------------------------------------


def test_explore_plays_scrubs_and_tells_whose_cell_it_is(seen: Seen) -> None:
    box = output(seen.page, EXPLORE)
    assert step_of(box) == 1
    box.locator(".ts-play").click()
    seen.page.wait_for_function(
        "() => !/^step [1-5] of/.test(document.querySelector('.ts-clock').innerText)"
    )
    box.locator(".ts-play").click()
    paused = step_of(box)
    seen.page.wait_for_timeout(500)
    assert step_of(box) == paused > 5
    box.locator(".ts-scrub").fill("33")
    playwright.expect(box.locator(".ts-clock")).to_contain_text("step 33 of 305")
    words = box.locator(".ts-why").inner_text()
    for heading, sentence in why(explored(), 33).lines:
        assert heading == "Rule" or sentence in words
    over = box.locator(".ts-over")
    over.hover(position={"x": 200, "y": 16})
    playwright.expect(box.locator(".ts-tip")).to_contain_text("r1: ")
    seen.page.screenshot(path=seen.shots / "explore.png")
    stands = seen.page.locator(".jp-CodeCell").nth(EXPLORE).locator(".jp-RenderedImage")
    playwright.expect(stands).to_be_hidden()
    assert (seen.watch.errors, seen.watch.external) == ([], [])


def test_what_is_set_in_python_is_what_the_page_shows_and_the_other_way_round(seen: Seen) -> None:
    box = output(seen.page, EXPLORE)
    box.locator(".ts-scrub").fill("101")
    assert python(seen.page, "view.step") == "101"
    python(seen.page, "view.step = 33; view.by = 'request'")
    playwright.expect(box.locator(".ts-clock")).to_contain_text("step 33 of 305")
    playwright.expect(box.locator(".ts-title")).to_contain_text("one row each")
    python(seen.page, "view.by = 'slot'")
    playwright.expect(box.locator(".ts-title")).to_contain_text("16 slots")


# -- playground -----------------------------------------------------------------------------------


def drag(page: Any, cell: int, label: str, by: int) -> str:
    """Drag the slider of that name by so many pixels; returns what stands beside it then."""
    slider = page.locator(".jp-CodeCell").nth(cell).locator(".widget-slider", has_text=label)
    handle = slider.locator(".noUi-handle").bounding_box()
    x, y = handle["x"] + handle["width"] / 2, handle["y"] + handle["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + by, y, steps=5)
    page.mouse.up()
    return str(slider.locator(".widget-readout").inner_text())


def test_a_dragged_slider_makes_the_run_that_it_says_and_reset_and_copy_work(seen: Seen) -> None:
    page, box = seen.page, output(seen.page, PLAYGROUND)
    note = page.locator(".toyserve-playground-note")
    first, words = picture(box), note.inner_text()
    rate = float(drag(page, PLAYGROUND, "arrivals per s", 40))
    assert rate > 30
    playwright.expect(note).not_to_have_text(words)
    playwright.expect(box.locator(".ts-title")).to_contain_text("40 requests")
    run = run_settings(Settings(num_requests=40, rate=rate))
    playwright.expect(box.locator(".ts-title")).to_contain_text(f"{len(run.steps):,} steps")
    playwright.expect(note).to_contain_text(
        f"{run.summary()['output_tokens_per_s']:,.0f} tokens per second"
    )
    assert picture(box) != first
    page.screenshot(path=seen.shots / "playground.png")
    page.get_by_role("button", name="Copy as code").click()
    playwright.expect(page.get_by_role("button", name="Copied")).to_be_visible()
    names: dict[str, Any] = {}
    exec(page.evaluate("() => navigator.clipboard.readText()"), names)
    assert names["recording"].steps == run.steps
    page.get_by_role("button", name="Reset").click()
    playwright.expect(note).to_have_text(words)
    assert picture(box) == first
    assert (seen.watch.errors, seen.watch.external) == ([], [])


def test_two_hundred_quick_moves_of_a_slider_end_at_the_last_value(seen: Seen) -> None:
    page, box = seen.page, output(seen.page, PLAYGROUND)
    slider = page.locator(".jp-CodeCell").nth(PLAYGROUND).locator(".widget-slider")
    slider = slider.filter(has_text="arrivals per s")
    slider.locator(".noUi-handle").focus()
    for key, times in (("ArrowRight", 60), ("ArrowLeft", 40), ("ArrowRight", 100)):
        for _ in range(times):
            page.keyboard.press(key)
    rate = float(slider.locator(".widget-readout").inner_text())
    assert rate > float(Settings().rate)
    run = run_settings(Settings(num_requests=40, rate=rate))
    playwright.expect(box.locator(".ts-title")).to_contain_text(f"{len(run.steps):,} steps")
    page.wait_for_timeout(1500)  # nothing that was under way jumps back
    playwright.expect(box.locator(".ts-title")).to_contain_text(f"{len(run.steps):,} steps")
    assert float(slider.locator(".widget-readout").inner_text()) == rate
    assert seen.watch.errors == []


def test_a_cell_run_twice_shows_one_picture_and_the_saved_page_converts_to_html(seen: Seen) -> None:
    page = seen.page
    for _ in range(2):
        output(page, EXPLORE)
        page.evaluate("() => window.jupyterapp.commands.execute('notebook:run-cell')")
        wait_for_status(page, "idle")
    cell = page.locator(".jp-CodeCell").nth(EXPLORE)
    playwright.expect(cell.locator(".toyserve-timeline")).to_have_count(1)
    assert step_of(output(page, EXPLORE)) == 1
    notebook = saved(page, seen.path)
    stills = [o for o in notebook.cells[EXPLORE].outputs if "image/png" in o.get("data", {})]
    assert len(stills) == 1
    page_text, _ = HTMLExporter().from_notebook_node(notebook)
    assert page_text.count("data:image/png;base64") >= len(CELLS) - 1
    assert "widget-state+json" in page_text


# -- saved and opened again -----------------------------------------------------------------------


def test_a_saved_notebook_still_plays_without_a_kernel_and_without_state_shows_its_pictures(
    seen: Seen,
) -> None:
    box = output(seen.page, EXPLORE)
    box.locator(".ts-scrub").fill("33")
    playwright.expect(box.locator(".ts-clock")).to_contain_text("step 33 of 305")
    seen.page.mouse.move(5, 5)
    before = colours(box)
    assert len(before) > 1  # the background, and what ran
    notebook = saved(seen.page, seen.path)
    folder = seen.path.parent
    browser = seen.page.context.browser
    with jupyterlab(folder, seen.home) as address:
        page, watch = opened(browser, address)
        box = output(page, EXPLORE)
        shut_kernel_down(page)
        assert step_of(box) == 33
        assert colours(box) == before
        box.locator(".ts-play").click()
        page.wait_for_function(
            "() => !/^step 3[3-5] of/.test(document.querySelector('.ts-clock').innerText)"
        )
        assert step_of(box) > 35
        assert re.match(r"step 60 of 60 ", clock(output(page, WITH)))
        output(page, PLAYGROUND)
        assert page.evaluate(STATE)["status"] == "none"
        page.screenshot(path=seen.shots / "without-kernel.png")
        # JupyterLab's debugger panel was asking the kernel something when it was shut down.
        errors = [e for e in watch.errors if "restore the debugger state: Canceled future" not in e]
        assert (errors, watch.external) == ([], [])
        page.close()
        del notebook.metadata["widgets"]
        seen.path.write_text(nbformat.writes(notebook), encoding="utf-8")
        NotebookNotary(data_dir=str(seen.home / "DATA_DIR")).sign(notebook)
        page, watch = opened(browser, address)
        page.get_by_text("model not found").first.wait_for(timeout=60_000)
        stills = page.locator(".jp-CodeCell").nth(EXPLORE).locator(".jp-RenderedImage img")
        playwright.expect(stills).to_be_visible()
        assert stills.evaluate("image => image.naturalWidth") > 400
        page.screenshot(path=seen.shots / "without-state.png")
        # What JupyterLab's widget manager says of a widget whose state nobody has.
        assert all("widget model not found" in error for error in watch.errors)
        assert watch.external == []


def opened(browser: Any, address: str) -> tuple[Any, Watch]:
    """The notebook in a page of its own, with a fresh kernel that has run nothing."""
    page = browser.new_page(viewport={"width": 1400, "height": 1400})
    watch = Watch(page)
    page.goto(f"{address}/lab/tree/widgets.ipynb?token={TOKEN}")
    wait_for_status(page, "idle")
    return page, watch


def shut_kernel_down(page: Any) -> None:
    page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.shutdown()")
    wait_for_status(page, "none")
