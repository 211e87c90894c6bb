"""How fast the virtual-clock engine is, and that a step of a long run costs what a first one does.

    python -m toyserve.bench.simulation [TRACE.csv]

simulates 19,366 requests of a conversation service, without torch, and prints one JSON object with
the time and the peak memory of the process.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toyserve.bench.machine import peak_memory
from toyserve.clock import VirtualClock
from toyserve.costs import cost_model, get_model
from toyserve.engine import Engine
from toyserve.kv import PagedKV
from toyserve.policies import FCFS
from toyserve.recording import Recording
from toyserve.runners import SimulatedRunner, TimedRunner
from toyserve.schedulers import ChunkedScheduler
from toyserve.workload import Workload, azure_like, poisson, read_azure_trace

MODEL, GPU = "llama-3-8b", "h100"
TRACE_LENGTH = 19_366
# A GPU that is busy but keeps up, so that the queue, which also costs time, does not grow.
_RATE = 60.0


def make_engine(workload: Workload, max_running: int, token_budget: int) -> Engine:
    """A simulated engine that keeps requests and totals, not steps."""
    clock, cost = VirtualClock(), cost_model(GPU, MODEL)
    return Engine(
        scheduler=ChunkedScheduler(max_running, token_budget),
        kv=PagedKV(65_536, 16),
        runner=TimedRunner(SimulatedRunner(workload.output_lens), cost, clock),
        policy=FCFS(),
        clock=clock,
        max_model_len=get_model(MODEL).max_model_len,
        recording=Recording(keep_steps=False),
    )


def simulate_mix(num_requests: int, marks: Sequence[int], window: int = 300) -> dict[str, Any]:
    """The standard mix, arriving one after another: requests per CPU second, and what a step costs
    (median, per running request) when ``marks`` requests have finished."""
    workload = poisson(num_requests, _RATE)
    engine = make_engine(workload, max_running=64, token_budget=512)
    for request in workload.requests_for_engine():
        engine.add_request(request)
    clock = time.perf_counter_ns
    num_finished = 0
    costs: dict[int, list[float]] = {mark: [] for mark in marks}
    started = time.process_time()
    while engine.has_unfinished:
        before = clock()
        record = engine.step()
        if record is None:
            continue
        for mark, times in costs.items():
            if mark <= num_finished < mark + window:
                times.append((clock() - before) / 1e3 / len(record.num_scheduled_tokens))
        num_finished += len(record.finished)
    seconds = time.process_time() - started
    return {
        "requests_per_cpu_s": num_requests / seconds,
        "num_requests": num_requests,
        "num_steps": engine.recording.num_steps,
        "us_per_running_request": {
            str(mark): statistics.median(times) for mark, times in costs.items() if times
        },
    }


def simulate_trace(path: Path | None, num_requests: int = TRACE_LENGTH) -> dict[str, Any]:
    """A conversation trace (a generated one of its shape without a file), and its peak memory."""
    limit = get_model(MODEL).max_model_len
    before = peak_memory()
    if path is not None:
        workload = read_azure_trace(path, limit=num_requests, max_model_len=limit)
    else:
        workload = azure_like(num_requests, max_model_len=limit)
    engine = make_engine(workload, max_running=256, token_budget=2048)
    requests = workload.requests_for_engine()
    loaded = peak_memory()
    started = time.process_time()
    recording = engine.run(requests)
    seconds = time.process_time() - started
    return {
        "trace": workload.name,
        "num_requests": len(workload),
        "num_steps": recording.num_steps,
        "virtual_hours": engine.clock.now() / 3600,
        "cpu_seconds": seconds,
        "requests_per_cpu_s": len(workload) / seconds,
        "peak_memory_mb": {
            "imports": before / 1e6,
            "with the trace": loaded / 1e6,
            "at the end": peak_memory() / 1e6,
        },
    }


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    num_requests = int(arguments.pop(0)) if arguments and arguments[0].isdigit() else TRACE_LENGTH
    path = Path(arguments[0]) if arguments else None
    print(json.dumps(simulate_trace(path, num_requests)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
