"""Shortest first: the least work goes ahead, as in an express lane."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from toyserve.request import Request

Length = Literal["prompt", "answer", "both"]


class ShortestFirst:
    """The shortest request that waits is admitted first; the longest that runs gives way.

    by: what counts as short: the "prompt", the "answer" (its declared max_tokens: nobody knows the
    true length), or "both" together. Ties go to whoever came first.
    Guarantees: the least mean wait of all orders, if the lengths are true (shortest job first).
    Harms: the long, without bound: while short ones keep coming, they never run.
    """

    def __init__(self, by: Length = "both") -> None:
        if by not in ("prompt", "answer", "both"):
            raise ValueError(f"by is {by!r}: it must be one of prompt, answer, both")
        self.by = by

    def length(self, request: Request) -> int:
        prompt, answer = request.num_prompt_tokens, request.params.max_tokens
        return {"prompt": prompt, "answer": answer, "both": prompt + answer}[self.by]

    def _key(self, request: Request) -> tuple[int, float]:
        return self.length(request), request.arrival_time

    def next(self, waiting: Sequence[Request], now: float) -> Request:
        return min(waiting, key=self._key)

    def victim(self, running: Sequence[Request], now: float) -> Request:
        return max(reversed(running), key=self._key)  # of equals, the last admitted
