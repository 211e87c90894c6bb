"""A JupyterLab and its pages in a real headless Chromium, driven by Playwright."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
import pytest

playwright = pytest.importorskip("playwright.sync_api")
pytest.importorskip("jupyterlab")
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = os.environ.get("TOYSERVE_CHROMIUM") or next(
    filter(None, map(shutil.which, _BROWSERS)), None
)
# CI brings a browser: there, a missing one is a failure and not a reason to skip.
needs_browser = [
    pytest.mark.browser,
    pytest.mark.skipif(
        not CHROMIUM and not os.environ.get("CI"),
        reason="no chromium here (TOYSERVE_CHROMIUM names one)",
    ),
]
TOKEN = "lesson"
# What the page knows of the notebook; the app is exposed to the page only for these tests.
STATE = """() => {
  const panel = window.jupyterapp?.shell.currentWidget;
  if (!panel || !panel.content || !panel.content.widgets) return null;
  const code = panel.content.widgets.filter(w => w.model.type === 'code');
  const kernel = panel.sessionContext.session?.kernel;
  return {total: code.length, status: kernel?.status ?? 'none',
          done: code.filter(w => w.model.executionCount !== null).length};
}"""
READY = """() => {
  const context = window.jupyterapp?.shell.currentWidget?.sessionContext;
  return context?.isReady && context.session?.kernel?.status === 'idle';
}"""
SCROLL = """async text => {
  const notebook = window.jupyterapp.shell.currentWidget.content;
  const index = notebook.widgets.findIndex(w => w.model.sharedModel.getSource().includes(text));
  notebook.activeCellIndex = index;
  await notebook.scrollToItem(index, 'start');
}"""


@contextmanager
def chromium() -> Iterator[Any]:
    with playwright.sync_playwright() as tool:
        browser = tool.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser
        browser.close()


def shots_folder(tmp_path: Path) -> Path:
    """Where pictures of the page go: TOYSERVE_SCREENSHOTS keeps them to be looked at."""
    folder = Path(os.environ.get("TOYSERVE_SCREENSHOTS", tmp_path / "shots"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


# -- JupyterLab -----------------------------------------------------------------------------------


def prepare(folder: Path, home: Path) -> None:
    """The course's folder, as ``toyserve lab`` makes it."""
    command = [sys.executable, "-m", "toyserve", "lab", str(folder), "--prepare-only"]
    subprocess.run(command, check=True, env=_environment(home))


@contextmanager
def jupyterlab(folder: Path, home: Path) -> Iterator[str]:
    """JupyterLab as ``toyserve lab`` starts it, with settings of its own below ``home``; its
    address."""
    port, log_path = _free_port(), home / "jupyter.log"
    options = [f"--port={port}", "--no-browser", "--", f"--IdentityProvider.token={TOKEN}"]
    options += ["--LabApp.expose_app_in_browser=True", "--ServerApp.port_retries=0"]
    command = [sys.executable, "-m", "toyserve", "lab", str(folder), *options]
    with log_path.open("w", encoding="utf-8") as log:
        server = subprocess.Popen(command, env=_environment(home), stdout=log, stderr=log)
        address = f"http://127.0.0.1:{port}"
        try:
            _wait_for(f"{address}/api/status?token={TOKEN}", server, log_path)
            yield address
        finally:
            url = f"{address}/api/shutdown?token={TOKEN}"
            try:
                urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=10)
                server.wait(20)
            except (OSError, subprocess.TimeoutExpired):
                server.kill()


def _environment(home: Path) -> dict[str, str]:
    places = {f"JUPYTER_{name}": home / name for name in ("CONFIG_DIR", "DATA_DIR", "RUNTIME_DIR")}
    places |= {f"JUPYTERLAB_{n}_DIR": home / n for n in ("SETTINGS", "WORKSPACES")}
    return os.environ | {name: str(path) for name, path in places.items()}


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(720):
        try:
            urllib.request.urlopen(url, timeout=2).read()
            return
        except OSError:
            assert server.poll() is None, log.read_text(encoding="utf-8")
            time.sleep(0.25)
    raise AssertionError(f"JupyterLab did not start:\n{log.read_text(encoding='utf-8')}")


def run_all(page: Any, limit: float) -> None:
    """Run > Run All Cells, through the menu, until the last cell is done."""
    start_all(page)
    end = time.monotonic() + limit
    while time.monotonic() < end:
        state = page.evaluate(STATE)
        if state and state["total"] == state["done"] and state["status"] == "idle":
            return
        page.wait_for_timeout(300)
    raise AssertionError(f"not done after {limit:.0f} s: {state}")


def start_all(page: Any) -> None:
    """Run > Run All Cells, through the menu, once the notebook in front has its kernel: JupyterLab
    drops what is run before (and a page that shows its first cell may still wait for a kernel)."""
    page.wait_for_function(READY, timeout=60_000)
    page.locator(".lm-MenuBar-itemLabel", has_text="Run").first.click()
    page.locator(".lm-Menu-itemLabel", has_text="Run All Cells").first.click()


def python(page: Any, code: str) -> str:
    """Have the kernel run ``code`` and give back its value, as text."""
    return str(
        page.evaluate(
            """async code => {
          const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
          const future = kernel.requestExecute({code, store_history: false});
          let value = '';
          future.onIOPub = msg => {
            if (msg.header.msg_type === 'execute_result') value = msg.content.data['text/plain'];
            if (msg.header.msg_type === 'error') value = msg.content.evalue;
          };
          await future.done;
          return value;
        }""",
            code,
        )
    )


def write_notebook(path: Path, cells: Sequence[str]) -> None:
    """A notebook of code cells that have not been run."""
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(cell) for cell in cells],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}},
    )
    path.write_text(nbformat.writes(notebook), encoding="utf-8")


def saved(page: Any, path: Path) -> nbformat.NotebookNode:
    """Save the notebook and read the file."""
    before = path.stat().st_mtime_ns
    page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
    for _ in range(100):
        if path.stat().st_mtime_ns != before:
            break
        page.wait_for_timeout(100)
    return nbformat.reads(path.read_text(encoding="utf-8"), as_version=4)


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
