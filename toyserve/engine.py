"""The engine: requests in, one step after another, tokens out. It is handed all of its parts."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Any

from toyserve.clock import Clock, StepClock, WallClock
from toyserve.kv.manager import BlockEvent, KVManager
from toyserve.policies import FCFS, Policy
from toyserve.recording import Recording, StepRecord
from toyserve.request import FinishReason, Request, RequestStatus
from toyserve.runners.runner import Runner
from toyserve.schedulers.base import Scheduler
from toyserve.schedulers.check import check_finished, check_plan, check_tables
from toyserve.schedulers.output import SchedulerOutput, StepResult


class Engine:
    """Wires a scheduler, a KV manager, a policy, a runner and a clock, and turns the crank.

    max_model_len: longest sequence (prompt + answer) the model takes, in tokens.
    check: verify each plan and the block books in every step. None: only when the scheduler or the
    KV manager is not one of toyserve's own (a class from a notebook cell), and the books of a pool
    of thousands of blocks only every few steps, so that a check does not become the run's cost.
    on_step: called with each StepRecord, after the step (a live picture, a progress bar).
    """

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        kv: KVManager,
        runner: Runner,
        policy: Policy | None = None,
        clock: Clock | None = None,
        max_model_len: int | None = None,
        recording: Recording | None = None,
        check: bool | None = None,
    ) -> None:
        self.scheduler, self.kv, self.runner = scheduler, kv, runner
        self.policy = policy if policy is not None else FCFS()
        self.clock = clock if clock is not None else WallClock()
        self.max_model_len = max_model_len
        self.recording = recording if recording is not None else Recording()
        self.recording.meta = _describe(self) | self.recording.meta
        own = all(type(part).__module__.startswith("toyserve.") for part in (scheduler, kv))
        if check not in (None, True, False):
            raise ValueError(f"check is {check!r}: it must be True, False or None")
        self.check = not own if check is None else check
        self._steps_per_audit = max(1, kv.num_blocks // 1024) if check is None else 1
        self.requests: dict[str, Request] = {}  # unfinished, by id
        # Still to come: a heap of (arrival time, number, request); the number keeps ties in order.
        self.arrivals: list[tuple[float, int, Request]] = []
        self._num_added = 0
        self._in_step = False  # stays True when a step ends in an error
        self._executing = False
        self._num_tokenless_steps = 0  # in a row
        self._block_events: list[BlockEvent] = []  # since the last step that was recorded
        self._late_aborts: list[tuple[str, FinishReason]] = []
        self.served_by: str | None = None  # a server's address: its thread alone may turn the crank
        self.on_step: list[Callable[[StepRecord], None]] = []
        self._step_clock = StepClock(self.clock)
        scheduler.attach(kv, self.policy, self._step_clock)

    # -- the loop -------------------------------------------------------------------------------

    def step(self) -> StepRecord | None:
        """One run of the model for the whole batch: schedule, execute, update, record.

        None when there was nothing to run yet.
        """
        start_time = self._begin()
        plan = self.scheduler.schedule()
        if self.check:
            check_plan(plan, self.scheduler)
        if plan.is_empty:
            self._wait(plan)
            return None
        result = self._execute(plan)
        self._step_clock.tick()
        finished = self.scheduler.update_from_output(plan, result)
        if self.check:
            check_finished(finished, self.scheduler)
        return self._record(start_time, plan, finished)

    def run(self, requests: Iterable[Request] = ()) -> Recording:
        """Serve ``requests``, each from its arrival time on, until all have ended."""
        for request in requests:
            self.add_request(request)
        while self.has_unfinished:
            self.step()
        return self.recording

    def restart(self) -> None:
        """Begin a new recording at time 0, KV memory as it is. Raises while requests run."""
        if self.served_by is not None:
            raise ValueError(f"this engine works for the server at {self.served_by}: stop it first")
        if self.requests:
            raise ValueError(f"{len(self.requests)} requests are unfinished: abort them first")
        self.recording.close()
        self.kv.drain_events()  # what was given back after the last step belongs to the old one
        self._block_events = []
        announce_cached = getattr(self.kv, "announce_cached", None)
        if announce_cached:
            announce_cached()
        self.recording = Recording(self.recording.meta, keep_steps=self.recording.keep_steps)
        self.clock.restart()
        restart_policy = getattr(self.policy, "restart", None)
        if restart_policy:  # one that remembers times: they belong to the old run
            restart_policy()
        self._step_clock.tick()

    @property
    def has_unfinished(self) -> bool:
        return bool(self.requests)

    # -- requests -------------------------------------------------------------------------------

    def add_request(self, request: Request) -> bool:
        """Queue a request, at once or from its arrival time on.

        False if it can never run here: it has then ended as refused and ``error`` says why.
        Raises ValueError if a request of the same id is in the recording already.
        """
        if request.request_id in self.recording.records:
            state = "in use" if request.request_id in self.requests else "in this recording"
            raise ValueError(f"request id {request.request_id!r} is already {state}")
        if self.max_model_len is not None:
            request.max_num_tokens = min(request.max_num_tokens, self.max_model_len)
        self.recording.add_request(request)
        request.error = self._refusal(request)
        if request.error is not None:
            request.status, request.finish_reason = RequestStatus.FINISHED, FinishReason.REFUSED
            request.finish_time = max(self.clock.now(), request.arrival_time)
            self.recording.end_request(request)
            return False
        self.requests[request.request_id] = request
        if request.arrival_time <= self._step_clock.tick():
            self.scheduler.add(request)
        else:
            heapq.heappush(self.arrivals, (request.arrival_time, self._num_added, request))
            self._num_added += 1
        return True

    def abort(self, request_id: str, reason: FinishReason = FinishReason.ABORT) -> bool:
        """End a request now and take its blocks back. False if no such request is unfinished.

        While the runner executes a step (a call from its inside) that is at the end of the step.
        """
        if request_id not in self.requests:
            return False
        if self._executing:
            self._late_aborts.append((request_id, reason))
            return True
        request = self.requests.pop(request_id)
        self.arrivals = [entry for entry in self.arrivals if entry[2] is not request]
        heapq.heapify(self.arrivals)
        self._step_clock.tick()
        self.scheduler.abort(request, reason)
        self.runner.forget(request)
        self.recording.end_request(request)
        return True

    def _refusal(self, request: Request) -> str | None:
        if request.num_prompt_tokens == 0:
            return "the prompt is empty: it needs at least one token"
        limit = self.max_model_len
        if limit is not None and request.num_prompt_tokens >= limit:
            return (
                f"the prompt has {request.num_prompt_tokens} tokens and the model's context is "
                f"{limit}: at most {limit - 1} leave room for an answer of one token"
            )
        return self.kv.refusal(request) or self.scheduler.hooks.refusal(request)

    # -- the parts of a step --------------------------------------------------------------------

    def _begin(self) -> float:
        if self._in_step and (num_held := sum(map(_holds_kv, self.requests.values()))):
            raise RuntimeError(
                f"an earlier step ended in an error, so the KV of the {num_held} requests that had "
                f"begun may be half written: abort() them, then the engine serves on"
            )
        self._in_step = True
        now = self._step_clock.tick()
        while self.arrivals and self.arrivals[0][0] <= now:
            self.scheduler.add(heapq.heappop(self.arrivals)[2])
        return now

    def _execute(self, plan: SchedulerOutput) -> StepResult:
        self._block_events += self.kv.drain_events()
        self._check_progress(plan)
        if not plan.has_work:
            return StepResult()
        self._executing = True
        try:
            result = self.runner.execute(plan)
        finally:
            self._executing = False
        if not isinstance(result, StepResult):
            name = type(self.runner).__name__
            raise ValueError(f"{name}.execute() returned {result!r}: it must return a StepResult")
        return result

    def _check_progress(self, plan: SchedulerOutput) -> None:
        """Steps that only pause somebody come to an end when everybody is paused."""
        if plan.num_scheduled_tokens:
            self._num_tokenless_steps = 0
            return
        self._num_tokenless_steps += 1
        if self._num_tokenless_steps > len(self.requests) + 1:
            raise RuntimeError(
                f"{type(self.scheduler).__name__}.schedule() has planned no token for "
                f"{self._num_tokenless_steps} steps, it only preempts: its {len(self.requests)} "
                f"requests would wait for ever"
            )

    def _record(
        self, start_time: float, plan: SchedulerOutput, finished: list[Request]
    ) -> StepRecord:
        for request in finished:
            del self.requests[request.request_id]
            self.runner.forget(request)
        if self.check and self.recording.num_steps % self._steps_per_audit == 0:
            check_tables(self.scheduler)
            self.scheduler.check_integrity()
        block_events, self._block_events = self._block_events, []
        record = self.recording.add_step(
            start_time,
            self._step_clock.now(),
            plan,
            finished,
            len(self.scheduler.waiting),
            self.kv.num_free_blocks,
            block_events,
            self.kv.drain_events(),
        )
        self._in_step = False
        while self._late_aborts:
            self.abort(*self._late_aborts.pop())
        for callback in self.on_step:
            callback(record)
        return record

    def _wait(self, plan: SchedulerOutput) -> None:
        """Nothing can run: sleep until the next arrival, or until the scheduler asks for."""
        self._in_step = False
        name, now = type(self.scheduler).__name__, self._step_clock.now()
        times = [plan.wait_until] if plan.wait_until is not None else []
        if plan.wait_until is not None and plan.wait_until <= now:
            raise RuntimeError(
                f"{name}.schedule() planned nothing and asks to be called at {plan.wait_until} s, "
                f"which is past: it is {now} s, so it would be called for ever"
            )
        if self.arrivals:
            times.append(self.arrivals[0][0])
        if times:
            self.clock.wait_until(min(times))
        elif self.requests:
            raise RuntimeError(
                f"{name}.schedule() planned nothing while "
                f"{len(self.scheduler.waiting)} requests wait and {len(self.scheduler.running)} "
                f"run, with {self.kv.num_free_blocks} of {self.kv.num_blocks} blocks free: they "
                f"would wait for ever"
            )


def _holds_kv(request: Request) -> bool:
    """On the device or, swapped out, on the host."""
    begun = (RequestStatus.RUNNING, RequestStatus.SWAPPED)
    return bool(request.block_table) or request.status in begun


def _describe(engine: Engine) -> dict[str, Any]:
    """What a recording says about the engine that made it."""
    scheduler, kv = engine.scheduler, engine.kv
    return {
        "scheduler": type(scheduler).__name__,
        "kv": type(kv).__name__,
        "policy": type(engine.policy).__name__,
        "runner": type(engine.runner).__name__,
        "clock": type(engine.clock).__name__,
        "num_blocks": kv.num_blocks,
        "block_size": kv.block_size,
        "max_running": getattr(scheduler, "max_running", None),
        "token_budget": getattr(scheduler, "token_budget", None),
        "max_model_len": engine.max_model_len,
    }
