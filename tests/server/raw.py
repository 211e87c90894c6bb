"""HTTP by hand: to say what no well-behaved client would, and to hang up when it hurts."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from typing import Any

import httpx

from toyserve.server import Server


def post(server: Server, body: Any, path: str = "/v1/completions") -> httpx.Response:
    with quick_client() as client:
        return client.post(server.url + path, json=body)


def send(server: Server, content: Any, path: str = "/v1/completions") -> httpx.Response:
    """A body as it stands."""
    with quick_client() as client:
        headers = {"Content-Type": "application/json"}
        return client.post(server.url + path, content=content, headers=headers)


def get(server: Server, path: str) -> httpx.Response:
    with quick_client() as client:
        return client.get(server.url + path)


def quick_client() -> httpx.Client:
    """Without the certificates, whose loading takes longer than most requests here."""
    return httpx.Client(verify=False, trust_env=False, timeout=60)


def events(server: Server, body: dict[str, Any], path: str = "/v1/completions") -> list[Any]:
    """What a stream says: the parsed events, the closing "[DONE]" as it stands."""
    response = post(server, body | {"stream": True}, path)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = response.text.split("\n\n")
    assert lines.pop() == ""
    assert all(line.startswith("data: ") for line in lines)
    payloads = [line.removeprefix("data: ") for line in lines]
    return [p if p == "[DONE]" else json.loads(p) for p in payloads]


def text_of(chunks: list[Any], index: int = 0) -> str:
    choices = [c for chunk in chunks if chunk != "[DONE]" for c in chunk.get("choices", ())]
    return "".join(c["text"] for c in choices if c["index"] == index)


def hang_up(
    server: Server,
    body: dict[str, Any],
    num_chunks: int,
    when: Callable[[], bool] = lambda: True,
) -> None:
    """Send a request, read ``num_chunks`` pieces of its answer, and close the socket."""
    content = json.dumps(body).encode()
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        head = (
            "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\n\r\n"
        )
        sock.sendall(head.encode() + content)
        for _ in range(num_chunks):
            assert sock.recv(4096)
        eventually(when)


def eventually(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)
