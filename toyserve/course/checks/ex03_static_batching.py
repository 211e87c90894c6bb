"""What exercise 03 looks at: holes in a batch, who shares one, and numbers that count holes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from toyserve.course.checks.colleague import dashboard
from toyserve.course.checks.kinds import prediction, tuning
from toyserve.course.checks.numbers import close, exactly, require_number
from toyserve.course.checks.part import Case, Part, Picture, Wrong
from toyserve.course.checks.pictures import board_picture, one_timeline, two_timelines
from toyserve.course.checks.runs import (
    engine_of,
    lettered,
    require_all_served,
    same_schedule,
    serve,
    workload_of,
)
from toyserve.recording import Recording, StepRecord
from toyserve.schedulers import SequentialScheduler, StaticScheduler
from toyserve.workload import Lengths, poisson


def rows_of(answers: Sequence[int], prompts: Sequence[int] | int = 16) -> list[list[Any]]:
    """Requests A, B, … that are all there at time 0."""
    lens = [prompts] * len(answers) if isinstance(prompts, int) else prompts
    return lettered(zip(lens, answers, strict=True))


# -- 03.1: ten in a queue, four rows ------------------------------------------------------------


def ten(seed: int) -> dict[str, Any]:
    """The learner's own queue of ten, in the order in which they are let in."""
    rng = np.random.default_rng(seed)
    answers = [int(n) for n in np.clip(rng.lognormal(3.2, 0.8, 10), 5, 120)]
    return {"what": "your queue of ten", "rows": 4, "requests": rows_of(answers)}


def true_ten(case: Case) -> dict[str, float]:
    batch = serve(case, StaticScheduler(case["rows"]))
    alone = serve(case, SequentialScheduler())
    places = case["rows"] * batch.num_steps
    last = [n for n, step in enumerate(batch.steps, 1) if step.admitted][-1]
    answers = sum(len(r.token_ids) for r in batch.requests.values())
    return {
        "steps": batch.num_steps,
        "last_starts": last,
        "wasted": 1 - answers / places,
        "faster": alone.steps[-1].end_time / batch.steps[-1].end_time,
    }


def judge_ten(case: Case, got: Any, expected: Any) -> str:
    answers, size = [r[3] for r in case["requests"]], case["rows"]
    exactly(
        got["steps"],
        expected["steps"],
        "steps",
        (
            (sum(answers), "is one request at a time"),
            (
                max(answers),
                "is the first to the last step of one batch; ten do not fit into four rows",
            ),
            (-(-sum(answers) // size), "would need a batch without a hole"),
        ),
        otherwise="is another number: write down for each of the three batches who is longest",
    )
    exactly(got["last_starts"], expected["last_starts"], "last_starts", (
        (expected["last_starts"] - 1, "is the step in which the batch before it ends"),
    ), otherwise="is not it: nobody enters before the batch before is over")  # fmt: skip
    taken = sum(a * b for a, b in _batches(answers, size))
    close(got["wasted"], expected["wasted"], "wasted", (
        (100 * expected["wasted"], "looks like per cent; a share between 0 and 1 is wanted"),
        (1 - sum(answers) / taken,
         "leaves out the two rows that nobody takes in the third batch"),
    ), near=5e-3)  # fmt: skip
    close(got["faster"], expected["faster"], "`faster` (one at a time over the batch)")
    return f"{expected['wasted']:.0%} wasted, and still {expected['faster']:.2f} × as fast."


def _batches(answers: Sequence[int], size: int) -> list[tuple[int, int]]:
    """(rows taken, steps) of each batch, first come, first served."""
    parts = [answers[i : i + size] for i in range(0, len(answers), size)]
    return [(len(part), max(part)) for part in parts]


# -- 03.2: who should share a batch -------------------------------------------------------------

GROUPS = [
    {"what": "one request", "rows": 4, "requests": rows_of([7])},
    {"what": "four requests, two rows", "rows": 2, "requests": rows_of([30, 3, 28, 4])},
    {"what": "three requests, two rows", "rows": 2, "requests": rows_of([10, 20, 30])},
    {"what": "nine requests, four rows", "rows": 4,
     "requests": rows_of([40, 6, 12, 35, 38, 5, 11, 37, 8])},
]  # fmt: skip


def in_batches(case: Case, groups: Sequence[Sequence[str]]) -> Recording:
    """Run the groups one after another in a real engine, each as one static batch."""
    workload = workload_of(case)
    engine = engine_of(case, StaticScheduler(case["rows"]), workload.output_lens)
    requests = {r.request_id: r for r in workload.requests_for_engine()}
    for group in groups:
        for name in group:
            engine.add_request(requests[name])
        while engine.has_unfinished:
            engine.step()
    return engine.recording


def answers_of(case: Case) -> dict[str, int]:
    """Request → tokens of its answer."""
    return {name: answer for name, _, _, answer in case["requests"]}


def judge_groups(case: Case, got: Any, expected: Any) -> None:
    answers = answers_of(case)
    if not isinstance(got, list) or not all(isinstance(group, list) for group in got):
        raise Wrong("it must return a list of lists of names, one list per batch")
    names = [name for group in got for name in group]
    for name in names:
        if name not in answers:
            raise Wrong(f"{name!r} is in a batch, and there is no such request")
    for name in answers:
        if names.count(name) != 1:
            raise Wrong(f"{name} is in {names.count(name)} batches, and must be in one")
    too_large = [group for group in got if len(group) > case["rows"]]
    if too_large:
        raise Wrong(f"a batch of {len(too_large[0])}, and there are {case['rows']} rows")
    if not all(got):
        raise Wrong("one of your batches is empty")
    mine, best = (_num_steps(groups, answers) for groups in (got, expected))
    if mine <= best:
        return
    upwards = _num_steps(_chunks(sorted(answers, key=lambda n: answers[n]), case["rows"]), answers)
    hint = ""
    if mine == upwards:
        hint = (
            ". Of the same kind is the right word; but one batch has a row too few, and whose "
            "batch that is makes a difference"
        )
    raise Wrong(
        f"your batches take {mine} steps, and {mine - best} fewer are enough{hint}",
        one_timeline(in_batches(case, got), f"Your batches: {mine} steps"),
    )


def _num_steps(groups: Sequence[Sequence[str]], answers: dict[str, int]) -> int:
    return sum(max(answers[name] for name in group) for group in groups)


def _chunks(names: list[str], size: int) -> list[list[str]]:
    return [names[i : i + size] for i in range(0, len(names), size)]


# -- 03.3: prompts of similar length ------------------------------------------------------------

ALIKE = [
    {"what": "one request", "rows": 4, "requests": rows_of([4], [10])},
    {"what": "three of one length", "rows": 2, "requests": rows_of([4, 2, 3], 10)},
    {"what": "two questions and a document between them", "rows": 4,
     "requests": rows_of([4, 2, 3], [10, 90, 12])},
    {"what": "prompts of 20, 40 and 10", "rows": 3, "requests": rows_of([4, 2, 3], [20, 40, 10])},
    {"what": "eight of two kinds, four rows", "rows": 4,
     "requests": rows_of([9, 4, 6, 2, 5, 8, 3, 7], [10, 80, 12, 19, 70, 11, 100, 20])},
]  # fmt: skip


def judge_alike(case: Case, got: Any, expected: Any) -> None:
    require_all_served(case, got)
    prompts = {name: prompt for name, _, prompt, _ in case["requests"]}
    picture = two_timelines(expected, got)
    starts = [[(n, s) for n, s in enumerate(run.steps, 1) if s.admitted] for run in (got, expected)]
    for (number, step), (_, right) in zip(*starts, strict=False):
        inside = sorted(step.admitted, key=lambda n: prompts[n])
        short, long = inside[0], inside[-1]
        if prompts[long] > 2 * prompts[short]:
            raise Wrong(
                f"the batch of step {number} holds {short} with a prompt of {prompts[short]} "
                f"tokens and {long} with {prompts[long]}: {short} is padded to more than twice "
                "its length",
                picture,
            )
        out = [name for name in right.admitted if name not in step.admitted]
        if out:
            raise Wrong(
                f"{out[0]}, with a prompt of {prompts[out[0]]} tokens, would fit into the batch "
                f"of step {number}, and is left outside",
                picture,
            )
        _require_rectangle(number, step, prompts, picture)
    same_schedule(case, got, expected)


def _require_rectangle(
    number: int, step: StepRecord, prompts: dict[str, int], picture: Picture
) -> None:
    longest = max(prompts[name] for name in step.admitted)
    for name in step.admitted:
        lack = longest - prompts[name] - step.num_padded_tokens.get(name, 0)
        if lack:
            raise Wrong(
                f"in step {number} the longest prompt has {longest} tokens, and the row of {name} "
                f"is {abs(lack)} too {'short' if lack > 0 else 'long'}: pad it",
                picture,
            )


# -- 03.4: a number that is too good ------------------------------------------------------------


def board(seed: int) -> dict[str, Any]:
    """The learner's own batch of four, as the colleague's dashboard shows it."""
    rng = np.random.default_rng(seed)
    answers = [int(n) for n in rng.permutation([3, 8, 14, 20]) + rng.integers(0, 4, 4)]
    prompts = [int(n) for n in rng.integers(2, 7, 4)]
    return {"what": "your run", "rows": 4, "requests": rows_of(answers, prompts)}


BOARDS: list[dict[str, Any]] = [
    {"what": "one request alone", "rows": 1, "requests": rows_of([5], 9)},
    {"what": "two batches of two", "rows": 2, "requests": rows_of([5, 2, 3, 6], [9, 4, 3, 3])},
]


def run_of(case: Case) -> Recording:
    """The run that a case of 03.4 is about."""
    return serve(case, StaticScheduler(case["rows"]))


def true_board(case: Case) -> dict[str, Any]:
    run = run_of(case)
    times = [t for r in run.requests.values() for t in r.token_times]
    tokens = [times.count(step.end_time) for step in run.steps]
    return {"written": tokens, "too_many": sum(dashboard(run)) - len(times)}


def judge_board(case: Case, got: Any, expected: Any) -> str | None:
    run = run_of(case)
    if case["what"] == "your run":
        empty = sum(sum(s.num_padded_tokens.values()) for s in run.steps if not s.admitted)
        prompts = sum(r.num_prompt_tokens for r in run.requests.values())
        right, num = expected["too_many"], len(run.requests)
        exactly(got["too_many"], right, "too_many", (
            (empty, "is the empty rows. And the peak of step 1?"),
            (right + num, "is too many: step 1 does write one token for each of the four"),
            (right - prompts + num, "is all padding; is a prompt an answer?"),
        ), otherwise="is not what the dashboard counts, less what was written")  # fmt: skip
    written = got["written"]
    if not isinstance(written, list) or len(written) != run.num_steps:
        raise Wrong(f"written(run) must be a list of {run.num_steps} numbers, one per step")
    for step, (mine, right) in enumerate(zip(written, expected["written"], strict=True), 1):
        number = require_number(mine, f"written(run) in step {step}")
        if number != right:
            raise Wrong(
                f"in step {step} written(run) has {number:g}, and the users got {right}",
                lambda: board_picture(run),
            )
    if case["what"] != "your run":
        return None
    return f"The dashboard claims {sum(dashboard(run))} tokens; the users got {sum(written)}."


# -- 03.5: how long to wait for company ---------------------------------------------------------


def quiet(seed: int) -> dict[str, Any]:
    """200 requests at 8 a second, and this learner's two targets."""
    wait = float(np.random.default_rng(seed).uniform(0.12, 0.3))
    lengths = Lengths(16, 128, 4, 64, output_median=16)
    work = poisson(200, rate=8, seed=seed, lengths=lengths)
    rows = [
        [r.request_id, round(r.arrival_time, 3), r.num_prompt_tokens, r.output_len]
        for r in work.requests
    ]
    case = {"what": "your quiet server", "rows": 8, "requests": rows}
    busy, late = outcome(case, wait)
    return case | {"busy_s": round(1.04 * busy, 2), "ttft_ms": round(1.06 * late)}


def outcome(case: Case, wait: float) -> tuple[float, float]:
    """GPU seconds per 1000 answer tokens, and the median TTFT in ms."""
    run = serve(case, StaticScheduler(case["rows"], max_wait=wait))
    busy = sum(s.end_time - s.start_time for s in run.steps)
    summary = run.summary()
    return 1e3 * busy / summary["output_tokens"], summary["ttft_ms"]["p50"]


def judge_wait(case: Case, got: Any, expected: Any) -> str:
    wait = require_number(got, "max_wait")
    if not 0 <= wait < 1e6:
        raise Wrong(f"max_wait = {wait:g}: it is a time in seconds, 0 or more")
    if wait > 20:
        raise Wrong(f"max_wait = {wait:g} is in seconds: nobody waits as long for a bus")
    busy, late = outcome(case, wait)
    if busy > case["busy_s"]:
        raise Wrong(
            f"with max_wait = {wait:g} the GPU works {busy:.2f} s for 1000 tokens, and "
            f"{case['busy_s']} s are allowed: the batches are too small"
        )
    if late > case["ttft_ms"]:
        raise Wrong(
            f"with max_wait = {wait:g} the median user waits {late:.0f} ms for a first token, and "
            f"{case['ttft_ms']} ms are allowed"
        )
    return f"{busy:.2f} GPU s per 1000 tokens, {late:.0f} ms: both targets are met."


PARTS = [
    prediction("03.1", "ten in a queue, four rows", ("steps", "last_starts", "wasted", "faster"),
               ten, true_ten, judge_ten),
    Part("03.2", "who should share a batch", ("groups",),
         lambda case, groups: groups(answers_of(case), case["rows"]), judge_groups, GROUPS),
    Part("03.3", "prompts of similar length", ("Alike",),
         lambda case, cls: serve(case, cls(case["rows"])), judge_alike, ALIKE),
    Part("03.4", "a number that is too good", ("too_many", "written"),
         lambda case, too_many, written: {"too_many": too_many, "written": written(run_of(case))},
         judge_board, lambda seed: [*BOARDS, board(seed)], truth=true_board),
    tuning("03.5", "how long to wait for company", "max_wait", quiet, judge_wait),
]  # fmt: skip
