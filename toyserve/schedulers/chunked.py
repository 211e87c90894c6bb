"""Chunked prefill: a budget of tokens per step; decodes first, what is left goes to prompts.

Agrawal et al., "Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve", OSDI 2024.
"""

from __future__ import annotations

from toyserve.schedulers.base import Scheduler, positive_int
from toyserve.schedulers.output import SchedulerOutput


class ChunkedScheduler(Scheduler):
    """Continuous batching in which no step is longer than ``token_budget`` tokens.

    max_chunk: at most so many prompt tokens of one request per step (None: only the budget limits).
    """

    def __init__(
        self,
        max_running: int = 16,
        token_budget: int = 256,
        *,
        max_chunk: int | None = None,
        watermark: float = 0.0,
    ) -> None:
        super().__init__(max_running, watermark=watermark)
        self.token_budget = positive_int("token_budget", token_budget)
        self.max_chunk = token_budget if max_chunk is None else positive_int("max_chunk", max_chunk)
        if token_budget < max_running:
            raise ValueError(
                f"token_budget is {token_budget} and max_running is {max_running}: the budget must "
                f"hold one token for each running request, or some of them would stand still"
            )

    def schedule(self) -> SchedulerOutput:
        plan = SchedulerOutput()
        budget = self.token_budget
        prefilling = []
        for request in list(self.running):  # decodes first: nobody's stream stops for a prompt
            if request.is_prefilling:
                prefilling.append(request)
            elif self.run(plan, request, 1):
                budget -= 1
        for request in prefilling:  # then the prompts under way, oldest first
            chunk = min(request.num_uncomputed_tokens, self.max_chunk, budget)
            if chunk > 0 and self.run(plan, request, chunk):
                budget -= chunk
        while self.waiting and not plan.preempted:
            if budget == 0 or len(self.running) >= self.max_running:
                plan.waiting_for = "budget" if budget == 0 else "slots"
                break
            request = self.next_waiting()
            if not self.admit(plan, request, min(self.max_chunk, budget)):
                break
            budget -= plan.num_scheduled_tokens[request]
        return plan
