"""The cost model fitted to this machine: measure real steps, fit prices, test on other work.

    from toyserve import LLM
    from toyserve.calibrate import calibrate
    calibration = calibrate(LLM("toy"))
    print(calibration.explain())

``calibration.model`` then stands wherever a cost model does (``TimedRunner``, simulations): the
virtual clock predicts this machine. How well it does is told for prefill, decode and mixed steps
apart, since an error of one can hide behind another's in their sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from toyserve.clock import Clock, WallClock
from toyserve.engine import Engine
from toyserve.fitted import FittedCostModel, PhaseError, StepSample, fit_cost_model, phase_errors
from toyserve.kv import PagedKV
from toyserve.parts import make_scheduler
from toyserve.recording import Recording, StepRecord
from toyserve.request import Request
from toyserve.runners import Runner
from toyserve.runners.simulated import ScriptedLengths
from toyserve.schedulers.output import SchedulerOutput, StepResult
from toyserve.stepshape import StepPhase, StepShape
from toyserve.workload import Lengths, Workload, burst, standard_mix

if TYPE_CHECKING:
    from toyserve.llm import LLM

BATCH_SIZES = (1, 2, 4, 8, 16, 32)
TOKEN_BUDGETS = (48, 96, 192, 384)


@dataclass(frozen=True)
class Calibration:
    """A fitted model, and its errors on a workload that no price was fitted to."""

    model: FittedCostModel
    errors: Mapping[StepPhase, PhaseError]
    num_samples: int  # steps that the prices come from

    def explain(self) -> str:
        """The prices, and the errors by phase, one line each."""
        lines = [replace(self.model, errors={}).explain()]
        for phase, error in self.errors.items():
            lines.append(
                f"{phase} steps: off by {error.median:.1%} (median), {error.p95:.1%} (p95), bias "
                f"{error.bias:+.1%}, on {error.num_samples} steps of another workload"
            )
        return "\n".join(lines)


@dataclass(frozen=True)
class Machine:
    """Who runs the steps to be measured: a runner with an idle KV pool of this size."""

    runner: Runner
    num_blocks: int
    block_size: int
    max_model_len: int
    vocab_size: int


def calibrate(llm: LLM, *, seed: int = 0, clock: Clock | None = None) -> Calibration:
    """Measure ``llm``'s model on this machine, in some seconds. ``llm`` must be idle.

    clock: what times a step (the wall clock by default). Its KV contents are lost.
    """
    if llm.engine.has_unfinished:
        raise ValueError(f"{len(llm.engine.requests)} requests are unfinished: calibrate before")
    machine = Machine(
        llm._torch_runner,
        llm.kv.num_blocks,
        llm.kv.block_size,
        llm.max_model_len,
        llm.config.vocab_size,
    )
    return calibrate_machine(machine, seed=seed, clock=clock)


def calibrate_machine(
    machine: Machine, *, seed: int = 0, clock: Clock | None = None
) -> Calibration:
    """The same for a runner without an ``LLM`` around it."""
    clock = clock or WallClock()
    lengths = _lengths_for(machine)
    # The first steps set up buffers and caches; nobody's price should hold that.
    _measure(machine, clock, burst(4, seed, lengths), "chunked", 4)
    samples = [s for run in _to_fit(machine, seed, lengths) for s in _measure(machine, clock, *run)]
    tests = [s for run in _held_out(seed, lengths) for s in _measure(machine, clock, *run)]
    model = fit_cost_model(samples, seed=seed)
    return Calibration(model, phase_errors(model, tests), len(samples))


_Run = tuple[Workload, str, int, int | None]  # scheduler, max_running, token_budget


def _lengths_for(machine: Machine) -> Lengths:
    """The standard mix, cut to what the model and half of its pool take."""
    longest = min(machine.max_model_len, machine.num_blocks * machine.block_size // 2)
    prompt_max = max(1, min(256, longest // 2))
    output_max = max(1, min(64, longest - prompt_max))
    return Lengths(min(16, prompt_max), prompt_max, min(8, output_max), output_max, 24.0)


def _to_fit(machine: Machine, seed: int, lengths: Lengths) -> Iterator[_Run]:
    """Whole prompts and then decodes at every batch size; mixtures at several budgets."""
    for size in BATCH_SIZES:
        short = replace(lengths, output_max=min(16, lengths.output_max))
        yield burst(max(4, size), seed + size, short), "continuous", size, None
    for budget in TOKEN_BUDGETS:
        yield burst(16, seed + budget, lengths), "chunked", 16, budget


def _held_out(seed: int, lengths: Lengths) -> Iterator[_Run]:
    """The mix of every measurement, cut to the model: prompts one by one, and all in chunks."""
    mix = standard_mix(24, seed=seed + 1234)
    cut = Workload(
        "held out",
        tuple(
            replace(
                r,
                num_prompt_tokens=min(r.num_prompt_tokens or 1, lengths.prompt_max),
                output_len=min(r.output_len or 1, lengths.output_max),
                max_tokens=lengths.output_max,
            )
            for r in mix.requests
        ),
    )
    prompts_only = replace(
        cut, requests=tuple(replace(r, output_len=1, max_tokens=1) for r in cut.requests)
    )
    yield prompts_only, "sequential", 1, None
    yield cut, "chunked", 16, 256


class _ShapeKeeper:
    """A runner that remembers the shape of the step it runs."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.shape: StepShape | None = None

    def execute(self, plan: SchedulerOutput) -> StepResult:
        self.shape = StepShape.of_plan(plan)  # before the counters move
        return self.runner.execute(plan)

    def forget(self, request: Request) -> None:
        self.runner.forget(request)


def _measure(
    machine: Machine,
    clock: Clock,
    workload: Workload,
    scheduler: str,
    max_running: int,
    token_budget: int | None = None,
) -> list[StepSample]:
    """Serve the workload and time each whole step: planning and bookkeeping are part of it."""
    keeper = _ShapeKeeper(ScriptedLengths(machine.runner, workload.output_lens))
    engine = Engine(
        scheduler=make_scheduler(scheduler, max_running=max_running, token_budget=token_budget),
        kv=PagedKV(machine.num_blocks, machine.block_size),
        runner=keeper,
        clock=clock,
        max_model_len=machine.max_model_len,
        recording=Recording(keep_steps=False),
    )
    samples: list[StepSample] = []

    def take(record: StepRecord) -> None:
        if keeper.shape is not None and keeper.shape.num_tokens:
            samples.append(StepSample(keeper.shape, record.end_time - record.start_time))

    engine.on_step.append(take)
    clock.restart()
    engine.run(_requests(machine, workload))
    return samples


def _requests(machine: Machine, workload: Workload) -> Iterable[Request]:
    return workload.requests_for_engine(vocab_size=machine.vocab_size)
