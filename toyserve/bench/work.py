"""The work that every contestant is given, the clock it is timed by, and what it hands back."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from toyserve.workload import Workload, standard_mix


@dataclass(frozen=True)
class Job:
    """One request for anybody's engine: greedy, and exactly ``output_len`` tokens long."""

    request_id: str
    prompt: list[int]
    output_len: int
    arrival_time: float


@dataclass(frozen=True)
class Work:
    """A workload and the same requests as jobs."""

    workload: Workload
    vocab_size: int
    jobs: tuple[Job, ...]

    @property
    def num_output_tokens(self) -> int:
        return sum(job.output_len for job in self.jobs)

    def first(self, count: int, output_len: int) -> Work:
        """A small piece, to warm up with: the first requests, all at once, answers cut."""
        from dataclasses import replace

        requests = tuple(
            replace(r, arrival_time=0.0, output_len=min(output_len, r.output_len or output_len))
            for r in self.workload.requests[:count]
        )
        return make_work(Workload("warm-up", requests), self.vocab_size)


def make_work(workload: Workload, vocab_size: int) -> Work:
    """Random prompts of the workload's lengths; the same on every call."""
    lens = workload.output_lens
    jobs = tuple(
        Job(r.request_id, list(r.token_ids), lens[r.request_id], r.arrival_time)
        for r in workload.requests_for_engine(vocab_size=vocab_size)
    )
    return Work(workload, vocab_size, jobs)


def standard_work(vocab_size: int, *, n: int = 32, rate: float | None = None) -> Work:
    """Prompts of 16 to 256 tokens, answers of 8 to 256, half of them shorter than 48."""
    return make_work(standard_mix(n, rate), vocab_size)


class BenchClock:
    """An engine's clock. cpu: seconds of CPU time of this process, so that other processes do not
    count; waiting then costs nothing, the clock just moves on to the time waited for."""

    def __init__(self, *, cpu: bool) -> None:
        self.cpu = cpu
        self._read: Callable[[], float] = time.process_time if cpu else time.perf_counter
        self.restart()

    def restart(self) -> None:
        self._start = self._read()

    def now(self) -> float:
        return self._read() - self._start

    def wait_until(self, when: float) -> None:
        delay = when - self.now()
        if delay <= 0:
            return
        if self.cpu:
            self._start -= delay
        else:
            time.sleep(delay)


@dataclass(frozen=True)
class Served:
    """What came of a run; times in seconds from its start, on its clock."""

    token_ids: dict[str, list[int]]
    finish_times: dict[str, float]
    seconds: float  # until the last token of the last request


@dataclass(frozen=True)
class Contestant:
    """``serve`` runs all jobs from a restarted clock on. slow: takes part in the first round only
    where a shape makes every round long."""

    name: str
    serve: Callable[[Work, BenchClock], Served]
    slow: bool = False


def latency_p50(work: Work, served: Served) -> float:
    """Median end-to-end latency in seconds, from arrival to the last token."""
    return statistics.median(
        served.finish_times[job.request_id] - job.arrival_time for job in work.jobs
    )
