"""Lesson 04 in a real browser, the way a learner opens it: ``toyserve lab``, Run All, a quiz."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

playwright = pytest.importorskip("playwright.sync_api")
pytest.importorskip("jupyterlab")
CHROMIUM = os.environ.get("TOYSERVE_CHROMIUM") or shutil.which("chromium")
LESSON = "lessons/04_continuous_batching.ipynb"
TOKEN = "lesson"
pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason="no chromium here (TOYSERVE_CHROMIUM names one)"),
]
# What the page knows of the notebook; the app is exposed to the page only for this test.
STATE = """() => {
  const panel = window.jupyterapp.shell.currentWidget;
  if (!panel || !panel.content || !panel.content.widgets) return null;
  const code = panel.content.widgets.filter(w => w.model.type === 'code');
  const kernel = panel.sessionContext.session?.kernel;
  return {total: code.length, status: kernel?.status ?? 'none',
          done: code.filter(w => w.model.executionCount !== null).length};
}"""
SCROLL = """async text => {
  const notebook = window.jupyterapp.shell.currentWidget.content;
  const index = notebook.widgets.findIndex(w => w.model.sharedModel.getSource().includes(text));
  notebook.activeCellIndex = index;
  await notebook.scrollToItem(index, 'start');
}"""


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@pytest.fixture
def course(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """JupyterLab as ``toyserve lab`` starts it; its address, and the lesson, without outputs."""
    folder, port = tmp_path / "mein Kurs é", free_port()
    places = {name: str(tmp_path / name) for name in ("CONFIG_DIR", "DATA_DIR", "RUNTIME_DIR")}
    environment = os.environ | {f"JUPYTER_{name}": path for name, path in places.items()}
    environment |= {f"JUPYTERLAB_{n}_DIR": str(tmp_path / n) for n in ("SETTINGS", "WORKSPACES")}
    prepare = [sys.executable, "-m", "toyserve", "lab", str(folder)]
    subprocess.run([*prepare, "--prepare-only"], check=True, env=environment)
    lesson = folder / LESSON
    notebook = nbformat.reads(lesson.read_text(encoding="utf-8"), as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    lesson.write_text(nbformat.writes(notebook), encoding="utf-8")
    options = [f"--port={port}", "--no-browser", "--", f"--IdentityProvider.token={TOKEN}"]
    options += ["--LabApp.expose_app_in_browser=True", "--ServerApp.port_retries=0"]
    log = (tmp_path / "jupyter.log").open("w", encoding="utf-8")
    server = subprocess.Popen([*prepare, *options], env=environment, stdout=log, stderr=log)
    try:
        address = f"http://127.0.0.1:{port}"
        wait_for(f"{address}/api/status?token={TOKEN}", server, tmp_path / "jupyter.log")
        yield address, lesson
    finally:
        url = f"{address}/api/shutdown?token={TOKEN}"
        try:
            urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=10)
            server.wait(20)
        except (OSError, subprocess.TimeoutExpired):
            server.kill()
        log.close()


def wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(240):
        try:
            urllib.request.urlopen(url, timeout=2).read()
            return
        except OSError:
            assert server.poll() is None, log.read_text(encoding="utf-8")
            time.sleep(0.25)
    raise AssertionError(f"JupyterLab did not start:\n{log.read_text(encoding='utf-8')}")


class Watch:
    """What a page asked of the network, and what it complained about."""

    def __init__(self, page: Any) -> None:
        self.external: list[str] = []
        self.errors: list[str] = []
        page.on("request", self._on_request)
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.errors.append(str(error)))

    def _on_request(self, request: Any) -> None:
        if not request.url.startswith(("http://127.0.0.1:", "ws://127.0.0.1:", "data:", "blob:")):
            self.external.append(request.url)

    def _on_console(self, message: Any) -> None:
        if message.type == "error":
            self.errors.append(f"{message.text} ({message.location.get('url', '')})")


def run_all(page: Any, limit: float) -> None:
    """Run > Run All Cells, through the menu, until the last cell is done."""
    page.locator(".lm-MenuBar-itemLabel", has_text="Run").first.click()
    page.locator(".lm-Menu-itemLabel", has_text="Run All Cells").first.click()
    end = time.monotonic() + limit
    while time.monotonic() < end:
        state = page.evaluate(STATE)
        if state and state["total"] == state["done"] and state["status"] == "idle":
            return
        page.wait_for_timeout(300)
    raise AssertionError(f"not done after {limit:.0f} s: {state}")


def saved(page: Any, lesson: Path) -> nbformat.NotebookNode:
    before = lesson.stat().st_mtime_ns
    page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
    for _ in range(100):
        if lesson.stat().st_mtime_ns != before:
            break
        page.wait_for_timeout(100)
    return nbformat.reads(lesson.read_text(encoding="utf-8"), as_version=4)


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
    shots = Path(os.environ.get("TOYSERVE_SCREENSHOTS", tmp_path / "shots"))
    shots.mkdir(parents=True, exist_ok=True)
    with playwright.sync_playwright() as tool:
        browser = tool.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
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
        browser.close()
    outputs = [o for cell in notebook.cells if cell.cell_type == "code" for o in cell.outputs]
    assert [o for o in outputs if o.output_type == "error"] == []
    assert sum("image/png" in o.get("data", {}) for o in outputs) >= 8
    assert "E takes D" in json.dumps(outputs) or "Not yet" in json.dumps(outputs)
    assert watch.external == []
    assert watch.errors == []
