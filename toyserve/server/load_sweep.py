"""How much a server can take: rates are tried until the boundary of what is too much is found.

A rate is sustained if enough requests meet their targets, none fails, and the queue does not grow
from the first half of the run to the second.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from toyserve.metrics import percentile, summarize, ttft
from toyserve.recording import Recording
from toyserve.request import FinishReason
from toyserve.server.load_client import Probe, Target, at_rate, measure, probe
from toyserve.workload_types import Workload

# Of the second half's users the middle one may wait longer than the first half's by this share of
# half the run, before that counts as a queue that grows: it is the share of the load that is left
# over.
GROWTH = 0.1


@dataclass(frozen=True)
class Verdict:
    """One rate. ``reasons``: why it was too much; empty: it was sustained."""

    rate: float
    recording: Recording
    summary: dict[str, Any]
    reasons: tuple[str, ...]

    @property
    def sustained(self) -> bool:
        return not self.reasons


@dataclass(frozen=True)
class Sweep:
    """Rates in the order in which they were tried, and what a server can take."""

    verdicts: list[Verdict] = field(default_factory=list)

    @property
    def by_rate(self) -> list[Verdict]:
        return sorted(self.verdicts, key=lambda v: v.rate)

    @property
    def capacity(self) -> float | None:
        """The highest rate below every one that was too much; None if the lowest already was."""
        best = None
        for verdict in self.by_rate:
            if not verdict.sustained:
                break
            best = verdict.rate
        return best

    @property
    def boundary(self) -> float | None:
        """The lowest rate that was too much; None if none was."""
        return next((v.rate for v in self.by_rate if not v.sustained), None)

    def points(self) -> list[tuple[float, dict[str, Any]]]:
        """For ``viz.latency_vs_rate``."""
        return [(v.rate, v.summary) for v in self.by_rate]


def judge(rate: float, recording: Recording, *, share: float = 0.9) -> Verdict:
    """Was it sustained? share: of the requests with targets, how many must meet them."""
    summary = summarize(recording)
    reasons = []
    goodput = summary["goodput"]
    if goodput is not None and goodput["share"] < share:
        reasons.append(f"only {goodput['share']:.0%} met their targets")
    failed = summary["num_refused"] + summary["num_aborted"]
    if failed:
        reasons.append(f"{failed} of {summary['num_requests']} failed")
    growth = queue_growth(recording)
    if growth is not None and growth > GROWTH:
        reasons.append(f"the queue grew by {growth:.2f} s a second")
    return Verdict(rate, recording, summary, tuple(reasons))


def queue_growth(recording: Recording) -> float | None:
    """By how many seconds the wait for the first token grew in a second of the run.

    The medians of the two halves, over half the time between first and last arrival. None with
    fewer than 8 measured requests, or if all arrived at once.
    """
    records = sorted(recording.requests.values(), key=lambda r: r.arrival_time)
    waits = [w for r in records if (w := ttft(r)) is not None]
    if len(waits) < 8:
        return None
    span = records[-1].arrival_time - records[0].arrival_time
    half = len(waits) // 2
    if span <= 0:
        return None
    return (percentile(waits[half:], 50) - percentile(waits[:half], 50)) / (span / 2)


def find_capacity(
    target: Target,
    workload: Workload,
    *,
    seconds: float = 20.0,
    start_rate: float = 1.0,
    max_rate: float = 1024.0,
    num_refinements: int = 3,
    share: float = 0.9,
    report: Callable[[Verdict], None] = lambda _: None,
) -> Sweep:
    """Double the rate until it is too much, halve it until it is not, then close in between them.

    workload: requests with targets, enough of them for ``seconds`` at every rate. Every rate sees
    the same requests in the same order, from an idle server. report: called after each rate.
    """
    known, sweep = probe(target), Sweep()
    _check(workload, seconds, max_rate)

    def try_rate(rate: float) -> bool:
        part = at_rate(workload, rate, seconds)
        verdict = judge(rate, measure(target, part, known=known), share=share)
        sweep.verdicts.append(verdict)
        report(verdict)
        return verdict.sustained

    _warm_up(target, workload, known)
    rate = start_rate
    if try_rate(rate):
        while rate * 2 <= max_rate and try_rate(rate * 2):
            rate *= 2
    else:
        while rate > start_rate / 64 and not try_rate(rate / 2):
            rate /= 2
    for _ in range(num_refinements):
        low, high = sweep.capacity, sweep.boundary
        if low is None or high is None:
            break
        try_rate(math.sqrt(low * high))
    return sweep


def _check(workload: Workload, seconds: float, max_rate: float) -> None:
    if not (seconds > 0 and max_rate > 0):
        raise ValueError(f"seconds is {seconds} and max_rate is {max_rate}: both must be above 0")
    at_rate(workload, 1.0, seconds)  # raises if it has no rate


def _warm_up(target: Target, workload: Workload, known: Probe) -> None:
    """One request outside the measurement: a server's first is slow."""
    first = Workload("warm-up", workload.requests[:1]).scaled(1.0)
    (record,) = measure(target, first, known=known).requests.values()
    if record.finish_reason not in (FinishReason.STOP, FinishReason.LENGTH):
        raise ValueError(f"a first request already failed: {record.error}")


def table(verdicts: Sequence[Verdict]) -> list[list[str]]:
    """Rows for people; the first is the heading."""
    rows = [["req/s", "done/s", "tokens/s", "TTFT p50/p95 ms", "TPOT p50/p95 ms", "goodput", ""]]
    for verdict in verdicts:
        summary = verdict.summary
        span = summary["makespan_s"] or 1.0
        goodput = summary["goodput"]
        rows.append(
            [
                f"{verdict.rate:.3g}",
                f"{summary['num_finished'] / span:.3g}",
                f"{summary['output_tokens_per_s'] or 0:,.0f}",
                _pair(summary["ttft_ms"]),
                _pair(summary["tpot_ms"]),
                f"{goodput['share']:.0%}" if goodput else "–",
                "; ".join(verdict.reasons) or "sustained",
            ]
        )
    return rows


def _pair(distribution: dict[str, Any]) -> str:
    if not distribution["count"]:
        return "–"
    return f"{distribution['p50']:.0f} / {distribution['p95']:.0f}"
