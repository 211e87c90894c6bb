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
from typing import Literal, get_args

from toyserve.clock import Clock
from toyserve.kv.manager import KVManager, whole_number
from toyserve.kv.swap import SwapSpace
from toyserve.policies import Hooks, Policy
from toyserve.request import FinishReason, Request, RequestStatus
from toyserve.sampling_params import is_number
from toyserve.schedulers.output import SchedulerOutput, StepResult

# What becomes of a paused request's KV. recompute: a victim's KV is thrown away, and on its return
# prompt and answer so far are run again. swap: a victim's KV waits in the host's memory.
Preemption = Literal["recompute", "swap"]


class Scheduler:
    """Decides, before each step, which requests run how many tokens.

    ``waiting`` is in order of arrival (whoever was preempted in front), ``running`` in order of
    admission. The engine calls ``attach`` once, then ``add``, ``abort``, ``schedule`` and
    ``update_from_output``.

    max_running: slots, the places in the batch; at most so many requests run at a time.
    watermark: the share of blocks that admissions leave free, for the running to grow into.
    num_host_blocks: swap space; a victim that does not fit there is recomputed after all.
    """

    kv: KVManager
    policy: Policy
    clock: Clock

    def __init__(
        self,
        max_running: int = 16,
        *,
        watermark: float = 0.0,
        preemption: Preemption = "recompute",
        num_host_blocks: int = 0,
    ) -> None:
        if not (is_number(watermark) and 0 <= watermark < 1):
            raise ValueError(
                f"watermark is {watermark!r}: it is the share of blocks to keep free when "
                f"admitting, at least 0 and below 1"
            )
        if preemption not in get_args(Preemption):
            raise ValueError(f"preemption is {preemption!r}: it must be recompute or swap")
        self.max_running = whole_number("max_running", max_running)
        self.watermark = watermark
        self.preemption = preemption
        self.num_host_blocks = whole_number("num_host_blocks", num_host_blocks, at_least=0)
        if num_host_blocks and preemption != "swap":
            raise ValueError(
                f"num_host_blocks is {num_host_blocks}, but preemption is {preemption!r}: only "
                f"preemption='swap' uses host blocks"
            )
        self.waiting: deque[Request] = deque()  # the queue: who has come and does not run yet
        self.running: list[Request] = []  # the batch: requests that share a step, one row each

    def attach(self, kv: KVManager, policy: Policy, clock: Clock) -> None:
        """Hand over the parts that a scheduler uses but does not own.

        Raises ValueError if it has some already: two engines cannot share one scheduler's queues.
        """
        if hasattr(self, "kv"):
            name = type(self).__name__
            raise ValueError(f"this {name} already serves an engine: make another, {name}(…)")
        self.kv, self.policy, self.clock = kv, policy, clock
        self.hooks = Hooks(policy)
        self.swap = SwapSpace(self.num_host_blocks, kv.block_size)
        self._keep_free = int(self.watermark * kv.num_blocks)
        # Only a manager that shares blocks has the first two, only a contiguous one the third.
        self._drain_copies = getattr(kv, "drain_copies", None)
        self._publish = getattr(kv, "publish", None)
        self._in_the_way = getattr(kv, "in_the_way", None)

    # -- what the engine calls ------------------------------------------------------------------

    def add(self, request: Request) -> None:
        if self.hooks.on_arrival:
            self.hooks.on_arrival(request, self.waiting, self.clock.now())
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
        if self._publish:  # only now is the KV of this step's tokens in its blocks
            self._publish(plan.num_scheduled_tokens)
        if self.hooks.on_tokens:
            self.hooks.on_tokens(token_ids, now)
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

    def holders(self) -> list[Request]:
        """Whoever may hold KV blocks; check_integrity() compares their tables with the pool."""
        return [*self.running, *self.waiting]

    def check_integrity(self) -> None:
        """Raise KVIntegrityError unless the books of device and host agree with the requests."""
        self.kv.check_integrity(self.holders())
        self.swap.check_integrity([r for r in self.waiting if r.status is RequestStatus.SWAPPED])

    # -- moves for schedule() -------------------------------------------------------------------

    def next_waiting(self) -> Request | None:
        """Whom the policy would admit first; None if it lets nobody in now.

        Whoever was swapped out comes before whoever is new, or the host would fill up with halves;
        only a request that would displace it may pass.
        """
        now = self.clock.now()
        request = self.policy.next(self.waiting, now)
        if request is None or not self.swap.tables or request in self.swap.tables:
            return request
        swapped = self.policy.next([*self.swap.tables], now)
        passes = self.hooks.displaces
        if swapped is None or (passes and passes(request, swapped, now)):
            return request
        return swapped

    def free_slot(self, plan: SchedulerOutput) -> bool:
        """Is there a slot for the next in the queue, or one that somebody must give up for it?"""
        if len(self.running) < self.max_running:
            return True
        plan.waiting_for = "slots"
        return self.hooks.displaces is not None and self.displace(plan, self.next_waiting())

    def admit(
        self,
        plan: SchedulerOutput,
        request: Request | None,
        num_tokens: int | None = None,
        *,
        whole_answer: bool = False,
    ) -> bool:
        """Let a waiting request run: claim KV room for all its tokens, plan ``num_tokens`` of them.

        The default is all that are uncomputed. whole_answer: claim room for the longest answer too.
        False when memory is short, or when there is nobody to admit.
        """
        if request is None:
            plan.waiting_for, plan.wait_until = "quota", self.hooks.ready_time(self.clock.now())
            return False
        if request not in self.waiting:
            raise ValueError(
                f"{request!r} was to be admitted, but it is not in the queue (admit() itself takes "
                f"it out)"
            )
        swapped = request.status is RequestStatus.SWAPPED
        if not swapped:
            request.num_computed_tokens = self.kv.match_prefix(request)
        known = request.num_computed_tokens
        # The last token of a sequence is never run, so it needs no slot.
        end = request.max_num_tokens - 1 if whole_answer else request.num_tokens
        # Alone, a request may use the last block; otherwise the watermark keeps room to grow.
        keep_free = self._keep_free if self.running else 0
        while not self._allocate(request, end - known, keep_free):
            plan.waiting_for = "memory"
            if not self.displace(plan, request):
                self.kv.free(request)
                request.num_computed_tokens = known if swapped else 0
                return False
        if swapped:
            plan.swapped_in[request] = self.swap.swap_in(request)
        if self._drain_copies:
            plan.block_copies += self._drain_copies()
        self._enter(plan, request)
        uncomputed = request.num_tokens - known
        plan.num_scheduled_tokens[request] = (
            uncomputed if num_tokens is None else min(num_tokens, uncomputed)
        )
        return True

    def _enter(self, plan: SchedulerOutput, request: Request) -> None:
        """From the queue to the running."""
        if self.waiting[0] is request:
            self.waiting.popleft()
        else:
            self.waiting.remove(request)
        now = self.clock.now()
        if request.first_scheduled_time is None:
            request.first_scheduled_time = now
            request.num_cached_tokens = request.num_computed_tokens
        request.status = RequestStatus.RUNNING
        self.running.append(request)
        plan.admitted[request] = request.num_computed_tokens
        if self.hooks.on_admit:
            self.hooks.on_admit(request, now)

    def run(self, plan: SchedulerOutput, request: Request, num_tokens: int) -> bool:
        """Plan ``num_tokens`` of a running request, preempting others if memory is short.

        False when the request itself had to give way (or already had, earlier in this step).
        """
        if request.num_computed_tokens + num_tokens > request.num_slots:
            if request.status is not RequestStatus.RUNNING:
                return False
            while not self._allocate(request, num_tokens):
                rivals = self._in_the_way(request) if self._in_the_way else self.running
                victim = self.policy.victim(rivals, self.clock.now())
                plan.waiting_for = "memory"
                self.preempt(plan, victim)
                if victim is request:
                    return False
        plan.num_scheduled_tokens[request] = num_tokens
        return True

    def _allocate(self, request: Request, num_tokens: int, keep_free: int = 0) -> bool:
        granted = self.kv.allocate(request, num_tokens, keep_free)
        if granted is None:
            name = type(self.kv).__name__
            raise ValueError(f"{name}.allocate() returned None: it must say True or False")
        return granted

    def preempt(self, plan: SchedulerOutput, request: Request) -> None:
        """Pause a running request: its KV goes to the host or away, its tokens stay.

        Nothing the user has seen is lost: what was not kept is prefilled again on its return,
        prompt and output together.
        """
        if request not in self.running:
            raise ValueError(f"{request!r} was to be preempted, but it is not running")
        self.running.remove(request)
        plan.num_scheduled_tokens.pop(request, None)
        # What has been swapped in in this step still has to leave the host: nothing goes there.
        copies = None if plan.swapped_in else self.swap.swap_out(request)
        if copies is not None:
            plan.swapped_out[request] = copies
            request.status = RequestStatus.SWAPPED
        else:
            request.num_computed_tokens = 0
            request.status = RequestStatus.PREEMPTED
        self.kv.free(request)
        request.num_preemptions += 1
        self.waiting.appendleft(request)
        plan.preempted.append(request)
        if self.hooks.on_leave:
            self.hooks.on_leave(request, self.clock.now())

    def displace(self, plan: SchedulerOutput, candidate: Request | None) -> bool:
        """Preempt one running request if the policy puts ``candidate`` before it.

        False when there is none, or when not even all of them would make room enough.
        """
        if candidate is None or not self.hooks.displaces:
            return False
        now = self.clock.now()
        before = self.hooks.displaces
        weaker = [r for r in self.running if r not in plan.admitted and before(candidate, r, now)]
        num_blocks = self.kv.num_free_blocks + sum(len(r.block_table) for r in weaker)
        need = candidate.num_tokens - candidate.num_slots
        if not weaker or num_blocks * self.kv.block_size < need:
            return False
        self.preempt(plan, self.policy.victim(weaker, now))
        return True

    def retire(self, finished: list[Request]) -> None:
        """Finished requests leave and their blocks go back at once."""
        now = self.clock.now()
        for request in finished:
            self._end(request, now)
            self.kv.free(request)
        self.running = [r for r in self.running if r.status is RequestStatus.RUNNING]

    def _end(self, request: Request, now: float) -> None:
        if self.hooks.on_leave and request.status is RequestStatus.RUNNING:
            self.hooks.on_leave(request, now)
        request.status = RequestStatus.FINISHED
        # An answer is over with its last token; the bookkeeping since then is not the user's wait.
        answered = request.finish_reason is not FinishReason.ABORT and request.token_times
        request.finish_time = (
            request.token_times[-1] if answered else max(now, request.arrival_time)
        )
        self.swap.free(request)
