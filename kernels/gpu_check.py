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
    from .bench import Bench, Report

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
    why_not = backend.support(device).reason
    if not options.smoke and backend.triton_mode() == "interpreter":
        why_not = "TRITON_INTERPRET is set, so nothing would be compiled: unset it"
    if why_not:
        print(f"cannot check: {why_not} (--smoke runs without a GPU)")
        return 2
    report = run(device, options.smoke, options.sweep, began, options.budget, options.json)
    return 1 if report.problems else 0


def run(
    device: Any, smoke: bool, with_sweep: bool, began: float, budget: float, path: Path | None
) -> "Report":
    """All sections in order; one that fails is a problem, and the next one runs.

    After each the JSON is written anew, so that a check that is killed has still left one.
    """
    import torch

    from .bench import Bench, Report, describe_machine

    bf16 = not smoke and torch.cuda.get_device_capability(device) >= (8, 0)
    bench = Bench(device, torch.bfloat16 if bf16 else torch.float16, smoke, began + budget)
    report = Report(about=describe_machine(device))
    print("  ".join(f"{key}: {value}" for key, value in report.about.items()))
    with torch.no_grad():
        for section in sections(with_sweep):
            try:
                section(report, bench)
                bench.free()
            except torch.OutOfMemoryError as error:  # it says nothing about the kernels
                report.skip(f"{section.__name__}: {str(error).splitlines()[0]}")
            except Exception as error:  # keep what the other sections can still say
                report.problem(f"{section.__name__}: {type(error).__name__}: {error}")
            report.about["seconds"] = round(time.monotonic() - began, 1)
            if path:
                report.save(path)
    summarise(report)
    if path:
        print(f"written to {path}")
    return report


def sections(with_sweep: bool) -> list[Callable[["Report", "Bench"], None]]:
    """In order: what says most first, what may take for ever last."""
    from . import gpu_correct, gpu_engine, gpu_speed
    from .gpu_sweep import sweep

    return [
        gpu_speed.measure_ceilings,
        *([sweep] if with_sweep else []),
        gpu_correct.check_kernels,
        gpu_correct.check_far_offsets,
        gpu_correct.check_capture,
        gpu_speed.measure_decode,
        gpu_speed.measure_prefill,
        gpu_speed.measure_write,
        gpu_engine.check_engine,
        gpu_engine.measure_engine,
        gpu_speed.measure_libraries,
    ]


def summarise(report: "Report") -> None:
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
    found, left_out = len(report.problems), len(report.skipped)
    print(f"{found} problems, {left_out} skipped, {report.about['seconds']} s")


if __name__ == "__main__":
    sys.exit(main())
