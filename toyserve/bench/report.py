"""A result of ``toyserve bench`` for people, in a terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from toyserve.bench import names
from toyserve.terminal import make_console

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

# Share of the cores in other hands above which wall times are not to be trusted.
_NOISY = 0.05
_REACHED = {
    "aim": ("above aim", "bold green"),
    "must": ("met", "green"),
    "missed": ("MISSED", "bold red"),
}


def print_report(result: dict[str, Any]) -> None:
    console = make_console(sys.stdout)
    machine, model, settings = result["machine"], result["model"], result["settings"]
    console.print(
        f"\n{model['name']} ({model['num_params'] / 1e6:.0f}M parameters), "
        f"{settings['threads']} thread{'s' if settings['threads'] > 1 else ''}, "
        f"{settings['time']} time, on {machine['processor']}"
    )
    _print_race(console, result)
    _print_poisson(console, result)
    _print_costs(console, result)
    _print_targets(console, result)
    for text in result["race"]["mismatches"] + result["poisson"].get("mismatches", []):
        console.print(f"MISMATCH: {text}", style="bold red")
    other = result.get("other_load")
    if settings["time"] == "wall" and (other is None or other > _NOISY):
        share = "an unknown share" if other is None else f"{other:.0%}"
        console.print(
            f"Warning: other processes used {share} of the cores. Wall times of several threads "
            f"mean little then; run again on a quiet machine, or with --threads 1.",
            style="bold yellow",
        )


def _table(*columns: str) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column(columns[0], no_wrap=True)
    for column in columns[1:]:
        table.add_column(column, justify="right")
    return table


def spread(facts: dict[str, Any], kind: str, over: str) -> str:
    """A ratio as "6.4x (6.1 to 6.6)"; a dash where it was not measured."""
    ratio = facts[kind].get(over)
    if ratio is None:
        return "-"
    if ratio["num_rounds"] == 1:
        return f"{ratio['median']:.2f}x"
    return f"{ratio['median']:.2f}x ({ratio['low']:.2f} to {ratio['high']:.2f})"


def _print_race(console: Console, result: dict[str, Any]) -> None:
    race = result["race"]
    against = names.HF_STATIC in race["contestants"]
    base = names.HF_STATIC if against else names.STATIC
    other = names.HF_CONTINUOUS if against else names.CONTINUOUS
    count = result["settings"]["requests"]
    console.print(
        f"\n{count} requests at once, {race['num_output_tokens']:,} tokens out. Ratios are within "
        f"rounds, over {base} and over {other}: median (smallest to largest)."
    )
    table = _table("", "tokens/s", "over static 8", "over continuous", "of the ideal")
    for name, facts in race["contestants"].items():
        table.add_row(
            name,
            f"{facts['tokens_per_s']:,.0f}",
            "1x" if name == base else spread(facts, "speedup", base),
            "1x" if name == other else spread(facts, "speedup", other),
            f"{facts['share_of_ideal']:.0%}",
        )
    console.print(table)
    limits = result["limits"]
    console.print(
        f"This machine: copies {limits['bandwidth_gb_s']:.0f} GB/s, multiplies "
        f"{limits['gemm_gflop_s']:.0f} GFLOP/s; the ideal would take "
        f"{limits['ideal_seconds']:.2f} s."
    )


def _print_poisson(console: Console, result: dict[str, Any]) -> None:
    poisson = result["poisson"]
    if not poisson:
        return
    console.print(f"\nThe same requests, {poisson['rate']:g} arriving per second:")
    table = _table("", "p50 latency, s", "times shorter than transformers continuous")
    for name, facts in poisson["contestants"].items():
        gain = spread(facts, "latency_gain", names.HF_CONTINUOUS)
        table.add_row(name, f"{facts['latency_p50_s']:.2f}", gain)
    console.print(table)


def _print_costs(console: Console, result: dict[str, Any]) -> None:
    rates = result["batch_tokens_per_s"]
    console.print("\nDecoding throughput by batch size, tokens/s:")
    table = _table("batch", *rates)
    table.add_row("", *(f"{rate:,.0f}" for rate in rates.values()))
    console.print(table)
    console.print("\nµs per step beside the model, 64 running:")
    table = _table("", "plan", "tensors, sampling", "recording", "all", "of the step")
    for name, host in result["host"].items():
        parts = [f"{host[part]:.0f}" for part in ("plan", "tensors", "recording", "total")]
        share = "-" if host["alone"] else f"{host['total'] / host['step']:.1%}"
        table.add_row(name, *parts, share)
    console.print(table)
    if "calibration" in result:
        errors = ", ".join(
            f"{phase} {error['median']:.1%} (p95 {error['p95']:.1%}, {error['num_samples']} steps)"
            for phase, error in result["calibration"]["errors"].items()
        )
        console.print(f"Cost model fitted to this machine, its error on other work: {errors}.")
    simulation = result["simulation"]
    growth = ", ".join(
        f"{cost:.2f} after {int(mark):,}"
        for mark, cost in simulation["us_per_running_request"].items()
    )
    console.print(
        f"Simulated: {simulation['requests_per_cpu_s']:,.0f} requests per CPU second; µs per "
        f"running request and step: {growth} finished."
    )
    if "trace" in result:
        trace = result["trace"]
        memory = ", ".join(f"{mb:,.0f} MB {when}" for when, mb in trace["peak_memory_mb"].items())
        console.print(
            f"Trace {trace['trace']}: {trace['num_requests']:,} requests in "
            f"{trace['cpu_seconds']:.1f} CPU s ({trace['requests_per_cpu_s']:,.0f}/s); {memory}."
        )
    console.print(f"Peak memory of this run: {result['peak_memory_mb']:,.0f} MB.")


def _print_targets(console: Console, result: dict[str, Any]) -> None:
    from rich.text import Text

    console.print()
    table = _table("target", "measured", "must", "aim", "")
    for verdict in result["targets"]:
        unit = verdict["unit"]
        table.add_row(
            verdict["text"],
            *(_number(verdict[key], unit) for key in ("value", "must", "aim")),
            Text(*_REACHED[verdict["reached"]]),
        )
    console.print(table)


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    if unit == "share":
        return f"{value:.1%}"
    return f"{value:,.0f} {unit}" if value >= 1000 else f"{value:.3g} {unit}"
