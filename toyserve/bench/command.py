"""``toyserve bench``: what to measure, in which order, and where the numbers go."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toyserve.bench.machine import OtherLoad, describe_machine, peak_memory, starts
from toyserve.cli.parser import CommandParser

if TYPE_CHECKING:
    from toyserve.bench.ours import Bench
    from toyserve.bench.race import Race
    from toyserve.bench.shapes import Weights

_POISSON_RATE = {"tiny": 16.0, "toy": 16.0, "micro": 200.0}
_FEW_ROUNDS = "gpt2-shape"  # where a round takes minutes


def make_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="toyserve bench",
        description="This engine and others on the same work in one run, compared token for token. "
        "On the CPU, in fp32; a GPU is measured by python -m toyserve_kernels.gpu_check.",
        epilog="examples:\n"
        "  toyserve bench --quick                        # two minutes, toyserve alone\n"
        "  toyserve bench --model tiny --against transformers --json tiny.json\n"
        "  toyserve bench --model gpt2-shape --against transformers --threads 2",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--model",
        default="tiny",
        help="toy (bundled), tiny (11M, random), gpt2-shape (124M, random), or a folder (tiny)",
    )
    parser.add_argument("--against", choices=["transformers"], help="who else takes part")
    parser.add_argument("--rounds", type=int, help="turns of everybody (3; 2 for gpt2-shape)")
    parser.add_argument("--requests", type=int, default=32, help="of the workload (32)")
    parser.add_argument(
        "--threads", type=int, default=1, help="1 (default): by CPU time; else wall"
    )
    parser.add_argument("--rate", type=float, help="Poisson arrivals per second (16 for tiny)")
    parser.add_argument(
        "--trace", type=Path, help="the Azure trace's CSV file (else a generated one)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="one round, and only short measurements"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers there too")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """0; 1 if two contestants gave different tokens. Raises ValueError for a bad option."""
    options = make_parser().parse_args(argv)
    for name, least in (("rounds", 1), ("requests", 1), ("threads", 1)):
        value = getattr(options, name)
        if value is not None and value < least:
            raise ValueError(f"--{name} is {value}: it must be at least {least}")
    if options.rate is not None and not options.rate > 0:
        raise ValueError(f"--rate is {options.rate}: it must be above 0 requests per second")
    if options.json is not None and not options.json.parent.is_dir():
        raise ValueError(f"--json: there is no folder {options.json.parent}")

    from toyserve.bench.report import print_report

    result = measure(options)
    print_report(result)
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        print(f"Written: {options.json}")
    return 1 if result["race"]["mismatches"] or result["poisson"].get("mismatches") else 0


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Everything, as one JSON object."""
    import torch

    from toyserve.bench.ours import LONGEST, Bench
    from toyserve.bench.shapes import get_weights
    from toyserve.bench.targets import verdicts

    threads_before = torch.get_num_threads()
    torch.set_num_threads(options.threads)
    say = _Sayer()
    load = OtherLoad()
    try:
        say(f"making the model {options.model}")
        weights = get_weights(options.model)
        if weights.config.n_positions < LONGEST:
            raise ValueError(
                f"--model {options.model}: its context is {weights.config.n_positions} tokens, and "
                f"the workload needs {LONGEST}"
            )
        bench = Bench(weights)
        result: dict[str, Any] = {
            "machine": describe_machine(),
            "model": {"name": options.model, "num_params": weights.num_params},
            "settings": {
                "threads": options.threads,
                "time": "CPU" if options.threads == 1 else "wall",
                "requests": options.requests,
                "quick": options.quick,
                "packed": bench.model.packed,
            },
        }
        result |= _races(options, weights, bench, say)
        result |= _engine_costs(options, bench, say)
    finally:
        torch.set_num_threads(threads_before)
    result["other_load"] = load.share()
    result["peak_memory_mb"] = peak_memory() / 1e6
    result["seconds"] = say.seconds()
    result["targets"] = [v.to_dict() for v in verdicts(result)]
    return result


class _Sayer:
    """Progress, on stderr, with the seconds since the start."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def seconds(self) -> float:
        return time.perf_counter() - self._start

    def __call__(self, text: str) -> None:
        print(f"[{self.seconds():4.0f} s] {text}", file=sys.stderr, flush=True)


# -- contestants ----------------------------------------------------------------------------------


def _races(
    options: argparse.Namespace, weights: Weights, bench: Bench, say: _Sayer
) -> dict[str, Any]:
    from toyserve.bench import names
    from toyserve.bench.limits import ideal_seconds, measure_limits
    from toyserve.bench.ours import Bench, our_contestants
    from toyserve.bench.race import run_race
    from toyserve.bench.work import standard_work

    cpu = options.threads == 1
    contestants = our_contestants(bench, lambda: Bench(weights, packed=False))
    if options.against:
        from toyserve.bench.theirs import their_contestants

        say("loading transformers")
        contestants += their_contestants(weights)
    work = standard_work(weights.config.vocab_size, n=options.requests)
    few = options.model == _FEW_ROUNDS
    rounds = options.rounds or (1 if options.quick else 2 if few else 3)
    limits = measure_limits(cpu=cpu)
    race = run_race(contestants, work, rounds, cpu=cpu, slow_once=True, progress=say)
    result: dict[str, Any] = {"race": _race_facts(race)}
    result["limits"] = {
        "bandwidth_gb_s": limits.bandwidth / 1e9,
        "gemm_gflop_s": limits.gemm_flops / 1e9,
        "ideal_seconds": (ideal := ideal_seconds(bench, work, limits)),
    }
    for name, facts in result["race"]["contestants"].items():
        facts["share_of_ideal"] = ideal * race.tokens_per_s(name) / work.num_output_tokens
    result["poisson"] = {}
    rate = options.rate or _POISSON_RATE.get(options.model)
    if rate is not None and not options.quick:
        wanted = (names.CHUNKED, names.HF_CONTINUOUS, names.HF_STATIC)
        some = [c for c in contestants if c.name in wanted]
        work = standard_work(weights.config.vocab_size, n=options.requests, rate=rate)
        race = run_race(some, work, rounds, cpu=cpu, progress=lambda t: say(f"Poisson, {t}"))
        result["poisson"] = {"rate": rate, **_race_facts(race)}
    return result


def _race_facts(race: Race) -> dict[str, Any]:
    import statistics
    from dataclasses import asdict

    names = list(race.entries)
    contestants = {}
    for name in names:
        speedups = {n: asdict(s) for n in names if n != name and (s := race.speedup(name, n))}
        gains = {n: asdict(s) for n in names if n != name and (s := race.latency_gain(name, n))}
        contestants[name] = {
            "tokens_per_s": race.tokens_per_s(name),
            "latency_p50_s": statistics.median(race.entries[name].latency_p50.values()),
            "seconds": list(race.entries[name].seconds.values()),
            "speedup": speedups,
            "latency_gain": gains,
        }
    return {
        "num_output_tokens": race.work.num_output_tokens,
        "contestants": contestants,
        "mismatches": [str(m) for m in race.mismatches],
    }


# -- the engine by itself -------------------------------------------------------------------------


def _engine_costs(options: argparse.Namespace, bench: Bench, say: _Sayer) -> dict[str, Any]:
    from toyserve.bench.host import host_work, scheduler_time
    from toyserve.bench.limits import batch_throughput

    quick = options.quick
    result: dict[str, Any] = {"batch_tokens_per_s": {}, "host": {}}
    for batch_size in (1, 8, 32) if quick else (1, 2, 4, 8, 16, 32, 64, 128):
        say(f"throughput of a batch of {batch_size}")
        rate = batch_throughput(bench, batch_size, cpu=options.threads == 1)
        result["batch_tokens_per_s"][str(batch_size)] = rate
    say("host work of a step")
    for alone in (False, True):
        work = host_work(bench, 64, 12 if quick else 40, alone=alone)
        result["host"][f"64 {'alone' if alone else 'in place'}"] = work.to_dict()
    result["scheduler_us"] = {
        str(n): scheduler_time(n, 100 if quick else 500) for n in (8, 64, 256)
    }
    if not quick:
        say("calibrating a cost model")
        result["calibration"] = _calibration(bench, cpu=options.threads == 1)
    say("simulated requests")
    result["simulation"] = _simulation(quick)
    if not quick:
        say("simulating a trace of 19,366 requests, in a process of its own")
        result["trace"] = _trace(options.trace)
        say("cold start")
        result["start"] = starts()
    return result


def _calibration(bench: Bench, *, cpu: bool) -> dict[str, Any]:
    """Errors, by phase, of the cost model fitted to this machine on steps of another workload."""
    from dataclasses import asdict

    from toyserve.bench.ours import BLOCK_SIZE, NUM_BLOCKS
    from toyserve.bench.work import BenchClock
    from toyserve.calibrate import Machine, calibrate_machine

    vocab_size = bench.config.vocab_size
    machine = Machine(bench.runner(), NUM_BLOCKS, BLOCK_SIZE, bench.max_model_len, vocab_size)
    calibration = calibrate_machine(machine, clock=BenchClock(cpu=cpu))
    errors = {phase: asdict(error) for phase, error in calibration.errors.items()}
    return {"num_samples": calibration.num_samples, "errors": errors}


def _simulation(quick: bool) -> dict[str, Any]:
    from toyserve.bench.simulation import simulate_mix

    marks = (200, 1_000) if quick else (200, 5_000, 20_000)
    facts = simulate_mix(marks[-1] + 1_000, marks)
    costs = facts["us_per_running_request"]
    first, last = costs.get(str(marks[0])), costs.get(str(marks[-1]))
    facts["growth"] = last / first if first and last else None
    return facts


def _trace(path: Path | None) -> dict[str, Any]:
    """In a fresh process, so that the peak memory is the simulation's."""
    import subprocess

    command = [sys.executable, "-m", "toyserve.bench.simulation", *([str(path)] if path else [])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    if done.returncode:
        raise ValueError(
            f"the trace could not be simulated: {done.stderr.strip().splitlines()[-1]}"
        )
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts
