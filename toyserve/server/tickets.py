"""A request on its way through the engine, and the news of it that a client is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from toyserve.models.detokenizer import IncrementalText
from toyserve.models.tokenizer import Tokenizer
from toyserve.request import FinishReason, Request, TokenLogprobs
from toyserve.streaming import next_piece


@dataclass(frozen=True, slots=True)
class Delta:
    """What is new about one request. The texts of its deltas join to the whole answer.

    error: what went wrong on the server's side; then nothing follows.
    """

    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    error: str | None = None

    @property
    def is_last(self) -> bool:
        return self.finish_reason is not None or self.error is not None


@dataclass(eq=False)
class Ticket:
    """One request, its text so far, and where its news go. Only the engine's thread changes it.

    tell: called on the engine's thread with a list of this step's (ticket, delta) pairs that share
    this very callable; it must hand them on and return at once. place: where it hands them to.
    """

    request: Request
    tell: Callable[[list[tuple[Ticket, Delta]]], None]
    prompt: str = ""  # as text, for people
    place: Any = None
    text: IncrementalText = field(init=False)
    is_over: bool = False
    error: str | None = None

    def __post_init__(self) -> None:
        self.text = IncrementalText(self.request.params.stop or ())

    def news(self, tokenizer: Tokenizer) -> Delta | None:
        """What the last step brought: None in the middle of a prompt.

        ``text.stopped`` afterwards says that a stop string has appeared.
        """
        request = self.request
        piece = next_piece(request, self.text, tokenizer)
        if piece is None:
            return None
        wanted = request.params.logprobs is not None
        logprobs = tuple(request.logprobs[-1:]) if wanted else ()
        reason = FinishReason.STOP if self.text.stopped else request.finish_reason
        return Delta(piece, (request.token_ids[-1],), logprobs, reason)
