"""What watching costs where it is watched: a cell in JupyterLab, its page open in a browser.

Run by ``python benchmarks/live_cost.py --browser``; needs what the browser tests need.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from browser_for_tests import (
    READY,
    TOKEN,
    chromium,
    jupyterlab,
    prepare,
    python,
    write_notebook,
)

SET_UP = """\
import json, time
from toyserve import LLM, SamplingParams
from toyserve.viz import live
llm, took, view = LLM("toy", scheduler="continuous", max_running=8), {True: [], False: []}, None
def burst(watched, num_requests=NUM_REQUESTS):
    prompts = [f"Speech number {n}:\\n" for n in range(num_requests)]
    params = SamplingParams(temperature=0, max_tokens=96, ignore_eos=True)
    began, cpu = time.perf_counter(), time.process_time()
    llm.generate(prompts, params)
    took[watched].append((time.perf_counter() - began, time.process_time() - cpu))
"""
WATCHED = "with live(llm) as view:\n    burst(True)"
ALONE = "burst(False)"


def browser_ratios(rounds: int, num_requests: int) -> dict[str, Any]:
    """Speed of the engine with a live view on the screen, as a part of its speed without."""
    cells = [SET_UP.replace("NUM_REQUESTS", str(num_requests)), WATCHED, ALONE]
    home = Path(tempfile.mkdtemp(prefix="live-cost-"))
    folder = home / "course"
    prepare(folder, home)
    write_notebook(folder / "live.ipynb", cells)
    drawn: dict[int, list[float]] = {1: [], 2: []}
    with jupyterlab(folder, home) as address, chromium() as browser:
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.goto(f"{address}/lab/tree/live.ipynb?token={TOKEN}")
        page.wait_for_function(READY, timeout=120_000)
        for cell in (0, 1, 2):  # both warm
            print(f"cell {cell + 1} of 3 for the first time", file=sys.stderr, flush=True)
            run_cell(page, cell)
        python(page, "[times.clear() for times in took.values()]")
        for number in range(rounds):
            print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
            for cell in (1, 2) if number % 2 else (2, 1):  # neither always goes first
                before = browser_time()
                run_cell(page, cell)
                drawn[cell].append(browser_time() - before)
                page.wait_for_timeout(1000)  # what is still being drawn belongs to no round
        took = json.loads(python(page, "json.dumps([took[True], took[False]])")[1:-1])
        pictures = int(python(page, "view.num_updates"))
    return summary_of(took, drawn, pictures) | {"rounds": rounds, "requests": num_requests}


def summary_of(
    took: list[list[list[float]]], drawn: dict[int, list[float]], pictures: int
) -> dict[str, Any]:
    watched, alone = took
    speeds = [b[0] / a[0] for a, b in zip(watched, alone, strict=True)]
    return {
        "speed with / without": statistics.median(speeds),
        "lowest": min(speeds), "highest": max(speeds),
        "best time without / best with": min(a[0] for a in alone) / min(a[0] for a in watched),
        "kernel CPU with / without": statistics.median(
            a[1] / b[1] for a, b in zip(watched, alone, strict=True)
        ),
        # What the page needs more than without, as a part of what the engine needs: the cost if
        # both had one core between them.
        "page CPU more with the view / kernel CPU": statistics.median(
            (d - e) / a[1] for d, e, a in zip(drawn[1], drawn[2], watched, strict=True)
        ),
        "pictures": pictures,
    }  # fmt: skip


def run_cell(page: Any, number: int) -> None:
    """Run one code cell of the open notebook, in view, and wait for its end."""
    page.evaluate(
        """async number => {
          const panel = window.jupyterapp.shell.currentWidget;
          panel.content.activeCellIndex = number;
          await panel.content.scrollToItem(number, 'start');
          await window.jupyterapp.commands.execute('notebook:run-cell');
        }""",
        number,
    )
    page.wait_for_function(READY, timeout=300_000)


def browser_time() -> float:
    """CPU seconds of all the browser's processes so far."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        try:
            if "chrom" in process.name():
                total += sum(process.cpu_times()[:2])
        except psutil.NoSuchProcess:
            continue  # it ended while they were counted
    return total
