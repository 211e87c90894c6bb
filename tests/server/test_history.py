"""A recording that is shortened while it goes on: fewer requests, nothing else changes."""

from __future__ import annotations

import gc
import threading
import tracemalloc

import pytest
from echo import make_llm

from toyserve import Engine, Recording, Request, SamplingParams
from toyserve.replay import MemoryMap, replay_memory, replay_work
from toyserve.server.engine_thread import EngineThread
from toyserve.server.history import latest, shorten
from toyserve.server.observe import Metrics
from toyserve.server.tickets import Delta, Ticket
from toyserve.viz import timeline
from toyserve.viz.widget_data import pack


def add(engine: Engine, name: str, prompt: list[int], max_tokens: int) -> None:
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    assert engine.add_request(Request(name, prompt, params, engine.clock.now()))


def run_on(engine: Engine, num_others: int, first: int = 0) -> None:
    """Short requests one after the other, each aborted or finished, beside whoever else runs."""
    for number in range(first, first + num_others):
        add(engine, f"s{number}", [number % 50 + 1] * 20, 8 + number % 5)
        while f"s{number}" in engine.requests:
            engine.step()
            if number % 7 == 3:
                engine.abort(f"s{number}")


def story_of(recording: Recording, name: str) -> list[tuple[float, int, int, bool]]:
    return [
        (step.start_time, item.num_tokens, item.context_len, item.sampled)
        for step, work in replay_work(recording)
        for item in work
        if item.request_id == name
    ]


def last_map(recording: Recording) -> MemoryMap:
    *_, (_, memory) = replay_memory(recording)
    return memory


@pytest.mark.parametrize("prefix_caching", [False, True])
@pytest.mark.parametrize("num_blocks", [24, 100])
@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_what_is_left_is_what_happened(
    prefix_caching: bool, num_blocks: int, preemption: str
) -> None:
    swap = {"num_host_blocks": 40} if preemption == "swap" else {}
    llm = make_llm(
        num_blocks=num_blocks, prefix_caching=prefix_caching, preemption=preemption, **swap
    )
    engine = llm.engine
    add(engine, "long", [5] * 40, 150)
    add(engine, "short too", [7] * 30, 80)
    run_on(engine, 12)
    whole = engine.recording
    for num_steps in (1, 3, 40, 200):
        short = latest(whole, num_steps)
        assert short.steps[-num_steps:] == whole.steps[-num_steps:]
        assert len(short.records) <= len(whole.records)
        assert story_of(short, "long") == story_of(whole, "long")
        assert last_map(short) == last_map(whole)
        timeline(short)
        pack(short, explain=True)
    assert len(latest(whole, 20).records) < 8
    before = story_of(whole, "long")
    shorten(whole, 30)  # in place, and then the engine goes on
    run_on(engine, 5, first=12)
    assert story_of(whole, "long")[: len(before)] == before
    assert last_map(latest(whole, 20)) == last_map(whole)
    while engine.has_unfinished:
        engine.step()
    assert len(whole.requests["long"].token_ids) == 150
    assert engine.kv.num_free_blocks == engine.kv.num_blocks


def test_a_run_of_weeks_keeps_few_steps_and_requests() -> None:
    engine = make_llm().engine
    most = 0
    for number in range(0, 600, 20):
        run_on(engine, 20, first=number)
        shorten(engine.recording, 60)
        most = max(most, len(engine.recording.steps), len(engine.recording.records))
    assert most <= 80 and engine.recording.num_steps > 3000


def serve_burst(thread: EngineThread, first: int) -> None:
    """Sixteen users' requests at once; back when all are over."""
    done, letters_left = threading.Event(), [16]

    def tell(letters: list[tuple[Ticket, Delta]]) -> None:
        letters_left[0] -= sum(delta.is_last for _, delta in letters)
        if letters_left[0] == 0:
            done.set()

    now = thread.engine.clock.now()
    requests = [
        Request(
            f"r{number}",
            [number % 50 + 1] * (5 + number % 9),
            SamplingParams(max_tokens=4 + number % 5, ignore_eos=True),
            now,
            user=f"u{number % 100}",
        )
        for number in range(first, first + 16)
    ]
    thread.submit([Ticket(request, tell) for request in requests]).result(60)
    assert done.wait(60)


@pytest.mark.parametrize("policy", ["fcfs", "fair_share"])
def test_a_served_engine_takes_no_more_memory_once_its_window_is_full(policy: str) -> None:
    llm = make_llm(policy=policy, prefix_caching=True)
    metrics = Metrics(llm.engine, "echo")
    thread = EngineThread(
        llm.engine, llm.tokenizer, max_queue=64, max_steps=50, observers=(metrics,)
    )
    thread.start()
    tracemalloc.start()
    sizes = []
    for number in range(0, 60 * 16, 16):
        serve_burst(thread, number)
        if number % (20 * 16) == 19 * 16:
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    thread.stop()
    assert thread.num_steps > 400 and len(llm.engine.recording.records) < 200
    kept_of_each = (sizes[-1] - sizes[0]) / (40 * 16)
    assert kept_of_each < 50, f"{kept_of_each:.0f} bytes stay of every request: {sizes}"
