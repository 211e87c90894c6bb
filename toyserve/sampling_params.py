"""How to pick each token of an answer, and when to stop."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral
from typing import Any


def require(ok: bool, message: str) -> None:
    if not ok:
        raise ValueError(message)


def is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """A finite one; not True, which Python would count as 1."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond every float
        return False


def _as_int(value: Any) -> Any:
    """A numpy integer as Python's own; anything else as it is."""
    return value.item() if isinstance(value, Integral) and hasattr(value, "item") else value


def _as_tuple(name: str, value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ValueError(f"{name} is {value!r}: it must be a list")
    return tuple(value)


@dataclass(frozen=True)
class SamplingParams:
    """How to pick each token, and when to stop. Validated when built.

    temperature: 0 is greedy; below 1e-5 counts as 0. top_k: keep the k most likely (0 keeps all).
    top_p: keep the smallest set of most likely tokens whose probability reaches p.
    seed: the same seed gives the same tokens whatever else is in the batch.
    stop, stop_token_ids: strings (never emitted) and token ids (kept in ``token_ids``) that end it.
    logprobs: how many of the most likely tokens to report per position, from the distribution
    before temperature, top_k and top_p (0 reports only the chosen token; None reports nothing).
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    max_tokens: int = 64
    min_tokens: int = 0
    stop: str | tuple[str, ...] | list[str] | None = ()
    stop_token_ids: tuple[int, ...] | list[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None

    def __post_init__(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else _as_tuple("stop", self.stop)
        object.__setattr__(self, "stop", stop)
        ids = tuple(map(_as_int, _as_tuple("stop_token_ids", self.stop_token_ids)))
        object.__setattr__(self, "stop_token_ids", ids)
        for name in ("top_k", "seed", "max_tokens", "min_tokens", "logprobs"):
            object.__setattr__(self, name, _as_int(getattr(self, name)))
        t, p = self.temperature, self.top_p
        require(
            is_number(t) and t >= 0,
            f"temperature is {t!r}: it must be a finite number, 0 or more",
        )
        require(
            is_number(p) and 0 < p <= 1,
            f"top_p is {p!r}: it must be above 0 and at most 1",
        )
        require(
            is_int(self.top_k) and self.top_k >= 0,
            f"top_k is {self.top_k!r}: it must be a whole number, 0 (off) or more",
        )
        require(
            is_int(self.max_tokens) and self.max_tokens >= 1,
            f"max_tokens is {self.max_tokens!r}: it must be a whole number, at least 1",
        )
        require(
            is_int(self.min_tokens) and 0 <= self.min_tokens <= self.max_tokens,
            f"min_tokens is {self.min_tokens!r}: it must lie between 0 and "
            f"max_tokens ({self.max_tokens})",
        )
        require(
            self.seed is None or is_int(self.seed), f"seed is {self.seed!r}: not a whole number"
        )
        require(
            all(isinstance(s, str) and s for s in stop),
            f"stop is {self.stop!r}: every stop string must hold at least one character",
        )
        require(
            all(is_int(i) and i >= 0 for i in self.stop_token_ids),
            f"stop_token_ids is {self.stop_token_ids!r}: token ids are whole numbers, 0 or more",
        )
        require(
            self.logprobs is None or (is_int(self.logprobs) and 0 <= self.logprobs <= 20),
            f"logprobs is {self.logprobs!r}: it must lie between 0 and 20, or be None",
        )

    @property
    def greedy(self) -> bool:
        """Below 1e-5, where dividing by the temperature would overflow, it means argmax."""
        return self.temperature < 1e-5
