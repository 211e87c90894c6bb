"""What a server must leave behind, and OpenAI's own client for it."""

from __future__ import annotations

import socket
import threading

import openai

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


RUNNING: list[Server] = []


def server_threads_alive() -> list[str]:
    return ["toyserve-engine", "toyserve-http"] if RUNNING else []


def client_of(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
