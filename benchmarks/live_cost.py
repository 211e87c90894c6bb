"""What watching costs: an engine with a live view against the same engine without one.

The bundled model, both kinds of round taken in turns; the ratio within each pair of rounds is what
counts, because both meet the same weather on this machine. Without --browser: CPU time in one
process, whose messages go nowhere. With it: the speed of a cell in JupyterLab with the page open in
a headless Chromium, which needs the same cores for its drawing (without a graphics card: more than
a learner's does).

    python benchmarks/live_cost.py
    python benchmarks/live_cost.py --rounds 11 --requests 32 --json
    python benchmarks/live_cost.py --browser
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nbformat
import psutil
import torch

from toyserve import LLM, SamplingParams
from toyserve.recording import Recording
from toyserve.viz import live
from toyserve.viz.growing import GrowingPack
from toyserve.viz.playground_run import Settings, run_settings
from toyserve.viz.widget_data import refreshed


def round_time(llm: LLM, num_requests: int, *, watched: bool) -> tuple[float, int]:
    """(CPU seconds, pictures) of one burst: what else runs here does not count."""
    prompts = [f"Speech number {n}:\n" for n in range(num_requests)]
    params = SamplingParams(temperature=0, max_tokens=48, ignore_eos=True)
    view = live(llm) if watched else None
    began = time.process_time()
    llm.generate(prompts, params)
    took = time.process_time() - began
    if view is not None:
        view.detach()
        return took, view.num_updates
    return took, 0


def ratios(rounds: int, num_requests: int) -> dict[str, object]:
    torch.set_num_threads(1)
    llm = LLM("toy", scheduler="continuous", max_running=8)
    round_time(llm, 4, watched=True)  # both warm
    pairs, pictures = [], []
    for number in range(rounds):
        order = (False, True) if number % 2 else (True, False)  # neither always goes first
        took = {}
        for watched in order:
            took[watched], num_pictures = round_time(llm, num_requests, watched=watched)
            if watched:
                pictures.append(num_pictures)
        pairs.append(took[True] / took[False])
    return {
        "ratio": statistics.median(pairs), "lowest": min(pairs), "highest": max(pairs),
        "rounds": rounds, "requests": num_requests, "pictures": statistics.median(pictures),
    }  # fmt: skip


def refresh_times(recording: Recording, every: int = 50) -> list[float]:
    """Seconds of each refresh of a view that follows this run, one per ``every`` steps."""
    growing_run = Recording(recording.meta)
    growing_run.records = recording.records
    growing, times = GrowingPack(growing_run), []
    for first in range(0, len(recording.steps), every):
        growing_run.steps += recording.steps[first : first + every]
        began = time.perf_counter()
        refreshed(growing)
        times.append(time.perf_counter() - began)
    return times


# -- in JupyterLab, in a browser ------------------------------------------------------------------

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
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from browser_for_tests import TOKEN, chromium, jupyterlab, prepare

    cells = [SET_UP.replace("NUM_REQUESTS", str(num_requests)), WATCHED, ALONE]
    home = Path(tempfile.mkdtemp(prefix="live-cost-"))
    folder = home / "course"
    prepare(folder, home)
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(cell) for cell in cells],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}},
    )
    (folder / "live.ipynb").write_text(nbformat.writes(notebook), encoding="utf-8")
    drawn: dict[int, list[float]] = {1: [], 2: []}
    with jupyterlab(folder, home) as address, chromium() as browser:
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.goto(f"{address}/lab/tree/live.ipynb?token={TOKEN}")
        page.wait_for_function(KERNEL_IS_IDLE, timeout=120_000)
        for cell in (0, 1, 2):  # both warm
            print(f"cell {cell + 1} of 3 for the first time", file=sys.stderr, flush=True)
            run_cell(page, cell)
        ask(page, "[times.clear() for times in took.values()]")
        for number in range(rounds):
            print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
            for cell in (1, 2) if number % 2 else (2, 1):  # neither always goes first
                before = browser_time()
                run_cell(page, cell)
                drawn[cell].append(browser_time() - before)
                page.wait_for_timeout(1000)  # what is still being drawn belongs to no round
        took = json.loads(ask(page, "json.dumps([took[True], took[False]])")[1:-1])
        pictures = int(ask(page, "view.num_updates"))
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


KERNEL_IS_IDLE = """() => {
  const context = window.jupyterapp?.shell.currentWidget?.sessionContext;
  return context?.isReady && context.session?.kernel?.status === 'idle';
}"""


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
    page.wait_for_function(KERNEL_IS_IDLE, timeout=300_000)


def ask(page: Any, code: str) -> str:
    """The value of an expression in the kernel, as text."""
    return str(
        page.evaluate(
            """async code => {
          const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
          const future = kernel.requestExecute({code, store_history: false});
          let value = '';
          future.onIOPub = msg => {
            if (msg.header.msg_type === 'execute_result') value = msg.content.data['text/plain'];
          };
          await future.done;
          return value;
        }""",
            code,
        )
    )


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--browser", action="store_true", help="in JupyterLab, with its page open")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.browser:
        found = browser_ratios(options.rounds, options.requests)
        if options.json:
            print(json.dumps(found))
            return
        for name, value in found.items():
            print(f"{name}: {value:.3f}" if isinstance(value, float) else f"{name}: {value}")
        return
    result = ratios(options.rounds, options.requests)
    times = refresh_times(run_settings(Settings(num_requests=200, scheduler="sequential")))
    fifth = len(times) // 5
    early, late = statistics.median(times[:fifth]), statistics.median(times[-fifth:])
    result["refresh, late over early"] = late / early
    if options.json:
        print(json.dumps(result))
        return
    print(
        f"CPU time with a live view / without: {result['ratio']:.3f} "
        f"({result['lowest']:.3f} to {result['highest']:.3f}) over {options.rounds} pairs of "
        f"{options.requests} requests, {result['pictures']:.0f} pictures each"
    )
    print(
        f"one refresh late in a run of {50 * len(times):,} steps takes {late / early:.2f} times "
        f"what one early in it takes ({1e3 * late:.2f} ms against {1e3 * early:.2f} ms)"
    )


if __name__ == "__main__":
    main()
