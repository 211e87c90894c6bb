"""What exercise 04 looks at: who is let in, in which step, and what the users then see."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from toyserve.course.checks.colleague import Impatient
from toyserve.course.checks.kinds import prediction, tuning
from toyserve.course.checks.numbers import close, exactly, require_whole
from toyserve.course.checks.part import Case, Part, Wrong
from toyserve.course.checks.pictures import one_timeline, two_timelines
from toyserve.course.checks.runs import lettered, numbered, require_all_served, same_schedule, serve
from toyserve.schedulers import ContinuousScheduler, StaticScheduler
from toyserve.words import counted


def together(*answers: int, prompt: int = 4) -> list[list[Any]]:
    """Requests A, B, … that all arrive at time 0, with these answer lengths."""
    return lettered((prompt, n) for n in answers)


# -- 04.1: at most so many newcomers per step ---------------------------------------------------

JOINS = [
    {"what": "two requests, one slot, max_joins = 1",
     "slots": 1, "joins": 1, "requests": together(3, 2)},
    {"what": "two requests, two free slots, max_joins = 1",
     "slots": 2, "joins": 1, "requests": together(3, 3)},
    {"what": "five requests, four slots, max_joins = 2",
     "slots": 4, "joins": 2, "requests": together(6, 2, 4, 4, 3)},
    {"what": "four requests, memory for two, max_joins = 3",
     "slots": 4, "joins": 3, "blocks": 2, "requests": together(4, 6, 3, 2)},
]  # fmt: skip


def run_joins(case: Case, cls: Any) -> Any:
    scheduler = cls(max_running=case["slots"])
    scheduler.max_joins = case["joins"]
    return serve(case, scheduler)


def judge_joins(case: Case, got: Any, expected: Any) -> None:
    require_all_served(case, got)
    for number, step in enumerate(got.steps, 1):
        if len(step.admitted) > case["joins"]:
            text = (
                f"step {number} lets {len(step.admitted)} requests in, and max_joins is "
                f"{case['joins']}"
            )
            raise Wrong(text, two_timelines(expected, got))
    same_schedule(case, got, expected)


# -- 04.2: wait until the door is worth opening -------------------------------------------------

ROOM = [
    {"what": "three requests, two slots, min_free = 2",
     "slots": 2, "min_free": 2, "requests": together(2, 4, 2)},
    {"what": "seven requests, four slots, min_free = 2",
     "slots": 4, "min_free": 2, "requests": together(3, 5, 8, 9, 4, 2, 3)},
    {"what": "min_free = 1 is plain continuous batching",
     "slots": 3, "min_free": 1, "requests": together(5, 2, 7, 3, 3)},
]  # fmt: skip


def run_room(case: Case, cls: Any) -> Any:
    scheduler = cls(max_running=case["slots"])
    scheduler.min_free = case["min_free"]
    return serve(case, scheduler)


def judge_room(case: Case, got: Any, expected: Any) -> None:
    require_all_served(case, got)
    slots, min_free = case["slots"], case["min_free"]
    for number, (step, right) in enumerate(zip(got.steps, expected.steps, strict=False), 1):
        if dict(step.num_scheduled_tokens) == dict(right.num_scheduled_tokens):
            continue
        before = len(step.num_scheduled_tokens) - len(step.admitted)
        if step.admitted and slots - before < min_free:
            text = (
                f"step {number} lets somebody in while only {slots - before} of {slots} slots "
                f"{'is' if slots - before == 1 else 'are'} free; min_free is {min_free}"
            )
            raise Wrong(text, two_timelines(expected, got))
        if step.admitted and len(step.admitted) < len(right.admitted):
            text = (
                f"step {number} opens the door and lets {len(step.admitted)} in; "
                f"{len(right.admitted)} wait, and there is room for all of these"
            )
            raise Wrong(text, two_timelines(expected, got))
        break
    same_schedule(case, got, expected)


# -- 04.3: a fault, found from its picture ------------------------------------------------------


def crowd_and_one_big(num_small: int, gap: float = 0.012, big: int = 40) -> list[list[Any]]:
    """Short prompts in a steady stream, and among the first of them one long one, BIG."""
    small = [[f"s{i}", round(gap * i, 4), 4, 10] for i in range(num_small)]
    return [*small[:3], ["BIG", round(gap * 2.5, 4), big, 5], *small[3:]]


FAULT: dict[str, Any] = {
    "what": "a long prompt in a stream of short ones", "slots": 4, "blocks": 4,
    "requests": crowd_and_one_big(14),
}  # fmt: skip
MENDED = [
    {"what": "one long prompt that does not fit at once, and one short one behind it",
     "slots": 3, "blocks": 3,
     "requests": [["A", 0.0, 4, 6], ["BIG", 0.0, 40, 2], ["B", 0.0, 4, 2]]},
    FAULT,
]  # fmt: skip


def run_mended(case: Case, who: Any, cls: Any) -> Any:
    return {"starved": who, "run": serve(case, cls(max_running=case["slots"]))}


def judge_mended(case: Case, got: Any, expected: Any) -> None:
    shown = serve(FAULT, Impatient(FAULT["slots"])).requests.values()
    longest = max(shown, key=lambda r: (r.first_scheduled_time or 0.0) - r.arrival_time)
    if got["starved"] != longest.request_id:
        raise Wrong(
            f"`starved` is {got['starved']!r}. Whose row in the picture is grey the longest, while "
            "others that came later are served?"
        )
    require_all_served(case, got["run"])
    entered = [name for step in got["run"].steps for name in step.admitted]
    arrived = [name for name, *_ in sorted(case["requests"], key=lambda r: r[1])]
    for first, second in itertools.pairwise(arrived):
        if entered.index(second) < entered.index(first):
            raise Wrong(
                f"{second} is let in before {first}, who came earlier",
                one_timeline(got["run"], "Yours: who overtakes whom?"),
            )
    same_schedule(case, got["run"], expected["run"])


# -- 04.4: predict, then measure ----------------------------------------------------------------


def six_requests(seed: int) -> dict[str, Any]:
    """The learner's own numbers: six answers, two slots, all there at time 0."""
    lengths = np.random.default_rng(seed).permutation([3, 5, 8, 13, 21, 34])
    return {"what": "your six requests in two slots", "slots": 2, "gpu": "h100",
            "requests": together(*map(int, lengths))}  # fmt: skip


def true_steps(case: Case) -> dict[str, float]:
    """What the library's own schedulers do; computed when it is asked for."""
    static = serve(case, StaticScheduler(max_running=case["slots"]))
    continuous = serve(case, ContinuousScheduler(max_running=case["slots"]))
    times = [run.summary()["makespan_s"] for run in (static, continuous)]
    return {"static_steps": static.num_steps, "continuous_steps": continuous.num_steps,
            "gain": times[0] / times[1]}  # fmt: skip


def judge_prediction(case: Case, got: Any, expected: Any) -> str:
    useful = sum(answer for *_, answer in case["requests"])
    for name, rule in (
        ("static_steps", "the pair lasts as long as its longer one"),
        ("continuous_steps", "whoever ends makes room for the next in the step after"),
    ):
        exactly(got[name], expected[name], name, (
            (useful, "is one request at a time; there are two slots"),
        ), hint=f"Draw two rows: {rule}")  # fmt: skip
    close(got["gain"], expected["gain"], "`gain` (static time over continuous time)")
    return (
        f"{got['static_steps']:g} steps become {got['continuous_steps']:g}, and the time shrinks "
        "by nearly the same: on this GPU a step of two rows lasts as long as a step of one."
    )


# -- 04.5: tune for two targets -----------------------------------------------------------------


def rush(seed: int) -> dict[str, Any]:
    """48 requests within seconds, on an A100, and the two targets of this learner."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1 / 16, 48))
    prompts = rng.integers(200, 1200, 48)
    answers = np.minimum(20 + rng.exponential(60, 48), 250).astype(int)
    requests = numbered(arrivals, prompts, answers)
    case = {"what": "your rush hour on an A100", "gpu": "a100", "requests": requests}
    ttft, tpot = latencies(case, 8 + seed % 9)
    return case | {"ttft_ms": round(1.03 * ttft), "tpot_ms": round(1.03 * tpot, 1)}


def latencies(case: Case, max_running: int) -> tuple[float, float]:
    """p95 of TTFT and p99 of TPOT, in ms, with so many slots."""
    summary = serve(case, ContinuousScheduler(max_running=max_running)).summary()
    return summary["ttft_ms"]["p95"], summary["tpot_ms"]["p99"]


def judge_tuning(case: Case, got: Any, expected: Any) -> str:
    got = require_whole(got, "max_running", 1, 256)
    ttft, tpot = latencies(case, got)
    if ttft > case["ttft_ms"]:
        raise Wrong(
            f"with {counted(got, 'slot')} the p95 of TTFT is {ttft:,.0f} ms, and the target is "
            f"{case['ttft_ms']:,} ms: people stand in the queue too long"
        )
    if tpot > case["tpot_ms"]:
        raise Wrong(
            f"with {counted(got, 'slot')} the p99 of TPOT is {tpot:.1f} ms, and the target is "
            f"{case['tpot_ms']} ms: too many prompts are read beside everybody's decodes"
        )
    return f"TTFT {ttft:,.0f} ms (p95), TPOT {tpot:.1f} ms (p99): both targets are met."


PARTS = [
    Part("04.1", "at most so many newcomers per step", ("JoinLimit",),
         run_joins, judge_joins, JOINS),
    Part("04.2", "open the door only when it is worth it", ("WaitForRoom",),
         run_room, judge_room, ROOM),
    Part("04.3", "the fault in the picture", ("starved", "Mended"),
         run_mended, judge_mended, MENDED, expects=("run",)),
    prediction("04.4", "predict, then measure", ("static_steps", "continuous_steps", "gain"),
               six_requests, true_steps, judge_prediction),
    tuning("04.5", "slots for two targets", "max_running", rush, judge_tuning),
]  # fmt: skip
