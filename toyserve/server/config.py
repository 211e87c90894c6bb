"""What a server may be told: checked when built, nothing is left to be found out later."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ServerConfig:
    """How to listen, and what to put up with.

    host, port: 127.0.0.1 keeps other machines out; port 0 takes a free one.
    model_name: what clients call the model; None: the LLM's own name.
    api_key: clients must send ``Authorization: Bearer KEY``, except for ``/`` and
    ``/health``.
    max_queue: requests that may wait beside the ``max_running`` that run; one more is answered
    429.
    max_body_bytes: longest body of an HTTP request.
    record: a file to which every decision is written as it happens; what an earlier server wrote
    there is moved to ``NAME.1.jsonl`` and so on.
    max_steps: how many steps the recording in memory keeps; of older ones only what still matters.
    drain_time: seconds that unfinished answers get when the server is stopped.
    send_time: seconds after which a client that reads nothing is given up.
    stall_time: seconds without a step after which ``/health`` calls a busy engine stalled.
    """

    host: str = "127.0.0.1"
    port: int = 0
    model_name: str | None = None
    api_key: str | None = None
    max_queue: int = 128
    max_body_bytes: int = 1_000_000
    record: Path | None = None
    max_steps: int = 2_000
    drain_time: float = 5.0
    send_time: float = 60.0
    stall_time: float = 10.0

    def __post_init__(self) -> None:
        if self.record is not None:
            object.__setattr__(self, "record", Path(self.record))
        _whole("port", self.port, 0, 65_535)
        _whole("max_queue", self.max_queue, 0)
        _whole("max_body_bytes", self.max_body_bytes, 1)
        _whole("max_steps", self.max_steps, 100)
        for name in ("drain_time", "send_time", "stall_time"):
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not (is_number and math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} is {value!r}: it must be a number of seconds, 0 or more")
        for name in ("api_key", "model_name", "host"):
            if getattr(self, name) == "":
                raise ValueError(f"{name} is empty: leave it out or give it a value")


def _whole(name: str, value: object, low: int, high: int | None = None) -> None:
    is_int = isinstance(value, int) and not isinstance(value, bool)
    if not is_int or value < low or (high is not None and value > high):  # type: ignore[operator]
        limits = f"at least {low}" if high is None else f"from {low} to {high}"
        raise ValueError(f"{name} is {value!r}: it must be a whole number, {limits}")
