"""What a choice of scheduler cost whom: a table of latencies, run by run."""

from __future__ import annotations

import html
from collections.abc import Callable
from typing import Any

from toyserve.metrics import e2e, percentile, ttft
from toyserve.recording import Recording, RequestRecord
from toyserve.viz.style import check_choice

MAX_REQUEST_ROWS = 24
Measure = Callable[[list[RequestRecord]], float | None]


def cost_table(named: dict[str, Recording], group: str | None = None) -> list[dict[str, Any]]:
    """TTFT and E2E latency in ms, per request or as p50 and p95 of a class, run by run."""
    requests = next(iter(named.values())).requests
    group = group or _grouping(requests)
    check_choice("group", group, ("request", "user", "priority", "all"))
    if group == "request":
        metrics = {"TTFT": _first(ttft), "E2E": _first(e2e)}
    else:
        metrics = {
            f"{label} p{q}": _percentile(measure, q)
            for label, measure in (("TTFT", ttft), ("E2E", e2e))
            for q in (50, 95)
        }
    members: dict[str, list[str]] = {}
    for name, record in requests.items():
        key = {"request": name, "user": record.user, "priority": str(record.priority)}
        members.setdefault(key.get(group, "all requests"), []).append(name)
    return [_row(named, group, who, names, metrics) for who, names in members.items()]


def _row(
    named: dict[str, Recording], group: str, who: str, names: list[str], metrics: dict[str, Measure]
) -> dict[str, Any]:
    row: dict[str, Any] = {group: who}
    if group != "request":
        row["requests"] = len(names)
    for metric, measure in metrics.items():
        values = [measure([run.requests[name] for name in names]) for run in named.values()]
        for label, value in zip(named, values, strict=True):
            row[f"{metric} {label}"] = value
        for label, value in list(zip(named, values, strict=True))[1:]:
            known = value is not None and values[0] is not None
            end = "" if len(named) == 2 else f" {label}"
            row[f"{metric} change{end}"] = value - values[0] if known else None  # type: ignore[operator]
    return row


def _grouping(requests: dict[str, RequestRecord]) -> str:
    if len(requests) <= MAX_REQUEST_ROWS:
        return "request"
    if len({record.user for record in requests.values()}) > 1:
        return "user"
    return "priority" if len({r.priority for r in requests.values()}) > 1 else "all"


def _first(measure: Callable[[RequestRecord], float | None]) -> Measure:
    def value(records: list[RequestRecord]) -> float | None:
        seconds = measure(records[0])
        return None if seconds is None else 1e3 * seconds

    return value


def _percentile(measure: Callable[[RequestRecord], float | None], q: int) -> Measure:
    def value(records: list[RequestRecord]) -> float | None:
        every = [1e3 * s for r in records if (s := measure(r)) is not None]
        return percentile(every, q) if every else None

    return value


def table_html(table: list[dict[str, Any]]) -> str:
    if not table:
        return ""

    def cell(name: str, value: Any) -> str:
        if isinstance(value, float):
            text = f"{value:+,.1f}" if "change" in name else f"{value:,.1f}"
            return f"<td style='text-align:right'>{text}</td>"
        return f"<td>{'–' if value is None else html.escape(str(value))}</td>"

    def heading(name: str) -> str:
        return html.escape(name if name in ("requests", next(iter(table[0]))) else f"{name} (ms)")

    head = "".join(f"<th>{heading(name)}</th>" for name in table[0])
    rows = "".join(
        f"<tr>{''.join(cell(name, value) for name, value in row.items())}</tr>" for row in table
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
