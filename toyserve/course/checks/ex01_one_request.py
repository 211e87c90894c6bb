"""What exercise 01 looks at: one request at a time, who waits for whom, and what a report says."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from toyserve.costs import cost_model
from toyserve.course.checks.kinds import prediction
from toyserve.course.checks.numbers import close, require_number, slip
from toyserve.course.checks.part import Case, Part, Picture, Wrong
from toyserve.course.checks.pictures import (
    by_second,
    draw_seconds,
    one_timeline,
    two_timelines,
)
from toyserve.course.checks.runs import require_all_served, same_schedule, serve
from toyserve.metrics import percentile
from toyserve.recording import Recording
from toyserve.schedulers import SequentialScheduler

# -- 01.1: an express lane ----------------------------------------------------------------------


def lane(prompts: Sequence[int], gap: float = 0.0) -> list[list[Any]]:
    """Requests A, B, … with these prompts, so many seconds apart; answers of 3 to 5 tokens."""
    return [[chr(65 + i), round(gap * i, 4), p, 3 + i % 3] for i, p in enumerate(prompts)]


LANES = [
    {"what": "one request", "express": 20, "in_a_row": 2, "requests": lane([8])},
    {"what": "one long prompt and one short one", "express": 20, "in_a_row": 2,
     "requests": lane([300, 8])},
    {"what": "prompts of 300, 20, 21 and 8 tokens, express = 20", "express": 20, "in_a_row": 2,
     "requests": lane([300, 20, 21, 8])},
    {"what": "two long prompts and five short ones, in_a_row = 2", "express": 20, "in_a_row": 2,
     "requests": lane([300, 200, 8, 9, 10, 11, 12])},
    {"what": "a long prompt that comes behind three short ones", "express": 20, "in_a_row": 1,
     "requests": lane([8, 9, 10, 400, 11, 12], gap=0.01)},
]  # fmt: skip


def run_lanes(case: Case, cls: Any) -> Any:
    scheduler = cls(max_running=1)
    scheduler.express, scheduler.in_a_row = case["express"], case["in_a_row"]
    return serve(case, scheduler)


def judge_lanes(case: Case, got: Any, expected: Any) -> None:
    require_all_served(case, got)
    for number, step in enumerate(got.steps, 1):
        if len(step.num_scheduled_tokens) > 1:
            text = f"step {number} runs {len(step.num_scheduled_tokens)} requests at a time"
            raise Wrong(text, two_timelines(expected, got))
    mine, right = (
        [name for step in run.steps for name in step.admitted] for run in (got, expected)
    )
    prompt = {name: tokens for name, _, tokens, _ in case["requests"]}
    for name, due in zip(mine, right, strict=False):
        if name != due:
            hasty, quick = (prompt[who] <= case["express"] for who in (name, due))
            if quick and not hasty:
                why = f"{due}, with {prompt[due]} tokens, waits in the express lane"
            elif hasty and not quick:
                why = f"{due} waits with a long prompt, and in_a_row is {case['in_a_row']}"
            else:
                why = f"{due} came earlier, in the same lane"
            text = f"{name} ({prompt[name]} tokens of prompt) is let in although {why}"
            raise Wrong(text, two_timelines(expected, got))
    same_schedule(case, got, expected)


# -- 01.2: a percentile that counts those who left ----------------------------------------------

GONE = [
    {"what": "one user, p50", "waits": [0.2], "q": 50},
    {"what": "four users, p50", "waits": [0.4, 0.1, 0.3, 0.2], "q": 50},
    {"what": "ten users, p90", "waits": [0.1 * i for i in (4, 9, 1, 7, 12, 3, 2, 8, 6, 5)],
     "q": 90},
    {"what": "five users, two of whom left, p50", "waits": [None, 0.1, 0.3, 0.2, None], "q": 50},
    {"what": "four users, two of whom left, p75", "waits": [None, 0.1, 0.3, None], "q": 75},
]  # fmt: skip


def judge_tail(case: Case, got: Any, expected: Any) -> None:
    waits, q = case["waits"], case["q"]
    stayed = sorted(w for w in waits if w is not None)
    left = len(waits) - len(stayed)
    if got is None and expected is None:
        return
    if expected is None:
        number = require_number(got, "the p" + str(q))
        raise Wrong(
            f"{number:g} s: {left} of {len(waits)} users left without a token, so no time at all "
            f"covers {q} % of them. That is None"
        )
    if got is None:
        raise Wrong(f"None: but {len(stayed)} of {len(waits)} users got a token, that is {q} %")
    number = require_number(got, "the p" + str(q))
    if abs(number - expected) < 1e-9:
        return
    if left and abs(number - stayed[max(0, _rank(q, len(stayed)) - 1)]) < 1e-9:
        raise Wrong(f"{number:g} s is the p{q} of those who stayed; the {left} who left count, too")
    if min(abs(number - wait) for wait in stayed) > 1e-9:
        raise Wrong(f"{number:g} s: nobody waited for exactly that. No mean of two is asked for")
    covered = sum(wait <= number for wait in stayed)
    way = "and a shorter time would do" if number > expected else f"and {q} % are asked for"
    raise Wrong(f"{number:g} s covers {covered} of {len(waits)} users, {way}")


def _rank(q: int, num: int) -> int:
    return -(-q * num // 100)


# -- 01.3: what a chat costs --------------------------------------------------------------------


def chat(seed: int) -> dict[str, Any]:
    """Three turns, each with a question and an answer in tokens; the first brings a document."""
    rng = np.random.default_rng(seed)
    turns = [[int(rng.integers(4000, 6000)), int(rng.integers(60, 120))]]
    turns += [[int(rng.integers(10, 40)), int(rng.integers(60, 200))] for _ in range(2)]
    return {"what": "your chat of three turns", "turns": turns}


def true_chat(case: Case) -> dict[str, float]:
    """Counted one run of the model after the other."""
    forgetful = per_answer = said = 0
    for question, answer in case["turns"]:
        said += question
        forgetful += sum(range(said, said + answer))
        per_answer += said + answer - 1
        said += answer
    question, answer = case["turns"][-1]
    prompt, cost = said - answer, cost_model("h100", "llama-3-8b")
    kept = cost.prefill_time(question + 1, context_len=prompt - question - 1)
    return {"forgetful": forgetful, "per_answer": per_answer, "whole_chat": said - 1,
            "faster": cost.prefill_time(prompt) / kept}  # fmt: skip


def judge_chat(case: Case, got: Any, expected: Any) -> str:
    numbers = {name: require_number(got[name], name) for name in expected}
    total, turns = sum(q + a for q, a in case["turns"]), len(case["turns"])
    hints = {
        ("whole_chat", total): "counts the very last token: it is written, and nobody reads it",
        ("whole_chat", total - turns): (
            "forgets a token per turn: the last token of an answer was written and not yet read "
            "when the turn ended, so the next turn has to read it"),
        ("per_answer", expected["per_answer"] + turns): (
            "counts the last token of each answer: the turn ends before the model reads it"),
        ("per_answer", expected["whole_chat"]): (
            "keeps the notes from turn to turn; here they are thrown away after each answer"),
        ("forgetful", expected["per_answer"]): (
            "uses notes: without any, each token of an answer costs a run over everything so far"),
    }  # fmt: skip
    for name in ("forgetful", "per_answer", "whole_chat"):
        number = numbers[name]
        if number != expected[name]:
            way = "too many" if number > expected[name] else "too few"
            say = hints.get((name, int(number)), f"is {way}. Try turns of 2 + 2 tokens on paper")
            raise Wrong(f"`{name}` = {number:,.0f} {say}")
    if numbers["faster"] < 1:
        raise Wrong(
            f"`faster` = {numbers['faster']:g}: the time without notes over the one with them"
        )
    close(numbers["faster"], expected["faster"], "`faster` (time without notes over time with)")
    return (
        f"{numbers['forgetful']:,.0f}, {numbers['per_answer']:,.0f}, {numbers['whole_chat']:,.0f} "
        f"positions; and the third turn's first token comes {numbers['faster']:.0f} × sooner."
    )


# -- 01.4: the best order, and who pays for it --------------------------------------------------


def desk(seed: int) -> dict[str, Any]:
    """Five people who all arrive at time 0, in this order."""
    rng = np.random.default_rng(seed)
    sizes = [(60, 90), (3000, 45), (4000, 8), (900, 12), (20, 20)]
    rows = [sizes[0], *(sizes[i] for i in rng.permutation(4) + 1)]
    names = rng.permutation(["Ann", "Bo", "Cy", "Dee", "Eli"])
    stretch = rng.uniform(0.95, 1.05, 5)
    requests = [[str(name), 0.0, int(p * s), a]
                for name, (p, a), s in zip(names, rows, stretch, strict=True)]  # fmt: skip
    return {"what": "your five people at one desk", "requests": requests}


def one_by_one(case: Case, order: Sequence[str]) -> Recording:
    """The run in which these people are served in this order, one at a time."""
    by_name = {request[0]: request for request in case["requests"]}
    if sorted(order) != sorted(by_name):
        raise ValueError(f"{order!r} is no order of {', '.join(by_name)}: each of them once")
    return serve({**case, "requests": [by_name[name] for name in order]}, SequentialScheduler())


def waits_of(run: Recording) -> dict[str, float]:
    """Everybody's TTFT in seconds."""
    return {name: record.token_times[0] - record.arrival_time
            for name, record in run.requests.items()}  # fmt: skip


def true_order(case: Case) -> dict[str, Any]:
    arrival = [request[0] for request in case["requests"]]
    alone = {who: one_by_one({**case, "requests": [who_row]}, [who]).steps[-1].end_time
             for who, who_row in zip(arrival, case["requests"], strict=True)}  # fmt: skip
    best = sorted(arrival, key=lambda who: alone[who])
    before, after = (waits_of(one_by_one(case, order)) for order in (arrival, best))
    return {"mean": sum(after.values()) / len(after), "before": before, "alone": alone}


def judge_order(case: Case, got: Any, expected: Any) -> str:
    size = {name: (prompt, answer) for name, _, prompt, answer in case["requests"]}
    order = list(got["order"])
    if sorted(map(str, order)) != sorted(size):
        raise Wrong(f"`order` is {got['order']!r}: it must name each of {', '.join(size)} once")
    waits = waits_of(one_by_one(case, order))
    mean, before = sum(waits.values()) / len(waits), expected["before"]
    if mean > expected["mean"] * (1 + 1e-9):
        rules = {
            "the order in which they came": list(size),
            "the shortest prompt first": sorted(size, key=lambda who: size[who][0]),
            "the shortest answer first": sorted(size, key=lambda who: size[who][1]),
            "the fewest tokens first": sorted(size, key=lambda who: sum(size[who])),
        }
        rule = next((words for words, by in rules.items() if by == order), "in this order")
        raise Wrong(
            f"{rule}: the mean TTFT is {1e3 * mean:.0f} ms, and {1e3 * expected['mean']:.0f} "
            "ms are possible. For how long does each of them keep the desk?",
            _served(case, order, f"Yours: mean TTFT {1e3 * mean:.0f} ms"),
        )
    longer = {who: waits[who] - before[who] for who in size}
    if got["pays"] not in size or longer[got["pays"]] < 0.99 * max(longer.values()):
        raise Wrong(
            f"`pays` is {got['pays']!r}. Whose TTFT grows by the most seconds from the order of "
            "arrival to yours?"
        )
    gain = require_number(got["gain"], "gain")
    if gain < 1:
        raise Wrong(f"`gain` = {gain:g} is upside down: the mean before over the mean after")
    close(gain, sum(before.values()) / len(before) / mean, "`gain` (mean before over mean after)")
    return f"The mean falls {gain:.1f} ×, {got['pays']} pays for it, and all end at the same time."


def _served(case: Case, order: Sequence[str], title: str) -> Picture:
    return one_timeline(one_by_one(case, order), title, by="request", x="time")


# -- 01.5: a fault, found from its picture ------------------------------------------------------


def shift(counts: Sequence[int], answer: int = 6) -> list[list[Any]]:
    """So many requests in second 0, 1, 2, …, evenly spread."""
    return [[f"s{second}-{i}", round(second + i / num, 4), 12, answer]
            for second, num in enumerate(counts) for i in range(num)]  # fmt: skip


DAY: dict[str, Any] = {"what": "eight seconds with one rush",
                       "requests": shift([3, 4, 3, 48, 3, 4, 2, 3])}  # fmt: skip
DAYS = [
    {"what": "two users, one second", "requests": shift([2])},
    {"what": "two seconds, one with a rush", "requests": shift([2, 40])},
    DAY,
]  # fmt: skip


def judge_day(case: Case, got: Any, expected: Any) -> str:
    users = Counter(math.floor(arrival) for _, arrival, *_ in DAY["requests"])
    second = require_number(got["rush"], "rush")
    if second != users.most_common(1)[0][0]:
        raise Wrong(f"`rush` is {second:g}. Over which bar of the picture stand the most users?")
    number, right = require_number(got["p95"], "the p95"), expected["p95"]
    if abs(number - right) <= 1e-3 * right:
        return f"{number:.2f} s: a percentile is taken once, of all users together."
    records = list(serve(case, SequentialScheduler()).requests.values())
    seconds = by_second(records)
    each = [percentile(waits, 95) for waits in seconds.values()]
    queued = [(r.first_scheduled_time or 0.0) - r.arrival_time for r in records]
    mistakes = (
        (float(np.mean(each)), "is still the mean of the seconds, and each counts as much"),
        (float(np.average(each, weights=[len(w) for w in seconds.values()])),
         "weights each second by its users, and is still no percentile of anything"),
        (max(each), "is the p95 of the worst second only"),
        (percentile(queued, 95), "is the time in the queue; the first token comes a prefill later"),
        (1e3 * right, "looks like milliseconds; seconds are asked for"),
    )  # fmt: skip
    said = slip(number, mistakes) or "is not what 95 of 100 users stay below"
    lines = {"yours": number, "all users": right}
    raise Wrong(f"{number:.3f} s {said}", lambda: draw_seconds(records, lines))


def run_day(case: Case, rush: Any, day_p95: Any) -> dict[str, Any]:
    return {"rush": rush,
            "p95": day_p95(list(serve(case, SequentialScheduler()).requests.values()))}  # fmt: skip


PARTS = [
    Part("01.1", "an express lane", ("ExpressLane",), run_lanes, judge_lanes, LANES),
    Part("01.2", "those who left", ("tail",),
         lambda case, tail: tail(list(case["waits"]), case["q"]), judge_tail, GONE),
    prediction("01.3", "what a chat costs", ("forgetful", "per_answer", "whole_chat", "faster"),
               chat, true_chat, judge_chat),
    prediction("01.4", "the best order, and who pays", ("order", "pays", "gain"),
               desk, true_order, judge_order),
    Part("01.5", "a report that is all green", ("rush", "day_p95"), run_day, judge_day, DAYS,
         expects=("p95",)),
]  # fmt: skip
