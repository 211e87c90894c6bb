"""Between HTTP and the engine's thread: requests become tickets, and their news come back."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from toyserve.engine import Engine
from toyserve.llm import LLM
from toyserve.request import Request, SamplingParams
from toyserve.server.engine_thread import EngineThread, QueueFull, Refused, Stopped
from toyserve.server.errors import ApiError
from toyserve.server.tickets import Delta, Ticket

LONG_TEXT = 20_000  # characters; tokenizing more than these would hold up everybody's streams


@dataclass(frozen=True)
class Choice:
    """One answer to be generated."""

    prompt_ids: list[int]
    prompt: str
    params: SamplingParams


@dataclass(frozen=True)
class Sender:
    """Who asks, and how urgently."""

    user: str = "default"
    priority: int = 0
    ttft_target: float | None = None
    tpot_target: float | None = None


class Answer:
    """The answers to one HTTP request, which arrive bit by bit. Lives on the event loop."""

    def __init__(self, service: Service, number: int, created: int) -> None:
        self.service, self.number, self.created = service, number, created
        self.tickets: list[Ticket] = []
        self._news: asyncio.Queue[tuple[int, Delta]] = asyncio.Queue()

    @property
    def requests(self) -> list[Request]:
        return [ticket.request for ticket in self.tickets]

    def put(self, choice: int, delta: Delta) -> None:
        self._news.put_nowait((choice, delta))

    async def deltas(self) -> AsyncIterator[tuple[int, Delta]]:
        """(choice, its news) until every choice is over, or one of them has failed."""
        left = len(self.tickets)
        while left:
            choice, delta = await self._news.get()
            left -= delta.is_last
            yield choice, delta
            if delta.error is not None:
                return

    def close(self) -> None:
        """Nobody reads any more: what is unfinished is aborted before the next step."""
        unfinished = [t.request.request_id for t in self.tickets if not t.is_over]
        if unfinished:
            self.service.thread.abort(unfinished)


class Service:
    """Everything that the routes ask for."""

    def __init__(self, llm: LLM, thread: EngineThread, model_name: str, boot_time: int) -> None:
        self.llm, self.thread, self.model_name, self.boot_time = llm, thread, model_name, boot_time
        self.loop: asyncio.AbstractEventLoop | None = None
        self._num_answers = 0

    @property
    def engine(self) -> Engine:
        return self.llm.engine

    # -- prompts --------------------------------------------------------------------------------

    async def token_ids(self, prompt: str | list[int], param: str = "prompt") -> list[int]:
        """Checked against the model's vocabulary. Raises ApiError."""
        try:
            if isinstance(prompt, str) and len(prompt) > LONG_TEXT:
                return await asyncio.to_thread(self.llm.token_ids, prompt)
            return self.llm.token_ids(prompt)
        except (ValueError, TypeError, OverflowError) as error:
            raise ApiError(400, str(error), param=param) from None

    def room(self, num_prompt_tokens: int) -> int:
        """The longest answer that such a prompt leaves room for, at least 1."""
        slots = self.engine.kv.num_blocks * self.engine.kv.block_size
        limits = (
            [slots] if self.engine.max_model_len is None else [slots, self.engine.max_model_len]
        )
        return max(1, min(limits) - num_prompt_tokens)

    def check_model(self, name: str | None) -> None:
        if name not in (None, "", self.model_name):
            raise ApiError(
                404,
                f"the model {name!r} is not served here: {self.model_name!r} is",
                param="model",
                code="model_not_found",
            )

    # -- answers --------------------------------------------------------------------------------

    async def ask(self, choices: Sequence[Choice], sender: Sender, param: str) -> Answer:
        """Give everything to the engine; returns once it is queued. Raises ApiError."""
        if len(choices) > self.thread.capacity:
            raise ApiError(
                400,
                f"{len(choices)} answers are asked for at once: this server takes "
                f"{self.thread.capacity} in all",
                param="n",
            )
        if any(not choice.prompt_ids for choice in choices):  # known without asking the engine
            raise ApiError(400, "the prompt is empty: it needs at least one token", param=param)
        self._num_answers += 1
        answer = Answer(self, self._num_answers, self.boot_time + int(self.engine.clock.now()))
        answer.tickets = self._tickets(answer, choices, sender)
        try:
            taken = self.thread.submit(answer.tickets)
        except QueueFull as error:
            headers = {"Retry-After": str(self.retry_after())}
            raise ApiError(429, str(error), headers=headers) from None
        except Stopped as error:
            raise ApiError(503, str(error)) from None
        try:
            await asyncio.wrap_future(taken)
        except Refused as error:
            raise ApiError(400, str(error), param=param) from None
        except asyncio.CancelledError:
            answer.close()
            raise
        return answer

    def _tickets(self, answer: Answer, choices: Sequence[Choice], sender: Sender) -> list[Ticket]:
        self.loop = asyncio.get_running_loop()
        now, number = self.engine.clock.now(), answer.number
        tickets = []
        for index, choice in enumerate(choices):
            request = Request(
                f"r{number}" if len(choices) == 1 else f"r{number}.{index}",
                choice.prompt_ids,
                choice.params,
                now,
                user=sender.user,
                priority=sender.priority,
                ttft_target=sender.ttft_target,
                tpot_target=sender.tpot_target,
            )
            tickets.append(Ticket(request, self._tell, choice.prompt, (answer, index)))
        return tickets

    def _tell(self, letters: list[tuple[Ticket, Delta]]) -> None:
        """On the engine's thread: one hop to the event loop for a whole step."""
        assert self.loop is not None
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(_deliver, letters)

    def retry_after(self) -> int:
        """Whole seconds until a place is likely free, by how fast the last ones became free."""
        times = sorted(t.request.finish_time or 0.0 for t in list(self.thread.recent))
        if len(times) < 2:
            return 1
        return min(60, max(1, math.ceil((times[-1] - times[0]) / (len(times) - 1))))


def _deliver(letters: list[tuple[Ticket, Delta]]) -> None:
    for ticket, delta in letters:
        answer, index = ticket.place
        answer.put(index, delta)
