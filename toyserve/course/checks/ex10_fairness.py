"""What exercise 10 looks at: whose turn it is, and who pays for that."""

from __future__ import annotations

from typing import Any

import numpy as np

from toyserve.course.checks.colleague import ByPromise
from toyserve.course.checks.kinds import tuning
from toyserve.course.checks.numbers import exactly, require_number, slip
from toyserve.course.checks.part import Case, Part, Wrong
from toyserve.course.checks.pictures import one_timeline
from toyserve.course.checks.runs import lettered, require_all_served, same_schedule, serve
from toyserve.policies import FCFS, FairShare, Priority, ShortestFirst
from toyserve.request import Request
from toyserve.schedulers import ContinuousScheduler


def from_users(**users: tuple[int, int]) -> list[list[Any]]:
    """``ann=(3, 40)``: ann has three requests of 40 answer tokens; all at time 0, in turns."""
    most = max(num for num, _ in users.values())
    return [
        [f"{user}-{i + 1}", 0.0, 4, answer, {"user": user}]
        for i in range(most)
        for user, (num, answer) in users.items()
        if i < num
    ]


# -- 10.1: shares that are not equal ------------------------------------------------------------

WEIGHTS = [
    {"what": "one slot, ann counts double", "slots": 1, "weights": {"ann": 2},
     "requests": from_users(ann=(4, 6), bob=(4, 6))},
    {"what": "one slot, no weights at all", "slots": 1, "weights": {},
     "requests": from_users(ann=(2, 12), bob=(5, 4))},
    {"what": "two slots, three users, weights 3, 1 and 0.5", "slots": 2,
     "weights": {"ann": 3, "cy": 0.5},
     "requests": from_users(ann=(6, 9), bob=(5, 9), cy=(4, 9))},
]  # fmt: skip


def run_weights(case: Case, cls: Any) -> Any:
    return serve(case, ContinuousScheduler(case["slots"]), policy=cls(dict(case["weights"])))


def judge_weights(case: Case, got: Any, expected: Any) -> None:
    require_all_served(case, got)
    weights = case["weights"]
    unweighted = dict(case) | {"weights": {}}
    if weights and _order(got) == _order(run_weights(unweighted, lambda _: FCFS())) != _order(
        expected
    ):
        raise Wrong(
            "that is the order of first come, first served, as if nobody had a counter or a weight"
        )
    same_schedule(case, got, expected)


def _order(run: Any) -> list[str]:
    return [name for step in run.steps for name in step.admitted]


# -- 10.2: growing old --------------------------------------------------------------------------


def classes(*numbers: int, gap: float = 0.05, answer: int = 12) -> list[list[Any]]:
    """Requests A, B, … of these priority classes, ``gap`` seconds apart."""
    return lettered(((4, answer, {"priority": number}) for number in numbers), gap)


AGES = [
    {"what": "B is urgent and comes soon after A and C", "slots": 1, "aging": 10.0,
     "requests": classes(1, 1, 0, gap=0.02)},
    {"what": "a class is worth 0.1 s of waiting", "slots": 1, "aging": 0.1,
     "requests": classes(0, 2, 0, 0, 0, 0)},
    {"what": "eight of three classes, a class is worth 0.2 s", "slots": 2, "aging": 0.2,
     "requests": classes(2, 0, 1, 2, 0, 1, 0, 0, gap=0.03)},
]  # fmt: skip


AGED = {"aging": 30, "old": 3, "urgent": 1}  # what 10.2 asks about


def true_latest() -> int:
    """The first second in which whoever comes no longer gets ahead, by the library's own aging."""
    rule = Priority(AGED["aging"], displacing=False)
    old = Request("old", [1], priority=AGED["old"])
    for second in range(1000):
        urgent = Request("urgent", [1], arrival_time=second, priority=AGED["urgent"])
        if rule.next([old, urgent], second) is old:
            return second
    raise RuntimeError("it gets ahead for ever")


def run_ages(case: Case, latest: Any, cls: Any) -> Any:
    run = serve(case, ContinuousScheduler(case["slots"]), policy=cls(case["aging"]))
    return {"latest": latest, "run": run}


def judge_ages(case: Case, got: Any, expected: Any) -> str:
    exactly(got["latest"], true_latest(), "latest", (
        (AGED["aging"], "is what *one* class is worth. How many lie between the two?"),
        (AGED["aging"] * AGED["old"], "counts from class 0, but the urgent one is of a class, too"),
    ), otherwise="s is not the moment in which they stand level")  # fmt: skip
    run, right = require_all_served(case, got["run"]), expected["run"]
    strict = serve(case, ContinuousScheduler(case["slots"]), policy=Priority(1e9, displacing=False))
    if _order(run) == _order(strict) != _order(right):
        raise Wrong(
            f"whoever is of a lower class never grows old: with {case['aging']} s worth one class "
            "the order is another"
        )
    same_schedule(case, run, right)
    return (
        "That is the guarantee of aging: whoever comes later than that is behind, however urgent."
    )


# -- 10.3: who pays -----------------------------------------------------------------------------

POLICIES = {"fcfs": FCFS, "shortest_first": ShortestFirst, "fair_share": FairShare}


def office(seed: int, num: int = 14) -> dict[str, Any]:
    """Ann writes a few long answers, bob many short ones, cy one in between; two slots."""
    rng = np.random.default_rng(seed)
    rows: list[list[Any]] = []
    for user, count, low, high in (("ann", 4, 150, 220), ("bob", num, 10, 40), ("cy", 3, 50, 80)):
        for i in range(count):
            answer = int(rng.integers(low, high))
            arrival = round(float(rng.uniform(0, 0.6)), 3)
            rows.append([f"{user}-{i + 1}", arrival, 20, answer, {"user": user}])
    return {"slots": 2, "requests": sorted(rows, key=lambda row: row[1])}


PAYS = [
    {"what": "one request in one slot", "policy": "fcfs", "slots": 1,
     "requests": from_users(ann=(1, 5))},
    {"what": "bob's second request waits for all others", "policy": "fcfs", "slots": 1,
     "requests": from_users(ann=(1, 30), bob=(2, 5))},
    *({"what": f"the office under {name}", "policy": name, **office(3)} for name in POLICIES),
]  # fmt: skip


def office_run(case: Case) -> Any:
    """The run that a case of 10.3 is about."""
    return serve(case, ContinuousScheduler(case["slots"]), policy=POLICIES[case["policy"]]())


def judge_pays(case: Case, got: Any, expected: Any) -> None:
    if not isinstance(got, dict) or set(got) != set(expected):
        raise Wrong(f"it must return a dict with the users {', '.join(sorted(expected))} as keys")
    run = office_run(case)
    queued, everyone = dict.fromkeys(expected, 0.0), {user: [] for user in expected}  # type: ignore[var-annotated]
    for one in run.requests.values():
        queue = (one.first_scheduled_time or 0.0) - one.arrival_time
        queued[one.user] = max(queued[one.user], queue)
        everyone[one.user].append(one.token_times[0] - one.arrival_time)
    for user, right in sorted(expected.items()):
        number = require_number(got[user], f"the wait of {user}")
        if abs(number - right) > 1e-6 + 1e-3 * right:
            said = slip(number, (
                (queued[user], "is the time in the queue; the first token comes a prefill later"),
                (float(np.mean(everyone[user])), "is a mean; the longest is asked for"),
                (1e3 * right, "looks like milliseconds; seconds are asked for"),
            )) or "s is not the longest wait for a first token"  # fmt: skip
            raise Wrong(f"{user}: {number:.4g} {said}")


# -- 10.4: a fault in the books -----------------------------------------------------------------


def declaring(num: int, answer: int = 20, declared: int = 400) -> list[list[Any]]:
    """Dora declares the most she may need and needs little; eve declares exactly what she needs."""
    rows: list[list[Any]] = []
    for i in range(num):
        rows.append([f"dora-{i + 1}", 0.0, 4, answer, {"user": "dora", "max_tokens": declared}])
        rows.append([f"eve-{i + 1}", 0.0, 4, answer, {"user": "eve"}])
    return rows


BOOKS: dict[str, Any] = {
    "what": "two users who need the same, and declare differently", "slots": 2,
    "requests": declaring(10),
}  # fmt: skip
HONEST = [
    {"what": "three requests each, one slot", "slots": 1, "requests": declaring(3)},
    BOOKS,
]  # fmt: skip


def run_honest(case: Case, who: Any, cls: Any) -> Any:
    run = serve(case, ContinuousScheduler(case["slots"]), policy=cls())
    return {"pays": who, "run": run}


def judge_honest(case: Case, got: Any, expected: Any) -> str:
    promised = serve(BOOKS, ContinuousScheduler(BOOKS["slots"]), policy=ByPromise())
    if got["pays"] != max(("dora", "eve"), key=lambda user: _mean_wait(promised, user)):
        raise Wrong(
            f"`pays` is {got['pays']!r}. Whose rows in the picture are grey until the other one "
            "has nothing left to ask?"
        )
    run, right = require_all_served(case, got["run"]), expected["run"]
    for user in ("dora", "eve"):
        wait, fair = (_mean_wait(r, user) for r in (run, right))
        if wait > 1.15 * fair:
            raise Wrong(
                f"{user} waits {1e3 * wait:.0f} ms on average for a first token, and in fair turns "
                f"it is {1e3 * fair:.0f} ms",
                one_timeline(run, f"Yours: {user} waits"),
            )
    return "Charged is what was written, when it was written. Nobody pays for being careful."


def _mean_wait(run: Any, user: str) -> float:
    mine = [one for one in run.requests.values() if one.user == user]
    return sum(one.token_times[0] - one.arrival_time for one in mine) / len(mine)


# -- 10.5: what is a gold user worth ------------------------------------------------------------


def tiers(seed: int) -> dict[str, Any]:
    """Gold and free users on one server that is a little too small, and two targets."""
    rng = np.random.default_rng(seed)
    rows: list[list[Any]] = []
    for user, count in (("gold", 40), ("free", 40)):
        arrivals = np.sort(rng.uniform(0, 4, count))
        answers = np.clip(rng.lognormal(np.log(50), 0.6, count), 10, 200).astype(int)
        for i in range(count):
            arrival = round(float(arrivals[i]), 3)
            rows.append([f"{user}-{i}", arrival, 30, int(answers[i]), {"user": user}])
    rows.sort(key=lambda row: row[1])
    case = {"what": "your gold and free users", "slots": 4, "requests": rows}
    gold, free = p95_waits(case, 3)
    return case | {"gold_s": round(1.04 * gold, 2), "free_s": round(1.04 * free, 2)}


def p95_waits(case: Case, weight: float) -> tuple[float, float]:
    """p95 of TTFT in seconds, of gold and of free, when gold's share weighs so much."""
    run = serve(case, ContinuousScheduler(case["slots"]), policy=FairShare({"gold": weight}))
    waits: dict[str, list[float]] = {"gold": [], "free": []}
    for one in run.requests.values():
        waits[one.user].append(one.token_times[0] - one.arrival_time)
    gold, free = (float(np.percentile(waits[user], 95)) for user in ("gold", "free"))
    return gold, free


def judge_tiers(case: Case, got: Any, expected: Any) -> str:
    weight = require_number(got, "weight")
    if not 0 < weight < 1e6:
        raise Wrong(f"weight = {weight:g}: it must be above 0")
    gold, free = p95_waits(case, weight)
    if gold > case["gold_s"]:
        raise Wrong(
            f"with a weight of {weight:g} gold waits {gold:.2f} s (p95), and {case['gold_s']} s "
            "were promised"
        )
    if free > case["free_s"]:
        raise Wrong(
            f"with a weight of {weight:g} free waits {free:.2f} s (p95), and {case['free_s']} s is "
            "the most that the law allows"
        )
    return f"gold {gold:.2f} s, free {free:.2f} s: both targets are met."


PARTS = [
    Part("10.1", "shares that are not equal", ("WeightedShare",),
         run_weights, judge_weights, WEIGHTS),
    Part("10.2", "growing old", ("latest", "Aging"), run_ages, judge_ages, AGES, expects=("run",)),
    Part("10.3", "who pays", ("longest_waits",),
         lambda case, longest_waits: longest_waits(office_run(case)), judge_pays, PAYS),
    Part("10.4", "a fault in the books", ("pays", "Honest"), run_honest, judge_honest, HONEST,
         expects=("run",)),
    tuning("10.5", "what is a gold user worth", "weight", tiers, judge_tiers),
]  # fmt: skip
