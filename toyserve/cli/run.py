"""Serve a workload and say how it went: a real model here, or a GPU's cost model, or both.

With --clock wall the bundled GPT-2 runs and the times are this machine's. With --clock h100 (or t4,
l4, a100, h200, laptop) the tokens are the same and the times are what a cost model says for that
GPU. A model of which only the shape is known (--model llama-3-8b), or --simulate, runs no tensors.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from toyserve.cli.engine_arguments import add_engine_arguments, number, whole_number

NAME = "run"
HELP = "serve a workload with any scheduler, on this machine or on a GPU's cost model"
EXAMPLES = (
    "toyserve run --scheduler static --workload burst:n=32",
    "toyserve run --scheduler continuous --workload poisson:n=64,rate=8 --clock h100 --json",
    "toyserve run --workload continuous_example --scheduler continuous --out toyserve-run",
    "toyserve run --model llama-3-8b --clock h100 --workload azure_like:n=500,rate=20",
    "toyserve run --prompt 'ROMEO:\\n' --prompt 'JULIET:\\n' --temperature 0.8 --max-tokens 60",
)


# Rows that would only say 0 are left out of the table; --json has them all.
_ONLY_IF_ANY = (
    "num_refused",
    "num_aborted",
    "num_preemptions",
    "num_cached_tokens",
    "num_recomputed_tokens",
    "padding_share",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    engine = parser.add_argument_group("the engine")
    engine.add_argument("--model", default="toy", help="toy, a folder, a hub name, or a shape")
    add_engine_arguments(engine)
    engine.add_argument("--clock", default="wall", help="wall (default), or t4 … h200, laptop")
    engine.add_argument("--simulate", action="store_true", help="no tensors, only the cost model")
    engine.add_argument(
        "--num-gpus", type=whole_number, default=1, help="simulated: GPUs that share layers"
    )

    what = parser.add_argument_group("what to serve")
    what.add_argument("--workload", default=None, help="name:key=value,… (default: burst)")
    what.add_argument("--prompt", action="append", help="a text instead; again for several")
    what.add_argument("--max-tokens", type=whole_number, help="longest answer to a --prompt (64)")
    what.add_argument("--temperature", type=number, default=0.0, help="0 is greedy (default)")

    out = parser.add_argument_group("output")
    out.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    out.add_argument("--out", type=Path, metavar="DIR", help="write run.jsonl and timeline.png")


def execute(options: argparse.Namespace) -> int:
    from toyserve.cli import job as jobs
    from toyserve.terminal import Progress

    if options.prompt and options.workload:
        raise ValueError("give either --prompt or --workload, not both")
    if options.max_tokens is not None and not options.prompt:
        raise ValueError("--max-tokens would do nothing: a workload says how long its answers are")
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)  # before the work, not after
    job = jobs.make_job(options)
    with Progress(job.num_requests, sys.stderr) as progress:
        job.engine.on_step.append(progress.step)
        outputs = job.serve()
    recording = job.engine.recording
    summary = recording.summary()
    refused = {key: r.error for key, r in recording.requests.items() if r.error is not None}
    if options.json:
        _print_json(recording.meta, summary, refused, outputs)
    else:
        _print_table(job.title, summary, outputs)
    if options.out is not None:
        _write(options.out, recording, quiet=options.json)
    _report_refused(refused, job.num_requests)
    return 2 if refused else 0


def _print_json(
    meta: dict[str, Any],
    summary: dict[str, Any],
    refused: dict[str, str],
    outputs: list[Any] | None,
) -> None:
    import json

    result = {"run": meta, **summary, "refused": refused}
    if outputs is not None:
        result["outputs"] = [output.to_dict() for output in outputs]
    print(json.dumps(result, indent=2))


def _print_table(title: str, summary: dict[str, Any], outputs: list[Any] | None) -> None:
    from toyserve.metrics import format_table
    from toyserve.terminal import make_console, print_rows

    console = make_console(sys.stdout)
    for output in outputs or ():
        console.print(f"{output.prompt}{output.text}".strip() + f"  [{output.finish_reason}]\n")
    told = {k: v for k, v in summary.items() if v or k not in _ONLY_IF_ANY}
    print_rows(console, title, format_table(told))


def _write(folder: Path, recording: Any, *, quiet: bool) -> None:
    recording.save(folder / "run.jsonl")
    save_timeline(recording, folder / "timeline.png")
    if not quiet:
        print(f"Written: {folder / 'run.jsonl'} and {folder / 'timeline.png'}")


def save_timeline(recording: Any, path: Path) -> None:
    """The batch timeline of a run as a picture."""
    from toyserve.viz import timeline

    timeline(recording).savefig(path, dpi=150, bbox_inches="tight")


def _report_refused(refused: dict[str, str], num_requests: int) -> None:
    shown = list(refused.items())[:3]
    for request_id, error in shown:
        print(f"toyserve: request {request_id} was refused: {error}", file=sys.stderr)
    if len(refused) > len(shown):
        print(
            f"toyserve: in all, {len(refused)} of {num_requests} requests were refused",
            file=sys.stderr,
        )
