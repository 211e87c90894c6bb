"""What exercise 09 looks at: who is paused, what that costs, and whether it ever ends."""

from __future__ import annotations

from typing import Any

import numpy as np

from toyserve.costs import RooflineCostModel, cost_model
from toyserve.course.checks.colleague import Bully
from toyserve.course.checks.kinds import prediction, tuning
from toyserve.course.checks.numbers import close, exactly, require_number
from toyserve.course.checks.part import Case, Part, Wrong
from toyserve.course.checks.pictures import one_timeline, two_timelines
from toyserve.course.checks.runs import lettered, numbered, require_all_served, same_schedule, serve
from toyserve.schedulers import ContinuousScheduler
from toyserve.words import counted

# -- 09.1: a victim that is not always the same -------------------------------------------------


def crew(*classes: int, prompt: int = 17, answer: int = 40) -> list[list[Any]]:
    """Requests A, B, … that all arrive at time 0, each of the priority class given."""
    return lettered((prompt, answer, {"priority": number}) for number in classes)


def arrivals(num_requests: int, gap: float = 0.05, prompt: int = 9) -> list[list[Any]]:
    """Requests A, B, … of one class, ``gap`` seconds apart, with answers of unequal length."""
    rows = ((prompt, 40 + 23 * i % 45, {"priority": 1}) for i in range(num_requests))
    return lettered(rows, gap)


VICTIMS = [
    {"what": "three requests of one class, memory for two", "slots": 3, "blocks": 8,
     "requests": crew(1, 1, 1)},
    {"what": "three requests, B is the least urgent", "slots": 3, "blocks": 8,
     "requests": crew(1, 2, 1)},
    {"what": "three requests of one class, a little apart, memory for two", "slots": 3,
     "blocks": 7, "requests": arrivals(3)},
    {"what": "five requests of one class, a little apart", "slots": 5, "blocks": 8,
     "requests": arrivals(5)},
]  # fmt: skip


def run_victims(case: Case, cls: Any) -> Any:
    return serve(case, ContinuousScheduler(case["slots"]), policy=cls())


def judge_victims(case: Case, got: Any, expected: Any) -> None:
    require_all_served(case, got)
    classes = {
        name: more[0]["priority"] for name, *_, more in ((r[0], r[4:]) for r in case["requests"])
    }
    times = dict.fromkeys(classes, 0)
    for number, (step, right) in enumerate(zip(got.steps, expected.steps, strict=False), 1):
        if list(step.preempted) != list(right.preempted):
            if step.preempted and right.preempted:
                raise Wrong(
                    _wrong_victim(number, step.preempted[0], right.preempted[0], classes, times),
                    two_timelines(expected, got),
                )
            break
        for name in step.preempted:
            times[name] += 1
    same_schedule(case, got, expected)


def _wrong_victim(
    number: int, got: str, right: str, classes: dict[str, int], times: dict[str, int]
) -> str:
    said = f"in step {number} your victim is {got}, and it should be {right}: "
    if classes[got] < classes[right]:
        return said + f"{right} is of class {classes[right]}, less urgent than {classes[got]}"
    if times[got] > times[right]:
        return (
            said
            + f"{got} had been paused {counted(times[got], 'time')} by then, {right} {times[right]}"
        )
    return said + f"both are of one class and were paused equally often, but {right} came in later"


# -- 09.2: what the pauses cost -----------------------------------------------------------------

AGAIN = [
    {"what": "two requests with room for both", "slots": 2, "blocks": 40,
     "requests": crew(1, 1)},
    {"what": "three requests, one of them paused once", "slots": 3, "blocks": 8,
     "requests": crew(1, 1, 1)},
    {"what": "the same with swap", "slots": 3, "blocks": 8, "host": 20,
     "requests": crew(1, 1, 1)},
    {"what": "six requests, and many pauses", "slots": 6, "blocks": 12,
     "requests": crew(1, 1, 1, 1, 1, 1, answer=60)},
]  # fmt: skip


def run_of(case: Case) -> Any:
    """The run that a case of 09.2 is about, with recompute, or swap where it has host blocks."""
    host = case.get("host", 0)
    how: dict[str, Any] = {"preemption": "swap", "num_host_blocks": host} if host else {}
    return serve(case, ContinuousScheduler(case["slots"], **how))


def judge_again(case: Case, got: Any, expected: Any) -> None:
    number = require_number(got, "tokens_again(run)")
    if number == expected:
        return
    num_requests = len(case["requests"])
    prompts = sum(r.num_preemptions * r.num_prompt_tokens for r in run_of(case).requests.values())
    if abs(number - expected) == num_requests:
        raise Wrong(
            f"tokens_again(run) is {number:g}, off by one token per request. The last token of an "
            "answer comes out of the model; does it ever go in?"
        )
    if number == prompts and case.get("host"):
        raise Wrong(f"tokens_again(run) is {number:g}, but with swap the KV came back as it was")
    if number == prompts:
        raise Wrong(
            f"tokens_again(run) is {number:g}: that is the prompts of the paused. What else had "
            "been computed when they were paused?"
        )
    way = "too many" if number > expected else "too few"
    raise Wrong(
        f"tokens_again(run) is {number:g}, which is {way}", one_timeline(run_of(case), "The run")
    )


# -- 09.3: out and back -------------------------------------------------------------------------

_GPUS = ("l4", "a100", "h100")


def patient(seed: int) -> dict[str, Any]:
    """The learner's own victim: on which GPU, and how long it is."""
    rng = np.random.default_rng(seed)
    return {
        "what": "your victim",
        "gpu": _GPUS[int(rng.integers(len(_GPUS)))],
        "prompt": int(rng.integers(8, 24)) * 64,
        "answered": int(rng.integers(100, 300)),
    }


def costs_of(case: Case) -> RooflineCostModel:
    """Llama-3-8B on the clock of the case's GPU."""
    return cost_model(case["gpu"], "llama-3-8b")


def true_return(case: Case) -> dict[str, float]:
    cost, others = costs_of(case), [(500, 1)] * 8
    # The newest token has come out of the model and not gone in yet: it has no KV.
    held = case["prompt"] + case["answered"] - 1
    run_again = case["prompt"] + case["answered"]
    extra = cost.time_of_rows([*others, (0, run_again)]) - cost.time_of_rows([*others, (held, 1)])
    swap = 2 * cost.swap_time(held * cost.model.kv_bytes_per_token)
    return {"tokens_run": run_again, "swap_ms": 1e3 * swap, "ratio": extra / swap}


def judge_return(case: Case, got: Any, expected: Any) -> str:
    right, swap = expected["tokens_run"], expected["swap_ms"]
    if got["tokens_run"] != right - 1:  # without the newest token: as good a reading
        exactly(got["tokens_run"], right, "tokens_run", (
            (case["prompt"], "is the prompt alone; what it has answered is lost too"),
        ), otherwise="is not what one prefill on its return has to run")  # fmt: skip
    close(got["swap_ms"], swap, "swap_ms", (
        (swap / 2, "is the way out; it must come back, too"),
        (swap / 1e3, "is in seconds, as it seems"),
    ), rel=0.02, unit="ms", near=0.02)  # fmt: skip
    close(got["ratio"], expected["ratio"], "`ratio` (recompute over swap)", rel=0.02)
    cheaper = "swap" if expected["ratio"] > 1 else "recompute"
    return f"Recompute takes {expected['ratio']:.2f} × as long as swap here: {cheaper} it is."


# -- 09.4: the endless quarrel ------------------------------------------------------------------


QUARREL: dict[str, Any] = {
    "what": "A writes, and B comes a little later; one slot", "slots": 1,
    "requests": [["A", 0.0, 20, 24], ["B", 0.08, 20, 24]],
}  # fmt: skip
CALM = [
    QUARREL,
    {"what": "A and B write, C comes a little later; two slots", "slots": 2,
     "requests": [["A", 0.0, 20, 24], ["B", 0.0, 20, 24], ["C", 0.08, 20, 6]]},
    {"what": "three that come at once; two slots", "slots": 2,
     "requests": [["A", 0.0, 20, 9], ["B", 0.0, 20, 5], ["C", 0.0, 20, 7]]},
]  # fmt: skip


def run_calm(case: Case, pauses: Any, cls: Any) -> Any:
    return {"pauses": pauses, "run": serve(case, ContinuousScheduler(case["slots"]), policy=cls())}


def judge_calm(case: Case, got: Any, expected: Any) -> str:
    quarrel = serve(QUARREL, ContinuousScheduler(1), policy=Bully())
    true_pauses = sum(r.num_preemptions for r in quarrel.requests.values())
    pauses = require_number(got["pauses"], "pauses")
    if pauses != true_pauses:
        raise Wrong(
            f"pauses = {pauses:g}, and in that run it is another number. Count the triangles, or "
            "add up `num_preemptions` of the requests"
        )
    run = require_all_served(case, got["run"])
    picture = two_timelines(expected["run"], run)
    for name, record in run.requests.items():
        right = expected["run"].requests[name]
        if record.num_preemptions > len(case["requests"]):
            raise Wrong(
                f"{name} is paused {counted(record.num_preemptions, 'time')}: still a quarrel",
                picture,
            )
        late = record.token_times[0] - right.token_times[0]
        if late > 1e-9:
            raise Wrong(
                f"{name} waits {1e3 * late:.0f} ms longer for its first token than it must: a "
                "newcomer may still push somebody out",
                picture,
            )
    same_schedule(case, run, expected["run"])
    calm = sum(r.num_preemptions for r in run.requests.values())
    return (
        f"{true_pauses} pauses became {calm}, and every newcomer still has its first token at once."
    )


# -- 09.5: a watermark for two targets ----------------------------------------------------------


def crowd(seed: int) -> dict[str, Any]:
    """60 requests at 25 a second with little memory, and the two targets of this learner."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1 / 25, 60))
    prompts = rng.integers(100, 400, 60)
    answers = np.clip(rng.lognormal(np.log(160), 0.9, 60), 32, 900).astype(int)
    requests = numbered(arrivals, prompts, answers)
    case = {"what": "your crowd", "blocks": 360, "requests": requests}
    pauses, rate = outcome(case, 0.06)
    return case | {"pauses": pauses + 1, "tokens_per_s": int(0.985 * rate)}


def outcome(case: Case, watermark: float) -> tuple[int, float]:
    """Preemptions, and answer tokens per second."""
    summary = serve(case, ContinuousScheduler(64, watermark=watermark)).summary()
    return summary["num_preemptions"], summary["output_tokens_per_s"]


def judge_watermark(case: Case, got: Any, expected: Any) -> str:
    number = require_number(got, "watermark")
    if not 0 <= number < 1:
        raise Wrong(f"watermark = {number:g}: it is a share of the pool, at least 0 and below 1")
    pauses, rate = outcome(case, number)
    if pauses > case["pauses"]:
        raise Wrong(
            f"with a watermark of {number:g} there {'is' if pauses == 1 else 'are'} "
            f"{counted(pauses, 'pause')}, and at most "
            f"{case['pauses']} are wanted: newcomers take the room that the running grow into"
        )
    if rate < case["tokens_per_s"]:
        raise Wrong(
            f"with a watermark of {number:g} the server writes {rate:,.0f} tokens/s, and at least "
            f"{case['tokens_per_s']:,} are wanted: too much memory stands empty"
        )
    return f"{counted(pauses, 'pause')} at {rate:,.0f} tokens/s: both targets are met."


PARTS = [
    Part("09.1", "a victim that is not always the same", ("FairVictim",),
         run_victims, judge_victims, VICTIMS),
    Part("09.2", "what the pauses cost", ("tokens_again",),
         lambda case, tokens_again: tokens_again(run_of(case)),
         judge_again, AGAIN),
    prediction("09.3", "out and back", ("tokens_run", "swap_ms", "ratio"),
               patient, true_return, judge_return),
    Part("09.4", "the endless quarrel", ("pauses", "Calm"), run_calm, judge_calm, CALM,
         expects=("run",)),
    tuning("09.5", "a watermark for two targets", "watermark", crowd, judge_watermark),
]  # fmt: skip
