"""A recording survives its file: live and loaded are equal, whatever clock and however cut."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from toyserve import Engine, Recording, Request, SamplingParams
from toyserve.clock import WallClock
from toyserve.kv import PagedKV
from toyserve.runners import SimulatedRunner
from toyserve.schedulers import ChunkedScheduler


def run(*, keep_steps: bool = True, stream: Path | None = None) -> Recording:
    """A crowded run on the wall clock, with preemptions."""
    recording = Recording({"note": "é"}, keep_steps=keep_steps)
    if stream:
        recording.stream_to(stream)
    engine = Engine(
        scheduler=ChunkedScheduler(4, 6),
        kv=PagedKV(9, 4),
        runner=SimulatedRunner({"r0": 9, "r1": 20}),
        clock=WallClock(),
        recording=recording,
        max_model_len=64,
    )
    params = SamplingParams(max_tokens=20)
    engine.run([Request(f"r{i}", [i] * (3 + i), params, 0.001 * (i > 3)) for i in range(6)])
    engine.add_request(Request("too-long", [0] * 70, params))
    return recording


def test_live_and_loaded_are_equal_on_the_wall_clock(tmp_path: Path) -> None:
    recording = run()
    assert sum(r.num_preemptions for r in recording.requests.values()) > 0
    recording.save(tmp_path / "run.jsonl")
    loaded = Recording.load(tmp_path / "run.jsonl")
    assert loaded.requests == recording.requests
    assert loaded.steps == recording.steps
    assert loaded.meta == recording.meta
    assert loaded.summary() == recording.summary()


def test_a_recording_without_steps_keeps_its_figures_in_the_file(tmp_path: Path) -> None:
    recording = run(keep_steps=False)
    assert not recording.steps
    recording.save(tmp_path / "run.jsonl")
    loaded = Recording.load(tmp_path / "run.jsonl")
    assert loaded.requests == recording.requests
    assert loaded.num_steps == recording.num_steps > 0
    assert loaded.summary() == recording.summary()


def test_every_prefix_of_a_streamed_file_is_a_valid_recording(tmp_path: Path) -> None:
    recording = run(stream=tmp_path / "whole.jsonl")
    recording.close()
    content = (tmp_path / "whole.jsonl").read_bytes()
    assert Recording.load(tmp_path / "whole.jsonl").requests == recording.requests
    cut = tmp_path / "cut.jsonl"
    first_line = content.index(b"\n") + 1
    for size in range(first_line, len(content), 37):
        cut.write_bytes(content[:size])
        loaded = Recording.load(cut)
        assert loaded.num_steps <= recording.num_steps
        for request_id, record in loaded.requests.items():
            whole = recording.requests[request_id].token_times
            assert record.token_times == whole[: len(record.token_times)]


def test_what_is_not_a_recording_is_refused_with_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"

    def message(text: str | None) -> str:
        if text is not None:
            path.write_text(text, encoding="utf-8")
        with pytest.raises(ValueError) as error:
            Recording.load(path)
        assert "\n" not in str(error.value)
        assert "run.jsonl" in str(error.value)
        return str(error.value)

    assert "cannot be read" in message(None)
    assert "no meta line" in message("")
    assert "line 1" in message("hello\n")
    meta = json.dumps({"kind": "meta", "version": 1, "meta": {"num_blocks": 1}})
    assert "line 2" in message(f'{meta}\n{{"kind":"surprise"}}\n{meta}\n')
    assert "version 99" in message(meta.replace('"version": 1', '"version": 99') + "\n")


def test_time_stands_still_while_a_scheduler_decides() -> None:
    seen: list[set[float]] = []

    class Watching(ChunkedScheduler):
        def schedule(self):  # type: ignore[no-untyped-def]
            before = self.clock.now()
            plan = super().schedule()
            seen.append({before, self.clock.now()})
            return plan

    engine = Engine(scheduler=Watching(4, 6), kv=PagedKV(9, 4), runner=SimulatedRunner())
    recording = engine.run([Request("r", [1, 2], SamplingParams(max_tokens=3))])
    assert [times for times in seen if len(times) > 1] == []
    assert {step.start_time for step in recording.steps} <= set().union(*seen)
    ends = [step.end_time for step in recording.steps]
    assert recording.requests["r"].token_times == ends
