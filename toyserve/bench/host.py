"""What a step costs besides the model: deciding, laying out tensors, sampling, writing it down."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch

from toyserve.bench.ours import Bench
from toyserve.clock import VirtualClock
from toyserve.kv import PagedKV
from toyserve.policies import FCFS
from toyserve.request import Request, SamplingParams
from toyserve.runners import Runner
from toyserve.schedulers import ChunkedScheduler, StepResult

_BLOCK_SIZE, _PROMPT_LEN = 16, 32


class Stopwatch:
    """Adds up the time spent in wrapped methods, in nanoseconds per name.

    On the wall clock, whose reading costs a tenth of the CPU clock's: take medians.
    """

    def __init__(self) -> None:
        self.spent: dict[str, int] = {}

    def wrap(self, owner: Any, method: str, name: str) -> None:
        """From now on ``owner.method`` counts under ``name``."""
        call, clock, spent = getattr(owner, method), time.perf_counter_ns, self.spent
        spent.setdefault(name, 0)

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = clock()
            try:
                return call(*args, **kwargs)
            finally:
                spent[name] += clock() - start

        setattr(owner, method, timed)

    @contextmanager
    def lap(self) -> Iterator[dict[str, int]]:
        """Yields a dict that holds, afterwards, what was spent inside the block."""
        before, result = dict(self.spent), dict[str, int]()
        yield result
        result |= {name: total - before[name] for name, total in self.spent.items()}


class _ModelProxy:
    """The model as a runner sees it, with a ``forward`` that may be wrapped on its own."""

    def __init__(self, model: Any) -> None:
        self.device, self.config, self.forward = model.device, model.config, model.forward


@dataclass(frozen=True)
class HostWork:
    """Microseconds per decode step: medians over the steps, each part by itself."""

    num_running: int
    alone: bool  # with a model that takes no time: the processor's caches hold the engine
    plan: float  # schedule() and update_from_output()
    tensors: float  # in the runner around the model: layout, masks, sampling
    recording: float  # the engine's rest: the records, block events, arrivals
    total: float
    step: float  # all of the step, the model included

    @property
    def recording_share(self) -> float:
        return self.recording / self.step

    def to_dict(self) -> dict[str, float]:
        return asdict(self) | {"recording_share": self.recording_share}


def host_work(
    bench: Bench, num_running: int, num_steps: int = 60, *, alone: bool = False
) -> HostWork:
    """Of decode steps of ``num_running`` requests with prompts of 16 to 128 tokens.

    alone: the model answers at once. In place it sweeps the caches between two steps, and the same
    host work takes three to four times as long: both numbers are true.
    """
    runner = bench.runner()
    proxy = _ModelProxy(bench.model)
    if alone:
        logits = torch.randn(num_running, bench.config.vocab_size)
        proxy.forward = lambda ids, positions, attention, rows: logits[: len(rows)]
    runner.model = proxy  # type: ignore[assignment]
    engine = bench.engine(runner, max_running=num_running)
    engine.scheduler.token_budget = engine.scheduler.max_chunk = 4096  # type: ignore[attr-defined]
    watch = Stopwatch()
    watch.wrap(runner.model, "forward", "model")
    watch.wrap(engine.scheduler, "schedule", "plan")
    watch.wrap(engine.scheduler, "update_from_output", "plan")
    watch.wrap(engine.runner, "execute", "execute")
    watch.wrap(engine, "step", "step")
    for request in _decoding_requests(num_running, num_steps + 8, bench.config.vocab_size):
        engine.add_request(request)
    laps = []
    while engine.has_unfinished:
        with watch.lap() as lap:
            record = engine.step()
        if record is not None and set(record.num_scheduled_tokens.values()) == {1}:
            laps.append(lap)
    laps = [lap for lap in laps[2:-2] if lap["model"]]
    return _medians(num_running, alone, laps)


def _decoding_requests(count: int, output_len: int, vocab_size: int) -> Iterator[Request]:
    params = SamplingParams(temperature=0.0, max_tokens=output_len, ignore_eos=True)
    for i in range(count):
        prompt_len = 16 + 112 * i // max(1, count - 1)
        yield Request(f"r{i}", [(i + j) % vocab_size for j in range(prompt_len)], params)


def _medians(num_running: int, alone: bool, laps: list[dict[str, int]]) -> HostWork:
    def median(of: Callable[[dict[str, int]], int]) -> float:
        return statistics.median(of(lap) for lap in laps) / 1e3

    return HostWork(
        num_running,
        alone,
        plan=median(lambda lap: lap["plan"]),
        tensors=median(lambda lap: lap["execute"] - lap["model"]),
        recording=median(lambda lap: lap["step"] - lap["execute"] - lap["plan"]),
        total=median(lambda lap: lap["step"] - lap["model"]),
        step=median(lambda lap: lap["step"]),
    )


# -- the scheduler alone --------------------------------------------------------------------------


class InstantRunner:
    """Samples token 0 for everybody."""

    def execute(self, plan: Any) -> StepResult:
        return StepResult(token_ids=dict.fromkeys(plan.num_scheduled_tokens, 0))

    def forget(self, request: Request) -> None:
        pass


def scheduler_time(num_running: int, num_steps: int = 500, num_waiting: int = 0) -> float:
    """Microseconds of schedule() + update_from_output() per step of ``num_running`` decodes."""
    length = _PROMPT_LEN + num_steps + 8
    kv = PagedKV((num_running + 1) * (length // _BLOCK_SIZE + 2), _BLOCK_SIZE)
    scheduler = ChunkedScheduler(max_running=num_running, token_budget=4096 + num_running)
    runner: Runner = InstantRunner()
    scheduler.attach(kv, FCFS(), VirtualClock())
    params = SamplingParams(max_tokens=num_steps + 8)
    for i in range(num_running + num_waiting):
        scheduler.add(Request(f"r{i}", list(range(_PROMPT_LEN)), params))
    clock, times = time.perf_counter_ns, []
    for _ in range(num_steps):
        start = clock()
        plan = scheduler.schedule()
        planned = clock()
        kv.drain_events()
        result = runner.execute(plan)
        executed = clock()
        scheduler.update_from_output(plan, result)
        times.append(clock() - executed + planned - start)
    return statistics.median(times[4:]) / 1e3
