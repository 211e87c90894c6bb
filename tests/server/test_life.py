"""Clients that go away, a queue that is full, a server that stops, starts again or is killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from echo import make_llm
from raw import events, eventually, get, hang_up, post, quick_client, text_of

from toyserve import LLM, Recording
from toyserve.policies import Quota, Quotas
from toyserve.server import Server, ServerConfig

ENDLESS = {"prompt": "round and round", "max_tokens": 900, "ignore_eos": True}


def all_free(server: Server) -> bool:
    kv = server.llm.engine.kv
    return kv.num_free_blocks == kv.num_blocks and not server.health()["num_unfinished"]


# -- clients that go away --------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("num_chunks", [0, 1, 4])
def test_a_client_that_hangs_up_frees_its_blocks_within_two_steps(
    serve, stream: bool, num_chunks: int
) -> None:
    if not stream and num_chunks:
        pytest.skip("a whole answer comes in one piece")
    server = serve(make_llm(step_time=0.005))
    running = lambda: server.gauges()["num_requests_running"] == 1  # noqa: E731
    hang_up(server, ENDLESS | {"stream": stream}, num_chunks, running)
    eventually(lambda: all_free(server))
    steps = server.recording.steps
    (record,) = server.recording.requests.values()
    assert record.finish_reason == "abort" and len(record.token_ids) < 900
    assert all(server.gauges()[n] == 0 for n in server.gauges())
    assert len(steps) < 900


def test_the_abort_takes_effect_before_the_next_step_but_one(serve) -> None:
    """Counted in steps: the order is given while one step runs, and obeyed before the next."""
    server = serve()
    runner = server.llm.engine.runner
    runner.gate.clear()
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(post, server, ENDLESS)
        eventually(lambda: server.gauges()["num_requests_running"] == 1)
        (request_id,) = server.llm.engine.requests
        server.engine_thread.abort([request_id])
        runner.gate.set()
        assert asked.result().json()["choices"][0]["finish_reason"] == "abort"
    assert runner.num_steps <= 2 and all_free(server)


def test_two_hundred_clients_that_hang_up_leave_nothing(serve) -> None:
    server = serve(make_llm(num_blocks=64), max_queue=300)
    short = ENDLESS | {"max_tokens": 400}
    with ThreadPoolExecutor(20) as pool:
        calls = [
            pool.submit(hang_up, server, short | {"stream": i % 2 == 0}, 1 if i % 2 == 0 else 0)
            for i in range(200)
        ]
        for call in calls:
            call.result()
    eventually(lambda: all_free(server))
    assert not server.engine_thread.tickets
    assert text_of(events(server, {"prompt": "and now?", "max_tokens": 20})) == "and now?"


# -- back-pressure ---------------------------------------------------------------------------------


def test_beyond_the_queue_is_429_with_a_time_to_come_back(serve) -> None:
    server = serve(make_llm(max_running=2), max_queue=3)
    runner = server.llm.engine.runner
    runner.gate.clear()
    with ThreadPoolExecutor() as pool:
        asked = [pool.submit(post, server, {"prompt": "x y", "max_tokens": 9}) for _ in range(5)]
        eventually(lambda: server.health()["num_unfinished"] == 5)
        refused = post(server, {"prompt": "x"})
        assert refused.status_code == 429
        assert int(refused.headers["Retry-After"]) >= 1
        assert refused.json()["error"]["type"] == "rate_limit_error"
        counted = 'toyserve:requests_turned_away_total{model_name="echo"} 1.0'
        assert counted.replace("echo", server.model_name) in get(server, "/metrics").text
        too_many = post(server, {"prompt": "x", "n": 6})
        assert too_many.status_code == 400 and "5" in too_many.json()["error"]["message"]
        runner.gate.set()
        assert [a.result().json()["choices"][0]["text"] for a in asked] == ["x y"] * 5
    assert post(server, {"prompt": "x"}).status_code == 200


# -- health ----------------------------------------------------------------------------------------


def test_health_is_not_ok_while_a_step_does_not_end(serve) -> None:
    server = serve(stall_time=0.05)
    assert get(server, "/health").json()["status"] == "ok"
    runner = server.llm.engine.runner
    runner.gate.clear()
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(post, server, {"prompt": "x"})
        eventually(lambda: get(server, "/health").status_code == 503)
        assert get(server, "/health").json()["status"] == "stalled"
        runner.gate.set()
        assert asked.result().status_code == 200
    assert get(server, "/health").json()["status"] == "ok"


def test_a_user_whose_quota_is_spent_holds_up_neither_others_nor_orders(serve) -> None:
    """The engine then sleeps until the debt is paid, minutes away: a newcomer wakes it."""
    policy = Quotas({"ann": Quota(tokens_per_second=0.1, burst=1)})
    server = serve(make_llm(policy=policy))
    assert post(server, {"prompt": "a b c d", "user": "ann"}).status_code == 200
    with ThreadPoolExecutor() as pool:
        waits = pool.submit(post, server, {"prompt": "again", "user": "ann"})
        eventually(lambda: get(server, "/health").json()["status"] == "waiting")
        assert get(server, "/health").status_code == 200
        assert post(server, {"prompt": "x", "user": "bob"}).json()["choices"][0]["text"] == "x"
        (request_id,) = server.llm.engine.requests
        server.engine_thread.abort([request_id])
        assert waits.result().json()["choices"][0]["finish_reason"] == "abort"


# -- stopping and starting -------------------------------------------------------------------------


def test_stopping_lets_answers_under_way_finish_and_lets_nobody_in(serve) -> None:
    server = serve(make_llm(step_time=0.02))
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(events, server, {"prompt": "one two three four", "max_tokens": 99})
        eventually(lambda: server.gauges()["num_requests_running"] == 1)
        stopping = pool.submit(server.stop, drain_time=30)
        eventually(lambda: server.health()["status"] in ("closing", "stopped"))
        got = asked.result()
        stopping.result()
    assert text_of(got) == "one two three four" and got[-1] == "[DONE]"


@pytest.mark.parametrize("stream", [True, False])
def test_answers_cut_off_by_a_stop_say_so(serve, stream: bool) -> None:
    server = serve(make_llm(step_time=0.01))
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(events if stream else post, server, ENDLESS)
        eventually(lambda: server.gauges()["num_requests_running"] == 1)
        server.stop(drain_time=0)
        got = asked.result()
    if stream:
        assert got[-1] == "[DONE]" and got.count("[DONE]") == 1
        assert "shutting down" in got[-2]["error"]["message"]
    else:
        assert got.status_code == 503 and "shutting down" in got.json()["error"]["message"]


def test_a_server_starts_again_and_again_and_inside_a_running_loop() -> None:
    llm = make_llm()
    before = threading.active_count()

    async def cell() -> None:  # a notebook's cell runs inside a loop
        for _ in range(2):
            with Server(llm) as server:
                assert server.start() is server
                text = await asyncio.to_thread(lambda: post(server, {"prompt": "a"}).json())
                assert text["choices"][0]["text"] == "a"
                assert len(server.recording.requests) == 1
            server.stop()
            assert not server.is_running

    asyncio.run(cell())
    assert threading.active_count() == before
    llm.engine.runner.gate.set()
    assert llm.generate("still mine")[0].text == "still mine"


def test_a_port_or_an_engine_that_is_taken_is_one_sentence(serve) -> None:
    server = serve()
    other = Server(make_llm(), port=server.port)
    with pytest.raises(ValueError, match=f"port {server.port} of 127.0.0.1 cannot be had"):
        other.start()
    assert not other.is_running
    with pytest.raises(ValueError, match="works for the server at"):
        Server(server.llm).start()
    assert post(server, {"prompt": "a"}).status_code == 200
    with pytest.raises(ValueError, match="host is 'no such host'"):
        Server(make_llm(), host="no such host").start()


@pytest.mark.parametrize(
    "options",
    [{"port": -1}, {"port": 70_000}, {"max_queue": 1.5}, {"drain_time": -1}, {"api_key": ""}],
)
def test_a_config_that_cannot_be_is_refused_by_name(options) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        ServerConfig(**options)


def test_a_virtual_clock_cannot_serve() -> None:
    with pytest.raises(ValueError, match="clock is a VirtualClock"):
        Server(LLM("toy", clock="h100"))


# -- what is recorded ------------------------------------------------------------------------------


SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
from echo import make_llm
from toyserve.server import Server
with Server(make_llm(step_time=0.002), record=sys.argv[2]) as server:
    print(server.port, flush=True)
    sys.stdin.read()
"""


def start_process(record: Path) -> tuple[subprocess.Popen[str], int]:
    here = str(Path(__file__).parent)
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, here, str(record)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def test_killed_in_the_middle_it_leaves_a_recording_up_to_its_last_whole_line(
    tmp_path: Path,
) -> None:
    path = tmp_path / "run.jsonl"
    process, port = start_process(path)
    body = {"prompt": "on and on", "max_tokens": 900, "ignore_eos": True, "stream": True}
    with quick_client() as client:
        stream = client.stream("POST", f"http://127.0.0.1:{port}/v1/completions", json=body)
        with stream as answer:
            for number, _ in enumerate(answer.iter_lines()):
                if number > 60:
                    break
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
    whole = path.read_text().rpartition("\n")[0].splitlines()
    steps = [line for line in map(json.loads, whole) if line["kind"] == "step"]
    recording = Recording.load(path)
    (record,) = recording.requests.values()
    assert len(recording.steps) in (len(steps), len(steps) + 1) and len(steps) >= 30
    assert len(record.token_times) == len(recording.steps) and record.finish_reason is None
    with open(path, "a") as file:  # and a line that the kill cut short is left out
        file.write('{"kind":"step","start_time":9')
    assert len(Recording.load(path).steps) == len(recording.steps)
    process, _ = start_process(path)  # the same command again, as a supervisor would give it
    assert process.communicate("", timeout=60)
    assert process.returncode == 0
    assert Recording.load(path).num_steps == 0
    kept = Recording.load(tmp_path / "run.1.jsonl")
    assert len(kept.steps) == len(recording.steps)
