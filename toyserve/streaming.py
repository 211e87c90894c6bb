"""From the engine's steps to each user's text, as soon as it is certain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from toyserve.engine import Engine
from toyserve.models.detokenizer import IncrementalText
from toyserve.models.tokenizer import Tokenizer
from toyserve.recording import StepRecord
from toyserve.request import FinishReason, Request


@dataclass(frozen=True)
class StreamDelta:
    """What is new about one request since the last delta. The texts of all its deltas join to the
    whole answer; none is ever taken back."""

    index: int  # of the prompt
    request_id: str
    text: str
    token_ids: list[int]
    finish_reason: FinishReason | None


def next_piece(request: Request, text: IncrementalText, tokenizer: Tokenizer) -> str | None:
    """What the last step added to ``text``; None if it brought no token (the middle of a prompt).

    ``text.stopped`` afterwards says that a stop string has appeared: ``end_at_stop`` is next.
    """
    if request.num_output_tokens == text.num_tokens:
        return None
    token_id, last = request.token_ids[-1], request.is_finished
    # A stop id ends the answer and is among its ids, but it is no text.
    silent = last and token_id in request.params.stop_token_ids
    return text.push(b"" if silent else tokenizer.token_bytes(token_id), final=last)


def end_at_stop(engine: Engine, request: Request) -> None:
    """A stop string has appeared, perhaps in what was the last token anyway."""
    if not request.is_finished:
        engine.abort(request.request_id, FinishReason.STOP)
    elif request.finish_reason is not FinishReason.STOP:
        request.finish_reason = FinishReason.STOP
        engine.recording.end_request(request)


class Answers:
    """The answers of requests that were just given to ``engine``; ``text_of`` after or during."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer, requests: Sequence[Request]) -> None:
        self.engine, self.tokenizer, self.requests = engine, tokenizer, requests
        self._index = {r.request_id: i for i, r in enumerate(requests)}
        self._texts = [IncrementalText(r.params.stop or ()) for r in requests]
        self._open = {r.request_id for r in requests if not r.is_finished}  # no last delta yet

    def text_of(self, request: Request) -> str:
        return self._texts[self._index[request.request_id]].text

    def stream(self) -> Iterator[StreamDelta]:
        """Turn the engine's crank until all have ended; yields every request's news.

        Whatever ends this early (an error, Ctrl-C, a closed iterator) aborts what is unfinished.
        """
        try:
            for request in self.requests:
                if request.is_finished:  # refused on arrival
                    yield self._delta(request, "", [])
            while self._open:
                step = self.engine.step()
                if step is not None:
                    yield from self._news(step)
                for request_id in self._open - self.engine.requests.keys():  # aborted by others
                    index = self._index[request_id]
                    self._open.discard(request_id)
                    yield self._delta(self.requests[index], self._texts[index].flush(), [])
        finally:
            for request in self.requests:
                self.engine.abort(request.request_id)

    def _news(self, step: StepRecord) -> Iterator[StreamDelta]:
        for request_id in step.num_scheduled_tokens:
            index = self._index.get(request_id)
            if index is None:
                continue  # not ours
            request, text = self.requests[index], self._texts[index]
            piece = next_piece(request, text, self.tokenizer)
            if piece is None:
                continue
            if text.stopped:
                end_at_stop(self.engine, request)
            if request.is_finished:
                self._open.discard(request_id)
            yield self._delta(request, piece, request.token_ids[-1:])

    def _delta(self, request: Request, text: str, token_ids: list[int]) -> StreamDelta:
        index = self._index[request.request_id]
        return StreamDelta(index, request.request_id, text, token_ids, request.finish_reason)
