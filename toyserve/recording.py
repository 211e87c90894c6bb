"""A run, written down: enough to draw every picture and compute every metric without a model.

Only decisions are stored (who ran how many tokens, who came, left or was preempted, which block
changed hands). Phases, token times and memory maps follow from them by replay (``replay.py``); the
file format is in ``recording_file.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from toyserve.kv.manager import BlockEvent
from toyserve.request import FinishReason, Request
from toyserve.schedulers.output import SchedulerOutput, WaitReason

# Most fields of most steps are empty. They share one empty container: a long run has millions of
# steps, and what the garbage collector has to walk through is what slows a simulation down.
_NO_ENTRIES: Mapping[str, Any] = {}


@dataclass(slots=True)
class StepRecord:
    """One engine step. Times in seconds on the engine's clock; requests by id."""

    index: int
    start_time: float
    end_time: float
    num_scheduled_tokens: Mapping[str, int]
    num_padded_tokens: Mapping[str, int] = field(default_factory=lambda: _NO_ENTRIES)
    # request -> tokens whose KV it already had when it came in (a prefix-cache hit), usually 0
    admitted: Mapping[str, int] = field(default_factory=lambda: _NO_ENTRIES)
    preempted: Sequence[str] = ()
    finished: Sequence[str] = ()
    # request -> host blocks that its KV went to, or came back from, in the order of its sequence
    swapped_out: Mapping[str, list[int]] = field(default_factory=lambda: _NO_ENTRIES)
    swapped_in: Mapping[str, list[int]] = field(default_factory=lambda: _NO_ENTRIES)
    num_copied_blocks: int = 0  # on the device, because a shared block was about to be written
    num_waiting: int = 0  # still in the queue after this step's admissions
    waiting_for: WaitReason | None = None
    num_free_blocks: int = 0
    # Blocks that changed hands before the step ran, and (given back by whoever finished) after it.
    block_events: Sequence[BlockEvent] = ()
    block_events_after: Sequence[BlockEvent] = ()


@dataclass(slots=True)
class RequestRecord:
    """One request as its user saw it. ``token_times`` has one entry per output token."""

    request_id: str
    arrival_time: float
    num_prompt_tokens: int
    max_tokens: int
    user: str = "default"
    priority: int = 0
    ttft_target: float | None = None
    tpot_target: float | None = None
    first_scheduled_time: float | None = None
    token_times: list[float] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)  # of the answer
    finish_time: float | None = None
    finish_reason: FinishReason | None = None
    error: str | None = None
    num_preemptions: int = 0
    num_cached_tokens: int = 0

    @classmethod
    def of(cls, request: Request) -> RequestRecord:
        """A snapshot; the lists of a request that still runs are copied."""
        return cls(
            request_id=request.request_id,
            arrival_time=request.arrival_time,
            num_prompt_tokens=request.num_prompt_tokens,
            max_tokens=request.params.max_tokens,
            user=request.user,
            priority=request.priority,
            ttft_target=request.ttft_target,
            tpot_target=request.tpot_target,
            first_scheduled_time=request.first_scheduled_time,
            token_times=list(request.token_times),
            token_ids=request.output_token_ids,
            finish_time=request.finish_time,
            finish_reason=request.finish_reason,
            error=request.error,
            num_preemptions=request.num_preemptions,
            num_cached_tokens=request.num_cached_tokens,
        )


class Recording:
    """What an engine did, step by step; pictures and metrics read ``steps`` and ``requests``.

    keep_steps=False keeps only requests and the totals, for traces of many thousand requests.
    """

    def __init__(self, meta: dict[str, Any] | None = None, *, keep_steps: bool = True) -> None:
        self.meta: dict[str, Any] = dict(meta or {})
        self.keep_steps = keep_steps
        self.steps: list[StepRecord] = []
        self.num_steps = 0
        # Every request; of one that still runs, what was known when it arrived.
        self.records: dict[str, RequestRecord] = {}
        self._unfinished: dict[str, Request] = {}
        self._stream: IO[str] | None = None

    @property
    def requests(self) -> dict[str, RequestRecord]:
        """Every request so far, by id, in order of arrival at the engine."""
        live = {request_id: RequestRecord.of(r) for request_id, r in self._unfinished.items()}
        return {request_id: live.get(request_id, old) for request_id, old in self.records.items()}

    # -- written by the engine ------------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        self.records[request.request_id] = RequestRecord.of(request)
        self._unfinished[request.request_id] = request
        if self._stream:
            self._write_line(recording_file.arrival_line(self.records[request.request_id]))

    def end_request(self, request: Request) -> None:
        """The request has finished, been aborted or refused."""
        record = self.records[request.request_id] = RequestRecord.of(request)
        self._unfinished.pop(request.request_id, None)
        if self._stream:
            self._write_line(recording_file.end_line(record))

    def add_step(
        self,
        start_time: float,
        end_time: float,
        plan: SchedulerOutput,
        finished: list[Request],
        num_waiting: int,
        num_free_blocks: int,
        block_events: list[BlockEvent],
        block_events_after: list[BlockEvent],
    ) -> StepRecord:
        step = StepRecord(
            self.num_steps,
            start_time,
            end_time,
            {r.request_id: n for r, n in plan.num_scheduled_tokens.items()},
            _by_id(plan.num_padded_tokens),
            _by_id(plan.admitted),
            [r.request_id for r in plan.preempted] if plan.preempted else (),
            [r.request_id for r in finished] if finished else (),
            _host_blocks(plan.swapped_out),
            _host_blocks(plan.swapped_in),
            len(plan.block_copies),
            num_waiting,
            plan.waiting_for,
            num_free_blocks,
            block_events or (),
            block_events_after or (),
        )
        self.num_steps += 1
        if self.keep_steps:
            self.steps.append(step)
        if self._stream:
            self._write_line(recording_file.step_line(step))
        for request in finished:
            self.end_request(request)
        return step

    # -- files ----------------------------------------------------------------------------------

    def stream_to(self, path: str | Path) -> None:
        """Write every line as it happens, flushed, so that a killed process loses nothing."""
        self._stream = open(path, "w", encoding="utf-8")  # noqa: SIM115 (closed by close())
        self._write_line(recording_file.meta_line(self.meta))

    def close(self) -> None:
        if self._stream:
            self._stream.close()
            self._stream = None

    def _write_line(self, line: dict[str, Any]) -> None:
        assert self._stream is not None
        self._stream.write(recording_file.dump(line))
        self._stream.flush()

    def save(self, path: str | Path) -> None:
        """Write the whole run as JSON lines."""
        recording_file.save(self, Path(path))

    @classmethod
    def load(cls, path: str | Path) -> Recording:
        """Read what ``save`` or ``stream_to`` wrote; a last line cut by a kill is left out.

        Raises ValueError naming the file and the line if it is not a recording.
        """
        return recording_file.load(Path(path))

    def to_perfetto(self, path: str | Path) -> None:
        """Write a trace for Perfetto's viewer: requests as tracks, steps as slices, counters."""
        from toyserve.perfetto import to_perfetto

        to_perfetto(self, path)

    # -- for people -----------------------------------------------------------------------------

    def summary(self) -> dict[str, Any]:
        """Throughput, latency percentiles, occupancy; see ``metrics.summarize``."""
        from toyserve.metrics import summarize

        return summarize(self)

    def __repr__(self) -> str:
        return f"Recording({len(self.records)} requests, {self.num_steps} steps, {self.meta})"


def _by_id(numbers: Mapping[Request, int]) -> Mapping[str, int]:
    return {r.request_id: n for r, n in numbers.items()} if numbers else _NO_ENTRIES


def _host_blocks(swapped: Mapping[Request, list[tuple[int, int]]]) -> Mapping[str, list[int]]:
    if not swapped:
        return _NO_ENTRIES
    return {r.request_id: [host for _, host in pairs] for r, pairs in swapped.items()}


# At the end: the file's format is written in terms of the records above.
from toyserve import recording_file  # noqa: E402
