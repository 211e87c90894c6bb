"""Logprobs in the two forms that OpenAI's endpoints give them.

They are natural logarithms of the model's own distribution, before temperature, top_k and top_p.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from toyserve.models.tokenizer import Tokenizer
from toyserve.request import TokenLogprobs

LOWEST = -9999.0  # JSON has no minus infinity


def number(logprob: float) -> float:
    return logprob if logprob > LOWEST else LOWEST


def token_text(tokenizer: Tokenizer, token_id: int) -> str:
    """As text; a part of a character as ``bytes:\\xe2``, a special token by its name."""
    data = tokenizer.token_bytes(token_id)
    if not data:
        return tokenizer.bpe.id_to_token(token_id) or f"token_id:{token_id}"
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


class CompletionLogprobs:
    """One answer's, as completions have them; ``add`` keeps count of where in the text we are."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._offset = 0

    def add(self, entries: Sequence[TokenLogprobs]) -> dict[str, list[Any]]:
        """These tokens in OpenAI's form, one entry per token in each of the four lists."""
        result: dict[str, list[Any]] = {
            "tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []
        }  # fmt: skip
        for entry in entries:
            result["tokens"].append(token_text(self.tokenizer, entry.token_id))
            result["token_logprobs"].append(number(entry.logprob))
            likely = entry.top | {entry.token_id: entry.logprob}
            top = {token_text(self.tokenizer, i): number(value) for i, value in likely.items()}
            result["top_logprobs"].append(top)
            result["text_offset"].append(self._offset)
            data = self.tokenizer.token_bytes(entry.token_id)
            self._offset += len(self._decoder.decode(data))
        return result


def chat_logprobs(tokenizer: Tokenizer, entries: Sequence[TokenLogprobs]) -> dict[str, Any]:
    """One entry per token, as chat completions have them."""

    def one(token_id: int, logprob: float) -> dict[str, Any]:
        data = tokenizer.token_bytes(token_id)
        text = token_text(tokenizer, token_id)
        return {"token": text, "logprob": number(logprob), "bytes": list(data) or None}

    content = []
    for entry in entries:
        top = [one(token_id, value) for token_id, value in entry.top.items()]
        content.append(one(entry.token_id, entry.logprob) | {"top_logprobs": top})
    return {"content": content, "refusal": None}
