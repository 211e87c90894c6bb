"""The endpoints that OpenAI's clients know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from toyserve.server.chat import ChatTemplate
from toyserve.server.config import ServerConfig
from toyserve.server.errors import ApiError, json_response
from toyserve.server.formats import ChatFormat, CompletionFormat, Counts, Format, Writer
from toyserve.server.protocol import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    GenerationBody,
    TokenizeBody,
)
from toyserve.server.service import Answer, Choice, Sender, Service
from toyserve.server.wire import EventStream, Gone, unless_gone

DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's
_ERROR = {
    "description": "What went wrong",
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["error"],
                "properties": {
                    "error": {
                        "type": "object",
                        "required": ["message", "type", "param", "code"],
                        "properties": {
                            "message": {"type": "string"},
                            "type": {"type": "string"},
                            "param": {"type": ["string", "null"]},
                            "code": {"type": ["string", "null"]},
                        },
                    }
                },
            }
        }
    },
}
ERRORS: dict[int | str, dict[str, Any]] = dict.fromkeys(
    (400, 401, 404, 408, 413, 429, 500, 503), _ERROR
)


def make_router(service: Service, config: ServerConfig, template: ChatTemplate) -> APIRouter:
    router = APIRouter(responses=ERRORS)
    handlers = Generation(service, config, template)

    @router.post("/v1/completions", tags=["OpenAI"])
    async def completions(body: CompletionBody, http: Request) -> Response:
        """Continue a prompt, or several."""
        return await handlers.completions(body, http)

    @router.post("/v1/chat/completions", tags=["OpenAI"])
    async def chat_completions(body: ChatBody, http: Request) -> Response:
        """Answer a conversation."""
        return await handlers.chat(body, http)

    @router.get("/v1/models", tags=["OpenAI"])
    async def models() -> Response:
        """The one model that is served."""
        return json_response({"object": "list", "data": [model_card(service)]})

    @router.get("/v1/models/{name:path}", tags=["OpenAI"])
    async def model(name: str) -> Response:
        """That model, by its name."""
        service.check_model(name)
        return json_response(model_card(service))

    @router.post("/tokenize", tags=["tokens"])
    async def tokenize(body: TokenizeBody) -> Response:
        """Text to token ids."""
        service.check_model(body.model)
        ids = await service.token_ids(body.prompt)
        limit = service.engine.max_model_len
        return json_response({"tokens": ids, "count": len(ids), "max_model_len": limit})

    @router.post("/detokenize", tags=["tokens"])
    async def detokenize(body: DetokenizeBody) -> Response:
        """Token ids to text."""
        service.check_model(body.model)
        ids = await service.token_ids(body.tokens, "tokens")
        return json_response({"prompt": service.llm.tokenizer.decode(ids)})

    return router


def model_card(service: Service) -> dict[str, Any]:
    return {
        "id": service.model_name,
        "object": "model",
        "created": service.boot_time,
        "owned_by": "toyserve",
        "max_model_len": service.engine.max_model_len,
    }


class Generation:
    """From a checked body to its answer, streamed or whole."""

    def __init__(self, service: Service, config: ServerConfig, template: ChatTemplate) -> None:
        self.service, self.config, self.template = service, config, template

    async def completions(self, body: CompletionBody, http: Request) -> Response:
        service, n = self.service, body.n or 1
        service.check_model(body.model)
        body.check()
        choices, num_prompt_tokens = [], 0
        echo: list[str] | None = [] if body.echo else None
        for prompt in body.prompts():
            ids = await service.token_ids(prompt)
            text = prompt if isinstance(prompt, str) else service.llm.tokenizer.decode(ids)
            num_prompt_tokens += len(ids)
            limit = body.max_tokens or min(DEFAULT_COMPLETION_TOKENS, service.room(len(ids)))
            for index in range(n):
                choices.append(Choice(ids, text, body.params(index, limit, body.logprobs)))
                if echo is not None:
                    echo.append(text)
        answer = await service.ask(choices, sender(body), "prompt")
        form = CompletionFormat(service.llm.tokenizer, len(choices), echo)
        wants = body.logprobs is not None
        return await self._respond(body, http, answer, form, wants, num_prompt_tokens)

    async def chat(self, body: ChatBody, http: Request) -> Response:
        service = self.service
        service.check_model(body.model)
        body.check()
        text = self.template.render(body.messages)
        ids = await service.token_ids(text, "messages")
        limit = body.max_completion_tokens or body.max_tokens or service.room(len(ids))
        logprobs = (body.top_logprobs or 0) if body.logprobs else None
        choices = [Choice(ids, text, body.params(i, limit, logprobs)) for i in range(body.n or 1)]
        answer = await service.ask(choices, sender(body), "messages")
        form = ChatFormat(service.llm.tokenizer)
        return await self._respond(body, http, answer, form, bool(body.logprobs), len(ids))

    async def _respond(
        self,
        body: GenerationBody,
        http: Request,
        answer: Answer,
        form: Format,
        logprobs: bool,
        num_prompt_tokens: int,
    ) -> Response:
        options = body.stream_options
        writer = Writer(
            answer,
            form,
            Counts(answer, num_prompt_tokens),
            logprobs,
            include_usage=bool(options and options.include_usage),
            continuous_usage=bool(options and options.continuous_usage_stats),
        )
        if body.stream:
            return EventStream(writer.events(), answer.close, self.config.send_time)
        return await whole_answer(http, writer, answer.close)


async def whole_answer(http: Request, writer: Writer, close: Callable[[], None]) -> Response:
    """The finished answer; nobody waits for it any more if the client goes away."""
    try:
        return json_response(await unless_gone(http.receive, writer.whole()))
    except Gone:
        return ApiError(499, "the client closed the connection").response()
    finally:
        close()


def sender(body: GenerationBody) -> Sender:
    return Sender(
        body.user or "default",
        0 if body.priority is None else body.priority,
        body.ttft_target,
        body.tpot_target,
    )
