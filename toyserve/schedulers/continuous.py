"""Continuous batching: between any two steps, whoever finished leaves and whoever waits may enter.

Yu et al., "Orca: A Distributed Serving System for Transformer-Based Generative Models", OSDI 2022
(there: iteration-level scheduling).
"""

from __future__ import annotations

from toyserve.schedulers.base import Scheduler
from toyserve.schedulers.output import SchedulerOutput


class ContinuousScheduler(Scheduler):
    """Every running request gets its next token; every free slot goes to the next in the queue.

    A prompt is run whole in the step that admits it, however long, beside the others' decodes.
    """

    def schedule(self) -> SchedulerOutput:
        plan = SchedulerOutput()
        for request in list(self.running):
            self.run(plan, request, request.num_uncomputed_tokens)
        while self.waiting and not plan.preempted:
            if not self.free_slot(plan) or not self.admit(plan, self.next_waiting()):
                break
        return plan
