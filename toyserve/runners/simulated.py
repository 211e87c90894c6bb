"""A runner without tensors: it knows how long each answer will be, which no scheduler does."""

from __future__ import annotations

from collections.abc import Mapping

from toyserve.request import Request
from toyserve.runners.runner import Runner
from toyserve.schedulers.output import SchedulerOutput, StepResult


class SimulatedRunner:
    """Emits ``token_id`` for every sampled position, and says when a request's answer is over.

    output_lens: request id -> number of tokens the model would answer with, the end token included.
    A request that is not in it runs to its max_tokens.
    """

    def __init__(self, output_lens: Mapping[str, int] | None = None, token_id: int = 0) -> None:
        self.output_lens = dict(output_lens or {})
        self.token_id = token_id

    def execute(self, plan: SchedulerOutput) -> StepResult:
        result = StepResult()
        token_ids, ended, output_lens = result.token_ids, result.ended, self.output_lens
        for request, num_tokens in plan.num_scheduled_tokens.items():
            known = len(request.token_ids)
            if request.num_computed_tokens + num_tokens < known:
                continue  # a chunk that does not reach the end of the prompt
            token_ids[request] = self.token_id
            output_len = output_lens.get(request.request_id)
            if output_len is not None and known + 1 - request.num_prompt_tokens >= output_len:
                ended.add(request)
        return result

    def forget(self, request: Request) -> None:
        """Nothing is kept per request."""


class ScriptedLengths:
    """A real runner whose answers end where a workload says, so that both clocks see one schedule.

    The wrapped model's own end token is ignored if the request says ``ignore_eos``; its tokens are
    passed on unchanged.
    """

    def __init__(self, runner: Runner, output_lens: Mapping[str, int]) -> None:
        self.runner = runner
        self.output_lens = dict(output_lens)

    def execute(self, plan: SchedulerOutput) -> StepResult:
        result = self.runner.execute(plan)
        for request in result.token_ids:
            output_len = self.output_lens.get(request.request_id)
            if output_len is not None and request.num_output_tokens + 1 >= output_len:
                result.ended.add(request)
        return result

    def forget(self, request: Request) -> None:
        self.runner.forget(request)
