"""Static batching: requests start together and the batch ends with its longest."""

from __future__ import annotations

from toyserve.request import FinishReason, Request, RequestStatus
from toyserve.sampling_params import is_number
from toyserve.schedulers.base import Scheduler
from toyserve.schedulers.output import SchedulerOutput, StepResult


class StaticScheduler(Scheduler):
    """Fills a batch, pads its prompts to the longest, and admits nobody until all have finished.

    max_wait: how long (seconds) the first request may wait for the batch to fill up. A row that has
    finished keeps its slot, its KV and its share of the compute until the batch is over.
    """

    def __init__(self, max_running: int = 8, *, max_wait: float = 0.0) -> None:
        super().__init__(max_running)
        if not (is_number(max_wait) and max_wait >= 0):
            raise ValueError(f"max_wait is {max_wait!r}: it must be 0 or more seconds")
        self.max_wait = max_wait
        self.batch: list[Request] = []

    def schedule(self) -> SchedulerOutput:
        plan = SchedulerOutput()
        if not self.batch:
            self._fill_batch(plan)
        else:
            for request in self.batch:
                if request.status is RequestStatus.RUNNING:
                    plan.num_scheduled_tokens[request] = request.num_uncomputed_tokens
                else:
                    plan.num_padded_tokens[request] = 1
            plan.waiting_for = "batch" if self.waiting else None
        return plan

    def _fill_batch(self, plan: SchedulerOutput) -> None:
        if not self.waiting:
            return
        deadline = min(r.arrival_time for r in self.waiting) + self.max_wait
        if len(self.waiting) < self.max_running and self.clock.now() < deadline:
            plan.waiting_for, plan.wait_until = "batch", deadline
            return
        while self.waiting and len(self.batch) < self.max_running:
            request = self.next_waiting()
            # Nobody can be preempted out of a static batch, so all of the answer's room is claimed.
            if not self.admit(plan, request, whole_answer=True) or request is None:
                break
        longest = max(plan.num_scheduled_tokens.values(), default=0)
        for request, num_tokens in plan.num_scheduled_tokens.items():
            if num_tokens < longest:
                plan.num_padded_tokens[request] = longest - num_tokens
        if self.waiting and plan.waiting_for is None:
            plan.waiting_for = "batch"

    def _enter(self, plan: SchedulerOutput, request: Request) -> None:
        self.batch.append(request)  # first: it holds blocks from now on, whatever a policy raises
        super()._enter(plan, request)

    def update_from_output(self, plan: SchedulerOutput, result: StepResult) -> list[Request]:
        finished = super().update_from_output(plan, result)
        self._close_batch()
        return finished

    def retire(self, finished: list[Request]) -> None:
        """A finished row leaves ``running`` but keeps its blocks: its place is computed to the end.

        Only an aborted row leaves the batch at once.
        """
        now = self.clock.now()
        for request in finished:
            self._end(request, now)
            if request.finish_reason is FinishReason.ABORT and request in self.batch:
                self.batch.remove(request)
                self.kv.free(request)
        self.running = [r for r in self.running if r.status is RequestStatus.RUNNING]
        self._close_batch()

    def _close_batch(self) -> None:
        if self.batch and not self.running:
            for request in self.batch:
                self.kv.free(request)
            self.batch = []

    def displace(self, plan: SchedulerOutput, candidate: Request | None) -> bool:
        return False

    def holders(self) -> list[Request]:
        return [*self.batch, *self.waiting]
