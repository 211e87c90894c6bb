"""The real engine with people before its door: they come, are turned away, read, and go."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from toyserve.course.checks.part import Case
from toyserve.course.checks.runs import engine_of
from toyserve.engine import Engine
from toyserve.recording import Recording, StepRecord
from toyserve.request import Request, SamplingParams
from toyserve.schedulers import ContinuousScheduler


def engine_before(case: Case) -> Engine:
    """The engine behind the door, nobody in it."""
    lengths = {name: answer for name, _, _, answer, *_ in case["requests"]}
    return engine_of(case, ContinuousScheduler(max_running=case["slots"]), lengths)


def _request(row: Any) -> Request:
    name, arrival, prompt, answer, *_ = row
    return Request(name, [1] * prompt, SamplingParams(max_tokens=answer), arrival)


def _play(engine: Engine, events: list[tuple[float, Callable[[], Any]]]) -> None:
    """Step while anybody is there; what happens in the street is seen between two steps."""
    events.sort(key=lambda event: event[0])
    while events or engine.has_unfinished:
        while events and events[0][0] <= engine.clock.now():
            events.pop(0)[1]()
        if engine.has_unfinished:
            engine.step()
        elif events:
            engine.clock.wait_until(events[0][0])


def run_door(case: Case, door_class: Any) -> dict[str, Any]:
    """Person → what the learner's door said: None (come in), or seconds until to come again."""
    engine, door = engine_before(case), door_class(case["slots"], case["queue"])
    answers: dict[str, Any] = {}

    def come(row: Any) -> None:
        answers[row[0]] = door.ask()
        if answers[row[0]] is None:
            engine.add_request(_request(row))

    def leave(step: StepRecord) -> None:
        for _ in step.finished:
            door.ended(step.end_time)

    engine.on_step.append(leave)
    _play(engine, [(row[1], partial(come, row)) for row in case["requests"]])
    return answers


def street(case: Case, front_class: Any) -> Recording:
    """The engine behind such a front end, on the virtual clock."""
    engine = engine_before(case)
    front = front_class(engine.abort)
    events: list[tuple[float, Callable[[], Any]]] = []
    for row in case["requests"]:
        events.append((row[1], partial(engine.add_request, _request(row))))
        if len(row) > 4:
            events.append((row[4], partial(front.gone, row[0])))
    told = dict.fromkeys((row[0] for row in case["requests"]), 0)

    def send(_: Any) -> None:
        for name, record in engine.recording.requests.items():
            if len(record.token_times) > told[name]:
                told[name] = len(record.token_times)
                front.write(name)

    engine.on_step.append(send)
    _play(engine, events)
    return engine.recording
