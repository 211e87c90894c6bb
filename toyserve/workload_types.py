"""A workload: who asks for what, and when. One object drives both clocks and every scheduler."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np

from toyserve.request import Request, SamplingParams
from toyserve.sampling_params import is_number


@dataclass(frozen=True)
class WorkloadRequest:
    """One request to come. Give ``prompt`` (text or token ids) or only ``num_prompt_tokens``.

    output_len: how long the answer will really be, its end token included; no scheduler sees it.
    None: until max_tokens, or until a real model stops by itself. max_tokens: what the user
    declares, which schedulers do see; None declares exactly output_len.
    """

    request_id: str
    arrival_time: float = 0.0
    num_prompt_tokens: int | None = None
    output_len: int | None = None
    max_tokens: int | None = None
    prompt: str | tuple[int, ...] | None = None
    user: str = "default"
    priority: int = 0
    ttft_target: float | None = None
    tpot_target: float | None = None

    def __post_init__(self) -> None:
        def require(ok: bool, message: str) -> None:
            if not ok:
                raise ValueError(f"request {self.request_id!r}: {message}")

        require(
            is_number(self.arrival_time) and self.arrival_time >= 0,
            f"arrival_time is {self.arrival_time!r}: it must be 0 or more seconds",
        )
        for name in ("ttft_target", "tpot_target"):
            target = getattr(self, name)
            require(
                target is None or (is_number(target) and target > 0),
                f"{name} is {target!r}: it must be above 0 seconds",
            )
        if self.prompt is not None and not isinstance(self.prompt, str):
            object.__setattr__(self, "prompt", tuple(self.prompt))
            require(
                self.num_prompt_tokens in (None, len(self.prompt)),
                f"num_prompt_tokens is {self.num_prompt_tokens} and the prompt has "
                f"{len(self.prompt)} token ids",
            )
            object.__setattr__(self, "num_prompt_tokens", len(self.prompt))
        require(
            self.prompt is not None or self.num_prompt_tokens is not None,
            "it needs a prompt or num_prompt_tokens",
        )
        require(
            self.output_len is not None or self.max_tokens is not None,
            "it needs an output_len or max_tokens",
        )
        if self.max_tokens is None:
            object.__setattr__(self, "max_tokens", self.output_len)
        for name in ("num_prompt_tokens", "output_len", "max_tokens"):
            value = getattr(self, name)
            require(
                value is None or (isinstance(value, int) and not isinstance(value, bool)),
                f"{name} is {value!r}: it must be a whole number",
            )
            require(value is None or value >= 1, f"{name} is {value!r}: it must be at least 1")


@dataclass(frozen=True)
class Workload:
    """Requests in order of arrival.

    settings: engine options under which a scripted scenario shows what it is meant to show, such as
    ``{"max_running": 4}``.
    """

    name: str
    requests: tuple[WorkloadRequest, ...]
    settings: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ordered = tuple(sorted(self.requests, key=lambda r: r.arrival_time))
        object.__setattr__(self, "requests", ordered)
        object.__setattr__(self, "settings", MappingProxyType(dict(self.settings)))
        seen: set[str] = set()
        for request in ordered:
            if request.request_id in seen:
                raise ValueError(f"workload {self.name}: two requests are {request.request_id!r}")
            seen.add(request.request_id)

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def output_lens(self) -> dict[str, int]:
        """Request id -> true answer length, for SimulatedRunner and ScriptedLengths."""
        return {r.request_id: r.output_len for r in self.requests if r.output_len is not None}

    def requests_for_engine(
        self,
        vocab_size: int = 2048,
        seed: int = 0,
        tokenize: Callable[[str], Sequence[int]] | None = None,
    ) -> list[Request]:
        """Fresh engine requests, greedy. Prompts of which only the length is known are drawn.

        vocab_size: of the model; the last id, GPT-2's end token, is not drawn. seed: of the draw.
        Where the true length is known the model's own end token is ignored. Raises ValueError for a
        text prompt without ``tokenize``.
        """
        if vocab_size < 2:
            raise ValueError(f"vocab_size is {vocab_size}: at least 2 are needed to draw prompts")
        rng = np.random.default_rng(seed)
        # One Python int per id, shared by all prompts: a trace has millions of prompt tokens.
        token_ids = np.arange(vocab_size - 1).astype(object)
        return [_engine_request(r, token_ids, rng, tokenize) for r in self.requests]

    def scaled(self, rate_scale: float) -> Workload:
        """The same requests, arriving ``rate_scale`` times as fast."""
        if not (math.isfinite(rate_scale) and rate_scale > 0):
            raise ValueError(f"rate_scale is {rate_scale!r}: it must be above 0")
        requests = tuple(
            replace(r, arrival_time=r.arrival_time / rate_scale) for r in self.requests
        )
        return replace(self, name=f"{self.name} at {rate_scale:g} x", requests=requests)

    def with_targets(self, *, ttft: float | None = None, tpot: float | None = None) -> Workload:
        """The same requests, each with these targets in seconds; goodput counts who met them."""
        requests = tuple(replace(r, ttft_target=ttft, tpot_target=tpot) for r in self.requests)
        return replace(self, requests=requests)

    def describe(self) -> str:
        """One line of numbers for people."""
        if not self.requests:
            return f"{self.name}: no requests"
        parts = [f"{self.name}: {len(self)} requests"]
        last = self.requests[-1].arrival_time
        parts.append("all at once" if last == 0 else f"arriving over {last:.3g} s")
        prompts = [r.num_prompt_tokens for r in self.requests if r.num_prompt_tokens is not None]
        if prompts:
            parts.append(f"prompts {_spread(prompts)}")
        if self.output_lens:
            parts.append(f"answers {_spread(list(self.output_lens.values()))}")
        return ", ".join(parts)


def _spread(lengths: list[int]) -> str:
    low, middle, high = min(lengths), float(np.median(lengths)), max(lengths)
    return f"{low}" if low == high else f"{low} to {high} tokens (median {middle:g})"


def _engine_request(
    item: WorkloadRequest,
    to_draw: np.ndarray,
    rng: np.random.Generator,
    tokenize: Callable[[str], Sequence[int]] | None,
) -> Request:
    if isinstance(item.prompt, str):
        if tokenize is None:
            raise ValueError(f"request {item.request_id!r} has a text prompt: tokenize is needed")
        token_ids = list(tokenize(item.prompt))
    elif item.prompt is not None:
        token_ids = list(item.prompt)
    else:
        token_ids = to_draw[rng.integers(0, len(to_draw), item.num_prompt_tokens)].tolist()
    assert item.max_tokens is not None
    return Request(
        item.request_id,
        token_ids,
        SamplingParams(
            temperature=0.0, max_tokens=item.max_tokens, ignore_eos=item.output_len is not None
        ),
        item.arrival_time,
        user=item.user,
        priority=item.priority,
        ttft_target=item.ttft_target,
        tpot_target=item.tpot_target,
    )
