"""The one thread that touches the engine. Everybody else leaves orders, done between two steps.

An engine is not made for several threads. ``submit`` and ``abort`` may be called from anywhere and
come back at once.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Literal, Protocol, TypeVar

from toyserve.engine import Engine
from toyserve.models.tokenizer import Tokenizer
from toyserve.recording import StepRecord
from toyserve.request import Request, RequestStatus
from toyserve.server.history import shorten
from toyserve.server.tickets import Delta, Ticket
from toyserve.streaming import end_at_stop

T = TypeVar("T")
State = Literal["idle", "stepping", "waiting", "stopped"]


class QueueFull(Exception):
    """One request more than the server lets in."""


class Refused(Exception):
    """A request that could never run here; the sentence says which limit it exceeds."""


class Stopped(Exception):
    """The engine's thread has ended or takes no more requests."""


class Observer(Protocol):
    """Told on the engine's thread, between steps."""

    def on_step(self, step: StepRecord, requests: dict[str, Request]) -> None: ...

    def on_end(self, request: Request) -> None: ...


class EngineThread:
    """Steps while there is work. Start it once; ``stop`` ends it.

    max_queue: requests that may be unfinished beside ``max_running``. max_steps: see ServerConfig.
    num_kept: how many ended tickets stay in ``recent``.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        *,
        max_queue: int,
        max_steps: int,
        observers: Sequence[Observer] = (),
        num_kept: int = 60,
    ) -> None:
        self.engine, self.tokenizer, self.max_steps = engine, tokenizer, max_steps
        self.observers = observers
        self.capacity = max_queue + (getattr(engine.scheduler, "max_running", None) or 1)
        self.tickets: dict[str, Ticket] = {}
        self.recent: deque[Ticket] = deque(maxlen=num_kept)
        self.state: State = "idle"
        self.state_time = engine.clock.now()  # when it last came to be in this state, or stepped
        self.failure: str | None = None  # of the last step, until one succeeds
        self.failure_time = 0.0
        self.num_steps = 0
        self.num_turned_away = 0  # by a full queue
        self._num_unfinished = 0  # let in and not ended, those still on their way included
        self._orders: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._closing = self._stopping = False
        self._thread = threading.Thread(target=self._run, name="toyserve-engine", daemon=True)

    # -- from any thread ------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Let nobody in any more."""
        with self._changed:
            self._closing = True

    def stop(self, reason: str = "the server is shutting down") -> None:
        """End what is unfinished, telling ``reason``, and the thread. Waits for its last step."""
        self.close()
        if self._thread.is_alive():
            self._order(lambda: self._end_all(reason))
            with self._changed:
                self._stopping = True
                self._changed.notify()
            self._thread.join()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def is_closing(self) -> bool:
        return self._closing

    @property
    def num_unfinished(self) -> int:
        return self._num_unfinished

    def submit(self, tickets: Sequence[Ticket]) -> Future[None]:
        """Queue requests that belong together; done when the engine has taken all of them.

        Raises QueueFull or Stopped at once; the future raises Refused, and then none is served.
        """
        with self._changed:
            if self._closing:
                raise Stopped("the server is shutting down")
            if self._num_unfinished + len(tickets) > self.capacity:
                self.num_turned_away += 1
                raise QueueFull(
                    f"{self._num_unfinished} requests are running or waiting and the server takes "
                    f"{self.capacity}: try again later"
                )
            self._num_unfinished += len(tickets)
        return self.call(lambda: self._add(tickets))

    def abort(self, request_ids: Sequence[str]) -> None:
        """End these requests before the next step, if they have not ended."""
        self._order(lambda: self._abort_all(request_ids))

    def call(self, function: Callable[[], T]) -> Future[T]:
        """Run ``function`` on the engine's thread, between two steps."""
        future: Future[T] = Future()

        def order() -> None:
            try:
                result = function()
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        self._order(order)
        return future

    def _order(self, order: Callable[[], Any]) -> None:
        with self._changed:
            self._orders.append(order)
            self._changed.notify()
        wake = getattr(self.engine.clock, "wake", None)
        if wake:  # it may be asleep until a quota is paid back, say
            wake()

    # -- on the thread --------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            while self._orders:
                self._orders.popleft()()
            if self._stopping and not self._orders:
                break
            if self.engine.has_unfinished:
                self._step()
            else:
                self._enter("idle")
                with self._changed:
                    self._changed.wait_for(lambda: self._orders or self._stopping)
        self._enter("stopped")

    def _enter(self, state: State) -> None:
        self.state, self.state_time = state, self.engine.clock.now()

    def _step(self) -> None:
        self._enter("stepping")
        try:
            step = self.engine.step()
        except Exception as error:  # the model's or a scheduler's: this batch's users are told
            self._step_failed(error)
            return
        if step is None:
            self._enter("waiting")
            return
        self.failure = None
        self.num_steps += 1
        self._tell(step)
        if len(self.engine.recording.steps) >= 2 * self.max_steps:
            shorten(self.engine.recording, self.max_steps)

    def _tell(self, step: StepRecord) -> None:
        """Hand everybody their news, and end those whose stop string has appeared."""
        requests = {i: self.tickets[i].request for i in step.num_scheduled_tokens}
        for observer in self.observers:
            observer.on_step(step, requests)
        mail: dict[Any, list[tuple[Ticket, Delta]]] = defaultdict(list)
        for request_id in step.num_scheduled_tokens:
            ticket = self.tickets[request_id]
            delta = ticket.news(self.tokenizer)
            if delta is None:
                continue
            if ticket.text.stopped:
                end_at_stop(self.engine, ticket.request)
            if delta.is_last:
                self._over(ticket)
            mail[ticket.tell].append((ticket, delta))
        for tell, letters in mail.items():
            tell(letters)

    def _add(self, tickets: Sequence[Ticket]) -> None:
        for number, ticket in enumerate(tickets):
            self.tickets[ticket.request.request_id] = ticket
            if not self.engine.add_request(ticket.request):
                for other in tickets[: number + 1]:
                    self.engine.abort(other.request.request_id)
                    self._over(other)
                with self._changed:
                    self._num_unfinished -= len(tickets) - number - 1
                raise Refused(str(ticket.request.error))

    def _abort(self, request_id: str, error: str | None = None) -> None:
        ticket = self.tickets.get(request_id)
        if ticket is None:
            return
        ticket.error = error
        self.engine.abort(request_id)
        self._over(ticket)
        reason = None if error else ticket.request.finish_reason
        # What was held back in case it began a stop string is text after all.
        ticket.tell([(ticket, Delta(ticket.text.flush(), (), (), reason, error))])

    def _over(self, ticket: Ticket) -> None:
        del self.tickets[ticket.request.request_id]
        ticket.is_over = True
        self.recent.append(ticket)
        with self._changed:
            self._num_unfinished -= 1
        for observer in self.observers:
            observer.on_end(ticket.request)

    def _abort_all(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            self._abort(request_id)

    def _end_all(self, reason: str) -> None:
        for request_id in list(self.tickets):
            self._abort(request_id, reason)

    def _step_failed(self, error: Exception) -> None:
        """Whoever had begun cannot go on, as nobody knows how far the step came. Others can."""
        self.failure = f"{type(error).__name__}: {error}"
        self.failure_time = self.engine.clock.now()
        began = [
            ticket
            for ticket in self.tickets.values()
            if ticket.request.status is not RequestStatus.WAITING
        ]
        for ticket in began or list(self.tickets.values()):
            self._abort(ticket.request.request_id, f"the engine failed: {self.failure}")
        self._enter("idle")
