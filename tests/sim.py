"""A model made of arithmetic, with a KV store that can be wrong: the proof without tensors.

``ContentRunner`` executes plans on a store of block slots, on the device and on the host. What it
writes for position ``p`` is a digest of *everything* up to ``p`` (as attention makes it in a real
model), computed from what it *reads* at ``p - 1`` through the block table. Before a token is
sampled, every slot of the request's context must hold exactly the digest that the request's own
tokens give. A stale prefix block, a lost or doubled token, a wrong table, a copy that was forgotten
or done in the wrong order: each shows as a mismatch, and otherwise as a different token.
"""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from toyserve.clock import VirtualClock
from toyserve.engine import Engine
from toyserve.kv import KVManager
from toyserve.policies import Policy
from toyserve.recording import Recording
from toyserve.replay import Phase, replay_memory, replay_work
from toyserve.request import FinishReason, Request, SamplingParams
from toyserve.schedulers import Scheduler
from toyserve.schedulers.output import SchedulerOutput, StepResult

ROOT = 7  # the digest before the first token


def digest(before: int, token_id: int) -> int:
    """What the store holds for a token whose predecessors digest to ``before``."""
    return zlib.crc32(f"{before},{token_id}".encode())


def digests(token_ids: Iterable[int]) -> list[int]:
    result, last = [], ROOT
    for token_id in token_ids:
        last = digest(last, token_id)
        result.append(last)
    return result


@dataclass(frozen=True)
class ToyModel:
    """The next token is a function of the whole context, and so is whether it is the last."""

    vocab_size: int = 5
    end_every: int = 12  # about one token in so many ends the answer; 0: none does

    def next_token(self, context: int) -> int:
        return context % self.vocab_size

    def ends(self, context: int) -> bool:
        return self.end_every > 0 and (context >> 8) % self.end_every == 0

    def answer(self, prompt: list[int], max_tokens: int) -> list[int]:
        """The reference run: this request alone, no engine at all."""
        last = digests(prompt)[-1]
        answer: list[int] = []
        while len(answer) < max_tokens:
            token_id = self.next_token(last)
            answer.append(token_id)
            if self.ends(last):
                break
            last = digest(last, token_id)
        return answer


@dataclass
class ContentRunner:
    """Runs plans on a store of slots. ``seconds`` (if a clock is given): what one step lasts."""

    num_blocks: int
    block_size: int
    num_host_blocks: int = 0
    model: ToyModel = field(default_factory=ToyModel)
    clock: VirtualClock | None = None
    seconds: float = 1.0
    num_computed: int = 0  # tokens run, recomputed ones included
    device: list[list[int | None]] = field(init=False)
    host: list[list[int | None]] = field(init=False)
    ended: set[str] = field(default_factory=set)
    # request id -> how far its KV reaches without a gap, as this runner saw it
    reach: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.device = [[None] * self.block_size for _ in range(self.num_blocks)]
        self.host = [[None] * self.block_size for _ in range(self.num_host_blocks)]

    def execute(self, plan: SchedulerOutput) -> StepResult:
        self._move(plan)
        self._check_positions(plan)
        for request, num_tokens in plan.num_scheduled_tokens.items():
            self._write(request, num_tokens)
        result = StepResult()
        for request, num_tokens in plan.num_scheduled_tokens.items():
            end = request.num_computed_tokens + num_tokens
            context = self._verify(request, end)
            if end == len(request.token_ids):
                result.token_ids[request] = self.model.next_token(context)
                if self.model.ends(context):
                    result.ended.add(request)
        if self.clock is not None:
            self.clock.advance(self.seconds)
        return result

    def forget(self, request: Request) -> None:
        assert request.request_id not in self.ended, f"{request!r} ended twice"
        self.ended.add(request.request_id)
        self.reach.pop(request.request_id, None)

    # -- the parts, in the order in which a real runner must do them ------------------------------

    def _move(self, plan: SchedulerOutput) -> None:
        for device, host in getattr(plan, "swap_out", ()):
            self.host[host] = list(self.device[device])
        for source, target in getattr(plan, "block_copies", ()):
            assert source != target, f"block {source} is copied to itself"
            self.device[target] = list(self.device[source])
        for device, host in getattr(plan, "swap_in", ()):
            self.device[device] = list(self.host[host])

    def _check_positions(self, plan: SchedulerOutput) -> None:
        """No position is skipped and none is run twice, except after a preemption."""
        written: dict[tuple[int, int], str] = {}
        for request in plan.preempted:
            self.reach.pop(request.request_id, None)
        for request, num_tokens in plan.num_scheduled_tokens.items():
            assert request.request_id not in self.ended, f"{request!r} runs after its end"
            start = request.num_computed_tokens
            if request in plan.admitted:
                self.reach[request.request_id] = start
            assert self.reach[request.request_id] == start, f"{request!r} jumped"
            assert num_tokens >= 1
            assert start + num_tokens <= len(request.token_ids)
            self.reach[request.request_id] = start + num_tokens
            self.num_computed += num_tokens
            for position in range(start, start + num_tokens):
                slot = self._slot(request, position)
                other = written.setdefault(slot, request.request_id)
                assert other == request.request_id, f"{request!r} and {other} write to {slot}"

    def _slot(self, request: Request, position: int) -> tuple[int, int]:
        return request.block_table[position // self.block_size], position % self.block_size

    def _write(self, request: Request, num_tokens: int) -> None:
        start = request.num_computed_tokens
        for position in range(start, start + num_tokens):
            before: int | None = ROOT
            if position:
                block, offset = self._slot(request, position - 1)
                before = self.device[block][offset]
            assert before is not None, f"{request!r}: nothing was ever written before {position}"
            block, offset = self._slot(request, position)
            self.device[block][offset] = digest(before, request.token_ids[position])

    def _verify(self, request: Request, end: int) -> int:
        """The digest of the context, after comparing every slot with what the tokens give."""
        expected = digests(request.token_ids[:end])
        for position, value in enumerate(expected):
            block, offset = self._slot(request, position)
            found = self.device[block][offset]
            assert found == value, (
                f"{request!r}: position {position} (block {block}, slot {offset}) holds {found}, "
                f"not {value}; table {request.block_table}"
            )
        return expected[-1]


@dataclass(frozen=True)
class Job:
    """One request of a test, on a clock whose steps last one second."""

    prompt: tuple[int, ...]
    max_tokens: int = 8
    arrival_time: float = 0.0
    abort_at: int | None = None  # before this step
    user: str = "default"
    priority: int = 0
    ttft_target: float | None = None
    tpot_target: float | None = None

    def request(self, request_id: str) -> Request:
        return Request(
            request_id,
            list(self.prompt),
            SamplingParams(max_tokens=self.max_tokens),
            self.arrival_time,
            user=self.user,
            priority=self.priority,
            ttft_target=self.ttft_target,
            tpot_target=self.tpot_target,
        )


@dataclass
class Served:
    """What came of a run."""

    engine: Engine
    runner: ContentRunner
    requests: list[Request]

    @property
    def recording(self) -> Recording:
        return self.engine.recording

    def answers(self) -> list[list[int]]:
        return [r.output_token_ids for r in self.requests]


def make_engine(
    scheduler: Scheduler,
    kv: KVManager,
    *,
    policy: Policy | None = None,
    model: ToyModel | None = None,
    max_model_len: int | None = None,
) -> tuple[Engine, ContentRunner]:
    """An engine that checks its books after every step, on a clock of one second per step."""
    clock = VirtualClock()
    num_host_blocks = getattr(scheduler, "num_host_blocks", 0)
    runner = ContentRunner(
        kv.num_blocks, kv.block_size, num_host_blocks, model or ToyModel(), clock
    )
    engine = Engine(
        scheduler=scheduler,
        kv=kv,
        runner=runner,
        policy=policy,
        clock=clock,
        max_model_len=max_model_len,
        check=True,
    )
    return engine, runner


def serve(
    jobs: Sequence[Job],
    scheduler: Scheduler,
    kv: KVManager,
    *,
    policy: Policy | None = None,
    model: ToyModel | None = None,
    max_model_len: int | None = None,
    max_steps: int | None = None,
) -> Served:
    """Run ``jobs`` to their ends, then check what must hold of any run at all."""
    engine, runner = make_engine(
        scheduler, kv, policy=policy, model=model, max_model_len=max_model_len
    )
    requests = [job.request(f"r{i}") for i, job in enumerate(jobs)]
    aborts: dict[int, list[str]] = {}
    for job, request in zip(jobs, requests, strict=True):
        engine.add_request(request)
        if job.abort_at is not None:
            aborts.setdefault(job.abort_at, []).append(request.request_id)
    limit = max_steps if max_steps is not None else step_limit(jobs)
    for step in range(limit):
        for request_id in aborts.get(step, ()):
            engine.abort(request_id)
        if not engine.has_unfinished:
            break
        engine.step()
    assert not engine.has_unfinished, (
        f"after {limit} steps there still wait {list(scheduler.waiting)} and run "
        f"{scheduler.running}"
    )
    served = Served(engine, runner, requests)
    check_run(served, jobs)
    return served


def step_limit(jobs: Sequence[Job]) -> int:
    """Far more steps than serving the jobs one by one, a token a step, would take."""
    return 50 + 4 * sum(len(job.prompt) + job.max_tokens for job in jobs)


def check_run(served: Served, jobs: Sequence[Job]) -> None:
    """Every request ended with a reason and the reference tokens; all blocks are back."""
    engine, model = served.engine, served.runner.model
    for job, request in zip(jobs, served.requests, strict=True):
        assert request.is_finished
        assert request.finish_reason is not None, request
        answer = request.output_token_ids
        room = request.max_num_tokens - request.num_prompt_tokens
        expected = model.answer(list(job.prompt), room) if job.prompt and room > 0 else []
        if request.finish_reason is FinishReason.REFUSED:
            assert request.error
            assert not answer
        elif request.finish_reason is FinishReason.ABORT:
            assert answer == expected[: len(answer)]
        else:
            assert answer == expected, f"{request!r}: {answer} is not {expected}"
            assert len(request.token_times) == len(answer)
        assert not request.block_table
    kv = engine.kv
    assert kv.num_free_blocks == kv.num_blocks
    kv.check_integrity([])
    assert not list(engine.scheduler.holders())
    check_recording(served)


def check_recording(served: Served) -> None:
    """What the replay says of the run is what happened, after a way through a file too."""
    recording = served.recording
    computed = 0
    for (step, work), (_, memory) in zip(
        replay_work(recording), replay_memory(recording), strict=True
    ):
        assert bool(step.waiting_for) == bool(step.num_waiting), step
        computed += sum(w.num_tokens for w in work if w.phase is not Phase.PADDING)
        for item in work:
            held = sum(1 for owners in memory.owners if item.request_id in owners)
            assert held * memory.block_size >= item.context_len, (item, memory)
        for owners, written in zip(memory.owners, memory.num_written, strict=True):
            assert 0 <= written <= memory.block_size
            assert len(set(owners)) == len(owners)
    assert computed == served.runner.num_computed
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.jsonl"
        recording.save(path)
        loaded = Recording.load(path)
    assert loaded.steps == recording.steps
    assert loaded.requests == recording.requests
