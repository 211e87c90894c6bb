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
import time

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--browser", action="store_true", help="in JupyterLab, with its page open")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.browser:
        from live_in_browser import browser_ratios

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
