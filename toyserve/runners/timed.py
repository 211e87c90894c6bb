"""Any runner on the virtual clock: the step is executed, then lasts what a cost model says."""

from __future__ import annotations

from typing import Protocol

from toyserve.clock import VirtualClock
from toyserve.request import Request
from toyserve.runners.runner import Runner
from toyserve.schedulers.output import SchedulerOutput, StepResult


class StepCost(Protocol):
    """How long a step takes, in seconds, on some GPU with some model."""

    def step_time(self, plan: SchedulerOutput) -> float: ...


class TimedRunner:
    """Executes with ``runner`` and moves ``clock`` on by ``cost.step_time(plan)``."""

    def __init__(self, runner: Runner, cost: StepCost, clock: VirtualClock) -> None:
        self.runner, self.cost, self.clock = runner, cost, clock

    def execute(self, plan: SchedulerOutput) -> StepResult:
        seconds = self.cost.step_time(plan)  # before the counters move
        result = self.runner.execute(plan)
        self.clock.advance(seconds)
        return result

    def forget(self, request: Request) -> None:
        self.runner.forget(request)
