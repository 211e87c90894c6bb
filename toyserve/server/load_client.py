"""An open-loop load client for any server with OpenAI's completions: ours, vLLM's, another's.

Open loop: requests leave at their scheduled times whatever the server does, as users do not wait
for each other. Every latency counts from the *scheduled* time, so a client or a server that falls
behind cannot make the numbers better. What comes out is a Recording of the users' side: the metrics
and pictures of any other run, but no steps, which only the server knows.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import httpx
import numpy as np

from toyserve.recording import Recording, RequestRecord
from toyserve.request import FinishReason
from toyserve.workload_types import Workload, WorkloadRequest

T = TypeVar("T")

# Of these a server's tokenizer makes the ids of prompts whose length alone is known.
WORDS = (
    "the and of to in that is was for with his as he it be on not by at which have from this had "
    "are but one all were her she there would their we him been has when who will more no if out"
)


@dataclass(frozen=True)
class Target:
    """Where to send, and how.

    url: with or without /v1 at its end. model: None asks the server. plain: leave out what is not
    OpenAI's own (exact answer lengths, token counts in each chunk), for servers that refuse it.
    request_time: seconds after which a request is given up.
    """

    url: str
    model: str | None = None
    api_key: str | None = None
    plain: bool = False
    request_time: float = 600.0

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ValueError(f"url is {self.url!r}: it must begin with http:// or https://")
        if not self.request_time > 0:
            raise ValueError(f"request_time is {self.request_time}: it must be above 0 seconds")
        object.__setattr__(self, "url", self.url.rstrip("/").removesuffix("/v1"))

    @property
    def is_local(self) -> bool:
        """On this machine: then no proxy of the environment may come between."""
        return httpx.URL(self.url).host in ("127.0.0.1", "::1", "localhost")

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.api_key is None else {"Authorization": f"Bearer {self.api_key}"}


@dataclass(frozen=True)
class Probe:
    """What a server says of itself. token_ids: some that it surely knows; None: it cannot say."""

    model: str
    token_ids: tuple[int, ...] | None


def probe(target: Target) -> Probe:
    """Ask once. Raises ValueError in one sentence if nobody like that answers there."""
    return run(_probe(target))


def measure(
    target: Target, workload: Workload, *, known: Probe | None = None, seed: int = 0
) -> Recording:
    """Send a workload and wait until every request has ended.

    Prompts of which only the length is known are drawn with ``seed``. A request that the server
    turns away is "refused" with its ``error``; one that breaks off or takes too long is "abort".
    """
    return run(_measure(target, workload, known or probe(target), seed))


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """asyncio.run, also from a notebook's cell, where a loop is already running."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    box: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            box.append(asyncio.run(coroutine))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, name="toyserve-load")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return box[0]


async def _probe(target: Target) -> Probe:
    async with httpx.AsyncClient(
        headers=target.headers, timeout=30, trust_env=not target.is_local
    ) as client:
        try:
            answer = await client.get(f"{target.url}/v1/models")
        except httpx.HTTPError as error:
            raise ValueError(f"{target.url} does not answer: {error or repr(error)}") from None
        if answer.status_code != 200:
            raise ValueError(f"{target.url}/v1/models answers {_complaint(answer)}")
        names = [entry["id"] for entry in answer.json()["data"]]
        model = target.model or (names[0] if names else None)
        if model is None:
            raise ValueError(f"{target.url} names no model: say which with --model")
        token_ids = None
        if not target.plain:
            body = {"model": model, "prompt": WORDS}
            answer = await client.post(f"{target.url}/tokenize", json=body)
            if answer.status_code == 200:
                token_ids = tuple(sorted(set(answer.json()["tokens"])))
        return Probe(model, token_ids)


async def _measure(target: Target, workload: Workload, known: Probe, seed: int) -> Recording:
    rng = np.random.default_rng(seed)
    prompts = [_prompt(item, known, rng) for item in workload.requests]
    recording = Recording(
        {
            "label": f"{known.model} at {target.url}",
            "model": known.model,
            "clock": "wall",
            "workload": workload.name,
            "side": "client",
        },
        keep_steps=False,
    )
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(
        headers=target.headers,
        timeout=httpx.Timeout(None, connect=30.0),
        limits=limits,
        trust_env=not target.is_local,
    ) as client:
        sender = _Sender(target, known.model, client)
        tasks = [
            asyncio.create_task(sender.send(item, prompt))
            for item, prompt in zip(workload.requests, prompts, strict=True)
        ]
        for task in tasks:
            record = await task
            recording.records[record.request_id] = record
    recording.meta["max_send_lag_s"] = max(sender.lags, default=0.0)
    recording.meta["num_unplaced_tokens"] = sender.num_unplaced
    return recording


def _prompt(item: WorkloadRequest, known: Probe, rng: np.random.Generator) -> str | list[int]:
    if isinstance(item.prompt, str):
        return item.prompt
    if item.prompt is not None:
        return list(item.prompt)
    if known.token_ids is not None:
        return [int(i) for i in rng.choice(known.token_ids, item.num_prompt_tokens)]
    words = rng.choice(WORDS.split(), item.num_prompt_tokens)  # about a token each
    return " ".join(words)


class _Sender:
    """Sends single requests at their times; its clock starts when it is made."""

    def __init__(self, target: Target, model: str, client: httpx.AsyncClient) -> None:
        self.target, self.model, self.client = target, model, client
        self.lags: list[float] = []  # by how much each request left too late
        self.num_unplaced = 0
        self._start = time.perf_counter()

    def now(self) -> float:
        return time.perf_counter() - self._start

    async def send(self, item: WorkloadRequest, prompt: str | list[int]) -> RequestRecord:
        record = RequestRecord(
            item.request_id,
            item.arrival_time,
            item.num_prompt_tokens or 0,
            item.max_tokens or 0,
            item.user,
            item.priority,
            item.ttft_target,
            item.tpot_target,
        )
        await asyncio.sleep(max(0.0, item.arrival_time - self.now()))
        self.lags.append(self.now() - item.arrival_time)
        try:
            async with asyncio.timeout(self.target.request_time):
                await self._stream(record, self._body(item, prompt))
        except TimeoutError:
            record.error = f"it took longer than {self.target.request_time:g} seconds"
        except (httpx.HTTPError, ValueError, KeyError) as error:
            record.error = f"{type(error).__name__}: {error}"
        record.finish_time = self.now()
        if record.finish_reason is None:
            record.finish_reason = FinishReason.ABORT
            record.error = record.error or "the answer broke off"
        elif record.token_times:
            record.finish_time = record.token_times[-1]
        return record

    def _body(self, item: WorkloadRequest, prompt: str | list[int]) -> dict[str, Any]:
        exact = item.output_len is not None
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": item.output_len if exact else item.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "user": item.user,
        }
        if not self.target.plain:
            body["stream_options"]["continuous_usage_stats"] = True
            body["ignore_eos"] = exact
            body["priority"] = item.priority
        return body

    async def _stream(self, record: RequestRecord, body: dict[str, Any]) -> None:
        url = f"{self.target.url}/v1/completions"
        async with self.client.stream("POST", url, json=body) as answer:
            if answer.status_code != 200:
                await answer.aread()
                record.finish_reason, record.error = FinishReason.REFUSED, _complaint(answer)
                return
            reason, done = None, False
            async for payload in _payloads(answer):
                now = self.now()
                if payload == "[DONE]":
                    done = True
                    break
                chunk = json.loads(payload)
                if "error" in chunk:
                    record.error = str(chunk["error"].get("message", chunk["error"]))
                    return
                reason = self._take(record, chunk, now) or reason
        if done and reason is not None:
            known = reason in (FinishReason.STOP, FinishReason.LENGTH)
            record.finish_reason = FinishReason(reason) if known else FinishReason.STOP

    def _take(self, record: RequestRecord, chunk: dict[str, Any], now: float) -> str | None:
        """One chunk's tokens all came at one moment: when it did. Returns its finish reason."""
        choices, usage = chunk.get("choices") or [], chunk.get("usage")
        times = record.token_times
        if usage is not None:
            record.num_prompt_tokens = usage["prompt_tokens"]
            missing = usage["completion_tokens"] - len(times)
            if choices:
                times += [now] * missing
            elif missing > 0 and times:  # only the total is known: when they came is not
                self.num_unplaced += missing
                times += [times[-1]] * missing
            elif missing < 0:
                del times[missing:]
        elif choices and choices[0].get("text"):
            times.append(now)
        return choices[0].get("finish_reason") if choices else None


async def _payloads(answer: httpx.Response) -> AsyncIterator[str]:
    async for line in answer.aiter_lines():
        if line.startswith("data:"):
            yield line[5:].strip()


def _complaint(answer: httpx.Response) -> str:
    try:
        message = answer.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = answer.text[:200]
    return f"{answer.status_code}: {message}"


def at_rate(workload: Workload, rate: float, seconds: float) -> Workload:
    """The same requests in the same order, arriving ``rate`` a second, for so many seconds.

    Raises ValueError if they all arrive at once: a burst has no rate.
    """
    last = workload.requests[-1].arrival_time if workload.requests else 0.0
    if last <= 0:
        raise ValueError(
            f"workload {workload.name}: all requests arrive at once, so it has no rate to change; "
            f"take poisson"
        )
    factor = rate * last / (len(workload) - 1)
    kept = tuple(r for r in workload.requests if r.arrival_time <= seconds * factor)
    name = f"{workload.name} at {rate:g}/s"
    return replace(replace(workload, requests=kept).scaled(factor), name=name)
