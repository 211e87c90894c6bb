"""What stands before every endpoint: the key, the body's size, and its arrival in time."""

from __future__ import annotations

import asyncio
import hmac

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from toyserve.server.config import ServerConfig
from toyserve.server.errors import ApiError

# These show nothing of what users send; the dashboard's page asks for the key itself.
OPEN_PATHS = ("/", "/health", "/openapi.json")
BODY_TIME = 30.0  # seconds in which a request's body must have come


class Gate:
    """An ASGI middleware that reads the body, so that nothing behind it waits for a slow client."""

    def __init__(self, app: ASGIApp, config: ServerConfig) -> None:
        self.app, self.config = app, config

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            self._check_key(scope)
            body = await asyncio.wait_for(self._read(receive), BODY_TIME)
        except ApiError as error:
            await error.response()(scope, receive, send)
            return
        except TimeoutError:
            late = ApiError(408, f"the body did not arrive within {BODY_TIME:g} seconds")
            await late.response()(scope, receive, send)
            return
        if body is not None:
            await self.app(scope, _replay(body, receive), send)

    def _check_key(self, scope: Scope) -> None:
        key = self.config.api_key
        if key is None or scope["path"] in OPEN_PATHS:
            return
        given = dict(scope["headers"]).get(b"authorization", b"")
        if not hmac.compare_digest(given, b"Bearer " + key.encode()):
            raise ApiError(
                401,
                "a valid key is needed: send the header 'Authorization: Bearer KEY'",
                headers={"WWW-Authenticate": "Bearer"},
            )

    async def _read(self, receive: Receive) -> bytes | None:
        """The whole body; None if the client went away. Reads on past the limit, for a while, so
        that the client has sent all it wanted and listens to the answer."""
        limit, size, parts = self.config.max_body_bytes, 0, []
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            part = message.get("body", b"")
            size += len(part)
            if size <= limit:
                parts.append(part)
            more = message.get("more_body", False)
            if size > limit and (not more or size > 20 * limit):
                raise ApiError(413, f"the body is longer than the limit of {limit:,} bytes")
            if not more:
                return b"".join(parts)


def _replay(body: bytes, receive: Receive) -> Receive:
    """The body once, then whatever else comes: that the client has gone."""
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return first.pop() if first else await receive()

    return receive_again
