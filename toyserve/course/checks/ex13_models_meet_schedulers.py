"""What exercise 13 looks at: what a model's shape costs in memory and in time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from toyserve.capacity import plan
from toyserve.costs import ModelSpec, RooflineCostModel, StepShape, cost_model, get_model
from toyserve.course.checks.colleague import planned_slots
from toyserve.course.checks.kinds import prediction, tuning
from toyserve.course.checks.numbers import close, require_number
from toyserve.course.checks.part import Case, Part, Wrong
from toyserve.course.checks.runs import serve
from toyserve.hardware import dtype_bytes
from toyserve.schedulers import ChunkedScheduler


def model_of(case: Case) -> ModelSpec:
    """The model of a case, in its types and with its window."""
    spec = get_model(case["model"]).with_dtypes(case.get("weight"), case.get("kv"))
    return replace(spec, sliding_window=case["window"]) if "window" in case else spec


# -- 13.1: a window in some of the layers -------------------------------------------------------

BYTES = [
    {"what": "GPT-2, 10 tokens, no window", "model": "gpt2", "length": 10, "full": 12},
    {"what": "Llama-3-8B, 1,000 tokens, no window", "model": "llama-3-8b", "length": 1000,
     "full": 0},
    {"what": "the same, KV in fp8", "model": "llama-3-8b", "kv": "fp8", "length": 1000, "full": 0},
    {"what": "the same, KV in bf16 and weights in int4", "model": "llama-3-8b", "weight": "int4",
     "length": 1000, "full": 0},
    {"what": "Mistral-7B, 8,192 tokens, a window of 4,096 in every layer", "model": "mistral-7b",
     "length": 8192, "full": 0},
    {"what": "a window of 1,024 in all layers but 4, 20,000 tokens", "model": "mistral-7b",
     "window": 1024, "length": 20_000, "full": 4},
    {"what": "the same, a chat shorter than the window", "model": "mistral-7b", "window": 1024,
     "length": 700, "full": 4},
]  # fmt: skip


def judge_bytes(case: Case, got: Any, expected: Any) -> None:
    number, m = require_number(got, "request_kv_bytes(…)"), model_of(case)
    if number == expected:
        return
    said, ratio = f"request_kv_bytes(…) is {number:,.0f}", number / expected
    group = m.num_heads / m.num_kv_heads
    if group != 1 and ratio in (group, 1 / group):
        raise Wrong(f"{said}, off by {group:g}: which heads' K and V are stored?")
    if ratio == 0.5 and m.kv_dtype == m.weight_dtype:
        raise Wrong(f"{said}, half of what is there: a token leaves a K and a V")
    if ratio == dtype_bytes(m.weight_dtype) / dtype_bytes(m.kv_dtype):
        raise Wrong(f"{said}: the weights are in {m.weight_dtype}, and the KV is in {m.kv_dtype}")
    window = m.sliding_window
    if window is None:
        raise Wrong(f"{said}, which is too {'much' if ratio > 1 else 'little'}; no window here")
    if number > expected:
        raise Wrong(
            f"{said}, too much: {m.num_layers - case['full']} layers keep {window:,} tokens at most"
        )
    raise Wrong(
        f"{said}, too little: {case['full']} layers keep all {case['length']:,} tokens, and the "
        f"others up to {window:,}"
    )


# -- 13.2: requests that fit, on several GPUs ---------------------------------------------------

_OFF = "Is 90 % of the memory used, and are the weights taken off?"
FITS = [
    {"what": "Llama-3-8B on one H100, 1,024 tokens each", "model": "llama-3-8b", "gpu": "h100",
     "length": 1024, "gpus": 1, "many": _OFF, "few": _OFF},
    {"what": "the same, 1,001 tokens each", "model": "llama-3-8b", "gpu": "h100", "length": 1001,
     "gpus": 1, "many": "A request holds whole blocks of 16 tokens, the last one half full.",
     "few": "1,001 tokens need 63 blocks of 16."},
    {"what": "Mistral-7B on one L4, 16,000 tokens each", "model": "mistral-7b", "gpu": "l4",
     "length": 16_000, "gpus": 1, "many": _OFF, "few": "Its window is 4,096 tokens."},
    {"what": "Mixtral in int8 on one H100", "model": "mixtral-8x7b", "weight": "int8",
     "gpu": "h100", "length": 4096, "gpus": 1,
     "many": "A token meets two experts of eight; which of them must be there?", "few": _OFF},
    {"what": "Llama-3-70B on one H100", "model": "llama-3-70b", "gpu": "h100", "length": 1024,
     "gpus": 1, "many": "The weights alone are too much: nobody fits.",
     "few": "No fewer than 0 requests can fit."},
    {"what": "Llama-3-70B on four H100", "model": "llama-3-70b", "gpu": "h100", "length": 1024,
     "gpus": 4, "many": "Every GPU holds a quarter of the weights, and its KV heads of *every* "
     "request.", "few": "Weights and KV heads are cut in four; each GPU's room is its own."},
    {"what": "Llama-3-70B on sixteen L4, for 8 KV heads", "model": "llama-3-70b", "gpu": "l4",
     "length": 1024, "gpus": 16,
     "many": "A KV head cannot be cut: 16 GPUs hold 8 of them twice.",
     "few": "One KV head per GPU is enough."},
]  # fmt: skip


def run_fits(case: Case, requests_that_fit: Any) -> Any:
    memory = cost_model(case["gpu"]).hardware.memory_bytes
    return requests_that_fit(model_of(case), memory, case["length"], case["gpus"])


def judge_fits(case: Case, got: Any, expected: Any) -> None:
    number = require_number(got, "requests_that_fit(…)")
    if number == expected:
        return
    if number != int(number):
        raise Wrong(f"requests_that_fit(…) is {number:g}: a request fits or it does not")
    hint = case.get("many" if number > expected else "few", "")
    way = "too many" if number > expected else "too few"
    raise Wrong(f"requests_that_fit(…) is {number:,.0f}, which is {way}. {hint}".strip())


# -- 13.3: the longest bill ---------------------------------------------------------------------

BILLS = ("weights", "KV", "arithmetic")
# (gpu, model, users, tokens behind each), by what the step waits for
_HOUSES: dict[str, list[tuple[str, str, int, int]]] = {
    "weights": [("l4", "mistral-7b", 16, 1000), ("h200", "mixtral-8x7b", 256, 300),
                ("a100", "llama-3-8b", 24, 1000)],
    "KV": [("h100", "gpt2-xl", 64, 900), ("h200", "llama-3-8b", 120, 4000),
           ("h100", "mistral-7b", 64, 8000)],
    "arithmetic": [("a100", "llama-3-8b", 384, 300), ("h100", "mistral-7b", 512, 250),
                   ("a100", "mistral-7b", 400, 300)],
}  # fmt: skip


def houses(seed: int) -> dict[str, Any]:
    """The learner's own four servers, P to S: GPU, model, users, and tokens behind each."""
    rng = np.random.default_rng(seed)
    orders = {kind: rng.permutation(len(_HOUSES[kind])) for kind in BILLS}
    picked = [_HOUSES[kind][int(orders[kind][0])] for kind in BILLS]
    again = BILLS[int(rng.integers(len(BILLS)))]  # one kind is there twice
    picked.append(_HOUSES[again][int(orders[again][1])])
    rows = {}
    for name, index in zip("PQRS", rng.permutation(4), strict=True):
        gpu, model, users, length = picked[int(index)]
        users += int(rng.integers(0, 9))
        rows[name] = {"gpu": gpu, "model": model, "users": users, "length": length}
    return {"what": "your four servers", "houses": rows}


def true_bills(case: Case) -> dict[str, Any]:
    bills, gains = {}, {}
    for name, house in case["houses"].items():
        cost, users = cost_model(house["gpu"], house["model"]), house["users"]
        length = house["length"]
        rows = [(length, 1)] * users
        step = cost.breakdown(StepShape.of_rows(rows, cost.model.sliding_window))
        times = (step.linear.memory_time, step.attention.memory_time, step.linear.compute_time)
        bills[name] = BILLS[int(np.argmax(times))]
        narrow = replace(cost, model=cost.model.with_dtypes(weight="int4"))
        gains[name] = cost.time_of_rows(rows) / narrow.time_of_rows(rows)
    return {"bills": bills, "gains": gains}


def judge_bills(case: Case, got: Any, expected: Any) -> str:
    for what in ("bills", "gains"):
        if not isinstance(got[what], dict) or set(got[what]) != set(case["houses"]):
            raise Wrong(f"`{what}` must be a dict with an entry for each of P, Q, R and S")
    for name, house in case["houses"].items():
        said, right = got["bills"][name], expected["bills"][name]
        if said not in BILLS:
            raise Wrong(f"bills[{name!r}] is {said!r}: it must be one of {', '.join(BILLS)}")
        if said != right:
            raise Wrong(_wrong_bill(name, said, right, house))
    for name in case["houses"]:
        close(got["gains"][name], expected["gains"][name], f"gains[{name!r}]", rel=0.02)
    return "int4 weights help where weights are the bill, and do little or nothing elsewhere."


def _wrong_bill(name: str, said: str, right: str, house: Case) -> str:
    start = f"{name}'s longest bill is not {said}: "
    if get_model(house["model"]).num_experts > 1:
        return start + "how many of the experts does a step with so many users touch?"
    if right == "KV":
        return start + (
            f"what do {house['users']} users with {house['length']:,} tokens each leave to be read?"
        )
    if right == "arithmetic":
        return start + f"the weights are read once, and multiplied by {house['users']} rows"
    return start + f"{house['users']} rows are little work for that many weights, and little KV"


# -- 13.4: a fault, found from its picture ------------------------------------------------------


NIGHT = {"gpu": "t4", "model": "llama-3-8b", "weight": "int4", "kv": "bf16", "length": 2048}


def night(slots: int) -> Any:
    """60 people on a T4: the memory is what it is, the slots are what was planned."""
    m = model_of(NIGHT)
    case = {
        "gpu": NIGHT["gpu"], "model": m,
        "blocks": plan(m, str(NIGHT["gpu"]), 2048).num_blocks,
        "requests": [[f"r{i}", 0.0, 1280, 768] for i in range(60)],
    }  # fmt: skip
    return serve(case, ChunkedScheduler(slots, token_budget=1024))


SLOTS = [
    {"what": "Llama-3-8B in bf16 on an H100", "gpu": "h100", "model": "llama-3-8b",
     "length": 1024},
    {"what": "Llama-3-8B with int4 weights on a T4", **NIGHT},
    {"what": "Llama-3-8B with fp8 KV on an H100", "gpu": "h100", "model": "llama-3-8b",
     "kv": "fp8", "length": 1024},
    {"what": "Mixtral with int4 weights and fp8 KV on an A100", "gpu": "a100",
     "model": "mixtral-8x7b", "weight": "int4", "kv": "fp8", "length": 4096},
    {"what": "Llama-3-70B on one H100", "gpu": "h100", "model": "llama-3-70b", "length": 1024},
]  # fmt: skip


def run_slots(case: Case, unseen: Any, slots: Any) -> Any:
    memory = cost_model(case["gpu"]).hardware.memory_bytes
    return {"unseen": unseen, "slots": slots(model_of(case), memory, case["length"])}


def judge_slots(case: Case, got: Any, expected: Any) -> str:
    praise = _judge_unseen(got["unseen"])
    number, right = require_number(got["slots"], "slots(…)"), expected["slots"]
    if number == right:
        return praise
    m = model_of(case)
    planned = planned_slots(m, cost_model(case["gpu"]).hardware.memory_bytes, case["length"])
    if number == planned:
        raise Wrong(
            f"slots(…) is {number:g}, the colleague's number; {right} fit. What is stored in "
            f"{m.weight_dtype}, and what in {m.kv_dtype}?"
        )
    raise Wrong(f"slots(…) is {number:g}, too {'many' if number > right else 'few'}: {right} fit")


def _judge_unseen(unseen: Any) -> str:
    if not isinstance(unseen, list) or len(unseen) != 3:
        raise Wrong(f"`unseen` must be (model, weight type, KV type); yours is {unseen!r}")
    try:
        m = get_model(unseen[0]).with_dtypes(unseen[1], unseen[2])
        right = plan(m, "h100", 1024).num_requests
    except ValueError as error:
        raise Wrong(f"`unseen` is {tuple(unseen)}: {error}") from None
    planned = planned_slots(m, 80e9, 1024)
    said = f"`unseen` is {tuple(unseen)}: on an H100 the colleague plans {planned}, {right} fit"
    if planned == right:
        raise Wrong(f"{said}. A test finds a fault only where right and wrong differ")
    if planned > right:
        raise Wrong(f"{said}. That is too many, and shows as preemptions; find one with too few")
    return f"{said}: {planned / right:.0%} of the memory would be used, and no picture is red."


# -- 13.5: the cheapest server ------------------------------------------------------------------

# Dollars per GPU and hour. Round figures of the order of cloud prices, nobody's offer.
PRICES = {"l4": 0.8, "a100": 2.0, "h100": 3.5, "h200": 4.5}
COUNTS, WEIGHTS, KV = (1, 2, 4, 8), ("bf16", "int8", "int4"), ("bf16", "fp8")


def order_of(seed: int) -> dict[str, Any]:
    """What this learner's boss wants."""
    rng = np.random.default_rng(seed)
    return {
        "what": "your boss's order",
        "model": ("llama-3-70b", "mixtral-8x7b")[int(rng.integers(2))],
        "users": int(rng.integers(4, 11)) * 8,
        "length": int(rng.integers(2, 6)) * 1024,
        "speed": int(rng.integers(5, 10)) * 4,
    }


def offer(case: Case, gpu: str, num_gpus: int, weight: str, kv: str) -> dict[str, float]:
    """What such a server can do for the order: requests that fit, tokens/s of each user, $/hour."""
    m = get_model(case["model"]).with_dtypes(weight, kv)
    room = plan(m, gpu, case["length"], num_gpus=num_gpus)
    cost = RooflineCostModel(room.hardware, m, num_gpus=num_gpus)
    _, each = cost.decode_throughput(case["users"], case["length"])
    return {"fit": room.num_requests, "speed": each, "price": num_gpus * PRICES[gpu]}


def _misses(case: Case, got: tuple[str, int, str, str]) -> str | None:
    """Why this server cannot be bought; None if it can."""
    if got[2:] == ("int4", "fp8"):
        return "int4 weights with fp8 KV: the quality team allows one of the two"
    server = offer(case, *got)
    if server["fit"] < case["users"]:
        return f"only {server['fit']} of {case['users']} requests fit at the same time"
    if server["speed"] < case["speed"]:
        return f"each user gets {server['speed']:.1f} tokens/s, {case['speed']} are wanted"
    return None


def judge_choice(case: Case, got: Any, expected: Any) -> str:
    if not isinstance(got, list) or len(got) != 4:
        raise Wrong(f"`choice` must be (gpu, number, weight type, KV type); yours is {got!r}")
    kinds = zip(got, (tuple(PRICES), COUNTS, WEIGHTS, KV), strict=True)
    odd = next((f"{value!r} is none of {allowed}" for value, allowed in kinds
                if value not in allowed), None)  # fmt: skip
    if odd:
        raise Wrong(f"`choice` is {tuple(got)}: {odd}")
    missed = _misses(case, (got[0], got[1], got[2], got[3]))
    if missed:
        raise Wrong(f"`choice` is {tuple(got)}: {missed}")
    price = got[1] * PRICES[got[0]]
    cheaper = [gpu for gpu, each in PRICES.items() for n in COUNTS if each * n < price - 1e-9
               for w in WEIGHTS for k in KV if _misses(case, (gpu, n, w, k)) is None]  # fmt: skip
    if cheaper:
        raise Wrong(
            f"`choice` is {tuple(got)}, which does it for ${price:g} an hour; there is a cheaper "
            "server that does it, too"
        )
    return f"${price:g} an hour, and nothing cheaper does it."


PARTS = [
    Part("13.1", "a window in some of the layers", ("request_kv_bytes",),
         lambda case, f: f(model_of(case), case["length"], case["full"]), judge_bytes, BYTES),
    Part("13.2", "requests that fit, on several GPUs", ("requests_that_fit",),
         run_fits, judge_fits, FITS),
    prediction("13.3", "the longest bill", ("bills", "gains"), houses, true_bills, judge_bills),
    Part("13.4", "the fault in the picture", ("unseen", "slots"), run_slots, judge_slots, SLOTS,
         expects=("slots",)),
    tuning("13.5", "the cheapest server", "choice", order_of, judge_choice),
]  # fmt: skip
