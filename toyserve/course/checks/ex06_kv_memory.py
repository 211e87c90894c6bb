"""What exercise 06 looks at: bytes, places in memory, and where the room has gone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from toyserve.costs import RooflineCostModel, cost_model, get_hardware, get_model
from toyserve.course.checks.colleague import Ledger
from toyserve.course.checks.kinds import by_property, prediction, tuning
from toyserve.course.checks.numbers import close, exactly, require_number
from toyserve.course.checks.part import Case, Part, Wrong
from toyserve.course.checks.pictures import two_maps
from toyserve.course.checks.places import (
    Hole,
    comers,
    draw_books,
    holes_before,
    placed,
    pool_at,
    slab,
    visitors,
    watch,
)
from toyserve.course.checks.runs import numbered, require_all_served, same_schedule, serve
from toyserve.kv import ReservedKV
from toyserve.kv.contiguous import holes_of
from toyserve.request import FinishReason
from toyserve.schedulers import ContinuousScheduler
from toyserve.words import counted

# -- 06.1: bytes --------------------------------------------------------------------------------

_SERVERS = (
    ("llama-3-8b", "l4"), ("llama-3-8b", "a100"), ("llama-3-8b", "h100"), ("llama-3-8b", "h200"),
    ("gpt2-xl", "l4"), ("gpt2-xl", "a100"),
)  # fmt: skip


def machine(seed: int) -> dict[str, Any]:
    """The learner's own server: a model on a GPU, and the conversations that it holds."""
    rng = np.random.default_rng(seed)
    model, gpu = _SERVERS[int(rng.integers(len(_SERVERS)))]
    kv_dtype = ("bf16", "fp8")[int(rng.integers(2))]
    spec = get_model(model).with_dtypes(kv=kv_dtype)
    room = 0.9 * get_hardware(gpu).memory_bytes - spec.weight_bytes
    short, long = 16 * int(rng.integers(10, 30)), 16 * int(rng.integers(40, 60))
    if spec.max_model_len > 4096:
        long *= 4
    num_short = int(rng.uniform(0.3, 0.6) * room / (short * spec.kv_bytes_per_token))
    return {
        "what": "your server", "model": model, "gpu": gpu,
        "memory_gb": get_hardware(gpu).memory_bytes / 1e9,
        "share_in_use": 0.9, "weights_gb": round(spec.weight_bytes / 1e9, 3),
        "layers": spec.num_layers, "query_heads": spec.num_heads, "kv_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim, "kv_dtype": kv_dtype,
        "bytes_per_number": 2 if kv_dtype == "bf16" else 1,
        "short_tokens": short, "num_short": num_short, "long_tokens": long,
    }  # fmt: skip


def costs_of(case: Case) -> RooflineCostModel:
    """The clock of the case's server."""
    return cost_model(case["gpu"], get_model(case["model"]).with_dtypes(kv=case["kv_dtype"]))


def true_bytes(case: Case) -> dict[str, float]:
    spec = costs_of(case).model
    each = spec.kv_bytes_per_token
    usable = case["memory_gb"] * case["share_in_use"] - case["weights_gb"]
    num_long = _long_ones(case, usable, each)
    short, long = [(case["short_tokens"], 1)] * case["num_short"], [(case["long_tokens"], 1)]
    times = [costs_of(case).time_of_rows(rows) for rows in (short, short + long * num_long)]
    return {"token_bytes": each, "long_ones": num_long, "slower": times[1] / times[0]}


def _long_ones(case: Case, gigabytes: float, token_bytes: float, *, short: bool = True) -> int:
    tokens = 1e9 * gigabytes / token_bytes - short * case["num_short"] * case["short_tokens"]
    return max(0, math.floor(tokens / case["long_tokens"]))


def judge_bytes(case: Case, got: Any, expected: Any) -> str:
    right, shared = expected["token_bytes"], case["query_heads"] / case["kv_heads"]
    close(got["token_bytes"], right, "token_bytes", (
        (right / 2, "is that of the keys alone; the values are kept as well"),
        (right / case["layers"], "is that of one layer; each has keys and values of its own"),
        (right / case["bytes_per_number"], "counts numbers; how many bytes does each take?"),
        (2 * right / case["bytes_per_number"],
         f"is for 16-bit numbers; here they are {case['kv_dtype']}"),
        (right * shared, "counts query heads; several of them share one KV head"),
    ), rel=1e-6, unit="bytes", near=1e-6)  # fmt: skip
    _judge_long_ones(case, got["long_ones"], expected["long_ones"], right)
    what = "`slower` (the step with the long ones over that without)"
    close(got["slower"], expected["slower"], what, (
        (1 / expected["slower"], "is the wrong way round: the longer step over the other"),
    ), near=0.02)  # fmt: skip
    return (
        f"{expected['long_ones']} more conversations, and a step takes {expected['slower']:.2f} × "
        "as long: their KV is read in every step, too."
    )


def _judge_long_ones(case: Case, got: Any, right: int, each: float) -> None:
    usable = case["memory_gb"] * case["share_in_use"]
    exactly(got, right, "long_ones", (
        (right + 1, "is one too many: the last would fit only in part"),
        (_long_ones(case, usable, each), "fit on a GPU without a model; the weights are there too"),
        (_long_ones(case, case["memory_gb"] - case["weights_gb"], each),
         f"fit if all memory were to be had; {case['share_in_use']:.0%} of it is"),
        (_long_ones(case, usable - case["weights_gb"], each, short=False),
         "fit in an empty server; the short ones are there already"),
    ), hint="What is left beside weights and short ones? Whole conversations only")  # fmt: skip


# -- 06.2: another place ------------------------------------------------------------------------


PLACES = [
    {"what": "a hole of 3 blocks and one of 2, and E needs 2", "blocks": 8, "requests": [
        slab("A", 0.0, 3, 2), slab("B", 0.0, 1, 15), slab("C", 0.0, 2, 3), slab("D", 0.0, 2, 15),
        slab("E", 0.04, 2, 4)]},
    {"what": "two holes of 2 blocks, and E needs 1", "blocks": 6, "requests": [
        slab("A", 0.0, 2, 2), slab("B", 0.0, 1, 15), slab("C", 0.0, 2, 3), slab("D", 0.0, 1, 15),
        slab("E", 0.04, 1, 4)]},
    {"what": "holes of 3 and 2 blocks, and E needs 4", "blocks": 8, "requests": [
        slab("A", 0.0, 3, 2), slab("B", 0.0, 1, 9), slab("C", 0.0, 2, 3), slab("D", 0.0, 2, 15),
        slab("E", 0.03, 4, 4)]},
    {"what": "sixteen that come and go", "blocks": 16, "requests": visitors(1, 16, 5)},
]  # fmt: skip


def run_places(case: Case, cls: Any) -> Any:
    return serve(case, ContinuousScheduler(64), kv=cls(case["blocks"]))


def judge_places(case: Case, got: Any, expected: Any) -> None:
    require_all_served(case, got)
    for mine, right in zip(placed(got), placed(expected), strict=False):
        if mine[:2] != right[:2]:
            break  # somebody else, or in another step: the schedules differ
        if mine[2] != right[2]:
            words = _wrong_place(mine, right[2], holes_before(expected, *right[:2]))
            raise Wrong(words, two_maps(expected, got, mine[0]))
    same_schedule(case, got, expected)


def _wrong_place(mine: tuple[int, str, int], right: int, holes: list[Hole]) -> str:
    step, name, block = mine
    said = f"in step {step} {name} is put at block {block}"
    sizes = dict(holes)
    if block not in sizes:
        return f"{said}, in the middle of a hole; a slab begins where its hole begins"
    if sizes[block] == sizes[right]:
        return f"{said}; the hole at block {right} is as small, and of equals the first is taken"
    return (
        f"{said}, where a hole of {counted(sizes[block], 'block')} begins; the one at block "
        f"{right} has {counted(sizes[right], 'block')}, and that is enough"
    )


# -- 06.3: two kinds of waste -------------------------------------------------------------------

_FIVE = [["A", 0.0, 49, 12], ["B", 0.0, 17, 4], ["C", 0.0, 33, 8], ["D", 0.0, 49, 15],
         ["E", 0.0, 33, 6]]  # fmt: skip
WASTE = [
    {"what": "step 5 of the lesson's five: B has left, and E needs 3 blocks", "blocks": 14,
     "step": 5, "need": 3, "requests": _FIVE},
    {"what": "the same step, for somebody who needs 2 blocks", "blocks": 14,
     "step": 5, "need": 2, "requests": _FIVE},
    {"what": "three blocks free at the end, and 4 needed", "blocks": 16,
     "step": 2, "need": 4, "requests": _FIVE[:4]},
    {"what": "two reserved places of 7 blocks", "blocks": 14, "max_model_len": 112,
     "step": 2, "need": 7, "requests": _FIVE},
    {"what": "sixteen that come and go, step 18", "blocks": 14,
     "step": 18, "need": 3, "requests": visitors(2, 16, 4)},
]  # fmt: skip


def judge_waste(case: Case, got: Any, expected: Any) -> None:
    if not isinstance(got, list) or len(got) != 2:
        raise Wrong(f"wasted must return two numbers, (internal, external); it gave {got!r}")
    internal, external = (require_number(n, "what wasted returns") for n in got)
    if [internal, external] == expected:
        return
    pool, need = pool_at(case), case["need"]
    if [external, internal] == expected:
        raise Wrong("the two are in the wrong order: internal first, then external")
    if [16 * internal, 16 * external] == expected or [internal, 16 * external] == expected:
        raise Wrong(f"external is {external:g} blocks; slots are asked for, and a block has 16")
    free = 16 * sum(written is None for written in pool)
    exactly(internal, expected[0], "internal", (
        (expected[0] + free, "counts free blocks, too; they are not taken"),
    ), hint="Taken, and no token in it: how many slots?")  # fmt: skip
    sizes = [length for _, length in holes_of(pool)]
    exactly(external, expected[1], "external", (
        (16 * sum(sizes), "is everything that is free; who fits in is no loss"),
        (16 * (sum(sizes) - max(sizes, default=0)),
         "is what lies outside the largest hole; is every other hole really too small here?"),
        (16 * sum(n for n in sizes if n <= need), f"counts a hole of {need}, into which it fits"),
        (16 * sum(n for n in sizes[:-1] if n < need), "misses the hole at the end of memory"),
    ), hint=f"Free, in holes below {counted(need, 'block')}: how many slots?")  # fmt: skip


# -- 06.4: books that lose memory ---------------------------------------------------------------


LEAK: dict[str, Any] = {
    "what": "a few that come and go, and BIG, who needs nearly all blocks", "blocks": 14,
    "requests": [["A", 0.0, 17, 36], ["B", 0.0, 33, 3], ["C", 0.0, 10, 12], ["D", 0.065, 60, 4],
                 ["E", 0.1, 20, 10], ["BIG", 0.15, 190, 3]],
}  # fmt: skip
MENDED = [
    LEAK,
    {"what": "one that grows by a block, and one that needs all of the pool", "blocks": 4,
     "requests": [["A", 0.0, 10, 12], ["ALL", 0.02, 60, 3]]},
    {"what": "ten that come and go, and some are thrown out", "blocks": 8,
     "requests": comers(3, 10)},
]  # fmt: skip


def true_leak() -> dict[str, Any]:
    """Who loses blocks in the colleague's books, and how many are lost at the end."""
    books = watch(LEAK, Ledger(LEAK["blocks"]))["books"]
    grown, held = set(), {}  # type: ignore[var-annotated]
    for book in books:
        now = {name: book["owners"].count(name) for name in book["owners"] if name}
        grown |= {name for name, count in now.items() if count > held.get(name, count)}
        held = now
    last = books[-1]
    return {"leakers": grown, "lost": last["owners"].count(None) - sum(n for _, n in last["gaps"])}


def run_mended(case: Case, leakers: Any, lost: Any, cls: Any) -> Any:
    return {"leakers": leakers, "lost": lost, **watch(case, cls(case["blocks"]))}


def judge_mended(case: Case, got: Any, expected: Any) -> str:
    truth = true_leak()
    names = {got["leakers"]} if isinstance(got["leakers"], str) else set(got["leakers"])
    if names - truth["leakers"]:
        name = sorted(map(str, names - truth["leakers"]))[0]
        raise Wrong(f"{name} is among your leakers, but where it leaves no block turns red")
    if names != truth["leakers"]:
        raise Wrong(f"{sorted(names)} are not all of the leakers: more leave red blocks behind")
    if require_number(got["lost"], "lost") != truth["lost"]:
        raise Wrong(
            f"lost = {got['lost']:g} is another number of blocks than is red in the last step"
        )
    for step, book in enumerate(got["books"], 1):
        _same_books(step, book, got["books"])
    if got["run"] is None:
        raise Wrong(f"the engine stopped: {got['stopped']}")
    require_all_served(case, got["run"])
    return "A slab that grows must be noted where it is taken, or looked up where it is given back."


def _same_books(step: int, book: Any, books: Any) -> None:
    free, known = book["owners"].count(None), sum(length for _, length in book["gaps"])

    def picture() -> Any:
        return draw_books(books, "Yours")

    if known < free:
        raise Wrong(
            f"in step {step} {free} of the blocks are free and the books know {known}: what did "
            "somebody leave behind who left before it?",
            picture,
        )
    if known > free:
        raise Wrong(
            f"in step {step} the books call {counted(known, 'block')} free, and {free} are: one of "
            "them is in use, or is listed twice",
            picture,
        )
    if sorted(map(tuple, book["gaps"])) != holes_of(book["owners"]):
        raise Wrong(
            f"in step {step} the books know {sorted(map(tuple, book['gaps']))}, and the gaps are "
            f"{holes_of(book['owners'])}: the right number of blocks at the wrong places",
            picture,
        )


# -- 06.5: how much to reserve ------------------------------------------------------------------


def evening(seed: int) -> dict[str, Any]:
    """48 requests, a pool of 320 blocks, and the two targets of this learner."""
    rng = np.random.default_rng(seed)
    arrivals = np.sort(rng.uniform(0, 1, 48))
    prompts = rng.integers(16, 120, 48)
    answers = np.clip(rng.lognormal(np.log(70), 0.9, 48), 8, 900).astype(int)
    requests = numbered(arrivals, prompts, answers)
    case = {"what": "your evening", "blocks": 320, "requests": requests}
    longest = sorted(int(p + a) for p, a in zip(prompts, answers, strict=True))[-4]
    wait = outcome(case, longest + 24)[1]  # some room between the two targets
    return case | {"refused": 3, "ttft_s": math.ceil(105 * wait + 1) / 100}


def outcome(case: Case, max_model_len: int) -> tuple[int, float]:
    """How many are refused, and the p95 of the others' TTFT in seconds."""
    kv = ReservedKV(case["blocks"], max_model_len=max_model_len)
    requests = serve(case, ContinuousScheduler(64), kv=kv).requests.values()
    served = [one for one in requests if one.finish_reason is not FinishReason.REFUSED]
    waits = [one.token_times[0] - one.arrival_time for one in served]
    return len(requests) - len(served), float(np.percentile(waits, 95)) if waits else 0.0


def judge_reserve(case: Case, got: Any, expected: Any) -> str:
    most = 16 * case["blocks"]
    number = require_number(got, "max_model_len")
    if number != int(number) or not 2 <= number <= most:
        raise Wrong(f"max_model_len = {number:g}: it is a whole number of tokens from 2 to {most}")
    refused, wait = outcome(case, int(number))
    if refused > case["refused"]:
        raise Wrong(
            f"with {number:g} tokens reserved {counted(refused, 'user')} "
            f"{'is' if refused == 1 else 'are'} sent away, and at most "
            f"{case['refused']} may be: their requests are longer than that"
        )
    if wait > case["ttft_s"]:
        places = case["blocks"] // -(-(int(number) - 1) // 16)
        raise Wrong(
            f"with {number:g} tokens reserved there {'is' if places == 1 else 'are'} "
            f"{counted(places, 'place')}, and p95 of TTFT is "
            f"{wait:.2f} s; the target is {case['ttft_s']} s"
        )
    return f"{refused} sent away, p95 of TTFT {wait:.2f} s: both targets are met."


PARTS = [
    prediction("06.1", "bytes on your server", ("token_bytes", "long_ones", "slower"),
               machine, true_bytes, judge_bytes),
    Part("06.2", "the tightest hole", ("BestFit",), run_places, judge_places, PLACES),
    Part("06.3", "two kinds of waste", ("wasted",),
          lambda case, wasted: wasted(pool_at(case), 16, case["need"]), judge_waste, WASTE),
    Part("06.4", "books that lose memory", ("leakers", "lost", "Mended"),
          run_mended, judge_mended, MENDED, by_property),
    tuning("06.5", "how much to reserve", "max_model_len", evening, judge_reserve),
]  # fmt: skip
