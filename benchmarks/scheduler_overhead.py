"""Time of scheduling alone, per step: ``schedule()`` + ``update_from_output()``, in µs.

    python benchmarks/scheduler_overhead.py [--steps 2000]

The runner is a stub that samples token 0 for everybody, and its time is left out. The median of
the steps is the number to look at: a step that crosses a block boundary takes longer, and so does
one in which another process had the core.
"""

from __future__ import annotations

import argparse
import statistics
import time

from toyserve.clock import VirtualClock
from toyserve.kv import PagedKV
from toyserve.policies import FCFS
from toyserve.request import Request, SamplingParams
from toyserve.schedulers import ChunkedScheduler, StepResult

BLOCK_SIZE = 16
PROMPT_LEN = 32


def step_times(num_running: int, num_steps: int, *, num_waiting: int = 0) -> list[float]:
    """Seconds per step with ``num_running`` decodes and a queue of ``num_waiting``."""
    length = PROMPT_LEN + num_steps + 8
    kv = PagedKV((num_running + 1) * (length // BLOCK_SIZE + 2), BLOCK_SIZE)
    scheduler = ChunkedScheduler(max_running=num_running, token_budget=4096 + num_running)
    scheduler.attach(kv, FCFS(), VirtualClock())
    params = SamplingParams(max_tokens=num_steps + 8)
    for i in range(num_running + num_waiting):
        scheduler.add(Request(f"r{i}", list(range(PROMPT_LEN)), params))
    times = []
    for _ in range(num_steps):
        start = time.perf_counter_ns()
        plan = scheduler.schedule()
        middle = time.perf_counter_ns()
        kv.drain_events()
        result = StepResult(token_ids=dict.fromkeys(plan.num_scheduled_tokens, 0))
        resumed = time.perf_counter_ns()
        scheduler.update_from_output(plan, result)
        times.append((time.perf_counter_ns() - resumed + middle - start) / 1e9)
    return times[4:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    args = parser.parse_args()
    print(f"{'running':>8} {'waiting':>8} {'median µs':>10} {'mean µs':>10} {'p99 µs':>10}")
    for num_running, num_waiting in [(8, 0), (64, 0), (256, 0), (64, 1000)]:
        times = [t * 1e6 for t in step_times(num_running, args.steps, num_waiting=num_waiting)]
        p99 = statistics.quantiles(times, n=100)[-1]
        print(
            f"{num_running:8d} {num_waiting:8d} {statistics.median(times):10.1f} "
            f"{statistics.fmean(times):10.1f} {p99:10.1f}"
        )


if __name__ == "__main__":
    main()
