"""Bytes on the wire: JSON that never fails, server-sent events, and clients that go away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

T = TypeVar("T")
DONE = "data: [DONE]\n\n"


def dump(content: Any) -> str:
    """JSON in ASCII: half a surrogate pair in a client's text cannot break the answer."""
    return json.dumps(content, separators=(",", ":"))


def event(content: Any) -> str:
    return f"data: {dump(content)}\n\n"


class Gone(Exception):
    """The client has closed the connection."""


async def disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(receive: Receive, work: Awaitable[T]) -> T:
    """The result of ``work``, which is cancelled when the client goes away: then raises Gone."""
    gone = asyncio.ensure_future(disconnected(receive))
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({gone, task}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Gone
        return task.result()
    finally:
        await _cancel(gone, task)


class EventStream(Response):
    """Server-sent events, ended at once by a client that goes away or stops reading.

    ``close`` is called exactly once, however it ends. send_time: seconds that a client may take to
    read what was sent.
    """

    media_type = "text/event-stream"

    def __init__(
        self, events: AsyncIterator[str], close: Callable[[], None], send_time: float
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self.events, self.close, self.send_time = events, close, send_time

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.ensure_future(disconnected(receive))
        sending = asyncio.ensure_future(self._send_all(send))
        try:
            await asyncio.wait({gone, sending}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done() and not isinstance(sending.exception(), OSError | None):
                sending.result()
        finally:
            self.close()
            await _cancel(gone, sending)

    async def _send_all(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        async for text in self.events:
            part = {"type": "http.response.body", "body": text.encode(), "more_body": True}
            try:
                await asyncio.wait_for(send(part), self.send_time)
            except TimeoutError:
                return  # without an end: the server then cuts the connection
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _cancel(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
