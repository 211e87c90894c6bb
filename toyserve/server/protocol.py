"""The bodies of OpenAI's requests as this server takes them. Types are strict: "5" is no number."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from toyserve.request import SamplingParams
from toyserve.server.errors import ApiError

MAX_N = 128
# Parts of the API that this server has not, and what they may say: that they are not wanted.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "min_p": (0,),
    "suffix": ("",),
    "use_beam_search": (False,),
    "prompt_logprobs": (),
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "skip_special_tokens": (True,),
}


def _well_formed(text: str) -> str:
    """JSON can hold half a surrogate pair, which is no character and cannot be sent on."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("the text holds half a surrogate pair, which is no character") from None
    return text


Text = Annotated[str, AfterValidator(_well_formed)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Natural = Annotated[int, Field(ge=0, le=1_000_000)]
TokenIds = list[int]


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")


class StreamOptions(_Body):
    """include_usage: a last chunk with the token counts. continuous_usage_stats: in every chunk."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationBody(_Body):
    """What completions and chat completions share."""

    model: Text | None = None
    n: Annotated[int, Field(ge=1, le=MAX_N)] | None = None
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=1_000_000)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    stop: Text | Annotated[list[Text], Field(max_length=16)] | None = None
    stop_token_ids: Annotated[list[Natural], Field(max_length=64)] | None = None
    max_tokens: Count | None = None
    min_tokens: Natural | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: Annotated[Text, Field(max_length=256)] | None = None
    priority: Annotated[int, Field(ge=-1_000_000, le=1_000_000)] | None = None
    ttft_target: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    tpot_target: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None

    def check(self) -> None:
        """Raises ApiError for what is well formed and still cannot be done."""
        for name, neutral in _NEUTRAL.items():
            value = (self.model_extra or {}).get(name)
            if value is not None and value not in neutral:
                raise ApiError(
                    400,
                    f"{name} is {str(value)[:100]!r}: this server has no {name}, leave it out",
                    param=name,
                    code="unsupported_parameter",
                )
        if self.stream_options is not None and not self.stream:
            raise ApiError(
                400, "stream_options may stand only where stream is true", param="stream_options"
            )

    def params(self, choice: int, max_tokens: int, logprobs: int | None) -> SamplingParams:
        """For one of the n answers: each has a seed of its own, or all would be the same."""
        seed = None if self.seed is None else self.seed + choice
        top_k = 0 if self.top_k in (None, -1) else self.top_k
        try:
            return SamplingParams(
                temperature=1.0 if self.temperature is None else self.temperature,
                top_p=1.0 if self.top_p is None else self.top_p,
                top_k=top_k or 0,
                seed=seed,
                max_tokens=max_tokens,
                min_tokens=self.min_tokens or 0,
                stop=self.stop,
                stop_token_ids=self.stop_token_ids or (),
                ignore_eos=bool(self.ignore_eos),
                logprobs=logprobs,
            )
        except ValueError as error:
            name = str(error).split(" ", 1)[0]
            raise ApiError(400, str(error), param=name) from None


class CompletionBody(GenerationBody):
    """A prompt, or several. Without max_tokens an answer has 16 tokens at most, as at OpenAI's."""

    prompt: Text | TokenIds | list[Text] | list[TokenIds]
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_N)] | None = None

    def check(self) -> None:
        super().check()
        if self.best_of not in (None, 1, self.n or 1) or (self.best_of == 1 and (self.n or 1) > 1):
            raise ApiError(
                400,
                f"best_of is {self.best_of} and n is {self.n or 1}: this server does not choose "
                f"among answers, so best_of must be n",
                param="best_of",
            )
        if self.echo and self.logprobs is not None:
            raise ApiError(
                400,
                "echo with logprobs asks for the prompt's logprobs, which this server does not "
                "compute: leave one of them out",
                param="echo",
            )

    def prompts(self) -> list[str | TokenIds]:
        """One entry for each prompt; raises ApiError if there is none."""
        prompt = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        if not prompt:
            raise ApiError(400, "prompt is empty: it needs at least one token", param="prompt")
        if isinstance(prompt[0], int):
            return [prompt]
        return list(prompt)


class TextPart(_Body):
    type: Literal["text"]
    text: Text


class Message(_Body):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Text | list[TextPart] | None = None
    name: Annotated[Text, Field(max_length=64)] | None = None

    @property
    def text(self) -> str:
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
        return "".join(part.text for part in self.content)


class ChatBody(GenerationBody):
    """A conversation. Without a limit the answer may fill the model's context."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    def check(self) -> None:
        super().check()
        if self.top_logprobs is not None and not self.logprobs:
            raise ApiError(
                400, "top_logprobs may stand only where logprobs is true", param="top_logprobs"
            )
        both = (self.max_tokens, self.max_completion_tokens)
        if None not in both and both[0] != both[1]:
            raise ApiError(
                400,
                f"max_tokens is {both[0]} and max_completion_tokens is {both[1]}: give one",
                param="max_tokens",
            )


class TokenizeBody(_Body):
    prompt: Text
    model: Text | None = None


class DetokenizeBody(_Body):
    tokens: list[int]
    model: Text | None = None


class BurstBody(_Body):
    """The dashboard's form: ``count`` requests at once, whose answers are shown on the page."""

    prompt: Text
    count: Annotated[int, Field(ge=1, le=1_000)] = 1
    max_tokens: Count = 64
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    user: Annotated[Text, Field(max_length=256)] = "dashboard"
    priority: Annotated[int, Field(ge=-1_000_000, le=1_000_000)] = 0


class AbortBody(_Body):
    request_id: Text
