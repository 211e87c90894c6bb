"""OpenAI's answers: one object at the end, or chunk by chunk."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from toyserve.models.tokenizer import Tokenizer
from toyserve.request import FinishReason, TokenLogprobs
from toyserve.server.errors import ApiError
from toyserve.server.logprobs import CompletionLogprobs, chat_logprobs
from toyserve.server.service import Answer
from toyserve.server.tickets import Delta
from toyserve.server.wire import DONE, event


class Format(Protocol):
    """How one endpoint writes answers. ``entries`` is None where nobody asked for logprobs."""

    prefix: str  # of the answer's id
    whole: str  # the kind of object
    part: str

    def opening(self, index: int) -> dict[str, Any] | None:
        """The chunk that stands before a choice's text."""
        ...

    def chunk(
        self, index: int, text: str, entries: Sequence[TokenLogprobs] | None, reason: str | None
    ) -> dict[str, Any]: ...

    def choice(
        self, index: int, text: str, entries: Sequence[TokenLogprobs] | None, reason: str | None
    ) -> dict[str, Any]: ...


class CompletionFormat:
    """echo: the prompts' texts, one for each choice, or None."""

    prefix, whole, part = "cmpl", "text_completion", "text_completion"

    def __init__(self, tokenizer: Tokenizer, num_choices: int, echo: list[str] | None) -> None:
        self._echo = dict(enumerate(echo or ()))
        self._logprobs = [CompletionLogprobs(tokenizer) for _ in range(num_choices)]

    def opening(self, index: int) -> dict[str, Any] | None:
        return None

    def chunk(
        self, index: int, text: str, entries: Sequence[TokenLogprobs] | None, reason: str | None
    ) -> dict[str, Any]:
        return {
            "index": index,
            "text": self._echo.pop(index, "") + text,
            "logprobs": None if entries is None else self._logprobs[index].add(entries),
            "finish_reason": reason,
        }

    choice = chunk


class ChatFormat:
    prefix, whole, part = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def opening(self, index: int) -> dict[str, Any] | None:
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def chunk(
        self, index: int, text: str, entries: Sequence[TokenLogprobs] | None, reason: str | None
    ) -> dict[str, Any]:
        logprobs = None if entries is None else chat_logprobs(self.tokenizer, entries)
        delta = {"content": text}
        return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}

    def choice(
        self, index: int, text: str, entries: Sequence[TokenLogprobs] | None, reason: str | None
    ) -> dict[str, Any]:
        logprobs = None if entries is None else chat_logprobs(self.tokenizer, entries)
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason}


@dataclass
class Counts:
    """Tokens so far. Prompts of several answers (n) are counted once."""

    answer: Answer
    num_prompt_tokens: int
    num_output_tokens: int = 0

    def usage(self) -> dict[str, Any]:
        # Answers to the same prompt may have found different parts of it: the least is certain.
        cached = sum(r.num_cached_tokens for r in self.answer.requests)
        return {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": self.num_output_tokens,
            "total_tokens": self.num_prompt_tokens + self.num_output_tokens,
            "prompt_tokens_details": {"cached_tokens": min(cached, self.num_prompt_tokens)},
        }


@dataclass
class Writer:
    """Writes one answer in one format. include_usage and continuous_usage: as asked for."""

    answer: Answer
    format: Format
    counts: Counts
    logprobs: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    _head: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        service = self.answer.service
        self._head = {
            "id": f"{self.format.prefix}-{service.boot_time:x}-{self.answer.number}",
            "created": self.answer.created,
            "model": service.model_name,
        }

    async def whole(self) -> dict[str, Any]:
        """The answer as one object. Raises ApiError if the engine failed."""
        num_choices = len(self.answer.tickets)
        deltas: list[list[Delta]] = [[] for _ in range(num_choices)]
        async for index, delta in self.answer.deltas():
            if delta.error is not None:
                raise self._error(delta.error)
            deltas[index].append(delta)
            self.counts.num_output_tokens += len(delta.token_ids)
        choices = []
        for index, of_one in enumerate(deltas):
            text = "".join(d.text for d in of_one)
            entries = [entry for d in of_one for entry in d.logprobs] if self.logprobs else None
            reason = _reason(of_one[-1].finish_reason)
            choices.append(self.format.choice(index, text, entries, reason))
        body = {"object": self.format.whole, **self._head, "choices": choices}
        return body | {"usage": self.counts.usage()}

    async def events(self) -> AsyncIterator[str]:
        """Server-sent events; whatever happens, the last one is [DONE], and it comes once."""
        try:
            for index in range(len(self.answer.tickets)):
                opening = self.format.opening(index)
                if opening is not None:
                    yield self._chunk([opening])
            async for index, delta in self.answer.deltas():
                if delta.error is not None:
                    yield event(self._error(delta.error).body)
                    break
                self.counts.num_output_tokens += len(delta.token_ids)
                entries = delta.logprobs if self.logprobs else None
                reason = _reason(delta.finish_reason)
                yield self._chunk([self.format.chunk(index, delta.text, entries, reason)])
            else:
                if self.include_usage:
                    yield self._chunk([], usage=self.counts.usage())
        except Exception as error:
            yield event(ApiError(500, f"the server failed: {type(error).__name__}").body)
        yield DONE

    def _chunk(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> str:
        body = {"object": self.format.part, **self._head, "choices": choices}
        if self.continuous_usage:
            usage = self.counts.usage()
        if self.include_usage or usage is not None:
            body["usage"] = usage
        return event(body)

    def _error(self, message: str) -> ApiError:
        return ApiError(503 if self.answer.service.thread.is_closing else 500, message)


def _reason(reason: FinishReason | None) -> str | None:
    return None if reason is None else reason.value
