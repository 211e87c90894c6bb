"""What a server hands out, as it is on the wire: a stream of events, and the text of /metrics."""

from __future__ import annotations

import json
from typing import Any

from toyserve.course.checks.part import Case
from toyserve.course.checks.runs import serve
from toyserve.recording import RequestRecord
from toyserve.schedulers import ContinuousScheduler


def wire(
    *texts: str,
    end: str = "[DONE]",
    usage: bool = False,
    comment: bool = False,
    newline: str = "\n",
    colon: str = "data: ",
) -> str:
    """What a server sends for these tokens. end: "[DONE]", "error", or "": it breaks off."""
    chunks: list[dict[str, Any]] = [{"choices": [{"index": 0, "text": text}]} for text in texts]
    if usage:
        chunks.append({"choices": [], "usage": {"completion_tokens": len(texts)}})
    if end == "error":
        chunks.append({"error": {"message": "the engine failed"}})
    lines = [colon + json.dumps(chunk, ensure_ascii=False) for chunk in chunks]
    if comment:
        lines.insert(1, ": ping")
    if end:
        lines.append(f"{colon}[DONE]")
    return "".join(line + 2 * newline for line in lines)


def pieces_of(case: Case) -> list[bytes]:
    """The stream's bytes, so many at a time."""
    data, size = case["stream"].encode(), case["size"]
    return [data[at : at + size] for at in range(0, len(data), size)]


def people_in(case: Case) -> list[RequestRecord]:
    """Everybody whom the server of 14.4 has served."""
    run = serve(case, ContinuousScheduler(max_running=case["slots"]))
    return list(run.requests.values())


def scrapes(case: Case) -> tuple[dict[str, float], dict[str, float]]:
    """``/metrics`` before the rush, and when the last of it has its answer."""
    records = people_in(case)
    books = []
    for time in (case["start"], max(r.finish_time or 0.0 for r in records)):
        over = [r for r in records if r.finish_time is not None and r.finish_time <= time]
        stays = [(r.finish_time or 0.0) - r.arrival_time for r in over]
        queues = [(r.first_scheduled_time or 0.0) - r.arrival_time for r in over]
        books.append(
            {
                "time": time,
                "vllm:request_success_total": float(len(over)),
                "vllm:generation_tokens_total": float(sum(len(r.token_times) for r in over)),
                "vllm:e2e_request_latency_seconds_sum": sum(stays),
                "vllm:e2e_request_latency_seconds_count": float(len(over)),
                "vllm:request_queue_time_seconds_sum": sum(queues),
                "vllm:request_queue_time_seconds_count": float(len(over)),
            }
        )
    return books[0], books[1]
