"""What exercise 02 looks at: a step's bytes and FLOPs, who shares it, when more stops helping."""

from __future__ import annotations

from typing import Any

import numpy as np

from toyserve.costs import RooflineCostModel, StepShape, get_hardware, get_model
from toyserve.course.checks.kinds import by_property, prediction, tuning
from toyserve.course.checks.numbers import close, require_number, require_whole, slip, way
from toyserve.course.checks.part import Case, Part, Wrong
from toyserve.course.checks.pictures import one_timeline
from toyserve.course.checks.runs import lettered, require_all_served, serve
from toyserve.schedulers import Scheduler, SchedulerOutput
from toyserve.words import counted

GPUS = ("t4", "l4", "a100", "h100", "h200")

# -- 02.1: rows that are nearly free ------------------------------------------------------------


def layer(gpu: str, wide_in: int, wide_out: int, dtype: str = "fp16") -> dict[str, float]:
    """A matrix, and the data sheet of the machine that multiplies with it."""
    spec = get_hardware(gpu)
    return {"wide_in": wide_in, "wide_out": wide_out, "num_bytes": 4 if dtype == "fp32" else 2,
            "bandwidth": spec.bandwidth, "peak": spec.peak_flops_for(dtype)}  # fmt: skip


FREE = [
    {"what": "two rows, a matrix of 4096 × 1024 on an H100", "rows": [1, 2], "slack": 0.1,
     "layer": layer("h100", 4096, 1024)},
    {"what": "a matrix of 4096 × 14336 on an H100, 10 % longer is allowed", "rows": [1, 16, 128],
     "slack": 0.1, "layer": layer("h100", 4096, 14336)},
    {"what": "the same on a T4, half as long again is allowed", "rows": [64, 1000], "slack": 0.5,
     "layer": layer("t4", 4096, 14336)},
]  # fmt: skip


def run_free(case: Case, seconds: Any, nearly_free: Any) -> dict[str, Any]:
    return {"seconds": [seconds(rows, **case["layer"]) for rows in case["rows"]],
            "free": nearly_free(case["slack"], **case["layer"])}  # fmt: skip


def judge_free(case: Case, got: Any, expected: Any) -> None:
    for rows, mine, right in zip(case["rows"], got["seconds"], expected["seconds"], strict=True):
        number = require_number(mine, f"seconds({rows}, …)")
        if abs(number - right) > 1e-6 * right:
            say = _slip_in(rows, number, **case["layer"]) or (
                "is too long" if number > right else "is too short")  # fmt: skip
            raise Wrong(f"`seconds({rows}, …)` = {number:.4g} {say}")
    free, right = require_number(got["free"], "nearly_free"), expected["free"]
    if free != right:
        allowed = f"{1 + case['slack']:g} × the time of one row"
        if free > right:
            raise Wrong(f"`nearly_free` = {free:g}: so many rows need longer than {allowed}")
        raise Wrong(f"`nearly_free` = {free:g}: one row more would still be within {allowed}")


def _slip_in(
    rows: int, number: float, wide_in: int, wide_out: int, num_bytes: int, bandwidth: float,
    peak: float,
) -> str | None:  # fmt: skip
    """In words what was forgotten, if the number gives it away."""
    weights = wide_in * wide_out * num_bytes / bandwidth
    others = rows * (wide_in + wide_out) * num_bytes / bandwidth
    work = 2 * rows * wide_in * wide_out / peak
    slips = (
        (weights + others + work, "adds the two times; bytes and FLOPs flow side by side"),
        (min(weights + others, work), "leaves out the slower one, bytes or FLOPs; it decides"),
        (rows * weights + others, "reads the weights once per row; the rows share them"),
        (max(weights, work), "forgets the numbers that go in and come out with each row"),
        (work / 2, "counts one operation per weight; there is a product and an addition"),
        (max(weights + others * 2 * wide_in / (wide_in + wide_out), work),
         "takes the matrix for a square: rows come out `wide_out` wide"),
        ((weights + others) / num_bytes, "counts numbers; each of them has several bytes"),
    )  # fmt: skip
    return slip(number, slips, 1e-6)


# -- 02.2: where arithmetic overtakes memory ----------------------------------------------------


def machine(seed: int) -> dict[str, Any]:
    """A GPU, and the shares of its data sheet that the kernels reach there."""
    rng = np.random.default_rng(seed)
    return {"what": "your GPU", "gpu": GPUS[int(rng.integers(len(GPUS)))],
            "memory_share": round(float(rng.uniform(0.7, 0.95)), 2),
            "arithmetic_share": round(float(rng.uniform(0.4, 0.65)), 2)}  # fmt: skip


def costs_of(case: Case) -> RooflineCostModel:
    """Llama-3-8B on the clock of this GPU."""
    return RooflineCostModel(
        get_hardware(case["gpu"]), get_model("llama-3-8b"),
        memory_efficiency=case["memory_share"], linear_efficiency=case["arithmetic_share"],
    )  # fmt: skip


def true_ridge(case: Case) -> dict[str, float]:
    """From the cost model's own bill of one row, and its clock."""
    cost = costs_of(case)
    one = cost.breakdown(StepShape.of_rows([(0, 1)])).linear
    ridge = one.memory_time / one.compute_time
    total = [cost.decode_throughput(batch, 1)[0] for batch in (8, 16, 512, 1024)]
    return {"rows_16": ridge, "rows_4": ridge / 4, "below": total[1] / total[0],
            "beyond": total[3] / total[2], "no_shares": ridge * _ratio(case)}  # fmt: skip


def _ratio(case: Case) -> float:
    return float(case["memory_share"] / case["arithmetic_share"])


def judge_ridge(case: Case, got: Any, expected: Any) -> str:
    rows, few = require_number(got["rows_16"], "rows_16"), require_number(got["rows_4"], "rows_4")
    right = expected["rows_16"]
    hints = (
        (expected["no_shares"], "is the data sheet's; these kernels reach only a share of each"),
        (2 * right, "counts one operation per weight and row; there is a product and an addition"),
        (right / 2, "takes a weight for one byte; in 16 bits it has two"),
        (right / _ratio(case) ** 2, "has the two shares the wrong way round"),
    )
    if abs(rows - right) > 0.02 * right:
        say = slip(rows, hints, 0.01)
        raise Wrong(f"`rows_16` = {rows:g} {say or way(rows, right)}")
    if abs(few - expected["rows_4"]) > 0.02 * expected["rows_4"] + 0.51:
        slips = (
            (right, "is the same as in 16 bits, but a quarter of the bytes is to be read"),
            (4 * right, "goes the wrong way: fewer bytes are read sooner"),
            (right / 2, "would be right for 8 bits"),
        )
        say = slip(few, slips, 0.02)
        raise Wrong(f"`rows_4` = {few:g} {say or way(few, expected['rows_4'])}")
    close(got["below"], expected["below"], "`below` (tokens/s in all at 16 over those at 8)")
    close(got["beyond"], expected["beyond"], "`beyond` (tokens/s in all at 1024 over those at 512)")
    return (
        f"Twice the batch is {got['below']:.2f} × the tokens left of the ridge and "
        f"{got['beyond']:.2f} × beyond it. Smaller weights move the ridge to the left: 4 bits help "
        "small batches."
    )


# -- 02.3: one ragged row -----------------------------------------------------------------------


def asking(*sizes: tuple[int, int], start: int = 100) -> list[dict[str, Any]]:
    """Requests with so many tokens, of which so many are computed; token ids are all different."""
    requests = []
    for num_tokens, num_computed in sizes:
        tokens = list(range(start, start + num_tokens))
        requests.append({"tokens": tokens, "num_computed": num_computed})
        start += 100
    return requests


ROWS = [
    {"what": "one prompt of three tokens, nothing computed", "requests": asking((3, 0))},
    {"what": "two prompts, of 2 and 4 tokens", "requests": asking((2, 0), (4, 0))},
    {"what": "one request that decodes: five tokens, four of them computed",
     "requests": asking((5, 4))},
    {"what": "a decode, a prompt, a decode", "requests": asking((6, 5), (3, 0), (2, 1))},
]  # fmt: skip


def judge_ragged(case: Case, got: Any, expected: Any) -> None:
    names = ("ids", "positions", "owners", "last")
    if not isinstance(got, list) or len(got) != 4 or not all(isinstance(x, list) for x in got):
        raise Wrong("four lists are asked for: ids, positions, owners, last")
    mine, right = dict(zip(names, got, strict=True)), dict(zip(names, expected, strict=True))
    everything = [token for request in case["requests"] for token in request["tokens"]]
    num, starts = len(right["ids"]), [r["num_computed"] for r in case["requests"]]
    if mine["ids"] == everything != right["ids"]:
        raise Wrong("`ids` has all tokens; those that are computed are in the KV cache already")
    slips = {
        ("positions", tuple(range(num))): (
            "goes on counting from one request to the next; each text has its own beginning"),
        ("positions", tuple(p - starts[o] for p, o in
                            zip(right["positions"], right["owners"], strict=True))): (
            "starts at 0 where tokens are computed already: the first new one stands behind them"),
        ("last", tuple(right["positions"][i] for i in right["last"])): (
            "is a position in each text; asked for is the place in the row"),
        ("last", tuple(i + 1 for i in right["last"])): (
            "is one too far: there begins the next request"),
    }  # fmt: skip
    for name in names:
        if mine[name] != right[name]:
            size = f"has {len(mine[name])} entries, and {len(right[name])} are due"
            other = "is not right" if len(mine[name]) == len(right[name]) else size
            say = slips.get((name, tuple(mine[name])), other)
            raise Wrong(f"`{name}` = {mine[name]} {say}")


# -- 02.4: a fault, found from its picture ------------------------------------------------------


def at_once(*answers: int, prompt: int = 12) -> list[list[Any]]:
    """Requests A, B, … with answers of so many tokens, all there at time 0."""
    return lettered((prompt, n) for n in answers)


TURNS: dict[str, Any] = {"what": "four users at once", "slots": 4, "max_rows": 4,
                         "requests": at_once(8, 5, 6, 5)}  # fmt: skip
MENDED = [
    {"what": "two users, room for two rows in a step", "slots": 2, "max_rows": 2,
     "requests": at_once(3, 3)},
    {"what": "three users, room for two rows in a step", "slots": 3, "max_rows": 2,
     "requests": at_once(4, 4, 4)},
    TURNS,
]  # fmt: skip


def run_turns(case: Case, now: Any, then: Any, cls: Any) -> dict[str, Any]:
    scheduler = cls(max_running=case["slots"])
    scheduler.max_rows = case["max_rows"]
    return {"reads_now": now, "reads_then": then, "run": serve(case, scheduler)}


def judge_turns(case: Case, got: Any, expected: Any) -> str:
    answers = [answer for *_, answer in TURNS["requests"]]
    for name, right, hint in (
        (
            "reads_now",
            sum(answers),
            "each step reads all weights once: count the steps in the picture",
        ),
        (
            "reads_then",
            max(answers),
            "four rows share a step, and whoever wants most tokens ends last",
        ),
    ):
        number = require_number(got[name], name)
        if number != right:
            raise Wrong(f"`{name}` = {number:g} {way(number, right)}: {hint}")
    run = require_all_served(case, got["run"])
    for number, step in enumerate(run.steps, 1):
        had = {name: sum(t < step.end_time - 1e-12 for t in record.token_times)
               for name, record in run.requests.items()}  # fmt: skip
        open_ = [n for n, record in run.requests.items() if had[n] < len(record.token_times)]
        rows, room = len(step.num_scheduled_tokens), min(case["max_rows"], len(open_))
        if rows > case["max_rows"]:
            raise Wrong(f"step {number} has {rows} rows, and max_rows is {case['max_rows']}",
                        one_timeline(run, "Yours: too many rows", by="request"))  # fmt: skip
        if rows < room:
            text = (f"step {number} has {rows} row{'s' * (rows != 1)}, and {room} could share it: "
                    "it reads all weights for them, too")  # fmt: skip
            raise Wrong(text, one_timeline(run, "Yours: a step with room left", by="request"))
        after = {n: had[n] + (n in step.num_scheduled_tokens) for n in open_}
        after = {n: k for n, k in after.items() if k < len(run.requests[n].token_times)}
        if after and max(after.values()) - min(after.values()) > 1:
            most, least = max(after, key=after.__getitem__), min(after, key=after.__getitem__)
            text = (f"after step {number}, {most} has {counted(after[most], 'token')} and {least} "
                    f"{after[least]}: whoever has fewest goes first")  # fmt: skip
            raise Wrong(text, one_timeline(run, "Yours: who gets ahead?", by="request"))
    return "Served at the same time is not batched: only who shares a *step* shares its bytes."


# -- 02.5: a batch for two targets --------------------------------------------------------------


class Together(Scheduler):
    """The lesson's: a batch starts together, and the next one when it has ended."""

    def schedule(self) -> SchedulerOutput:
        plan = SchedulerOutput()
        if self.running:
            for request in self.running:
                self.run(plan, request, request.num_uncomputed_tokens)
            return plan
        while self.waiting and len(self.running) < self.max_running:
            if not self.admit(plan, self.next_waiting()):
                break
        return plan


def class_of_96(seed: int) -> dict[str, Any]:
    """96 users at once, gpt2-xl on one of the GPUs, and two targets."""
    rng = np.random.default_rng(seed)
    prompt, answer = int(rng.integers(100, 200)), int(rng.integers(20, 28))
    requests = [[f"u{i}", 0.0, prompt, answer] for i in range(96)]
    case = {"what": "your 96 users", "gpu": GPUS[int(rng.integers(len(GPUS)))],
            "model": "gpt2-xl", "requests": requests}  # fmt: skip
    each, total = rates(case, int(rng.choice([12, 16, 24, 32])))
    return case | {"each": round(0.98 * each, 1), "total": round(0.97 * total)}


def rates(case: Case, batch: int) -> tuple[float, float]:
    """Tokens per second: as the slowest user's text grows, and of the whole server."""
    summary = serve(case, Together(max_running=batch)).summary()
    return 1e3 / summary["tpot_ms"]["max"], summary["output_tokens_per_s"]


def judge_batch(case: Case, got: Any, expected: Any) -> str:
    got = require_whole(got, "`batch`", 1, 96)
    each, total = rates(case, got)
    if each < case["each"]:
        raise Wrong(
            f"with a batch of {got} a user's text grows by {each:.1f} tokens/s, and {case['each']} "
            "were promised: too much KV is read in each step"
        )
    if total < case["total"]:
        raise Wrong(
            f"with a batch of {got} the server makes {total:,.0f} tokens/s in all, and "
            f"{case['total']:,} pay the rent: too few share the weights"
        )
    return f"{each:.1f} tokens/s each, {total:,.0f} in all: both targets are met."


PARTS = [
    Part("02.1", "rows that are nearly free", ("seconds", "nearly_free"),
         run_free, judge_free, FREE),
    prediction("02.2", "where arithmetic overtakes memory",
               ("rows_16", "rows_4", "below", "beyond"), machine, true_ridge, judge_ridge),
    Part("02.3", "one ragged row", ("ragged",),
         lambda case, ragged: ragged(case["requests"]), judge_ragged, ROWS),
    Part("02.4", "served at once, and not together", ("reads_now", "reads_then", "Mended"),
         run_turns, judge_turns, MENDED, by_property),
    tuning("02.5", "a batch for two targets", "batch", class_of_96, judge_batch),
]  # fmt: skip
