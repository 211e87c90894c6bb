"""Small simulated runs with a cost that is known to the tests."""

from __future__ import annotations

import random

from toyserve import Request, SamplingParams
from toyserve.clock import VirtualClock
from toyserve.engine import Engine
from toyserve.kv import KVManager, PagedKV
from toyserve.recording import Recording
from toyserve.runners import SimulatedRunner, TimedRunner
from toyserve.schedulers import ContinuousScheduler, Scheduler, StaticScheduler
from toyserve.schedulers.output import SchedulerOutput

STEP = 0.01  # seconds
CLASSIC = {"A": 100, "B": 10, "C": 60, "D": 8, "E": 40, "F": 30}


class ConstantCost:
    def step_time(self, plan: SchedulerOutput) -> float:
        return STEP


def run(
    scheduler: Scheduler,
    output_lens: dict[str, int],
    *,
    prompts: dict[str, int] | None = None,
    arrivals: dict[str, float] | None = None,
    kv: KVManager | None = None,
    same_prompt: bool = False,
    **engine: object,
) -> Recording:
    """Serve requests of five prompt tokens (or as ``prompts`` says) on the virtual clock."""
    clock = VirtualClock()
    runner = TimedRunner(SimulatedRunner(output_lens), ConstantCost(), clock)
    made = Engine(
        scheduler=scheduler,
        kv=kv or PagedKV(400, 4),
        runner=runner,
        clock=clock,
        check=True,
        **engine,
    )
    requests = []
    for number, (name, length) in enumerate(output_lens.items()):
        size = (prompts or {}).get(name, 5)
        token = 1 if same_prompt else number + 1
        requests.append(
            Request(
                name,
                [token] * size,
                SamplingParams(max_tokens=length),
                arrival_time=(arrivals or {}).get(name, 0.0),
            )
        )
    return made.run(requests)


def classic() -> Recording:
    """E takes D's slot at step 9, F takes B's at step 11."""
    return run(ContinuousScheduler(4), CLASSIC)


def static() -> Recording:
    return run(StaticScheduler(4), {k: CLASSIC[k] for k in "ABCD"})


def tight() -> Recording:
    """Too few blocks for four: some are preempted and come back."""
    lens = {"A": 30, "B": 20, "C": 25, "D": 18}
    return run(ContinuousScheduler(4), lens, prompts=dict.fromkeys(lens, 9), kv=PagedKV(14, 4))


def crowd(num: int, scheduler: Scheduler, seed: int = 0) -> Recording:
    """Many requests of all sizes."""
    chance, now = random.Random(seed), 0.0
    lens, prompts, arrivals = {}, {}, {}
    for i in range(num):
        name, now = f"r{i}", now + chance.expovariate(30)
        lens[name] = 1 + int(chance.expovariate(1 / 60))
        prompts[name], arrivals[name] = 1 + int(chance.expovariate(1 / 40)), now
    return run(scheduler, lens, prompts=prompts, arrivals=arrivals, kv=PagedKV(4000, 4))
