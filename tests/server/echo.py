"""A model that repeats its prompt, token by token: what must come out is known for any text."""

from __future__ import annotations

import threading
import time
from typing import Any

from toyserve import LLM
from toyserve.request import Request, TokenLogprobs
from toyserve.schedulers.output import SchedulerOutput, StepResult


class EchoRunner:
    """The n-th token of an answer is the n-th of its prompt; then the answer ends.

    With ``ignore_eos`` the prompt is said again and again. step_time: seconds that a step takes.
    ``gate`` cleared: the next step waits. ``fail_at``: the numbers of the steps that raise.
    """

    def __init__(self, eos_token_id: int, step_time: float = 0.0) -> None:
        self.eos_token_id, self.step_time = eos_token_id, step_time
        self.gate = threading.Event()
        self.gate.set()
        self.fail_at: set[int] = set()
        self.num_steps = 0

    def forget(self, request: Request) -> None:
        pass

    def execute(self, plan: SchedulerOutput) -> StepResult:
        assert self.gate.wait(60)
        self.num_steps += 1
        if self.step_time:
            time.sleep(self.step_time)
        if self.num_steps in self.fail_at:
            raise RuntimeError("the model broke")
        result = StepResult()
        for request, num_tokens in plan.num_scheduled_tokens.items():
            if request.num_computed_tokens + num_tokens == request.num_tokens:
                self._answer(request, result)
        return result

    def _answer(self, request: Request, result: StepResult) -> None:
        place = request.num_output_tokens
        if place >= request.num_prompt_tokens and not request.params.ignore_eos:
            token_id = self.eos_token_id
            result.ended.add(request)
        else:
            token_id = request.token_ids[place % request.num_prompt_tokens]
        result.token_ids[request] = token_id
        if token_id in request.params.stop_token_ids:
            result.ended.add(request)
        if request.params.logprobs is not None:
            result.logprobs[request] = TokenLogprobs(token_id, -0.5, {token_id: -0.5, 0: -1.0})


def make_llm(step_time: float = 0.0, **options: Any) -> LLM:
    """The bundled tokenizer around a model that repeats its prompt."""
    llm = LLM("toy", **{"max_running": 8, "check": True} | options)
    assert llm.config.eos_token_id is not None
    llm.engine.runner = EchoRunner(llm.config.eos_token_id, step_time)
    return llm
