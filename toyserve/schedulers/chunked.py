"""Chunked prefill: a prompt is read in pieces, of what the decodes leave of each step's budget.

Agrawal et al., "Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve", OSDI 2024.
"""

from __future__ import annotations

from toyserve.kv.manager import whole_number
from toyserve.schedulers.base import Preemption, Scheduler
from toyserve.schedulers.output import SchedulerOutput


class ChunkedScheduler(Scheduler):
    """Continuous batching in which no step is longer than ``token_budget`` tokens.

    token_budget: how many tokens one step may hold, of all requests together.
    max_chunk: at most so many prompt tokens of one request per step (None: only the budget limits).
    """

    def __init__(
        self,
        max_running: int = 16,
        token_budget: int = 256,
        *,
        max_chunk: int | None = None,
        watermark: float = 0.0,
        preemption: Preemption = "recompute",
        num_host_blocks: int = 0,
    ) -> None:
        super().__init__(
            max_running,
            watermark=watermark,
            preemption=preemption,
            num_host_blocks=num_host_blocks,
        )
        self.token_budget = whole_number("token_budget", token_budget)
        self.max_chunk = token_budget if max_chunk is None else whole_number("max_chunk", max_chunk)
        if token_budget < max_running:
            raise ValueError(
                f"token_budget is {token_budget} and max_running is {max_running}: the budget must "
                f"hold one token for each running request, or some of them would stand still"
            )

    def schedule(self) -> SchedulerOutput:
        plan = SchedulerOutput()
        prefilling = []
        for request in list(self.running):  # decodes first: nobody's stream stops for a prompt
            if request.is_prefilling:
                prefilling.append(request)
            else:
                self.run(plan, request, 1)
        for request in prefilling:  # then the prompts under way, oldest first
            chunk = min(request.num_uncomputed_tokens, self.max_chunk, self.budget_left(plan))
            if chunk > 0:
                self.run(plan, request, chunk)
        while self.waiting and not plan.preempted:
            if not self.free_slot(plan):
                break
            chunk = min(self.max_chunk, self.budget_left(plan))
            if chunk == 0:
                plan.waiting_for = "budget"
                break
            if not self.admit(plan, self.next_waiting(), chunk):
                break
        return plan

    def budget_left(self, plan: SchedulerOutput) -> int:
        return self.token_budget - sum(plan.num_scheduled_tokens.values())
