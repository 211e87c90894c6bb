"""A request: what a user asked for, and two counters that race each other.

``num_computed_tokens`` is how many of the request's tokens the model has already run;
``num_tokens`` is how many exist (prompt + generated so far). Prefill, a chunk of a prefill, decode,
a prefix-cache hit and a preemption are all only movements of the first counter towards the second.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from toyserve.sampling_params import SamplingParams, is_int, is_number, require

__all__ = [
    "FinishReason",
    "Request",
    "RequestMetrics",
    "RequestOutput",
    "RequestStatus",
    "SamplingParams",
    "TokenLogprobs",
]


class RequestStatus(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"  # waiting again, after it had run; its KV is gone
    SWAPPED = "swapped"  # waiting again, its KV kept in the host's memory
    FINISHED = "finished"


class FinishReason(StrEnum):
    STOP = "stop"  # the model's end token, or a stop string or id
    LENGTH = "length"  # max_tokens, or the model's context limit
    ABORT = "abort"  # the client went away
    REFUSED = "refused"  # could never run; RequestOutput.error names the limit


class Request:
    """One generation request and all its state.

    The scheduler moves the counters and the status; the KV manager writes ``block_table`` and
    ``num_slots``; nobody else writes. All times are seconds on the engine's clock.
    """

    __slots__ = (
        "arrival_time",
        "block_table",
        "error",
        "finish_reason",
        "finish_time",
        "first_scheduled_time",
        "logprobs",
        "max_num_tokens",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "num_slots",
        "params",
        "priority",
        "request_id",
        "status",
        "token_ids",
        "token_times",
        "tpot_target",
        "ttft_target",
        "user",
    )

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: list[int],
        params: SamplingParams | None = None,
        arrival_time: float = 0.0,
        *,
        user: str = "default",
        priority: int = 0,
        ttft_target: float | None = None,
        tpot_target: float | None = None,
    ) -> None:
        require(
            is_int(priority),
            f"priority is {priority!r}: it must be a whole number (lower runs first)",
        )
        require(
            params is None or isinstance(params, SamplingParams),
            f"params is {params!r}: it must be a SamplingParams",
        )
        require(
            is_number(arrival_time) and arrival_time >= 0,
            f"arrival_time is {arrival_time!r}: it must be 0 or more seconds",
        )
        require(isinstance(user, str), f"user is {user!r}: it must be a name")
        for name, target in (("ttft_target", ttft_target), ("tpot_target", tpot_target)):
            require(
                target is None or (is_number(target) and target > 0),
                f"{name} is {target!r}: it must be above 0 seconds",
            )
        self.request_id = request_id
        self.token_ids = list(prompt_token_ids)  # prompt, then what was generated
        self.num_prompt_tokens = len(prompt_token_ids)
        self.params = params or SamplingParams()
        self.user = user
        self.priority = priority  # the class: lower is more urgent, as in a Unix process
        self.ttft_target = ttft_target
        self.tpot_target = tpot_target

        self.status = RequestStatus.WAITING
        self.num_computed_tokens = 0
        self.num_cached_tokens = 0  # prompt tokens found in the prefix cache
        self.num_preemptions = 0
        # The sequence ends here at the latest; the engine lowers it to the model's context limit.
        self.max_num_tokens = self.num_prompt_tokens + self.params.max_tokens

        self.block_table: list[int] = []  # for each page of the sequence, the block that holds it
        self.num_slots = 0  # room in block_table; one slot holds one token's keys and values

        self.arrival_time = arrival_time
        self.first_scheduled_time: float | None = None
        self.token_times: list[float] = []  # when each output token appeared
        self.finish_time: float | None = None
        self.finish_reason: FinishReason | None = None
        self.error: str | None = None
        self.logprobs: list[TokenLogprobs] = []

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        """1 while decoding; more while (part of) the prompt has not been run."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def is_prefilling(self) -> bool:
        return len(self.token_ids) - self.num_computed_tokens > 1

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def is_finished(self) -> bool:
        return self.status is RequestStatus.FINISHED

    def __repr__(self) -> str:
        return (
            f"Request({self.request_id!r}, {self.status.value}, computed "
            f"{self.num_computed_tokens} of {self.num_tokens} tokens)"
        )


@dataclass(frozen=True)
class TokenLogprobs:
    """Natural-log probabilities at one output position, before temperature, top_k and top_p."""

    token_id: int
    logprob: float
    top: dict[int, float]  # the most likely token ids, most likely first


@dataclass(frozen=True)
class RequestMetrics:
    """Latency of one request as its user felt it; all in seconds, counted from arrival.

    ttft: arrival to first token, the queue included. tpot: mean time per output token after the
    first. itl: each gap between two neighbouring tokens. e2e: arrival to last token. A value that
    was never measured is None (ttft without a token, tpot with fewer than two), never 0.
    """

    arrival_time: float
    queue_time: float | None
    ttft: float | None
    tpot: float | None
    itl: tuple[float, ...]
    e2e: float | None
    num_preemptions: int = 0
    num_cached_tokens: int = 0

    @classmethod
    def of(cls, request: Request) -> RequestMetrics:
        times, arrival = request.token_times, request.arrival_time
        started, finished = request.first_scheduled_time, request.finish_time
        return cls(
            arrival_time=arrival,
            queue_time=None if started is None else started - arrival,
            ttft=times[0] - arrival if times else None,
            tpot=(times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else None,
            itl=tuple(b - a for a, b in itertools.pairwise(times)),
            e2e=None if finished is None or not times else finished - arrival,
            num_preemptions=request.num_preemptions,
            num_cached_tokens=request.num_cached_tokens,
        )


@dataclass(frozen=True)
class RequestOutput:
    """What the user gets: the text, the ids, why it ended, and how long it took."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    text: str
    token_ids: list[int]
    finish_reason: FinishReason | None  # None while it still runs
    metrics: RequestMetrics
    error: str | None = None
    logprobs: list[TokenLogprobs] | None = None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    def to_dict(self) -> dict[str, Any]:
        """For JSON: the text, the reason and the latencies in milliseconds."""
        metrics = self.metrics

        def ms(value: float | None) -> float | None:
            return None if value is None else round(value * 1e3, 3)

        return {
            "request_id": self.request_id,
            "text": self.text,
            "num_prompt_tokens": len(self.prompt_token_ids),
            "num_output_tokens": len(self.token_ids),
            "finish_reason": self.finish_reason.value if self.finish_reason else None,
            "error": self.error,
            "ttft_ms": ms(metrics.ttft),
            "tpot_ms": ms(metrics.tpot),
            "e2e_ms": ms(metrics.e2e),
            "num_preemptions": metrics.num_preemptions,
        }
