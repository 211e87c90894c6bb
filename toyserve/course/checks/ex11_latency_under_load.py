"""What exercise 11 looks at: who was served in time, where the edge is, and tests that hide it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from toyserve.course.checks.kinds import prediction, tuning
from toyserve.course.checks.load_tests import LOGS, breath, log_of, log_picture, true_breath
from toyserve.course.checks.numbers import close, require_number, slip, way
from toyserve.course.checks.part import Case, Part, Picture, Wrong
from toyserve.course.checks.runs import serve
from toyserve.recording import Recording, RequestRecord
from toyserve.schedulers import ChunkedScheduler, ContinuousScheduler
from toyserve.workload import Lengths, burst, poisson
from toyserve.workload_types import Workload


def rows_of(work: Workload) -> list[list[Any]]:
    """The requests as a case has them: name, arrival, prompt, answer."""
    return [
        [r.request_id, round(r.arrival_time, 4), r.num_prompt_tokens, r.output_len]
        for r in work.requests
    ]


# -- 11.1: who was served in time ---------------------------------------------------------------

GOOD = [
    {"what": "one request, well within its targets", "slots": 2, "ttft": 0.1, "tpot": 0.05,
     "requests": [["A", 1.0, 20, 5]]},
    {"what": "the answer of B is a single token", "slots": 2, "ttft": 0.1, "tpot": 0.05,
     "requests": [["A", 0.0, 20, 5], ["B", 0.0, 20, 1]]},
    {"what": "one slot: B waits for A", "slots": 1, "ttft": 0.05, "tpot": 0.05,
     "requests": [["A", 0.0, 20, 20], ["B", 0.0, 20, 5]]},
    {"what": "a long prompt comes, and the readers of short answers feel it", "slots": 8,
     "ttft": 0.6, "tpot": 0.02,
     "requests": [["A", 0.0, 20, 5], ["B", 0.0, 20, 60], ["C", 0.02, 6000, 4], ["D", 0.5, 9, 9]]},
]  # fmt: skip


def run_of(case: Case) -> Recording:
    """The run that a case of 11.1 is about."""
    return serve(case, ContinuousScheduler(case["slots"]))


def judge_good(case: Case, got: Any, expected: Any) -> None:
    number = require_number(got, "goodput(…)")
    if abs(number - expected) <= 1e-3 * expected + 1e-9:
        return
    records = list(run_of(case).requests.values())
    seconds = max(r.token_times[-1] for r in records) - min(r.arrival_time for r in records)

    def rate(start: str = "arrival_time", fewer: int = 1, single: bool = True) -> float:
        return sum(_in_time(case, r, start, fewer, single) for r in records) / seconds

    everybody, unqueued = len(records) / seconds, rate(start="first_scheduled_time")
    both = "counts everybody, or leaves the queue out: a user waits from the arrival"
    said = slip(number, (
        (expected * seconds, "is a number of requests; per second is asked for"),
        (expected * seconds / len(records), "is a share of the requests; per second is asked for"),
        (everybody if unqueued == everybody else -1.0, both),
        (unqueued, "leaves the queue out: a user waits from the arrival"),
        (everybody, "counts everybody, whether or not they were served in time"),
        (rate(single=False), "leaves out who asked for one token; nobody can miss a pace with it"),
        (rate(fewer=0), "divides by the tokens; between 5 tokens there are 4 gaps"),
    )) or f"requests/s {way(number, expected, high='is too high', low='is too low')}"  # fmt: skip
    raise Wrong(f"goodput(…) = {number:.4g} {said}")


def _in_time(case: Case, one: RequestRecord, start: str, fewer: int, single: bool) -> bool:
    """With the wrong readings that 11.1 foresees: from where to count, and by what to divide."""
    times = one.token_times
    if len(times) == 1 and not single:
        return False
    pace = (times[-1] - times[0]) / max(1, len(times) - fewer)
    return times[0] - getattr(one, start) <= case["ttft"] and pace <= case["tpot"]


# -- 11.2: the edge, in twelve runs -------------------------------------------------------------

LOW, HIGH, MAX_RUNS = 0.1, 1000.0, 12
EDGES: list[dict[str, Any]] = [
    {"what": "a made-up server with its edge at 17.3/s", "edge": 17.3, "target": 0.5},
    {"what": "a made-up server with its edge at 0.7/s", "edge": 0.7, "target": 0.5},
    {"what": "Llama-3-8B on an H100, 16 slots", "gpu": "h100", "slots": 16, "target": 0.1},
    {"what": "Llama-3-8B on an L4, 4 slots", "gpu": "l4", "slots": 4, "target": 1.0},
]
_SMALL = Lengths(16, 128, 4, 32, output_median=10)


def p95_at(case: Case) -> Callable[[float], float]:
    """A function from a rate to the p95 of the wait for a first token, in seconds."""
    if "edge" in case:
        return lambda rate: case["target"] * float(rate / case["edge"]) ** 3

    def p95(rate: float) -> float:
        requests = rows_of(poisson(80, rate=float(rate), seed=case.get("seed", 3), lengths=_SMALL))
        run = serve({**case, "requests": requests}, ChunkedScheduler(case["slots"], 256))
        waits = [r.token_times[0] - r.arrival_time for r in run.requests.values()]
        return float(np.percentile(waits, 95))

    return p95


def run_edge(case: Case, find: Any) -> dict[str, Any]:
    p95 = p95_at(case)
    asked: list[Any] = []

    def measure(rate: float) -> float:
        if len(asked) == MAX_RUNS:
            first = ", ".join(f"{float(one):.3g}" for one in asked[:4])
            raise Wrong(
                f"`measure` was called more than {MAX_RUNS} times. You asked at {first}, … "
                f"requests a second. From {LOW} to {HIGH:g} is four powers of ten: where is "
                "their middle?"
            )
        asked.append(rate)
        return p95(rate)

    return {"found": find(measure, case["target"], LOW, HIGH), "asked": asked}


def judge_edge(case: Case, got: Any, expected: Any) -> None:
    found = require_number(got["found"], "edge(…)")
    if not LOW <= found <= HIGH:
        raise Wrong(f"edge(…) = {found:g} does not lie between {LOW} and {HIGH:g}")
    p95, target = p95_at(case), case["target"]
    if p95(found) > target:
        raise Wrong(
            f"edge(…) = {found:.4g}: at that rate p95 is {p95(found):.3g} s, which is past the "
            f"target of {target:g} s. Of the two ends, which one still meets it?"
        )
    # Only what has been measured counts as known: a rate just above that misses.
    above = [rate for rate in got["asked"][:MAX_RUNS] if found < rate <= 1.03 * found]
    if not any(p95(rate) > target for rate in above):
        raise Wrong(
            f"edge(…) = {found:.4g} meets the target, but none of your {len(got['asked'])} runs "
            "shows that 3 % more would miss it"
        )


# -- 11.3: the load test that holds its breath --------------------------------------------------


def judge_breath(case: Case, got: Any, expected: Any) -> str | None:
    right = expected["p99"]
    close(got["p99"], right, "honest_p99(log)", (
        (expected["his"], "is the colleague's own: from the time of sending"),
        (expected["late"], "is how late they were sent; the answer takes time, too"),
        (expected["mean"], "is a mean"),
        (1e3 * right, "looks like milliseconds; seconds are asked for"),
    ), unit="s", picture=_log_drawer(case))  # fmt: skip
    if case["what"] != "your load test":
        return None
    close(got["silence"], expected["silence"], "silence", (
        (0.1, "is the plan. Was it kept?"),
        (1e3 * expected["silence"], "looks like milliseconds; seconds are asked for"),
    ), rel=0.12, unit="s", near=0.1, picture=_log_drawer(case),
       otherwise="is not the widest gap between two neighbouring dots")  # fmt: skip
    return f"p99 is {right:.2f} s, and the load test said {expected['his']:.2f} s."


def _log_drawer(case: Case) -> Picture:
    return lambda: log_picture(log_of(case))


# -- 11.4: how many are in the house ------------------------------------------------------------


def house(seed: int) -> dict[str, Any]:
    """The learner's own server: 300 requests, near what it can do."""
    rng = np.random.default_rng(seed)
    rate, price = float(rng.uniform(12, 15)), round(float(rng.uniform(1.5, 4)), 2)
    lengths = Lengths(16, 128, 8, 200, output_median=60)
    requests = rows_of(poisson(300, rate=rate, seed=seed, lengths=lengths))
    return {"what": "your server", "slots": 8, "dollars_per_hour": price, "requests": requests}


def house_run(case: Case) -> Recording:
    """The run that a case of 11.4 is about."""
    return serve(case, ChunkedScheduler(case["slots"], 256))


def known(case: Case, run: Recording) -> dict[str, float]:
    """What the learner is told: averages over all requests of the run, in seconds."""
    records = list(run.requests.values())
    end = max(r.token_times[-1] for r in records)
    start = min(r.arrival_time for r in records)
    waits = [(r.first_scheduled_time or 0.0) - r.arrival_time for r in records]
    return {
        "rate": len(records) / (end - start),
        "e2e": float(np.mean([r.token_times[-1] - r.arrival_time for r in records])),
        "wait": float(np.mean(waits)),
        "tokens": float(np.mean([len(r.token_ids) for r in records])),
        "slots": case["slots"],
        "dollars_per_hour": case["dollars_per_hour"],
    }


def true_house(case: Case) -> dict[str, float]:
    fact = known(case, house_run(case))
    inside, queue = (fact["rate"] * fact[key] for key in ("e2e", "wait"))
    per_second = fact["rate"] * fact["tokens"]
    return {
        "in_house": inside,
        "busy": (inside - queue) / case["slots"],
        "dollars": 1e6 / per_second * fact["dollars_per_hour"] / 3600,
        "queue": queue,
    }


def judge_house(case: Case, got: Any, expected: Any) -> str:
    inside, busy, dollars = (expected[name] for name in ("in_house", "busy", "dollars"))
    close(got["in_house"], inside, "in_house", (
        (expected["queue"], "is the queue alone; whoever is being served counts"),
    ), near=0.01)  # fmt: skip
    close(got["busy"], busy, "busy", (
        (inside / case["slots"], "counts those in the queue as if they had a slot"),
        (busy * case["slots"], "is a number of slots; a share of all is asked for"),
        (100 * busy, "is in per cent; a share (0 to 1) is asked for"),
    ), near=0.005)  # fmt: skip
    close(got["dollars"], dollars, "dollars (per million answer tokens)", (
        (3600 * dollars, "takes an hour for a second"),
        (dollars / 1e6, "is for one token"),
    ), near=0.02)  # fmt: skip
    close(got["measured"], expected["in_house"], "`measured` (the average over time)", rel=0.04)
    return (
        f"{expected['in_house']:.1f} in the house; a million tokens cost ${expected['dollars']:.2f}"
        f" with {expected['busy']:.0%} of the slots in use."
    )


# -- 11.5: more throughput, or a calmer stream --------------------------------------------------


def rush(seed: int) -> dict[str, Any]:
    """Fifty long prompts at once, and this learner's two targets."""
    budget = int(np.random.default_rng(seed).integers(110, 240))
    lengths = Lengths(200, 3000, 20, 300, output_median=100, output_sigma=0.8)
    requests = rows_of(burst(50, seed=seed, lengths=lengths))
    case = {"what": "your rush", "slots": 32, "requests": requests}
    rate, gap = outcome(case, budget)
    return case | {"tokens_per_s": int(0.98 * rate), "gap_ms": round(1.04 * gap, 1)}


def outcome(case: Case, budget: int) -> tuple[float, float]:
    """Answer tokens per second, and the p99 of the gaps between tokens in ms."""
    summary = serve(case, ChunkedScheduler(case["slots"], budget)).summary()
    return summary["output_tokens_per_s"], summary["itl_ms"]["p99"]


def judge_rush(case: Case, got: Any, expected: Any) -> str:
    budget = require_number(got, "token_budget")
    if budget != int(budget) or not case["slots"] <= budget <= 100_000:
        raise Wrong(
            f"token_budget = {budget:g}: it must be a whole number, and at least {case['slots']}, "
            "a token for each slot"
        )
    rate, gap = outcome(case, int(budget))
    if rate < case["tokens_per_s"]:
        raise Wrong(
            f"with a budget of {budget:g} the server writes {rate:,.0f} tokens/s, and at least "
            f"{case['tokens_per_s']:,} are wanted: every step reads the weights for too little"
        )
    if gap > case["gap_ms"]:
        raise Wrong(
            f"with a budget of {budget:g} the p99 gap between two tokens is {gap:.1f} ms, and "
            f"{case['gap_ms']} ms are allowed: whoever reads along sits through long steps"
        )
    return f"{rate:,.0f} tokens/s with a p99 gap of {gap:.1f} ms: both targets are met."


PARTS = [
    Part("11.1", "who was served in time", ("goodput",),
         lambda case, goodput: goodput(run_of(case), case["ttft"], case["tpot"]),
         judge_good, GOOD),
    Part("11.2", "the edge, in twelve runs", ("edge",), run_edge, judge_edge, EDGES,
         truth=lambda case: None),
    Part("11.3", "the load test that holds its breath", ("silence", "honest_p99"),
         lambda case, silence, honest_p99: {
             "silence": silence, "p99": honest_p99(log_of(case))},
         judge_breath, lambda seed: [*LOGS, breath(seed)], truth=true_breath),
    prediction("11.4", "how many are in the house", ("in_house", "busy", "dollars", "measured"),
               house, true_house, judge_house),
    tuning("11.5", "more throughput, or a calmer stream", "token_budget", rush, judge_rush),
]  # fmt: skip
