"""Is every kernel right on this GPU, and how fast? One script, under four minutes.

    python -m toyserve_kernels.gpu_check [--json FILE]     on a GPU
    python -m toyserve_kernels.gpu_check --smoke           the script itself, on a CPU, no times
    python -m toyserve_kernels.gpu_check --sweep --budget 500   tiles outside the table first

Prints a line for each result as it comes, then what was skipped and why. Exit status 1 if a
kernel is wrong. Decode is judged by the copy bandwidth measured first in the same run (the goal:
80 % and no rival faster), prefill by the matrix rate.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import backend

if TYPE_CHECKING:
    from .bench import Report

GOAL = 0.8  # of the copy bandwidth, for decode above the L2


def main(argv: list[str] | None = None) -> int:
    """Run the check; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there")
    parser.add_argument("--smoke", action="store_true", help="tiny, interpreted on a CPU, untimed")
    parser.add_argument("--sweep", action="store_true", help="try other tiles too")
    parser.add_argument("--budget", type=float, default=220, help="seconds to stay under")
    options = parser.parse_args(argv)
    if options.smoke:  # before triton is imported, and torch may import it
        os.environ["TRITON_INTERPRET"] = "1"
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    began = time.monotonic()
    import torch

    device = torch.device("cpu" if options.smoke else "cuda")
    here = backend.support(device)
    if not here.ok:
        print(f"cannot check: {here.reason} (--smoke runs without a GPU)")
        return 2
    report = run(device, options.smoke, options.sweep, began + options.budget)
    summarise(report, time.monotonic() - began)
    if options.json:
        report.save(options.json)
        print(f"written to {options.json}")
    return 1 if report.problems else 0


def run(device: Any, smoke: bool, with_sweep: bool, deadline: float) -> "Report":
    """All sections in order; one that fails is a problem and the next one runs."""
    import torch

    from .bench import Bench, Report, describe_machine
    from .gpu_correct import check_correctness
    from .gpu_engine import measure_engine
    from .gpu_speed import measure_ceilings, measure_decode, measure_prefill, measure_write
    from .gpu_sweep import sweep

    bf16 = not smoke and torch.cuda.get_device_capability(device) >= (8, 0)
    bench = Bench(device, torch.bfloat16 if bf16 else torch.float16, smoke, deadline)
    report = Report(about=describe_machine(device))
    print("  ".join(f"{key}: {value}" for key, value in report.about.items()))
    ceilings: list[float | None] = [None, None]

    def take_ceilings(report: Report, bench: Bench) -> None:
        ceilings[:] = measure_ceilings(report, bench)

    sections: list[Callable[[Report, Bench], None]] = [
        take_ceilings,
        *([sweep] if with_sweep else []),
        check_correctness,
        lambda r, b: measure_decode(r, b, ceilings[0]),
        lambda r, b: measure_prefill(r, b, ceilings[1]),
        lambda r, b: measure_write(r, b, ceilings[0]),
        measure_engine,
    ]
    with torch.no_grad():
        for section in sections:
            try:
                section(report, bench)
            except Exception as error:  # keep what the other sections can still say
                report.problem(f"{type(error).__name__}: {error}")
            bench.free()
    return report


def summarise(report: "Report", seconds: float) -> None:
    """Decode against the goal and the best rival, shape by shape, and the verdict."""
    shapes = dict.fromkeys(row.shape for row in report.rows if row.section == "decode")
    for shape in shapes:
        rows = [r for r in report.rows if (r.section, r.shape) == ("decode", shape) and r.seconds]
        ours = [r for r in rows if r.what == "toyserve decode"]
        others = [r for r in rows if not r.what.startswith("toyserve")]
        if not ours or not others:
            continue
        best = min(others, key=lambda row: row.seconds)
        goal = "" if ours[0].share is None else f"{100 * ours[0].share:.0f} % of the copy bandwidth"
        print(
            f"decode {shape}: {goal} (goal {100 * GOAL:.0f} %), "
            f"{best.seconds / ours[0].seconds:.2f}x the speed of {best.what}"
        )
    report.about["seconds"] = round(seconds, 1)
    print(f"{len(report.problems)} problems, {len(report.skipped)} skipped, {seconds:.0f} s")


if __name__ == "__main__":
    sys.exit(main())
