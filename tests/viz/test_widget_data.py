"""What the browser is given holds the run: spans, tokens, blocks and words, without Python."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from toyserve.clock import VirtualClock
from toyserve.costs import cost_model
from toyserve.engine import Engine
from toyserve.kv import PagedKV
from toyserve.recording import Recording, StepRecord
from toyserve.replay import replay_work
from toyserve.request import Request, SamplingParams
from toyserve.runners import SimulatedRunner, TimedRunner
from toyserve.schedulers import ChunkedScheduler, ContinuousScheduler, Scheduler, StaticScheduler
from toyserve.viz import why
from toyserve.viz.growing import GrowingPack
from toyserve.viz.page import page_text, to_html
from toyserve.viz.view import main
from toyserve.viz.widget_data import MAX_EXPLAINED_STEPS, pack, refreshed, unpack
from toyserve.workload import burst, poisson


def a_run(n: int = 20, num_blocks: int = 60, *, prefix_caching: bool = False) -> Recording:
    """Short of memory, so that somebody waits and somebody is paused."""
    workload, clock = burst(n), VirtualClock()
    engine = Engine(
        scheduler=ChunkedScheduler(8, 128),
        kv=PagedKV(num_blocks, 16, prefix_caching=prefix_caching),
        runner=TimedRunner(
            SimulatedRunner(workload.output_lens), cost_model("h100", "llama-3-8b"), clock
        ),
        clock=clock,
    )
    return engine.run(workload.requests_for_engine())


@pytest.mark.parametrize("prefix_caching", [False, True])
def test_the_packed_spans_give_each_requests_tokens_and_context_of_every_step(
    prefix_caching: bool,
) -> None:
    run = a_run(prefix_caching=prefix_caching)
    assert any(r.num_preemptions for r in run.requests.values())
    header, data = pack(run)
    arrays = unpack(header, data)
    names = list(header["states"])
    for number, (_, work) in enumerate(replay_work(run)):
        inside = (arrays["span_start"] <= number) & (arrays["span_end"] > number)
        for item in work:
            request = header["ids"].index(item.request_id)
            state = names.index(str(item.phase))
            here = inside & (arrays["span_request"] == request) & (arrays["span_state"] == state)
            (span,) = np.flatnonzero(here)
            length = float(arrays["span_end"][span] - arrays["span_start"][span])
            left = float(arrays["span_end"][span]) - (number + 1)
            tokens = int(arrays["span_tokens"][span])
            assert round(tokens / length) == item.num_tokens
            context = int(arrays["span_context"][span]) - round(tokens * left / length)
            assert context == item.context_len


SCHEDULERS = [
    ("chunked", lambda: ChunkedScheduler(8, 128)),
    ("continuous", lambda: ContinuousScheduler(6)),
    ("static", lambda: StaticScheduler(4)),
]


@pytest.mark.parametrize("every", [1, 3, 30])
@pytest.mark.parametrize("make", [make for _, make in SCHEDULERS], ids=[n for n, _ in SCHEDULERS])
def test_what_grows_with_the_run_is_at_any_time_what_a_fresh_look_at_it_gives(
    make: Callable[[], Scheduler], every: int
) -> None:
    """Late and early arrivals, pauses, refusals and aborts in the batch and in the queue."""
    workload, clock = poisson(16, 60.0, 7), VirtualClock()
    engine = Engine(
        scheduler=make(),
        kv=PagedKV(60, 16),
        runner=TimedRunner(
            SimulatedRunner(workload.output_lens), cost_model("h100", "llama-3-8b"), clock
        ),
        clock=clock,
        max_model_len=600,
    )
    growing, seen = GrowingPack(engine.recording), []

    def look(step: StepRecord) -> None:
        if step.index == 20:
            engine.add_request(Request("late", [1] * 20, SamplingParams(max_tokens=9)))
            engine.add_request(Request("never", [1] * 700, SamplingParams(max_tokens=9)))
        if step.index == 31:
            engine.abort(next(iter(engine.requests)))
            engine.abort(list(engine.requests)[-1])
        if step.index % every == 0:
            now = refreshed(growing)
            if step.index % 30 == 0:
                assert rows(*now) == rows(*pack(engine.recording))
                seen.append(step.index)

    engine.on_step.append(look)
    engine.run(workload.requests_for_engine())
    assert len(seen) > 2
    assert rows(*refreshed(growing)) == rows(*pack(engine.recording))
    assert {str(r.finish_reason) for r in engine.recording.requests.values()} >= {
        "abort",
        "refused",
    }


def rows(header: dict[str, Any], data: bytes) -> dict[str, Any]:
    """Everything packed; spans and marks in any order."""
    arrays = {name: values.tolist() for name, values in unpack(header, data).items()}
    tables: dict[str, Any] = {key: header[key] for key in header if key != "arrays"}
    for table in ("span", "mark"):
        columns = [arrays.pop(name) for name in list(arrays) if name.startswith(table)]
        tables[table] = sorted(zip(*columns, strict=True))
    return tables | arrays


def test_the_packed_words_of_a_step_are_those_of_why() -> None:
    run = a_run(8)
    words = pack(run, explain=True)[0]["why"]
    for number in range(1, len(run.steps) + 1):
        assert [tuple(line) for line in words[number - 1]] == list(why(run, number).lines)


def test_a_long_run_is_packed_without_the_words() -> None:
    run = a_run(60)
    assert len(run.steps) > MAX_EXPLAINED_STEPS
    assert "why" not in pack(run, explain=True)[0]


def test_a_recording_without_steps_is_refused_and_an_empty_one_is_not(tmp_path: Path) -> None:
    empty = Recording({"num_blocks": 4, "block_size": 16})
    assert pack(empty)[0]["num_steps"] == 0
    to_html(empty, tmp_path / "empty.html")
    run = a_run(2)
    run.steps, run.num_steps = [], 9
    with pytest.raises(ValueError, match="kept none of its 9 steps"):
        pack(run)


def test_names_in_a_page_cannot_end_its_script() -> None:
    run = a_run(2)
    run.meta["label"] = "</script><b>é</b>"
    page = page_text(run)
    assert "<b>é" not in page
    assert page.count("</script>") == 3


def test_a_page_over_the_limit_is_refused_with_both_numbers(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"would be 0\.\d MB and the limit is 0\.01 MB"):
        to_html(a_run(4), tmp_path / "page.html", max_mb=0.01)
    assert not (tmp_path / "page.html").exists()


def test_view_writes_a_page_beside_the_recording(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mein Lauf é.jsonl"
    a_run(3).save(path)
    assert main([str(path)]) == 0
    assert "Written" in capsys.readouterr().out
    assert "mount(model" in path.with_suffix(".html").read_text(encoding="utf-8")
    with pytest.raises(ValueError, match=r"ends in \.html"):
        main([str(path), "--out", str(path)])


def test_the_pictures_import_without_widgets() -> None:
    code = (
        "import sys, json, toyserve.viz, toyserve.viz.page, toyserve.viz.view; "
        "print(json.dumps([m for m in ('anywidget', 'ipywidgets', 'torch') if m in sys.modules]))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert json.loads(result.stdout) == []
