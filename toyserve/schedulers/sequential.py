"""One request at a time: the server everybody writes first."""

from __future__ import annotations

from toyserve.schedulers.base import Scheduler
from toyserve.schedulers.output import SchedulerOutput


class SequentialScheduler(Scheduler):
    """Runs a request to its end before it looks at the next one."""

    def __init__(self) -> None:
        super().__init__(max_running=1)

    def schedule(self) -> SchedulerOutput:
        plan = SchedulerOutput()
        for request in self.running:
            self.run(plan, request, request.num_uncomputed_tokens)
        if not self.running and self.waiting:
            self.admit(plan, self.next_waiting())
        if self.running and self.waiting:
            plan.waiting_for = "slots"
        return plan
