"""Messages between the grader and a session: JSON behind its length, so data and no objects."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

MAX_MESSAGE = 64_000_000


def send(channel: socket.socket, message: Any) -> None:
    """Raises OSError when the other side is gone."""
    data = json.dumps(message).encode("utf-8")
    channel.sendall(struct.pack(">I", len(data)) + data)


def receive(channel: socket.socket) -> Any:
    """Raises EOFError when the other side is gone, ValueError for what is no message."""
    (length,) = struct.unpack(">I", _exactly(channel, 4))
    if length > MAX_MESSAGE:
        raise ValueError(f"a message of {length:,} bytes")
    return json.loads(_exactly(channel, length))


def _exactly(channel: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        piece = channel.recv(min(65536, count - len(data)))
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)
