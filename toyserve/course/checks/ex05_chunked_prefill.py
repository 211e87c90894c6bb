"""What exercise 05 looks at: how prompts are cut, and who waits for whom meanwhile."""

from __future__ import annotations

from typing import Any

import numpy as np

from toyserve.costs import cost_model
from toyserve.course.checks.colleague import WholeChunks
from toyserve.course.checks.kinds import prediction, tuning
from toyserve.course.checks.numbers import close, exactly, require_number, require_whole
from toyserve.course.checks.part import Case, Part, Wrong
from toyserve.course.checks.pictures import two_timelines
from toyserve.course.checks.runs import lettered, numbered, require_all_served, same_schedule, serve
from toyserve.course.checks.streams import prompt_pieces, require_budget
from toyserve.metrics import itl, ttft
from toyserve.schedulers import ChunkedScheduler, ContinuousScheduler

MODEL = "llama-3.1-8b"


def together(*pairs: tuple[int, int]) -> list[list[Any]]:
    """Requests A, B, … that all arrive at time 0, each with (prompt, answer) tokens."""
    return lettered(pairs)


# -- 05.1: at most so many prompts at once ------------------------------------------------------

FEW = [
    {"what": "one prompt of 10 tokens, budget 4",
     "slots": 2, "budget": 4, "prompts": 1, "requests": together((10, 2))},
    {"what": "two prompts that would both fit, max_prompts = 1",
     "slots": 4, "budget": 20, "prompts": 1, "requests": together((6, 4), (6, 4))},
    {"what": "a long prompt and four short ones, max_prompts = 2",
     "slots": 5, "budget": 12, "prompts": 2,
     "requests": together((30, 3), (5, 6), (4, 6), (9, 3), (3, 3))},
    {"what": "max_prompts = 9: only slots and budget limit",
     "slots": 3, "budget": 16, "prompts": 9,
     "requests": together((5, 8), (14, 3), (5, 4), (20, 2))},
    {"what": "memory for one of two, max_prompts = 2",
     "slots": 3, "budget": 16, "prompts": 2, "blocks": 4,
     "requests": together((40, 6), (20, 4), (5, 4))},
]  # fmt: skip


def run_few(case: Case, cls: Any) -> Any:
    scheduler = cls(case["slots"], token_budget=case["budget"])
    scheduler.max_prompts = case["prompts"]
    return serve(case, scheduler)


def judge_few(case: Case, got: Any, expected: Any) -> None:
    require_all_served(case, got)
    for number, _, pieces in prompt_pieces(got):
        if len(pieces) > case["prompts"]:
            raise Wrong(
                f"step {number} reads from {len(pieces)} prompts ({', '.join(pieces)}), and "
                f"max_prompts is {case['prompts']}",
                two_timelines(expected, got),
            )
    require_budget(case, got, expected)
    same_schedule(case, got, expected)


# -- 05.2: the pieces of a prompt ---------------------------------------------------------------


def late_prompt(seed: int) -> dict[str, Any]:
    """The learner's own: five streams that end at different times, and G's prompt beside them."""
    rng = np.random.default_rng(seed)
    budget = int(rng.integers(9, 16)) * 64
    early = rng.choice(range(2, 8), 3, replace=False)  # these end while G's prompt is read
    answers = rng.permutation([*early, 40, 60])
    streams = [[chr(65 + i), 0.0, 1, int(n)] for i, n in enumerate(answers)]
    prompt = int(rng.integers(6 * budget + 30, 7 * budget - 60))
    return {"what": "your five streams and G", "slots": 6, "budget": budget, "model": MODEL,
            "requests": [*streams, ["G", 1e-6, prompt, 8]]}  # fmt: skip


def true_pieces(case: Case) -> dict[str, Any]:
    cut = serve(case, ChunkedScheduler(case["slots"], token_budget=case["budget"]))
    whole = serve(case, ContinuousScheduler(case["slots"]))
    longest = [max(g for n, r in run.requests.items() if n != "G" for g in itl(r))
               for run in (cut, whole)]  # fmt: skip
    first = [ttft(run.requests["G"]) or 0.0 for run in (cut, whole)]
    sizes = [pieces["G"][0] for *_, pieces in prompt_pieces(cut) if "G" in pieces]
    return {"chunks": sizes, "calmer": longest[1] / longest[0], "later": first[0] / first[1]}


def judge_pieces(case: Case, got: Any, expected: Any) -> str:
    chunks, right = got["chunks"], expected["chunks"]
    if not isinstance(chunks, list) or not chunks:
        raise Wrong(f"`chunks` must be a list of numbers, one per step; yours is {chunks!r}")
    sizes = [require_number(n, "each of `chunks`") for n in chunks]
    budget, prompt = case["budget"], case["requests"][-1][2]
    if sizes != right:
        raise Wrong(_wrong_pieces(sizes, right, budget, prompt))
    close(got["calmer"], expected["calmer"], "`calmer` (longest gap whole over chunked)", rel=0.02)
    close(got["later"], expected["later"], "`later` (G's TTFT chunked over whole)", rel=0.02)
    return (
        f"The longest gap is {expected['calmer']:.1f} × shorter, and G pays with a first token "
        f"{expected['later']:.2f} × as late."
    )


def _wrong_pieces(sizes: list[float], right: list[int], budget: int, prompt: int) -> str:
    if sizes[0] == budget:
        return f"your first chunk is {budget}, the whole budget: who else is in that step?"
    if sizes[:-1] == right[:-1]:
        return f"your last chunk is {sizes[-1]:g}. How much of the prompt is left by then?"
    if len(set(sizes[:-1])) == 1:
        return (
            "all your chunks but the last are equal; but streams end while the prompt is read, "
            "and leave their token of the budget to G"
        )
    if sum(sizes) != prompt:
        return f"your chunks add up to {sum(sizes):g}, and the prompt has {prompt} tokens"
    first = next(i for i, (a, b) in enumerate(zip(sizes, right, strict=False)) if a != b)
    step = first + 2
    return (
        f"your chunk in step {step} is {sizes[first]:g}. An answer of n tokens gets one "
        f"in each of the steps 1 to n: how many of the streams are in step {step}?"
    )


# -- 05.3: a budget in milliseconds -------------------------------------------------------------

PROMISE = [
    {"what": "no stream beside it, all that is left fits", "streams": [], "done": 0, "left": 100,
     "limit_ms": 25.0},
    {"what": "no stream beside it, 25 ms", "streams": [], "done": 0, "left": 3000,
     "limit_ms": 25.0},
    {"what": "40 streams, 20 ms", "streams": [900] * 40, "done": 0, "left": 3000,
     "limit_ms": 20.0},
    {"what": "the same late in a long prompt", "streams": [900] * 40, "done": 60_000,
     "left": 3000, "limit_ms": 20.0},
    {"what": "streams that take longer than the promise by themselves",
     "streams": [4000] * 50, "done": 0, "left": 500, "limit_ms": 9.0},
]  # fmt: skip


def run_promise(case: Case, chunk_for: Any) -> Any:
    cost = cost_model(case.get("gpu", "h100"), MODEL)
    return chunk_for(cost, list(case["streams"]), case["done"], case["left"], case["limit_ms"])


def judge_promise(case: Case, got: Any, expected: Any) -> None:
    number, left, limit = require_number(got, "chunk_for(…)"), case["left"], case["limit_ms"]
    if number != int(number) or number < 0:
        raise Wrong(f"chunk_for(…) is {number:g}: a number of tokens is whole and not negative")
    if number > left:
        raise Wrong(f"you run {number:g} tokens of a prompt of which {left:,} are left")
    cost, rows, done = cost_model(case.get("gpu", "h100"), MODEL), case["streams"], case["done"]

    def ms(tokens: float, streams: list[int], before: int) -> float:
        new = [(before, int(tokens))] if tokens else []
        return 1e3 * cost.time_of_rows([*((n, 1) for n in streams), *new])

    def exact(streams: list[int], before: int) -> bool:
        """Is this the largest chunk of a step that looks like that?"""
        more = number < left and ms(number + 1, streams, before) <= limit
        return not more and (number == 0 or ms(number, streams, before) <= limit)

    if exact(rows, done):
        return
    if rows and exact([], done):
        raise Wrong(f"{number:g} tokens fit if nobody else is in the step; streams: {len(rows)}")
    if done and exact(rows, 0):
        raise Wrong(
            f"{number:g} tokens fit at the start of a prompt; here {done:,} were read before, and "
            "these tokens look back at all of them"
        )
    time = ms(number, rows, done)
    if time > limit:
        raise Wrong(f"with {number:g} tokens the step takes {time:.2f} ms; {limit:g} were promised")
    raise Wrong(
        f"{number:g} tokens take {time:.2f} ms, and one more would take "
        f"{ms(number + 1, rows, done):.2f} ms: {limit:g} were promised, so more fits"
    )


# -- 05.4: a fault, found from its picture ------------------------------------------------------


USERS: dict[str, Any] = {
    "what": "three prompts of nearly the same length", "slots": 3, "budget": 256, "model": MODEL,
    "requests": [["Ann", 0.0, 191, 12], ["Bob", 0.0, 192, 12], ["Cem", 0.0, 193, 12]],
}  # fmt: skip
ONE: dict[str, Any] = {
    "what": "one prompt of 255 tokens", "slots": 1, "budget": 256, "model": MODEL,
    "requests": [["X", 0.0, 255, 1]],
}  # fmt: skip
TAILS = [
    {"what": "one prompt of 5 tokens", "slots": 1, "budget": 64, "requests": [["X", 0.0, 5, 3]]},
    ONE,
    USERS,
    {"what": "a prompt of 130 tokens beside three streams, budget 64", "slots": 4, "budget": 64,
     "requests": [*together((1, 30), (1, 4), (1, 30)), ["X", 1e-6, 130, 3]]},
]  # fmt: skip


def run_tails(case: Case, late: Any, steps: Any, cls: Any) -> Any:
    run = serve(case, cls(case["slots"], token_budget=case["budget"]), max_steps=2000)
    return {"late": late, "steps": steps, "run": run}


def judge_tails(case: Case, got: Any, expected: Any) -> str:
    picture = serve(USERS, WholeChunks(3, 256))
    waits = {name: record.token_times[0] for name, record in picture.requests.items()}
    if got["late"] != max(waits, key=lambda name: waits[name]):
        raise Wrong(
            f"`late` is {got['late']!r}. Whose prompt is still being read when the other two have "
            "been writing for long?"
        )
    right, mended = serve(ONE, WholeChunks(1, 256)).num_steps, expected["steps_mended"]
    exactly(got["steps"], right, "steps", (
        (mended, "is what it should be. How many whole chunks are in 255 tokens, and what happens "
         "to each token after them?"),
    ), hint="How many whole chunks are in 255 tokens, and what happens to each token after them?",
    )  # fmt: skip
    run = require_all_served(case, got["run"])
    for number, total, pieces in prompt_pieces(run):
        for name, (n, left) in pieces.items():
            if n > 64:
                raise Wrong(f"step {number} runs {n} tokens of {name}; a chunk is 64 at most")
            if n < min(left, 64) and total < case["budget"]:
                raise Wrong(
                    f"step {number} runs {n} of the {left} prompt tokens that {name} still has, "
                    f"though only {total} of the budget of {case['budget']} are used",
                    two_timelines(expected["run"], run),
                )
    require_budget(case, run, expected["run"])
    same_schedule(case, run, expected["run"])
    return f"{right} steps become {mended}, and every token is still run exactly once."


def true_tails(case: Case) -> dict[str, Any]:
    def mended(one: Case) -> Any:
        limits = {"token_budget": one["budget"], "max_chunk": 64}
        return serve(one, ChunkedScheduler(one["slots"], **limits))

    return {"run": mended(case), "steps_mended": mended(ONE).num_steps}


# -- 05.5: a budget for two targets -------------------------------------------------------------


def hour_of(seed: int) -> dict[str, Any]:
    """70 requests at 14 a second on an H100, and the two targets of this learner."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1 / 14, 70))
    prompts = rng.integers(300, 3500, 70)
    answers = np.clip(rng.lognormal(np.log(60), 0.7, 70), 12, 200).astype(int)
    requests = numbered(arrivals, prompts, answers)
    case = {"what": "your hour", "model": MODEL, "blocks": 20_000, "requests": requests}
    first, gap = latencies(case, 16 * int(rng.integers(16, 31)))
    return case | {"ttft_ms": round(1.06 * first), "itl_ms": round(1.08 * gap, 1)}


def latencies(case: Case, budget: int) -> tuple[float, float]:
    """p95 of TTFT and p99 of the gaps, in ms."""
    summary = serve(case, ChunkedScheduler(48, token_budget=budget)).summary()
    return summary["ttft_ms"]["p95"], summary["itl_ms"]["p99"]


def judge_budget(case: Case, got: Any, expected: Any) -> str:
    got = require_whole(got, "token_budget", 48, 100_000)
    first, gap = latencies(case, got)
    if gap > case["itl_ms"]:
        raise Wrong(
            f"with a budget of {got:,} the p99 of the gaps is {gap:.1f} ms, and the target is "
            f"{case['itl_ms']} ms: a stream stands still while so many prompt tokens are read"
        )
    if first > case["ttft_ms"]:
        raise Wrong(
            f"with a budget of {got:,} the p95 of TTFT is {first:,.0f} ms, and the target is "
            f"{case['ttft_ms']:,} ms: prompts queue for their share of the steps"
        )
    return f"TTFT {first:,.0f} ms (p95), gaps of {gap:.1f} ms (p99): both targets are met."


PARTS = [
    Part("05.1", "at most so many prompts at once", ("FewPrompts",), run_few, judge_few, FEW),
    prediction("05.2", "the pieces of a prompt", ("chunks", "calmer", "later"),
               late_prompt, true_pieces, judge_pieces),
    Part("05.3", "a budget in milliseconds", ("chunk_for",), run_promise, judge_promise, PROMISE),
    Part("05.4", "the fault in the picture", ("late", "steps", "Mended"),
         run_tails, judge_tails, TAILS, truth=true_tails),
    tuning("05.5", "a budget for two targets", "token_budget", hour_of, judge_budget),
]  # fmt: skip
