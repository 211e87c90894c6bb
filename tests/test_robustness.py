"""Faults of parts that people write themselves, and calls at the wrong moment: one sentence, and
nothing is lost, silently wrong, or endless."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models_for_tests import generate

from toyserve import LLM, Engine, Request, SamplingParams
from toyserve.clock import VirtualClock
from toyserve.kv import PagedKV
from toyserve.kv.manager import KVIntegrityError
from toyserve.policies import FCFS, FairShare, Priority, Quota, Quotas
from toyserve.replay import replay_memory, replay_work
from toyserve.runners import SimulatedRunner
from toyserve.schedulers import (
    ChunkedScheduler,
    ContinuousScheduler,
    Scheduler,
    SchedulerOutput,
    SequentialScheduler,
    StaticScheduler,
)
from toyserve.workload import Workload, WorkloadRequest

GREEDY5 = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
GOOD = [4, 5, 6]


def engine(scheduler: Scheduler, lens: dict[str, int], **parts: Any) -> Engine:
    parts.setdefault("kv", PagedKV(40, 4))
    return Engine(scheduler=scheduler, runner=SimulatedRunner(lens), clock=VirtualClock(), **parts)


def asks(ids: Sequence[str], num_tokens: int = 4) -> list[Request]:
    params = SamplingParams(max_tokens=num_tokens)
    return [Request(i, [1] * 6, params) for i in ids]


# -- an error inside a step -------------------------------------------------------------------


class RaisesAt(FCFS):
    """A policy whose ``method`` fails at its n-th call."""

    def __init__(self, method: str, n: int) -> None:
        self.method, self.left = method, n

    def _count(self, method: str) -> None:
        if method == self.method:
            self.left -= 1
            if self.left == 0:
                raise ZeroDivisionError("a slip in the policy")

    def next(self, waiting: Sequence[Request], now: float) -> Request:
        self._count("next")
        return super().next(waiting, now)

    def on_admit(self, request: Request, now: float) -> None:
        self._count("on_admit")

    def on_tokens(self, requests: Any, now: float) -> None:
        self._count("on_tokens")


def assert_replays(core: Engine) -> None:
    """The file's own account of work and memory agrees with what the engine says at the end."""
    steps = list(replay_memory(core.recording))
    assert len(steps) == len(list(replay_work(core.recording))) == core.recording.num_steps
    for step, memory in steps:
        assert memory.num_used_blocks <= core.kv.num_blocks
        owners = {owner for block in memory.owners for owner in block}
        assert set(step.num_scheduled_tokens) <= owners


SCHEDULERS = {
    "sequential": lambda: SequentialScheduler(),
    "static": lambda: StaticScheduler(3),
    "continuous": lambda: ContinuousScheduler(3),
    "chunked": lambda: ChunkedScheduler(3, 16),
}


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("method", ["next", "on_admit", "on_tokens"])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_policy_that_raises_loses_no_block_and_the_engine_serves_on(
    name: str, method: str, n: int
) -> None:
    ids = "abcde"
    served = engine(SCHEDULERS[name](), dict.fromkeys("abcdexyz", 3), policy=RaisesAt(method, n))
    for request in asks(ids):
        served.add_request(request)
    with pytest.raises(ZeroDivisionError):
        served.run()
    served.scheduler.check_integrity()
    if any(request.block_table for request in served.requests.values()):
        with pytest.raises(RuntimeError, match=r"an earlier step ended in an error.*abort"):
            served.step()
    for request_id in ids:
        served.abort(request_id)
    served.scheduler.check_integrity()
    assert served.kv.num_free_blocks == served.kv.num_blocks
    served.run(asks("xyz"))
    assert [len(served.recording.requests[i].token_ids) for i in "xyz"] == [3, 3, 3]
    assert_replays(served)


def test_an_error_in_the_model_leaves_a_recording_that_replays(tiny_gpt2: Path) -> None:
    llm = LLM(tiny_gpt2, max_running=2)
    forward, calls = llm.model.forward, 0

    def fails_in_the_third(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise ZeroDivisionError
        return forward(*args)

    llm.model.forward = fails_in_the_third  # type: ignore[method-assign]
    core = llm.engine
    requests = [Request(i, list(GOOD), GREEDY5) for i in "ab"]
    with pytest.raises(ZeroDivisionError):
        core.run(requests)
    for i in "ab":
        core.abort(i)
    core.run([Request("c", list(GOOD), GREEDY5)])
    assert core.recording.requests["c"].token_ids == generate(tiny_gpt2, GOOD, 5, ignore_eos=True)
    assert_replays(core)


def test_an_error_in_a_callback_stops_nothing() -> None:
    served = engine(ContinuousScheduler(2), {"a": 3})

    def breaks(_: object) -> None:
        served.on_step.clear()
        raise ZeroDivisionError

    served.on_step.append(breaks)
    with pytest.raises(ZeroDivisionError):
        served.run(asks("a"))
    assert len(served.run().requests["a"].token_ids) == 3


# -- schedulers that would spin for ever ------------------------------------------------------


class Revolving(Scheduler):
    """Lets somebody in and sends him out again, in every step."""

    def schedule(self) -> SchedulerOutput:
        plan = SchedulerOutput()
        if self.waiting and self.admit(plan, self.next_waiting()):
            self.preempt(plan, self.running[-1])
        return plan


class Yesterday(Scheduler):
    """Plans nothing and asks to be called at a time that is over."""

    def schedule(self) -> SchedulerOutput:
        return SchedulerOutput(wait_until=self.clock.now())


@pytest.mark.parametrize(
    ("scheduler", "words"),
    [
        (Revolving, r"Revolving.schedule\(\) has planned no token for \d+ steps.*wait for ever"),
        (Yesterday, r"Yesterday.schedule\(\) planned nothing and asks to be called at .* past"),
    ],
)
def test_a_scheduler_that_makes_no_progress_is_stopped(
    scheduler: type[Scheduler], words: str
) -> None:
    with pytest.raises(RuntimeError, match=words):
        engine(scheduler(2), {"a": 3, "b": 3}).run(asks("ab"))


# -- a learner's memory manager ---------------------------------------------------------------


class Careless(PagedKV):
    """Its own check does nothing; ``fault`` is what it does wrong."""

    def __init__(self, fault: str) -> None:
        super().__init__(40, 4)
        self.fault, self.last = fault, 0

    def check_integrity(self, requests: Any) -> None:
        pass

    def allocate(self, request: Request, num_tokens: int, keep_free: int = 0) -> bool:
        ok = super().allocate(request, num_tokens, keep_free)
        if ok and self.fault == "the same block twice" and request.request_id == "b":
            request.block_table[0] = self.last
        if ok and self.fault == "a block that is not there":
            request.block_table[-1] = 40
        if ok and self.fault == "slots that are not there":
            request.num_slots += 4
        self.last = request.block_table[0]
        return ok


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("the same block twice", "block 0 is in the tables of 'a' and 'b'"),
        ("a block that is not there", r"block 40.*blocks are 0 to 39"),
        ("slots that are not there", "num_slots"),
    ],
)
def test_a_learners_kv_manager_is_checked_even_if_its_own_check_does_nothing(
    fault: str, words: str
) -> None:
    with pytest.raises(KVIntegrityError, match=words):
        engine(ContinuousScheduler(2), {"a": 9, "b": 9}, kv=Careless(fault)).run(asks("ab", 9))


# -- a learner's usual slips ------------------------------------------------------------------


class ChoosesAName(FCFS):
    def next(self, waiting: Any, now: float) -> Any:
        return waiting[0].request_id


class ChoosesTheSame(FCFS):
    chosen: Request | None = None

    def next(self, waiting: Any, now: float) -> Any:
        self.chosen = self.chosen or waiting[0]
        return self.chosen


class PausesAStranger(FCFS):
    def victim(self, running: Any, now: float) -> Request:
        return Request("x", [1])


class TakesOut(Scheduler):
    def schedule(self) -> SchedulerOutput:
        plan = SchedulerOutput()
        self.admit(plan, self.waiting.popleft())
        return plan


class ReturnsItsMap(ContinuousScheduler):
    def schedule(self) -> Any:
        return super().schedule().num_scheduled_tokens


class KeepsItQuiet(ContinuousScheduler):
    def update_from_output(self, *args: Any) -> Any:
        super().update_from_output(*args)


class GrantsSilently(PagedKV):
    def allocate(self, *args: Any) -> Any:
        super().allocate(*args)


class NeverFrees(PagedKV):
    def free(self, request: Request) -> None:
        pass


class RunsInSilence(SimulatedRunner):
    def execute(self, plan: SchedulerOutput) -> Any:
        super().execute(plan)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"policy": ChoosesAName()}, "'a' was to be admitted, but it is not in the queue"),
        ({"policy": ChoosesTheSame()}, r"Request\('a', running.*is not in the queue"),
        ({"policy": PausesAStranger()}, r"Request\('x'.*to be preempted, but it is not running"),
        ({"scheduler": TakesOut(2)}, r"not in the queue \(admit\(\) itself takes it out\)"),
        (
            {"scheduler": ReturnsItsMap(2)},
            r"ReturnsItsMap.schedule\(\) returned {.*return its plan",
        ),
        ({"scheduler": KeepsItQuiet(2)}, "KeepsItQuiet.update_from_output.*None.*the list of"),
        ({"kv": GrantsSilently(9, 4)}, r"GrantsSilently.allocate\(\) returned None.*True or False"),
        ({"kv": NeverFrees(40, 4)}, "lost"),
        ({"runner": RunsInSilence()}, r"RunsInSilence.execute\(\) returned None.*StepResult"),
    ],
    ids=lambda value: type(next(iter(value.values()))).__name__ if isinstance(value, dict) else "",
)
def test_a_usual_slip_gets_a_sentence(parts: dict[str, Any], words: str) -> None:
    defaults = {"scheduler": ContinuousScheduler(2), "kv": PagedKV(9, 4), "clock": VirtualClock()}
    core = Engine(**{"runner": SimulatedRunner(), **defaults, **parts})  # type: ignore[arg-type]
    with pytest.raises((ValueError, KVIntegrityError), match=words):
        core.run(asks("abc", 20))


# -- replay, streams, ids -----------------------------------------------------------------------


def test_a_replayed_answer_is_as_long_as_the_workload_says_whatever_the_stops(
    tiny_gpt2: Path,
) -> None:
    llm = LLM(tiny_gpt2)
    free = llm.generate([GOOD], SamplingParams(temperature=0, max_tokens=9, ignore_eos=True))[0]
    workload = Workload("w", (WorkloadRequest("a", prompt=tuple(GOOD), output_len=9),))
    params = SamplingParams(
        temperature=0, stop=[free.text[2:4]], stop_token_ids=[free.token_ids[1]], min_tokens=0
    )
    assert llm.replay(workload, params)[0].token_ids == free.token_ids


def test_a_replayed_answer_of_unknown_length_ends_as_the_model_says(tiny_gpt2: Path) -> None:
    llm = LLM(tiny_gpt2)
    free = llm.generate([GOOD], SamplingParams(temperature=0, max_tokens=9, ignore_eos=True))[0]
    workload = Workload("w", (WorkloadRequest("a", prompt=tuple(GOOD), max_tokens=9),))
    stop = SamplingParams(temperature=0, stop_token_ids=[free.token_ids[2]])
    out = llm.replay(workload, stop)[0]
    first = free.token_ids.index(free.token_ids[2])
    assert out.token_ids == free.token_ids[: first + 1] and out.finish_reason == "stop"
    assert llm.replay(workload)[0].token_ids == generate(tiny_gpt2, GOOD, 9)


@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_request_aborted_in_mid_stream_gets_a_last_delta(tiny_gpt2: Path, after: int) -> None:
    llm = LLM(tiny_gpt2)
    deltas, victim = [], None
    for delta in llm.stream([GOOD, GOOD[:2]], GREEDY5):
        deltas.append(delta)
        if victim is None and len(deltas) > after:
            victim = deltas[0].request_id
            llm.engine.abort(victim)
    last = [d for d in deltas if d.request_id == victim][-1]
    assert last.finish_reason == "abort"
    ends = [d.request_id for d in deltas if d.finish_reason is not None]
    assert sorted(ends) == sorted({d.request_id for d in deltas})


def test_a_request_added_to_the_engine_during_a_stream_disturbs_nobody(tiny_gpt2: Path) -> None:
    llm = LLM(tiny_gpt2)
    other = Request("mine", [4, 5], GREEDY5)
    ids = []
    for delta in llm.stream([GOOD], GREEDY5):
        if not ids:
            llm.engine.add_request(other)
        ids += delta.token_ids
    assert ids == generate(tiny_gpt2, GOOD, 5, ignore_eos=True)
    llm.engine.run()
    assert other.output_token_ids == generate(tiny_gpt2, [4, 5], 5, ignore_eos=True)


def test_an_id_may_come_again_only_in_a_new_recording() -> None:
    served = engine(ContinuousScheduler(2), {"a": 3})
    served.run(asks("a"))
    with pytest.raises(ValueError, match="'a' is already in this recording"):
        served.add_request(*asks("a"))
    served.restart()
    served.run(asks("a"))
    assert len(served.recording.requests["a"].token_ids) == 3


# -- arguments of the wrong kind ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: StaticScheduler(2, max_wait="x"), "max_wait is 'x'"),
        (lambda: StaticScheduler(2, max_wait=math.nan), "max_wait is nan"),
        (lambda: Scheduler(2, watermark="x"), "watermark is 'x'"),
        (lambda: Priority("x"), "aging is 'x'"),
        (lambda: Quota("x"), "max_running is 'x'"),
        (lambda: Quota(tokens_per_second="x"), "tokens_per_second is 'x'"),
        (lambda: Quotas(3), "quotas is 3"),
        (lambda: Quotas({"a": 3}), "quota of user 'a' is 3"),
        (lambda: FairShare({"a": "x"}), "weight of user 'a' is 'x'"),
        (lambda: FairShare(3), "weights is 3"),
        (lambda: Request("a", [1], user=1), "user is 1"),
        (lambda: Request("a", [1], ttft_target=-1), "ttft_target is -1"),
        (lambda: Request("a", [1], tpot_target="x"), "tpot_target is 'x'"),
        (lambda: PagedKV(10**12), "num_blocks is 1000000000000"),
        (lambda: PagedKV(10, prefix_caching="no"), "prefix_caching is 'no'"),
        (lambda: WorkloadRequest("a", num_prompt_tokens=1, output_len=1, ttft_target=-1), "ttft_t"),
        (lambda: WorkloadRequest("a", "x", 1, 1), "arrival_time is 'x'"),
        (lambda: engine(ContinuousScheduler(2), {}, check="x"), "check is 'x'"),
    ],
)
def test_parts_refuse_arguments_of_the_wrong_kind(build: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words) as error:
        build()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"device": "nope"}, "device is 'nope'"),
        ({"device": 3.5}, "device is 3.5"),
        ({"max_wait": "x", "scheduler": "static"}, "max_wait is 'x'"),
        ({"prefix_caching": "no"}, "prefix_caching is 'no'"),
        ({"cuda_graphs": "no"}, "cuda_graphs is 'no'"),
        ({"num_blocks": 10**9}, "num_blocks is 1000000000"),
        ({"seed": "x"}, "seed is 'x'"),
    ],
    ids=str,
)
def test_an_llm_refuses_arguments_of_the_wrong_kind(
    tiny_gpt2: Path, arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words) as error:
        LLM(tiny_gpt2, **arguments)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"users": [1]}, "user is 1"),
        ({"params": []}, "params has 0 entries for 1 prompts"),
        ({"params": {}}, "params is {}"),
        ({"arrival_times": []}, "arrival_times has 0 entries for 1 prompts"),
        ({"priorities": np.array([1, 2])}, "priorities has 2 entries for 1 prompts"),
    ],
    ids=str,
)
def test_generate_refuses_arguments_of_the_wrong_kind(
    tiny_gpt2: Path, arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        LLM(tiny_gpt2).generate([GOOD], **arguments)


def test_numpy_numbers_and_arrays_are_as_good_as_python_s(tiny_gpt2: Path) -> None:
    llm = LLM(
        tiny_gpt2, num_blocks=np.int64(20), max_running=np.int32(2), max_model_len=np.int64(40)
    )
    outs = llm.generate(
        [np.array(GOOD), GOOD],
        [GREEDY5, GREEDY5],
        arrival_times=np.array([0.0, 0.001]),
        priorities=np.array([0, 1]),
    )
    assert [o.token_ids for o in outs] == [generate(tiny_gpt2, GOOD, 5, ignore_eos=True)] * 2
    assert len(llm.generate(np.array(GOOD), GREEDY5)) == 1


def test_the_sentence_about_prompts_is_whole(tiny_gpt2: Path) -> None:
    with pytest.raises(ValueError, match=r"prompts is 3.*or a list of them"):
        LLM(tiny_gpt2).generate(3)  # type: ignore[arg-type]


def test_the_books_of_a_large_pool_are_audited_every_few_steps_unless_asked_for_more() -> None:
    class Mine(ContinuousScheduler):
        audits = 0

        def check_integrity(self) -> None:
            self.audits += 1
            super().check_integrity()

    def audits(num_blocks: int, check: bool | None) -> int:
        scheduler = Mine(2)
        kv = PagedKV(num_blocks, 4)
        run = engine(scheduler, {"a": 40}, kv=kv, check=check).run(asks("a", 40))
        assert run.num_steps == 40
        return scheduler.audits

    assert audits(100, None) == 40
    assert audits(8 * 1024, None) == 5
    assert audits(8 * 1024, True) == 40
    assert audits(8 * 1024, False) == 0
