"""Timeline, explore, playground and live without a browser: traits, last value wins, stop."""

from __future__ import annotations

import asyncio
import base64

import pytest
from test_widget_data import a_run

from toyserve.engine import Engine
from toyserve.kv import PagedKV
from toyserve.recording import Recording
from toyserve.request import FinishReason, Request, SamplingParams
from toyserve.runners import SimulatedRunner
from toyserve.schedulers import ContinuousScheduler

pytest.importorskip("anywidget")

from toyserve.server.history import shorten
from toyserve.viz import Timeline, explore, live, playground, why, widget_playground
from toyserve.viz.playground_run import run_settings
from toyserve.viz.widget_data import pack


def test_a_timeline_keeps_its_run_and_state_in_synced_traits_and_brings_a_png() -> None:
    view = Timeline(a_run(4), step=3, by="request")
    state = view.get_state()
    assert state["step"] == 3 and state["by"] == "request" and len(state["grid"]) > 100
    bundle = view._repr_mimebundle_()
    assert bundle is not None
    assert base64.b64decode(bundle[0]["image/png"]).startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="step is 0: this run has steps 1 to"):
        view.step = 0
    with pytest.raises(ValueError, match="by is 'row'"):
        Timeline(a_run(1), by="row")


def test_explore_has_the_words_of_every_step_or_makes_those_of_the_one_looked_at() -> None:
    assert len(explore(a_run(4)).header["why"]) > 0
    run = a_run(60)
    view = explore(run)
    view.step = 300
    assert view.sentence["step"] == 300
    assert [tuple(line) for line in view.sentence["lines"]] == list(why(run, 300).lines)


def test_of_200_quick_moves_through_a_long_run_only_the_last_step_is_put_into_words() -> None:
    async def move() -> list[int | None]:
        run, told = a_run(60), []
        view = explore(run)
        view.observe(lambda change: told.append(change["new"].get("step")), names="sentence")
        for number in range(200):
            view.step = 100 + number
        while not told:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        other = a_run(50)
        view.show(other)
        view.step = 40
        while view.sentence.get("step") != 40:
            await asyncio.sleep(0.01)
        assert [tuple(line) for line in view.sentence["lines"]] == list(why(other, 40).lines)
        return told

    assert asyncio.run(move()) == [299, None, 40]


def test_of_200_quick_moves_the_playground_shows_the_last_and_makes_one_run() -> None:
    async def move() -> None:
        board = playground(num_requests=20)
        values = [1.0, 5.0, 20.0, 100.0]
        for number in range(200):
            board.controls["rate"].value = values[number % 4]
        board.controls["rate"].value = 60.0
        await asyncio.sleep(1.0)
        assert board.num_runs == 1
        assert board.settings.rate == 60.0
        assert board.view.recording is board.recording

    asyncio.run(move())


def test_a_long_run_is_shown_so_far_then_whole_and_a_further_move_takes_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(widget_playground, "SLICE_TIME", 0.002)

    async def move() -> None:
        board = playground(num_requests=20)
        board.controls["max_running"].value = 1
        while board.num_runs < 1:
            await asyncio.sleep(0.01)
        assert "going on" in board.note.value
        assert board.view.header["num_steps"] > 0
        overtaken, board.controls["rate"].value = board.recording, 5
        while board.num_runs < 2 or "going on" in board.note.value:
            await asyncio.sleep(0.01)
        whole = run_settings(board.settings)
        assert board.recording.steps == whole.steps
        assert board.view.header["num_steps"] == len(whole.steps)
        assert overtaken is not board.recording

    asyncio.run(move())


def test_what_is_not_possible_is_said_and_goes_when_the_slider_goes_back() -> None:
    board = playground(num_requests=5)
    words = board.note.value
    board.controls["token_budget"].value = 16
    board.controls["max_running"].value = 32
    assert "Not possible" in board.note.value
    assert board.settings.max_running == 16
    board.reset()
    assert board.note.value == words


def test_the_playgrounds_code_makes_the_same_run_and_reset_brings_back_the_first() -> None:
    board = playground(num_requests=10, num_blocks=100)
    board.controls["max_chunk"].value = 32
    board.controls["policy"].value = "shortest_first"
    names: dict[str, object] = {}
    exec(board.copy.text, names)
    made = names["recording"]
    assert made.summary() == board.recording.summary()  # type: ignore[attr-defined]
    board.reset()
    assert board.settings == board.start
    with pytest.raises(ValueError, match="has no 'speed'"):
        playground(speed=3)


def an_engine() -> Engine:
    return Engine(scheduler=ContinuousScheduler(4), kv=PagedKV(64, 16), runner=SimulatedRunner())


def some_requests(n: int) -> list[Request]:
    return [Request(f"r{i}", [1] * 8, SamplingParams(max_tokens=20)) for i in range(n)]


def test_live_shows_the_whole_run_at_its_end_and_lets_go() -> None:
    engine = an_engine()
    first = live(engine)
    view = live(engine)  # a cell that is run twice
    assert len(engine.on_step) == 1 and not first.can_stop
    recording = engine.run(some_requests(8))
    assert view.header["num_steps"] == len(recording.steps)
    assert view.follow and not view.running  # the page shows the newest step
    view.detach()
    assert engine.on_step == []
    with pytest.raises(ValueError, match="takes an Engine or an LLM, not int"):
        live(3)


def test_live_begins_anew_when_the_recording_lets_go_of_its_beginning() -> None:
    engine = an_engine()
    view = live(engine)
    for n in range(12):
        request = Request(f"r{n}", [1] * 8, SamplingParams(max_tokens=20))
        engine.run([request])
        if n == 7:
            view.update()
            shorten(engine.recording, 50)
    kept = engine.recording
    assert len(kept.steps) < kept.num_steps
    assert view.header["ids"] == list(kept.records)
    assert (view.header, view.grid) == pack(kept)


def test_live_leaves_an_engine_to_the_server_that_it_works_for() -> None:
    engine = an_engine()
    view = live(engine)
    for request in some_requests(4):
        engine.add_request(request)
    engine.step()
    engine.served_by = "http://127.0.0.1:1"
    engine.step()
    assert engine.on_step == [] and not view.can_stop
    with pytest.raises(
        ValueError, match=r"works for the server at http://127\.0\.0\.1:1: that page"
    ):
        live(engine)
    silent = Engine(
        scheduler=ContinuousScheduler(4), kv=PagedKV(64, 16), runner=SimulatedRunner(),
        recording=Recording(keep_steps=False),
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"keeps no steps \(keep_steps=False\)"):
        live(silent)


def test_stop_aborts_what_is_unfinished_and_the_engine_can_go_on() -> None:
    engine = an_engine()
    view = live(engine)
    for request in some_requests(8):
        engine.add_request(request)
    for _ in range(5):
        engine.step()
    view._on_message(view, {"do": "stop"}, [])
    engine.step()
    assert not engine.has_unfinished
    reasons = {r.finish_reason for r in engine.recording.requests.values()}
    assert reasons == {FinishReason.ABORT}
    engine.restart()
    engine.run(some_requests(2))
    assert view.header["ids"] == ["r0", "r1"]
