"""Numbers from a recording. Every definition is here, and read from here by everything else.

- Times count from a request's **arrival**, so the queue is in them; a preemption resets nothing.
- **TTFT**: arrival to first token. **E2E**: arrival to the end, of requests that produced a token.
- **TPOT**: mean time per token after the first, one value per request; undefined for one token.
- **ITL**: every single gap between two neighbouring tokens, pooled over all requests, so that a
  long answer counts by its length and one frozen second is not averaged away.
- **Percentiles** interpolate linearly between ranks (``percentile``). What was never measured is
  left out and counted (``num_unmeasured``); it is None, never 0.
- **Makespan**: first arrival to the last token or end of any request.
- **Goodput**: requests that finished within all the targets they carry. A one-token answer cannot
  miss a TPOT target; a refused or aborted request has missed its targets.

How busy the steps and the memory were is in ``utilization.py``; ``summarize`` gives both.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from toyserve.recording import Recording, RequestRecord
from toyserve.request import FinishReason
from toyserve.utilization import kv_used, summarize_steps

__all__ = [
    "by_priority",
    "by_user",
    "distribution_ms",
    "e2e",
    "end_time",
    "format_table",
    "goodput",
    "group_by",
    "has_targets",
    "itl",
    "jain_index",
    "kv_used",
    "met_targets",
    "percentile",
    "queue_wait",
    "summarize",
    "summarize_requests",
    "summarize_steps",
    "tpot",
    "ttft",
]

_DONE = (FinishReason.STOP, FinishReason.LENGTH)


def percentile(values: Sequence[float], q: float) -> float:
    """The value below which q % of all lie (q: 0 .. 100), interpolated linearly between two ranks.

    The same as numpy's default method, "linear": rank ``q / 100 * (n - 1)`` of the sorted values.
    Raises ValueError without a value.
    """
    if not values:
        raise ValueError("percentile of no values: at least 1 is needed")
    if not 0 <= q <= 100:
        raise ValueError(f"q is {q!r}: a percentile lies between 0 and 100")
    ordered = sorted(values)
    rank = q / 100 * (len(ordered) - 1)
    low = math.floor(rank)
    if low == len(ordered) - 1:
        return ordered[low]
    return ordered[low] + (rank - low) * (ordered[low + 1] - ordered[low])


def distribution_ms(seconds: Iterable[float | None]) -> dict[str, float | int | None]:
    """p50, p95, p99, max and mean in milliseconds, with how many values there were and were not."""
    every = list(seconds)
    measured = sorted(1e3 * s for s in every if s is not None)
    result: dict[str, float | int | None] = {
        f"p{q}": percentile(measured, q) if measured else None for q in (50, 95, 99)
    }
    result["max"] = measured[-1] if measured else None
    result["mean"] = sum(measured) / len(measured) if measured else None
    result["count"] = len(measured)
    result["num_unmeasured"] = len(every) - len(measured)
    return result


# -- one request --------------------------------------------------------------


def ttft(record: RequestRecord) -> float | None:
    """Time to first token: seconds from arrival, the queue included; None without one."""
    return record.token_times[0] - record.arrival_time if record.token_times else None


def tpot(record: RequestRecord) -> float | None:
    """Time per output token: mean seconds per token after the first; None with fewer than two."""
    times = record.token_times
    return (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else None


def itl(record: RequestRecord) -> list[float]:
    """Inter-token latency: seconds of each gap between two neighbouring tokens."""
    return [b - a for a, b in itertools.pairwise(record.token_times)]


def e2e(record: RequestRecord) -> float | None:
    """End to end: seconds from arrival to the end; None while it runs, or without a token."""
    if record.finish_time is None or not record.token_times:
        return None
    return record.finish_time - record.arrival_time


def has_targets(record: RequestRecord) -> bool:
    return record.ttft_target is not None or record.tpot_target is not None


def met_targets(record: RequestRecord) -> bool:
    """Finished, and within each target it carries."""
    if record.finish_reason not in _DONE:
        return False
    pairs = ((ttft(record), record.ttft_target), (tpot(record), record.tpot_target))
    return all(value is None or target is None or value <= target for value, target in pairs)


def queue_wait(record: RequestRecord, now: float) -> float | None:
    """Seconds from arrival until it first ran, or until it ended or ``now`` if it never did.

    None if it was refused, which takes no waiting.
    """
    if record.finish_reason is FinishReason.REFUSED:
        return None
    ends = (record.first_scheduled_time, record.finish_time, now)
    return max(0.0, next(t for t in ends if t is not None) - record.arrival_time)


# -- groups of requests --------------------------------------------------------------


def end_time(records: Iterable[RequestRecord]) -> float:
    """When the last of them produced its last token or ended; 0 if nothing happened."""
    last = 0.0
    for record in records:
        if record.finish_time is not None:
            last = max(last, record.finish_time)
        if record.token_times:
            last = max(last, record.token_times[-1])
    return last


def goodput(records: Sequence[RequestRecord], makespan: float) -> dict[str, Any] | None:
    """Requests that met all the targets they carry: how many, and how many per second.

    None if nobody has a target.
    """
    with_targets = [r for r in records if has_targets(r)]
    if not with_targets:
        return None
    num_met = sum(met_targets(r) for r in with_targets)
    return {
        "num_with_targets": len(with_targets),
        "num_met": num_met,
        "share": num_met / len(with_targets),
        "requests_per_s": num_met / makespan if makespan > 0 else None,
    }


def summarize_requests(
    records: Sequence[RequestRecord], *, start: float, end: float
) -> dict[str, Any]:
    """What can be said of a group of requests, on a run that lasted from ``start`` to ``end``."""
    makespan = max(0.0, end - start)
    output_tokens = sum(len(r.token_times) for r in records)
    waits = [w for r in records if (w := queue_wait(r, end)) is not None]
    return {
        "num_requests": len(records),
        "num_finished": sum(r.finish_reason in _DONE for r in records),
        "num_refused": sum(r.finish_reason is FinishReason.REFUSED for r in records),
        "num_aborted": sum(r.finish_reason is FinishReason.ABORT for r in records),
        "output_tokens": output_tokens,
        "output_tokens_per_s": output_tokens / makespan if makespan > 0 else None,
        "makespan_s": makespan,
        "ttft_ms": distribution_ms(map(ttft, records)),
        "tpot_ms": distribution_ms(map(tpot, records)),
        "itl_ms": distribution_ms(gap for r in records for gap in _gaps_or_none(r)),
        "e2e_ms": distribution_ms(map(e2e, records)),
        "longest_wait_s": max(waits) if waits else None,
        "num_preemptions": sum(r.num_preemptions for r in records),
        "num_cached_tokens": sum(r.num_cached_tokens for r in records),
        "goodput": goodput(records, makespan),
    }


def _gaps_or_none(record: RequestRecord) -> list[float] | list[None]:
    """Its gaps; a single None, so that it is counted as unmeasured, if it has none."""
    return itl(record) or [None]


def _span(records: Sequence[RequestRecord]) -> tuple[float, float]:
    start = min((r.arrival_time for r in records), default=0.0)
    return start, max(start, end_time(records))


def group_by(
    recording: Recording, key: Callable[[RequestRecord], Any]
) -> dict[Any, dict[str, Any]]:
    """One summary per group, all over the makespan of the whole run; groups in sorted order."""
    records = list(recording.requests.values())
    start, end = _span(records)
    groups: dict[Any, list[RequestRecord]] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    return {name: summarize_requests(groups[name], start=start, end=end) for name in sorted(groups)}


def by_user(recording: Recording) -> dict[str, dict[str, Any]]:
    """One summary per user, all over the makespan of the whole run."""
    return group_by(recording, lambda r: r.user)


def by_priority(recording: Recording) -> dict[int, dict[str, Any]]:
    """One summary per priority class, most urgent first, over the makespan of the whole run."""
    return group_by(recording, lambda r: r.priority)


def jain_index(values: Iterable[float]) -> float | None:
    """Fairness of shares: (sum x)^2 / (n sum x^2). 1: all equal; 1/n: one has it all.

    None without a value, 1 if all are 0. Raises ValueError on a negative share.
    Jain, Chiu, Hawe, "A Quantitative Measure of Fairness and Discrimination", DEC TR-301, 1984.
    """
    shares = list(values)
    if any(x < 0 for x in shares):
        raise ValueError(f"a share of {min(shares)!r} is negative: fairness is of shares >= 0")
    if not shares:
        return None
    largest = max(shares)
    if largest == 0:
        return 1.0
    scaled = [x / largest for x in shares]  # so that tiny and huge shares do not under- or overflow
    return sum(scaled) ** 2 / (len(scaled) * sum(x * x for x in scaled))


# -- the whole run --------------------------------------------------------------


def summarize(recording: Recording) -> dict[str, Any]:
    """Everything above in one dictionary, ready for JSON. The same for a run and for its file."""
    records = list(recording.requests.values())
    start, end = _span(records)
    return {
        "num_steps": recording.num_steps,
        **summarize_requests(records, start=start, end=end),
        **summarize_steps(recording),
    }


def format_table(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """(name, value) rows for people, without what was not measured."""
    rows: list[tuple[str, str]] = []
    for name, value in summary.items():
        if name.endswith("_ms"):
            if value["count"]:
                parts = (f"{key} {value[key]:.1f}" for key in ("p50", "p95", "p99", "max"))
                rows.append((name.removesuffix("_ms").upper() + ", ms", "  ".join(parts)))
        elif name == "goodput":
            if value is not None:
                of = f"{value['num_met']} of {value['num_with_targets']}"
                rows.append(("goodput", f"{of} met their targets ({value['share']:.0%})"))
        elif value is not None:
            rows.append((_label(name), _format(name, value)))
    return rows


def _label(name: str) -> str:
    if name.endswith("_per_s"):
        name += "econd"
    return name.removeprefix("num_").removesuffix("_s").replace("_", " ")


def _format(name: str, value: float) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    if name.endswith(("_used", "_share", "_max")) or name == "kv_used_mean":
        return f"{value:.1%}"
    if name.endswith("_per_s"):
        return f"{value:,.1f}"
    return f"{value:.3f} s" if name.endswith("_s") else f"{value:.2f}"
