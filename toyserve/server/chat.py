"""From messages to a prompt: by the model's own template where it brings one, else a plain one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toyserve.server.errors import ApiError
from toyserve.server.protocol import Message


def plain_prompt(messages: Sequence[Message]) -> str:
    """A play: each message a speech under its speaker's name (or role), then the answer's turn.

    For models that were never taught to chat, such as GPT-2 and the bundled one, whose training
    text looks just so.
    """
    speeches = [f"{(m.name or m.role).upper()}:\n{m.text}\n\n" for m in messages]
    return "".join(speeches) + "ASSISTANT:\n"


class ChatTemplate:
    """``source`` is a template in Jinja, as checkpoints bring it; None: the plain one."""

    def __init__(self, source: str | None = None, tokens: dict[str, str] | None = None) -> None:
        self.tokens = tokens or {}
        self._template: Any = None
        if source is not None:
            from jinja2.sandbox import ImmutableSandboxedEnvironment

            environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
            environment.globals["raise_exception"] = _refuse
            self._template = environment.from_string(source)

    @classmethod
    def of(cls, folder: Path) -> ChatTemplate:
        """What lies in a checkpoint's folder: chat_template.jinja or tokenizer_config.json."""
        config: dict[str, Any] = {}
        if (folder / "tokenizer_config.json").exists():
            config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        source = config.get("chat_template")
        if (folder / "chat_template.jinja").exists():
            source = (folder / "chat_template.jinja").read_text(encoding="utf-8")
        tokens = {k: v for k, v in config.items() if k.endswith("_token") and isinstance(v, str)}
        return cls(source if isinstance(source, str) else None, tokens)

    def render(self, messages: Sequence[Message]) -> str:
        if self._template is None:
            return plain_prompt(messages)
        turns = [{"role": m.role, "content": m.text} for m in messages]
        try:
            return str(
                self._template.render(messages=turns, add_generation_prompt=True, **self.tokens)
            )
        except ApiError:
            raise
        except Exception as error:  # whatever a template may do with what it is given
            raise ApiError(
                400, f"the model's chat template refuses these messages: {error}", param="messages"
            ) from None


def _refuse(message: str) -> None:
    raise ApiError(400, message, param="messages")
