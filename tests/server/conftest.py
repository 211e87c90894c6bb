"""Servers for the tests: each is checked at its end for what it left behind."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from echo import EchoRunner, make_llm

from toyserve import LLM
from toyserve.server import Server


def check_nothing_left(server: Server, port: int) -> None:
    engine = server.llm.engine
    assert not engine.requests and not engine.scheduler.waiting and not engine.scheduler.running
    assert engine.kv.num_free_blocks == engine.kv.num_blocks
    engine.scheduler.check_integrity()
    names = [t.name for t in threading.enumerate() if t.name.startswith("toyserve-")]
    others = [name for name in names if name not in server_threads_alive()]
    assert not others
    with socket.socket() as sock:
        assert sock.connect_ex(("127.0.0.1", port)) != 0


_RUNNING: list[Server] = []


def server_threads_alive() -> list[str]:
    return ["toyserve-engine", "toyserve-http"] if _RUNNING else []


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    """``serve(llm=None, **options)``: a started server, stopped and checked after the test."""
    started: list[tuple[Server, int]] = []

    def start(llm: LLM | None = None, **options: Any) -> Server:
        server = Server(llm or make_llm(), **{"drain_time": 0.0} | options).start()
        _RUNNING.append(server)
        started.append((server, server.port))
        return server

    yield start
    for server, port in started:
        runner = server.llm.engine.runner
        if isinstance(runner, EchoRunner):
            runner.gate.set()
        server.stop()
        _RUNNING.remove(server)
        check_nothing_left(server, port)


@pytest.fixture(scope="module")
def echo() -> Iterator[Server]:
    """One server that repeats prompts, for all tests of a module that leave it as it was."""
    server = Server(make_llm(), drain_time=0.0).start()
    _RUNNING.append(server)
    port = server.port
    yield server
    server.stop()
    _RUNNING.remove(server)
    check_nothing_left(server, port)


def client_of(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def client(echo: Server) -> Iterator[openai.OpenAI]:
    with client_of(echo) as client:
        yield client
