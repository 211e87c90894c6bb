"""Queues and moves that every scheduler shares. A subclass writes ``schedule`` and nothing else.

class Mine(Scheduler):
    def schedule(self) -> SchedulerOutput:
        plan = SchedulerOutput()
        for request in list(self.running):
            self.run(plan, request, 1)
        while self.waiting and len(self.running) < self.max_running:
            if not self.admit(plan, self.next_waiting()):
                break
        return plan
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from toyserve.clock import Clock
from toyserve.kv.manager import KVManager
from toyserve.policies import Policy
from toyserve.request import FinishReason, Request, RequestStatus
from toyserve.schedulers.output import SchedulerOutput, StepResult


def positive_int(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} is {value!r}: it must be a whole number, at least 1")
    return value


class Scheduler:
    """Decides, before each step, which requests run how many tokens.

    ``waiting`` is in order of arrival, ``running`` in order of admission. The engine calls
    ``attach`` once, then ``add``, ``abort``, ``schedule`` and ``update_from_output``.
    """

    kv: KVManager
    policy: Policy
    clock: Clock

    def __init__(self, max_running: int = 16, *, watermark: float = 0.0) -> None:
        if not 0 <= watermark < 1:
            raise ValueError(
                f"watermark is {watermark!r}: it is the share of blocks to keep free when "
                f"admitting, at least 0 and below 1"
            )
        self.max_running = positive_int("max_running", max_running)
        self.watermark = watermark
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    def attach(self, kv: KVManager, policy: Policy, clock: Clock) -> None:
        """Hand over the parts that a scheduler uses but does not own."""
        self.kv, self.policy, self.clock = kv, policy, clock
        self._keep_free = int(self.watermark * kv.num_blocks)

    # -- what the engine calls ------------------------------------------------------------------

    def add(self, request: Request) -> None:
        self.waiting.append(request)

    def schedule(self) -> SchedulerOutput:
        raise NotImplementedError(
            f"{type(self).__name__}.schedule() is still to be written: it returns a SchedulerOutput"
        )

    def update_from_output(self, plan: SchedulerOutput, result: StepResult) -> list[Request]:
        """Move the counters, append the new tokens, end what has ended. Returns the finished."""
        now = self.clock.now()
        token_ids, ended = result.token_ids, result.ended
        finished: list[Request] = []
        for request, num_tokens in plan.num_scheduled_tokens.items():
            request.num_computed_tokens += num_tokens
            token_id = token_ids.get(request)
            if token_id is None:
                continue  # in the middle of its prompt: nothing was sampled
            request.token_ids.append(token_id)
            request.token_times.append(now)
            if request in ended:
                request.finish_reason = FinishReason.STOP
                finished.append(request)
            elif len(request.token_ids) >= request.max_num_tokens:
                request.finish_reason = FinishReason.LENGTH
                finished.append(request)
        for request, logprobs in result.logprobs.items():
            request.logprobs.append(logprobs)
        if finished:
            self.retire(finished)
        return finished

    def abort(self, request: Request, reason: FinishReason = FinishReason.ABORT) -> bool:
        """End a request now, wherever it is. False if it had already ended."""
        if request.is_finished:
            return False
        if request in self.waiting:
            self.waiting.remove(request)
        request.finish_reason = reason
        self.retire([request])
        return True

    def unfinished(self) -> Iterator[Request]:
        """Whoever still waits or runs."""
        yield from self.waiting
        yield from self.running

    def holders(self) -> list[Request]:
        """Whoever may hold KV blocks; check_integrity() compares their tables with the pool."""
        return [*self.running, *self.waiting]

    # -- moves for schedule() -------------------------------------------------------------------

    def next_waiting(self) -> Request:
        """Whom the policy would admit first."""
        return self.policy.next(self.waiting, self.clock.now())

    def admit(
        self,
        plan: SchedulerOutput,
        request: Request,
        num_tokens: int | None = None,
        *,
        whole_answer: bool = False,
    ) -> bool:
        """Let a waiting request run: claim KV room for all its tokens, plan ``num_tokens`` of them.

        The default is all that are uncomputed. whole_answer: claim room for the longest answer too.
        False, and nothing changed, when memory is short.
        """
        request.num_computed_tokens = self.kv.match_prefix(request)
        uncomputed = request.num_uncomputed_tokens
        # The last token of a sequence is never run, so it needs no slot.
        end = request.max_num_tokens - 1 if whole_answer else request.num_tokens
        # Alone, a request may use the last block; otherwise the watermark keeps room to grow.
        keep_free = self._keep_free if self.running else 0
        if not self.kv.allocate(request, end - request.num_computed_tokens, keep_free):
            self.kv.free(request)
            request.num_computed_tokens = 0
            plan.waiting_for = "memory"
            return False
        if self.waiting[0] is request:
            self.waiting.popleft()
        else:
            self.waiting.remove(request)
        if request.first_scheduled_time is None:
            request.first_scheduled_time = self.clock.now()
            request.num_cached_tokens = request.num_computed_tokens
        request.status = RequestStatus.RUNNING
        self.running.append(request)
        plan.admitted.append(request)
        plan.num_scheduled_tokens[request] = (
            uncomputed if num_tokens is None else min(num_tokens, uncomputed)
        )
        return True

    def run(self, plan: SchedulerOutput, request: Request, num_tokens: int) -> bool:
        """Plan ``num_tokens`` of a running request, preempting others if memory is short.

        False when the request itself had to give way (or already had, earlier in this step).
        """
        if request.num_computed_tokens + num_tokens > request.num_slots:
            if request.status is not RequestStatus.RUNNING:
                return False
            while not self.kv.allocate(request, num_tokens):
                victim = self.policy.victim(self.running, self.clock.now())
                self.preempt(plan, victim)
                if victim is request:
                    return False
        plan.num_scheduled_tokens[request] = num_tokens
        return True

    def preempt(self, plan: SchedulerOutput, request: Request) -> None:
        """Pause a running request: its KV goes, its tokens stay, and it will be computed again.

        Nothing the user has seen is lost: on its return prompt and output are prefilled together.
        """
        self.running.remove(request)
        plan.num_scheduled_tokens.pop(request, None)
        self.kv.free(request)
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        request.status = RequestStatus.PREEMPTED
        self.waiting.appendleft(request)
        plan.preempted.append(request)

    def retire(self, finished: list[Request]) -> None:
        """Finished requests leave and their blocks go back at once."""
        now = self.clock.now()
        for request in finished:
            request.status = RequestStatus.FINISHED
            request.finish_time = now
            self.kv.free(request)
        self.running = [r for r in self.running if r.status is RequestStatus.RUNNING]
