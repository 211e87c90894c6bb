"""Servers for the tests: each is checked at its end for what it left behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from echo import EchoRunner, make_llm
from server_for_tests import RUNNING, check_nothing_left, client_of

from toyserve import LLM
from toyserve.server import Server


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    """``serve(llm=None, **options)``: a started server, stopped and checked after the test."""
    started: list[tuple[Server, int]] = []

    def start(llm: LLM | None = None, **options: Any) -> Server:
        server = Server(llm or make_llm(), **{"drain_time": 0.0} | options).start()
        RUNNING.append(server)
        started.append((server, server.port))
        return server

    yield start
    for server, port in started:
        runner = server.llm.engine.runner
        if isinstance(runner, EchoRunner):
            runner.gate.set()
        server.stop()
        RUNNING.remove(server)
        check_nothing_left(server, port)


@pytest.fixture(scope="module")
def echo() -> Iterator[Server]:
    """One server that repeats prompts, for all tests of a module that leave it as it was."""
    server = Server(make_llm(), drain_time=0.0).start()
    RUNNING.append(server)
    port = server.port
    yield server
    server.stop()
    RUNNING.remove(server)
    check_nothing_left(server, port)


@pytest.fixture(scope="module")
def client(echo: Server) -> Iterator[openai.OpenAI]:
    with client_of(echo) as client:
        yield client
