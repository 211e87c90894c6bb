"""The dashboard in a real browser, under load: it shows what happens and asks nobody else."""

from __future__ import annotations

import base64
import os
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from echo import make_llm
from raw import eventually, get, post
from server_for_tests import Server

from toyserve.viz.widget_data import unpack

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


def state_of(server: Server, after: int | None = None) -> dict:
    return get(server, "/dashboard/state" + ("" if after is None else f"?after={after}")).json()


def test_the_state_tells_requests_users_and_steps(serve) -> None:
    server = serve()
    assert state_of(server)["run"] is None
    post(server, {"prompt": "one two", "user": "ann", "max_tokens": 9})
    eventually(lambda: state_of(server)["num_steps"] > 0)
    state = state_of(server)
    (request,) = state["requests"]
    assert (request["text"], request["prompt"], request["status"]) == ("one two", "one two", "stop")
    assert request["user"] == "ann" and request["is_over"] and request["ttft_ms"] > 0
    (user,) = state["users"]
    assert user["user"] == "ann" and user["num_finished"] == 1 and user["ttft_p50"] > 0
    header = state["run"]["header"]
    arrays = unpack(header, base64.b64decode(state["run"]["grid"]))
    assert header["num_steps"] == state["num_steps"] == len(arrays["step_end"])
    assert np.all(arrays["step_free"] <= header["num_blocks"])
    assert any("reads its prompt" in text for line in header["why"] for _, text in line)
    assert state_of(server, after=state["num_steps"])["run"] is None


def test_a_burst_is_held_to_the_same_limits_and_can_be_aborted(serve) -> None:
    server = serve(make_llm(max_running=2), max_queue=4)
    runner = server.llm.engine.runner
    runner.gate.clear()
    sent = post(server, {"prompt": "hello there", "count": 4}, "/dashboard/burst").json()
    assert sent == {"request_ids": ["r1.0", "r1.1", "r1.2", "r1.3"]}
    assert post(server, {"prompt": "x", "count": 3}, "/dashboard/burst").status_code == 429
    assert post(server, {"prompt": ""}, "/dashboard/burst").status_code == 400
    post(server, {"request_id": "r1.3"}, "/dashboard/abort")
    post(server, {"request_id": "nobody"}, "/dashboard/abort")
    runner.gate.set()
    eventually(lambda: server.health()["num_unfinished"] == 0)
    ends = {r["id"]: r["status"] for r in state_of(server)["requests"]}
    assert ends == {"r1.0": "stop", "r1.1": "stop", "r1.2": "stop", "r1.3": "abort"}


def test_the_page_holds_all_it_needs(echo: Server) -> None:
    page = get(echo, "/")
    assert page.headers["content-type"].startswith("text/html")
    assert "connect-src 'self'" in page.headers["content-security-policy"]
    assert not re.findall(r"""(?:src|href)=["'](?!data:)""", page.text)
    assert "https://" not in page.text and "/* style */" not in page.text


# -- in a browser ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator:
    if CHROMIUM is None:
        pytest.skip("no Chromium here: CI has one")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.mark.browser
def test_the_dashboard_under_load(browser, serve) -> None:
    server = serve(make_llm(step_time=0.01, num_blocks=96, max_running=6), max_queue=200)
    page = browser.new_page(viewport={"width": 1280, "height": 1400})
    asked, complaints = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(server.url)
    page.wait_for_selector("#health.ok")
    with ThreadPoolExecutor(10) as pool:
        texts = [f"user number {i % 4} says hello {i} times. " * 5 for i in range(40)]
        calls = [
            pool.submit(post, server, {"prompt": text, "user": f"user-{i % 4}", "max_tokens": 300})
            for i, text in enumerate(texts)
        ]
        page.wait_for_selector(".toyserve-timeline .ts-base")
        page.wait_for_selector(".request .status.running")
        until(page, "document.querySelectorAll('#users tbody tr').length >= 4")
        page.fill("textarea[name=prompt]", "from the form, with love")
        page.fill("input[name=count]", "5")
        page.click("button[type=submit]")
        until(page, "document.getElementById('sent').textContent === 'sent: 5'")
        first = page.evaluate("window.toyserve.model.get('step')")
        until(page, f"window.toyserve.model.get('header').num_steps !== {first}")
        shoot(page, "dashboard_under_load.png")
        for call, text in zip(calls, texts, strict=True):
            assert call.result().json()["choices"][0]["text"] == text
    until(
        page,
        "[...document.querySelectorAll('.request .text')]"
        ".filter((e) => e.textContent === 'from the form, with love').length === 5",
    )
    assert page.inner_text(".ts-why").strip()
    assert not complaints
    assert {url.split("/")[2] for url in asked} == {f"127.0.0.1:{server.port}"}
    page.click(".ts-bar [data-do=back]")
    assert not page.is_checked("#follow")
    page.close()


@pytest.mark.browser
def test_the_dashboard_asks_for_the_key_and_says_when_the_server_is_gone(browser, serve) -> None:
    server = serve(api_key="sesame")
    page = browser.new_page()
    page.goto(server.url)
    until(page, "document.getElementById('health').textContent === 'locked'")
    page.fill("#key", "sesame")
    page.press("#key", "Enter")
    page.wait_for_selector("#health.ok")
    assert page.is_hidden("#key-line")
    server.stop()
    until(page, "document.getElementById('health').textContent === 'no connection'")
    page.close()


def until(page, expression: str) -> None:
    """Playwright's own waiting evaluates text inside the page, which the page's policy forbids."""
    eventually(lambda: page.evaluate(expression))


def shoot(page, name: str) -> None:
    """For whoever wants to look: TOYSERVE_SCREENSHOTS names a folder."""
    folder = os.environ.get("TOYSERVE_SCREENSHOTS")
    if folder:
        page.screenshot(path=str(Path(folder) / name))
