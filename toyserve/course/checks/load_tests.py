"""A load test whose two clients hold their breath while the server does, and its log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from toyserve.course.checks.part import Case
from toyserve.course.checks.runs import engine_of
from toyserve.recording import Recording
from toyserve.request import Request
from toyserve.schedulers import ContinuousScheduler
from toyserve.workload_types import Workload, WorkloadRequest

LOGS: list[dict[str, Any]] = [
    {"what": "three requests, all sent as planned", "log": [
        {"planned": 0.1 * i, "sent": 0.1 * i, "first_token": 0.1 * i + wait}
        for i, wait in enumerate((0.02, 0.03, 0.02))]},
    {"what": "a server that stands still for two seconds, and one client", "log": [
        {"planned": 0.0, "sent": 0.0, "first_token": 2.0},
        *({"planned": i / 2, "sent": 2 + 0.1 * i, "first_token": 2.02 + 0.1 * i}
          for i in range(1, 5))]},
]  # fmt: skip


def breath(seed: int) -> dict[str, Any]:
    """The learner's own load test: when long documents come in between, and how long they are."""
    rng = np.random.default_rng(seed)
    start = float(rng.uniform(6, 14))
    papers = [[start + 0.01 * i, int(rng.integers(5000, 8000))] for i in range(3)]
    return {"what": "your load test", "papers": papers}


def log_of(case: Case) -> list[dict[str, float]]:
    """Two clients are to send 250 small requests, one every 0.1 s. When each was planned and sent,
    and when its first token came, in seconds."""
    if "log" in case:
        return list(case["log"])
    plan = [0.1 * i for i in range(250)]
    small = [WorkloadRequest(f"q{i}", t, 20, 3) for i, t in enumerate(plan)]
    papers = [WorkloadRequest(f"p{i}", t, n, 3) for i, (t, n) in enumerate(case["papers"])]
    run = _two_clients(small, papers)
    records = [run.requests[f"q{i}"] for i in range(250)]
    return [
        {"planned": t, "sent": r.arrival_time, "first_token": r.token_times[0]}
        for t, r in zip(plan, records, strict=True)
    ]


def _two_clients(small: list[WorkloadRequest], papers: list[WorkloadRequest]) -> Recording:
    """Each client sends its next request as planned, but not before it has its last answer."""
    work, others = Workload("plan", tuple(small)), Workload("papers", tuple(papers))
    lens = {**work.output_lens, **others.output_lens}
    engine = engine_of({"gpu": "l4"}, ContinuousScheduler(16), lens)
    clock = engine.clock
    todo: Iterator[Request] = iter(work.requests_for_engine())

    def send_next(step: Any) -> None:
        for name in step.finished:
            request = next(todo, None) if name.startswith("q") else None
            if request is not None:
                request.arrival_time = max(request.arrival_time, clock.now())
                engine.add_request(request)

    engine.on_step.append(send_next)
    return engine.run([next(todo), next(todo), *others.requests_for_engine()])


def log_picture(log: list[dict[str, float]]) -> Any:
    """The load test's own picture: a dot per request, when it was sent and how long it waited."""
    from toyserve.viz.style import THEMES, new_axes

    look = THEMES["light"]
    (ax,) = new_axes((9, 3.2), look)
    sent = np.array([entry["sent"] for entry in log])
    first = np.array([entry["first_token"] for entry in log])
    ax.plot(sent, 1e3 * (first - sent), ".", color=look.series[0])
    ax.set(xlabel="time of sending (s)", ylabel="wait (ms)", yscale="log")
    ax.set_title("One dot per request. Where are dots missing?", loc="left", fontsize=11)
    return ax.figure


def true_breath(case: Case) -> dict[str, float]:
    """Of 11.3, in seconds: the widest silence, and percentiles from plan and from sending."""
    table = np.array([[e["planned"], e["sent"], e["first_token"]] for e in log_of(case)])
    planned, sent, first = table.T
    return {
        "silence": float(np.diff(np.sort(sent)).max()),
        "p99": float(np.percentile(first - planned, 99)),
        "his": float(np.percentile(first - sent, 99)),
        "late": float(np.percentile(sent - planned, 99)),
        "mean": float((first - planned).mean()),
    }
