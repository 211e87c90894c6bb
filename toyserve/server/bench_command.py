"""``toyserve bench-serve URL``: how long users wait at a server, and how many it can take.

Requests leave at their scheduled times whatever the server does, and every latency counts from
there. Any server with OpenAI's /v1/completions will do: toyserve's, vLLM's, another's.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toyserve.cli.parser import CommandParser
from toyserve.server import load

EXAMPLES = (
    "toyserve bench-serve http://127.0.0.1:8000 --workload poisson:n=60,rate=4",
    "toyserve bench-serve http://127.0.0.1:8000 --sweep --ttft 1.0 --tpot 0.1 --out toyserve-load",
    "toyserve bench-serve http://gpu:8000 --workload azure_like:n=500 --rate 10 --json",
)


def make_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="toyserve bench-serve",
        description=__doc__,
        epilog="examples:\n" + "\n".join(f"  {line}" for line in EXAMPLES),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("url", help="where the server is, with or without /v1")
    parser.add_argument("--workload", help="name:key=value,… (default: poisson)")
    parser.add_argument(
        "--rate", type=float, help="arrivals per second, whatever the workload says"
    )
    parser.add_argument("--seconds", type=float, help="with --rate or --sweep: for so long (20)")
    parser.add_argument("--ttft", type=float, help="target: seconds to the first token")
    parser.add_argument("--tpot", type=float, help="target: seconds per token after the first")
    parser.add_argument("--sweep", action="store_true", help="find the rate that is too much")
    parser.add_argument("--start-rate", type=float, default=1.0, help="of the sweep (1)")
    parser.add_argument("--max-rate", type=float, default=1024.0, help="of the sweep (1024)")
    parser.add_argument("--model", help="its name there (default: the server's first)")
    parser.add_argument("--api-key", help="sent as Authorization: Bearer KEY")
    parser.add_argument(
        "--plain", action="store_true", help="send nothing that OpenAI's own API does not know"
    )
    parser.add_argument(
        "--request-time", type=float, default=600.0, help="seconds to give up (600)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of prompts that are drawn (0)")
    parser.add_argument("--out", type=Path, help="write run.jsonl and pictures to this folder")
    parser.add_argument("--json", action="store_true", help="numbers for a program")
    return parser


def main(argv: Sequence[str]) -> int:
    """Measure and say it; exit code 1 if a request failed. Raises ValueError in one sentence."""
    options = make_parser().parse_args(list(argv))
    client = load("toyserve.server.load_client")
    target = client.Target(
        options.url, options.model, options.api_key, options.plain, options.request_time
    )
    workload = _workload(options, client)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
    if options.sweep:
        return _sweep(options, target, workload)
    recording = client.measure(target, workload, seed=options.seed)
    summary = _without_unknown(recording.summary())
    if options.json:
        print(json.dumps({"run": recording.meta, **summary}, indent=2))
    else:
        _print(recording, workload.describe(), summary)
    if options.out is not None:
        _save(options.out, recording)
    errors = {r.error for r in recording.requests.values() if r.error is not None}
    for error in sorted(errors)[:3]:
        print(f"toyserve: {error}", file=sys.stderr)
    return 1 if errors else 0


def _workload(options: argparse.Namespace, client: Any) -> Any:
    from toyserve.workload import make_workload

    default = "poisson:n=4000,rate=1" if options.sweep or options.rate else "poisson"
    workload = make_workload(options.workload or default)
    if options.seconds is not None and not (options.sweep or options.rate):
        raise ValueError("--seconds would do nothing without --rate or --sweep")
    if options.rate is not None:
        if options.sweep:
            raise ValueError(
                "--sweep tries rates of its own: leave out --rate, or give --start-rate"
            )
        workload = client.at_rate(workload, options.rate, options.seconds or 20.0)
    ttft, tpot = options.ttft, options.tpot
    if options.sweep and ttft is None and tpot is None:
        ttft, tpot = 1.0, 0.2
    return workload.with_targets(ttft=ttft, tpot=tpot) if ttft or tpot else workload


def _sweep(options: argparse.Namespace, target: Any, workload: Any) -> int:
    sweeper = load("toyserve.server.load_sweep")

    def report(verdict: Any) -> None:
        if not options.json:
            print(f"  {verdict.rate:8.3g} req/s: {', '.join(verdict.reasons) or 'sustained'}",
                  file=sys.stderr, flush=True)  # fmt: skip

    sweep = sweeper.find_capacity(
        target,
        workload,
        seconds=options.seconds or 20.0,
        start_rate=options.start_rate,
        max_rate=options.max_rate,
        report=report,
    )
    if options.json:
        print(json.dumps(_sweep_numbers(sweep), indent=2))
    else:
        _print_sweep(sweep, sweeper.table(sweep.by_rate), workload)
    if options.out is not None:
        from toyserve.viz import latency_vs_rate

        first = workload.requests[0]
        for metric in ("ttft", "tpot"):
            limit = getattr(first, f"{metric}_target")
            figure = latency_vs_rate(sweep.points(), metric=metric, target=limit)
            figure.savefig(options.out / f"{metric}_by_rate.png", dpi=150, bbox_inches="tight")
        for verdict in sweep.by_rate:
            verdict.recording.save(options.out / f"rate_{verdict.rate:.4g}.jsonl")
    return 0


def _sweep_numbers(sweep: Any) -> dict[str, Any]:
    rates = [
        {"rate": v.rate, "reasons": v.reasons, **_without_unknown(v.summary)} for v in sweep.by_rate
    ]
    return {"capacity": sweep.capacity, "boundary": sweep.boundary, "rates": rates}


def _print_sweep(sweep: Any, rows: list[list[str]], workload: Any) -> None:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )
    first = workload.requests[0]
    limits = [
        f"{name} up to {value:g} s"
        for name, value in (("TTFT", first.ttft_target), ("TPOT", first.tpot_target))
        if value is not None
    ]
    within = f" ({' and '.join(limits)} for 90% of the users)" if limits else ""
    if sweep.capacity is None:
        print(f"Every rate was too much{within}.")
    elif sweep.boundary is None:
        print(f"{sweep.capacity:.3g} requests/s were sustained{within}; the limit is higher.")
    else:
        print(
            f"Capacity: {sweep.capacity:.3g} requests/s{within}; {sweep.boundary:.3g} was too much."
        )


def _without_unknown(summary: dict[str, Any]) -> dict[str, Any]:
    """What a client cannot know is left out: steps, memory, when a request first ran."""
    unknown = ("num_steps", "longest_wait_s", "num_preemptions", "num_cached_tokens")
    return {k: v for k, v in summary.items() if v is not None and k not in unknown}


def _print(recording: Any, what: str, summary: dict[str, Any]) -> None:
    from toyserve.metrics import format_table
    from toyserve.terminal import make_console, print_rows

    console = make_console(sys.stdout)
    print_rows(console, f"{recording.meta['label']}; {what}", format_table(summary))
    lag = recording.meta["max_send_lag_s"]
    print(
        f"Counted from the scheduled times; the client itself sent at most {lag * 1e3:.1f} ms late."
    )
    unplaced = recording.meta["num_unplaced_tokens"]
    if unplaced:
        print(f"{unplaced:,} tokens came in chunks with others and count as of their last chunk.")


def _save(folder: Path, recording: Any) -> None:
    from toyserve.viz import latency

    recording.save(folder / "run.jsonl")
    if any(r.token_times for r in recording.requests.values()):
        figure = latency(recording)
        figure.savefig(folder / "latency.png", dpi=150, bbox_inches="tight")
    print(f"Written: {folder}", file=sys.stderr)
