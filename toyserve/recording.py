"""A run, written down: enough to draw every picture and compute every metric without a model.

Only decisions are stored (who ran how many tokens, who came, left or was preempted, which block
changed hands). Phases, token times and memory maps follow from them by replay (``replay.py``).

The file is JSON lines, in the order in which things happened: one ``meta`` line, then ``arrival``,
``step`` and ``end`` lines. Every prefix that ends at a line's end is itself a valid recording.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from toyserve.kv.manager import BlockEvent
from toyserve.request import FinishReason, Request
from toyserve.schedulers.output import SchedulerOutput, WaitReason

FORMAT_VERSION = 1


@dataclass(slots=True)
class StepRecord:
    """One engine step. Times in seconds on the engine's clock; requests by id."""

    index: int
    start_time: float
    end_time: float
    num_scheduled_tokens: dict[str, int]
    num_padded_tokens: dict[str, int] = field(default_factory=dict)
    # request -> tokens whose KV it already had when it came in (a prefix-cache hit), usually 0
    admitted: dict[str, int] = field(default_factory=dict)
    preempted: list[str] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    # request -> host blocks that its KV went to, or came back from, in the order of its sequence
    swapped_out: dict[str, list[int]] = field(default_factory=dict)
    swapped_in: dict[str, list[int]] = field(default_factory=dict)
    num_copied_blocks: int = 0  # on the device, because a shared block was about to be written
    num_waiting: int = 0  # still in the queue after this step's admissions
    waiting_for: WaitReason | None = None
    num_free_blocks: int = 0
    # Blocks that changed hands before the step ran, and (given back by whoever finished) after it.
    block_events: list[BlockEvent] = field(default_factory=list)
    block_events_after: list[BlockEvent] = field(default_factory=list)


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
    """What an engine did. ``steps`` and ``requests`` are what pictures and metrics read.

    keep_steps=False keeps only requests and the totals, for traces of many thousand requests.
    """

    def __init__(self, meta: dict[str, Any] | None = None, *, keep_steps: bool = True) -> None:
        self.meta: dict[str, Any] = dict(meta or {})
        self.keep_steps = keep_steps
        self.steps: list[StepRecord] = []
        self.num_steps = 0
        self._ended: dict[str, RequestRecord] = {}
        self._live: dict[str, Request] = {}
        self._stream: IO[str] | None = None

    @property
    def requests(self) -> dict[str, RequestRecord]:
        """Every request so far, by id, in order of arrival at the engine."""
        live = {request_id: RequestRecord.of(r) for request_id, r in self._live.items()}
        # _ended holds a placeholder from the arrival on, so its order is that of arrival.
        return {request_id: live.get(request_id, old) for request_id, old in self._ended.items()}

    # -- written by the engine ------------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        self._ended[request.request_id] = RequestRecord.of(request)
        self._live[request.request_id] = request
        if self._stream:
            self._write_line(_arrival_line(self._ended[request.request_id]))

    def end_request(self, request: Request) -> None:
        """The request has finished, been aborted or refused."""
        record = self._ended[request.request_id] = RequestRecord.of(request)
        self._live.pop(request.request_id, None)
        if self._stream:
            self._write_line(_end_line(record))

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
            {r.request_id: n for r, n in plan.num_padded_tokens.items()},
            {r.request_id: n for r, n in plan.admitted.items()},
            [r.request_id for r in plan.preempted],
            [r.request_id for r in finished],
            _host_blocks(plan.swapped_out),
            _host_blocks(plan.swapped_in),
            len(plan.block_copies),
            num_waiting,
            plan.waiting_for,
            num_free_blocks,
            block_events,
            block_events_after,
        )
        self.num_steps += 1
        if self.keep_steps:
            self.steps.append(step)
        if self._stream:
            self._write_line(_step_line(step))
        for request in finished:
            self.end_request(request)
        return step

    # -- files ----------------------------------------------------------------------------------

    def stream_to(self, path: str | Path) -> None:
        """Write every line as it happens, flushed, so that a killed process loses nothing."""
        self._stream = open(path, "w", encoding="utf-8")  # noqa: SIM115 (closed by close())
        self._write_line(_meta_line(self.meta))

    def close(self) -> None:
        if self._stream:
            self._stream.close()
            self._stream = None

    def _write_line(self, line: dict[str, Any]) -> None:
        assert self._stream is not None
        self._stream.write(json.dumps(line, separators=(",", ":")) + "\n")
        self._stream.flush()

    def save(self, path: str | Path) -> None:
        """Write the whole run as JSON lines."""
        with open(path, "w", encoding="utf-8") as file:
            for line in self._lines():
                file.write(json.dumps(line, separators=(",", ":")) + "\n")

    def _lines(self) -> Iterable[dict[str, Any]]:
        requests = self.requests
        yield _meta_line(self.meta)
        for record in requests.values():
            yield _arrival_line(record)
        for step in self.steps:
            yield _step_line(step)
        for record in requests.values():
            yield _end_line(record)

    @classmethod
    def load(cls, path: str | Path) -> Recording:
        """Read what ``save`` or ``stream_to`` wrote; a last line cut by a kill is left out."""
        from toyserve.replay import complete_requests

        path = Path(path)
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} cannot be read as a recording: {error}") from None
        recording = cls()
        for number, text in enumerate(lines, 1):
            try:
                recording._read_line(json.loads(text))
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                if number == len(lines) and number > 1:
                    break
                raise ValueError(f"{path}, line {number} is not a recording's: {error}") from None
        if not recording.meta:
            raise ValueError(f"{path} is not a recording: it has no meta line")
        complete_requests(recording)
        return recording

    def _read_line(self, line: dict[str, Any]) -> None:
        kind = line.pop("kind")
        if kind == "meta":
            if line["version"] != FORMAT_VERSION:
                raise ValueError(f"version {line['version']}, this toyserve reads {FORMAT_VERSION}")
            self.meta = line["meta"]
        elif kind == "arrival":
            self._ended[line["request_id"]] = RequestRecord(**line)
        elif kind == "step":
            for name in ("block_events", "block_events_after"):
                line[name] = [BlockEvent(*event) for event in line.get(name, [])]
            self.steps.append(StepRecord(self.num_steps, **line))
            self.num_steps += 1
        elif kind == "end":
            record = self._ended[line.pop("request_id")]
            for name, value in line.items():
                setattr(record, name, value)
            if record.finish_reason is not None:
                record.finish_reason = FinishReason(record.finish_reason)
        else:
            raise ValueError(f"unknown kind of line {kind!r}")

    # -- for people -----------------------------------------------------------------------------

    def summary(self) -> dict[str, Any]:
        """Throughput, latency percentiles, occupancy; see ``metrics.summarize``."""
        from toyserve.metrics import summarize

        return summarize(self)

    def __repr__(self) -> str:
        return f"Recording({len(self._ended)} requests, {self.num_steps} steps, {self.meta})"


_ARRIVAL_FIELDS = (
    "request_id",
    "arrival_time",
    "num_prompt_tokens",
    "max_tokens",
    "user",
    "priority",
    "ttft_target",
    "tpot_target",
)
_END_FIELDS = ("request_id", "token_ids", "finish_time", "finish_reason", "error")


def _host_blocks(swapped: dict[Request, list[tuple[int, int]]]) -> dict[str, list[int]]:
    return {r.request_id: [host for _, host in pairs] for r, pairs in swapped.items()}


def _meta_line(meta: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "meta", "version": FORMAT_VERSION, "meta": meta}


def _arrival_line(record: RequestRecord) -> dict[str, Any]:
    return {"kind": "arrival", **{name: getattr(record, name) for name in _ARRIVAL_FIELDS}}


def _end_line(record: RequestRecord) -> dict[str, Any]:
    return {"kind": "end", **{name: getattr(record, name) for name in _END_FIELDS}}


def _step_line(step: StepRecord) -> dict[str, Any]:
    """Without the index, which is the line's place, and without what is empty."""
    fields = {name: value for name, value in asdict(step).items() if value not in ({}, [], None)}
    fields.pop("index", None)
    return {"kind": "step", "num_scheduled_tokens": {}, **fields}
