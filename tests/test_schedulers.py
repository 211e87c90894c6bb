"""Schedulers: who runs when, that every prompt token runs once, and that nobody stands still."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sim import Job, ToyModel, make_engine, serve
from test_engine_properties import MAX_LEN, jobs, schedulers

from toyserve.clock import VirtualClock
from toyserve.engine import Engine
from toyserve.kv import PagedKV
from toyserve.recording import Recording
from toyserve.request import FinishReason
from toyserve.runners import SimulatedRunner
from toyserve.schedulers import (
    ChunkedScheduler,
    ContinuousScheduler,
    Scheduler,
    SchedulerOutput,
    SequentialScheduler,
    StaticScheduler,
)
from toyserve.schedulers.output import StepResult

ENDLESS = ToyModel(end_every=0)


def batches(recording: Recording) -> list[str]:
    """Per step, who ran, by the last letter of the id's number: r0 is A."""
    return [
        "".join(sorted("ABCDEFGH"[int(r[1:])] for r in step.num_scheduled_tokens))
        for step in recording.steps
    ]


# -- the textbook timelines -----------------------------------------------------------------------

FOUR = [Job((1,), n) for n in (100, 10, 60, 8)]


def test_a_static_batch_has_the_holes_of_the_textbook() -> None:
    rows = batches(serve(FOUR, StaticScheduler(4), PagedKV(400, 4), model=ENDLESS).recording)
    assert len(rows) == 100
    assert (rows[7], rows[8], rows[9], rows[10]) == ("ABCD", "ABC", "ABC", "AC")
    assert (rows[59], rows[60], rows[99]) == ("AC", "A", "A")


def test_continuous_batching_puts_e_in_the_slot_of_d_and_f_in_that_of_b() -> None:
    more = [*FOUR, *(Job((1,), 50) for _ in range(3))]
    rows = batches(serve(more, ContinuousScheduler(4), PagedKV(400, 4), model=ENDLESS).recording)
    assert (rows[7], rows[8], rows[9], rows[10]) == ("ABCD", "ABCE", "ABCE", "ACEF")


def test_six_decodes_leave_two_tokens_of_a_budget_of_eight_to_a_prompt() -> None:
    six = [Job((1,), 40) for _ in range(6)]
    served = serve([*six, Job(tuple(range(20)), 2, 10.0)], ChunkedScheduler(7, 8),
                   PagedKV(400, 4), model=ENDLESS)  # fmt: skip
    step = next(s for s in served.recording.steps if "r6" in s.admitted)
    assert dict(step.num_scheduled_tokens) == {f"r{i}": 1 for i in range(6)} | {"r6": 2}


def test_a_prompt_of_a_thousand_tokens_runs_as_256_256_256_232() -> None:
    served = serve([Job(tuple(range(1000)), 1)], ChunkedScheduler(4, 256), PagedKV(80, 16))
    assert [s.num_scheduled_tokens["r0"] for s in served.recording.steps] == [256, 256, 256, 232]


# -- chunks (O9) ----------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 3, 4])
@pytest.mark.parametrize("extra", [-1, 0, 1])
@pytest.mark.parametrize("cached", [0, 4, 8])
def test_every_prompt_token_runs_once_and_one_sample_follows_the_last(
    chunk: int, extra: int, cached: int
) -> None:
    prompt = tuple(range(3 * chunk + extra + cached))
    if not prompt:
        return
    warm = [Job((*prompt[:cached], 99), 1)] if cached else []
    target = Job(prompt, 3, arrival_time=50.0)
    other = Job((7, 7), 40, arrival_time=45.0)  # takes one token of each step's budget
    scheduler = ChunkedScheduler(2, chunk + 1, max_chunk=chunk)
    kv = PagedKV(40, 4, prefix_caching=True)
    served = serve([*warm, other, target], scheduler, kv, model=ENDLESS)
    name = f"r{len(warm) + 1}"
    runs = [n for s in served.recording.steps if (n := s.num_scheduled_tokens.get(name))]
    hit = served.requests[-1].num_cached_tokens
    assert hit == min(cached, (len(prompt) - 1) // 4 * 4 if len(prompt) % 4 else len(prompt) - 1)
    assert sum(runs) == len(prompt) - hit + 2
    assert max(runs) <= chunk


# -- what can never be scheduled (O1) -------------------------------------------------------------


@pytest.mark.parametrize("extra", [-1, 0, 1, 100])
def test_a_prompt_longer_than_the_budget_runs_in_chunks_and_the_next_is_served(extra: int) -> None:
    served = serve([Job(tuple(range(8 + extra)), 2), Job((1, 2), 2)], ChunkedScheduler(2, 8),
                   PagedKV(80, 4), model=ENDLESS)  # fmt: skip
    assert {r.finish_reason for r in served.requests} == {FinishReason.LENGTH}


def test_a_chunk_larger_than_the_budget_is_cut_to_the_budget() -> None:
    served = serve([Job(tuple(range(20)), 1)], ChunkedScheduler(2, 8, max_chunk=64), PagedKV(80, 4))
    assert [s.num_scheduled_tokens["r0"] for s in served.recording.steps] == [8, 8, 4]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ChunkedScheduler(16, 8), "token_budget is 8 and max_running is 16"),
        (lambda: ChunkedScheduler(2, 0), "token_budget is 0"),
        (lambda: ChunkedScheduler(2, 8, max_chunk=0), "max_chunk is 0"),
        (lambda: ContinuousScheduler(0), "max_running is 0"),
        (lambda: ContinuousScheduler(2.0), "max_running is 2.0"),  # type: ignore[arg-type]
        (lambda: ContinuousScheduler(2, watermark=1.0), "watermark is 1.0"),
        (lambda: StaticScheduler(2, max_wait=-1.0), "max_wait is -1.0"),
        (lambda: StaticScheduler(2, max_wait=float("nan")), "max_wait is nan"),
    ],
)
def test_a_scheduler_that_could_not_work_is_refused_with_value_and_limit(make, message) -> None:
    with pytest.raises(ValueError, match=message):
        make()


# -- a scheduler from a notebook cell -------------------------------------------------------------


class Mine(Scheduler):
    def schedule(self) -> SchedulerOutput:
        plan = SchedulerOutput()
        for request in list(self.running):
            self.run(plan, request, 1)
        while self.waiting and len(self.running) < self.max_running:
            if not self.admit(plan, self.next_waiting()):
                break
        return plan


def test_the_scheduler_of_the_docstring_serves() -> None:
    engine, runner = make_engine(Mine(3), PagedKV(40, 4), model=ENDLESS)
    requests = [Job((1, 2, 3), 5).request(f"r{i}") for i in range(7)]
    engine.run(requests)
    assert all(r.output_token_ids == runner.model.answer([1, 2, 3], 5) for r in requests)


def test_a_scheduler_that_admits_nobody_is_told_so_instead_of_waiting_for_ever() -> None:
    class Nobody(Scheduler):
        def schedule(self) -> SchedulerOutput:
            return SchedulerOutput()

    engine, _ = make_engine(Nobody(3), PagedKV(40, 4))
    engine.add_request(Job((1, 2)).request("r0"))
    with pytest.raises(RuntimeError, match=r"Nobody.schedule\(\) planned nothing while 1 requests"):
        engine.step()


# -- the simulator's schedule is the engine's -----------------------------------------------------


class OneSecondSteps:
    """The simulated runner, on the clock of the ContentRunner."""

    def __init__(self, runner: SimulatedRunner, clock: VirtualClock) -> None:
        self.runner, self.clock, self.forget = runner, clock, runner.forget

    def execute(self, plan: SchedulerOutput) -> StepResult:
        result = self.runner.execute(plan)
        self.clock.advance(1.0)
        return result


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.data(), jobs(), st.integers(8, 40))
def test_the_simulator_schedules_a_trace_exactly_as_the_engine_does(
    data: st.DataObject, jobs: list[Job], num_blocks: int
) -> None:
    jobs = [Job(j.prompt, j.max_tokens, j.arrival_time) for j in jobs]
    scheduler = data.draw(schedulers())
    twin = copy.deepcopy(scheduler)  # the same settings, before any engine has it
    real = serve(jobs, scheduler, PagedKV(num_blocks, 4), max_model_len=MAX_LEN)
    clock = VirtualClock()
    lengths = {r.request_id: r.num_output_tokens for r in real.requests}
    engine = Engine(
        scheduler=twin,
        kv=PagedKV(num_blocks, 4),
        runner=OneSecondSteps(SimulatedRunner(lengths), clock),
        clock=clock,
        max_model_len=MAX_LEN,
    )
    engine.run(job.request(f"r{i}") for i, job in enumerate(jobs))
    assert engine.recording.steps == real.recording.steps


def test_one_at_a_time_runs_one_at_a_time() -> None:
    served = serve(FOUR, SequentialScheduler(), PagedKV(400, 4), model=ENDLESS)
    assert batches(served.recording) == ["A"] * 100 + ["B"] * 10 + ["C"] * 60 + ["D"] * 8
