"""Answers that grow while the engine runs: what is shown, and that watching changes nothing."""

from __future__ import annotations

import IPython.display
import pytest

from toyserve import LLM, Request, SamplingParams
from toyserve.course.watch import watch


class Screen:
    """Stands in for a notebook's output area: keeps every frame."""

    def __init__(self) -> None:
        self.frames: list[str] = []

    def display(self, shown: IPython.display.HTML, **_: object) -> Screen:
        self.update(shown)
        return self

    def update(self, shown: IPython.display.HTML) -> None:
        self.frames.append(str(shown.data))


def requests_for(llm: LLM) -> list[Request]:
    greedy = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    return [Request(f"<{name}>", llm.tokenizer.encode(f"{name}:\n"), greedy) for name in "ABC"]


def test_watching_shows_every_step_and_changes_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(IPython.display, "display", screen.display)
    llm = LLM("toy", scheduler="continuous", max_running=2)
    texts = watch(llm, requests_for(llm), pace=0)
    assert llm.engine.on_step == []  # nothing of it stays behind
    alone = [llm.generate(f"{name}:\n", requests_for(llm)[0].params)[0].text for name in "ABC"]
    assert texts == alone
    assert len(screen.frames) == 1 + 6  # before the first step, and after each
    assert screen.frames[0].startswith("<b>step 0</b>: 3 waiting")
    assert screen.frames[1].startswith("<b>step 1</b>: 1 waiting, 2 reading its prompt")
    assert screen.frames[2].startswith("<b>step 2</b>: 1 waiting, 2 writing")
    assert screen.frames[4].startswith("<b>step 4</b>: 1 reading its prompt, 2 done")
    assert screen.frames[-1].startswith("<b>step 6</b>: 3 done")


def test_names_and_texts_are_no_html(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(IPython.display, "display", screen.display)
    llm = LLM("toy", scheduler="continuous")
    watch(llm, requests_for(llm), pace=0)
    assert "&lt;A&gt;" in screen.frames[0]
    assert "<A>" not in screen.frames[0]


def test_it_can_be_watched_twice() -> None:
    llm = LLM("toy", scheduler="continuous")
    first, second = (watch(llm, requests_for(llm), pace=0) for _ in range(2))
    assert first == second
