"""What exercise 06 looks at: bytes, places in memory, and where the room has gone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np

from toyserve.costs import RooflineCostModel, cost_model, get_hardware, get_model
from toyserve.course.checks.part import Case, Part, Picture, Wrong
from toyserve.course.checks.runs import (
    close,
    numbered,
    require_all_served,
    require_number,
    same_schedule,
    serve,
)
from toyserve.kv import ContiguousKV, ReservedKV
from toyserve.request import FinishReason
from toyserve.schedulers import ContinuousScheduler

Hole = tuple[int, int]  # first block, number of blocks


def holes_of(owners: Sequence[Any]) -> list[Hole]:
    """Every gap between the owned, None being nobody, in order of address."""
    result, address = [], 0
    for free, run in groupby(owners, key=lambda owner: owner is None):
        length = len(list(run))
        if free:
            result.append((address, length))
        address += length
    return result


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
    each, right = require_number(got["token_bytes"], "token_bytes"), expected["token_bytes"]
    shared = case["query_heads"] / case["kv_heads"]
    for factor, words in (
        (0.5, "is that of the keys alone; the values are kept as well"),
        (1 / case["layers"], "is that of one layer; each has keys and values of its own"),
        (1 / case["bytes_per_number"], "counts numbers; how many bytes does each take?"),
        (2 / case["bytes_per_number"], f"is for 16-bit numbers; here they are {case['kv_dtype']}"),
        (shared, "counts query heads; several of them share one KV head"),
    ):
        if abs(each - factor * right) < 1e-6 * right and factor != 1:
            raise Wrong(f"token_bytes = {each:,.0f} {words}")
    close(each, right, "token_bytes", rel=1e-6, unit="bytes")
    _judge_long_ones(case, got["long_ones"], expected["long_ones"], right)
    slower = require_number(got["slower"], "slower")
    if abs(slower * expected["slower"] - 1) < 0.02 < abs(expected["slower"] - 1):
        raise Wrong(f"slower = {slower:.3g} is the wrong way round: the longer step over the other")
    close(slower, expected["slower"], "`slower` (the step with the long ones over that without)")
    return (
        f"{expected['long_ones']} more conversations, and a step takes {expected['slower']:.2f} × "
        "as long: their KV is read in every step, too."
    )


def _judge_long_ones(case: Case, got: Any, right: int, each: float) -> None:
    number, usable = require_number(got, "long_ones"), case["memory_gb"] * case["share_in_use"]
    if number == right:
        return
    if number != int(number):
        raise Wrong(f"long_ones = {number:.4g}: a conversation fits, or it does not; whole numbers")
    for wrong, words in (
        (right + 1, "is one too many: the last would fit only in part"),
        (_long_ones(case, usable, each), "fit on a GPU without a model; the weights are there too"),
        (
            _long_ones(case, case["memory_gb"] - case["weights_gb"], each),
            f"fit if all memory were to be had; {case['share_in_use']:.0%} of it is",
        ),
        (
            _long_ones(case, usable - case["weights_gb"], each, short=False),
            "fit in an empty server; the short ones are there already",
        ),
    ):
        if number == wrong:
            raise Wrong(f"long_ones = {number:g} {words}")
    way = "too many" if number > right else "too few"
    raise Wrong(f"long_ones = {number:g} is {way}. What is left beside weights and short ones?")


# -- 06.2: another place ------------------------------------------------------------------------


def slab(name: str, arrival: float, num_blocks: int, answer: int) -> list[Any]:
    """A request that needs so many blocks from its first token to its last: at most 15 answered."""
    return [name, arrival, 16 * num_blocks - 15, answer]


def visitors(seed: int, num: int, largest: int) -> list[list[Any]]:
    """Requests of 1 to ``largest`` blocks that come and go."""
    rng = np.random.default_rng([6, seed])
    return [
        slab(f"r{i}", round(0.009 * i, 3), int(rng.integers(1, largest + 1)),
             int(rng.integers(2, 16)))
        for i in range(num)
    ]  # fmt: skip


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


def _placed(run: Any) -> list[tuple[int, str, int]]:
    """(step, request, first block) of everybody who is let in, in that order."""
    result = []
    for number, step in enumerate(run.steps, 1):
        for name in step.admitted:
            taken = [e.block for e in step.block_events if e[0] == "take" and e.request_id == name]
            result.append((number, name, taken[0]))
    return result


def _holes_before(run: Any, step: int, name: str) -> list[Hole]:
    """The holes in the moment when ``name`` is let in."""
    owners: list[str | None] = [None] * int(run.meta["num_blocks"])
    for number, record in enumerate(run.steps, 1):
        for event in record.block_events:
            if number == step and event.kind == "take" and event.request_id == name:
                return holes_of(owners)
            owners[event.block] = event.request_id if event.kind == "take" else None
        for event in record.block_events_after:
            owners[event.block] = event.request_id if event.kind == "take" else None
    return holes_of(owners)


def two_maps(expected: Any, got: Any, step: int) -> Picture:
    def draw() -> Any:
        from toyserve.viz import block_map
        from toyserve.viz.style import THEMES, new_axes

        axes = new_axes((10, 4), THEMES["light"], 2)
        block_map(expected, step, ax=axes[0], legend=False, title=f"Step {step}: expected")
        block_map(got, min(step, got.num_steps), ax=axes[1], title="yours")
        return axes[0].figure

    return draw


def judge_places(case: Case, got: Any, expected: Any) -> None:
    require_all_served(case, got)
    for mine, right in zip(_placed(got), _placed(expected), strict=False):
        if mine[:2] != right[:2]:
            break  # somebody else, or in another step: the schedules differ
        if mine[2] != right[2]:
            words = _wrong_place(mine, right[2], _holes_before(expected, *right[:2]))
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
        f"{said}, where a hole of {_blocks(sizes[block])} begins; the one at block {right} has "
        f"{_blocks(sizes[right])}, and that is enough"
    )


def _blocks(number: int) -> str:
    return f"{number} block" if number == 1 else f"{number} blocks"


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


def pool_at(case: Case) -> list[int | None]:
    """One entry per block while that step runs: None if it is free, else how many of its slots hold
    a token."""
    from toyserve.viz.blocks import block_map_at

    longest = case.get("max_model_len")
    kv: Any = (
        ReservedKV(case["blocks"], max_model_len=longest)
        if longest
        else ContiguousKV(case["blocks"])
    )
    memory = block_map_at(serve(case, ContinuousScheduler(64), kv=kv), case["step"])
    held = zip(memory.holders, memory.num_written, strict=True)
    return [written if holder else None for holder, written in held]


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
    if internal != expected[0]:
        free = 16 * sum(written is None for written in pool)
        if internal == expected[0] + free:
            raise Wrong(f"internal = {internal:g} counts free blocks, too; they are not taken")
        way = "too many" if internal > expected[0] else "too few"
        raise Wrong(f"internal = {internal:g} slots is {way}: taken, and no token in it")
    sizes = [length for _, length in holes_of(pool)]
    for wrong, words in (
        (sum(sizes), "is everything that is free; who fits in is no loss"),
        (sum(sizes) - max(sizes, default=0),
         "is what lies outside the largest hole; is every other hole really too small here?"),
        (sum(n for n in sizes if n <= need), f"counts a hole of {need}, into which it fits"),
        (sum(n for n in sizes[:-1] if n < need), "misses the hole at the end of memory"),
    ):  # fmt: skip
        if external == 16 * wrong:
            raise Wrong(f"external = {external:g} slots {words}")
    way = "too many" if external > expected[1] else "too few"
    raise Wrong(f"external = {external:g} slots is {way}: free, in holes below {_blocks(need)}")


# -- 06.4: books that lose memory ---------------------------------------------------------------


class Ledger(ContiguousKV):
    """The colleague's books: a list of gaps, and of each request the slab that it holds."""

    def __init__(self, num_blocks: int, block_size: int = 16) -> None:
        super().__init__(num_blocks, block_size)
        self.gaps: list[Hole] = [(0, num_blocks)]
        self.slabs: dict[Any, Hole] = {}

    def holes(self) -> list[Hole]:
        return sorted(self.gaps)  # first fit looks here

    def allocate(self, request: Any, num_tokens: int, keep_free: int = 0) -> bool:
        known = len(request.block_table)
        granted = super().allocate(request, num_tokens, keep_free)
        if new := request.block_table[known:]:
            self.cut(new[0], len(new))
            self.slabs.setdefault(request, (new[0], len(new)))
        return granted

    def free(self, request: Any) -> None:
        if request in self.slabs:
            self.put_back(*self.slabs.pop(request))
        super().free(request)

    def cut(self, start: int, length: int) -> None:
        """Take these blocks out of the gap in which they lie."""
        first, size = next(gap for gap in self.gaps if gap[0] <= start < sum(gap))
        self.gaps.remove((first, size))
        rest = ((first, start - first), (start + length, first + size - start - length))
        self.gaps += [gap for gap in rest if gap[1]]

    def put_back(self, start: int, length: int) -> None:
        """A new gap, joined with those that it touches."""
        for first, size in list(self.gaps):
            if first + size == start or start + length == first:
                self.gaps.remove((first, size))
                start, length = min(first, start), length + size
        self.gaps.append((start, length))


class _Watching(ContinuousScheduler):
    """Notes, in every step, whose each block is, and which gaps the books know."""

    def __init__(self, max_running: int = 64) -> None:
        super().__init__(max_running)
        self.books: list[dict[str, Any]] = []

    def schedule(self) -> Any:
        plan, kv = super().schedule(), self.kv
        assert isinstance(kv, ContiguousKV)
        owners = [owner.request_id if owner else None for owner in kv.owners]
        gaps = [[int(start), int(length)] for start, length in kv.holes()]
        self.books.append({"owners": owners, "gaps": gaps})
        return plan


def watch(case: Case, kv: Any) -> dict[str, Any]:
    """Serve the case. ``books``: per step, who owns which block, and the gaps that are known.
    ``run``: the recording, None if the engine had to stop; ``stopped`` then says why."""
    scheduler = _Watching()
    try:
        return {"run": serve(case, scheduler, kv=kv), "stopped": "", "books": scheduler.books}
    except RuntimeError as error:
        return {"run": None, "stopped": str(error), "books": scheduler.books}


def draw_books(books: Sequence[Any], title: str = "Who has which block, step by step") -> Any:
    """Step by step from left to right, the blocks of memory from top to bottom."""
    from matplotlib.colors import to_rgb

    from toyserve.viz.style import OWNERS, THEMES, figure_of, new_axes

    look, num_blocks = THEMES["light"], len(books[0]["owners"])
    names = sorted({name for book in books for name in book["owners"] if name})
    colors = {name: to_rgb(OWNERS[i % len(OWNERS)]) for i, name in enumerate(names)}
    image = np.ones((num_blocks, len(books), 3))
    (ax,) = new_axes((10, 1.4 + 0.22 * num_blocks), look)
    for x, book in enumerate(books):
        known = {b for start, length in book["gaps"] for b in range(start, start + length)}
        before = books[x - 1]["owners"] if x else [None] * num_blocks
        for block, owner in enumerate(book["owners"]):
            if owner:
                image[block, x] = colors[owner]
            elif block not in known:
                image[block, x] = to_rgb("#CC3311")
            if owner and owner != before[block]:
                ax.text(x, block, owner, ha="center", va="center", fontsize=8, color=look.ink)
    ax.imshow(image, aspect="auto", interpolation="nearest")
    ax.set(xlabel="step", ylabel="block", yticks=range(num_blocks))
    ax.set_xticks(range(0, len(books), 5), [str(x + 1) for x in range(0, len(books), 5)])
    ax.set_title(f"{title}; red: free, and the books do not know it", loc="left", fontsize=11)
    return figure_of(ax)


def comers(seed: int, num: int, answer: int = 45) -> list[list[Any]]:
    """Requests many of which outgrow the blocks that they came in with."""
    rng = np.random.default_rng([64, seed])
    return [
        [f"r{i}", round(0.02 * i, 3), int(rng.integers(1, 60)), int(rng.integers(3, answer))]
        for i in range(num)
    ]


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
            f"in step {step} {_blocks(free)} are free and the books know {known}: what did "
            "somebody leave behind who left before it?",
            picture,
        )
    if known > free:
        raise Wrong(
            f"in step {step} the books call {_blocks(known)} free, and {free} are: one of them is "
            "in use, or is listed twice",
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
            f"with {number:g} tokens reserved {refused} users are sent away, and at most "
            f"{case['refused']} may be: their requests are longer than that"
        )
    if wait > case["ttft_s"]:
        places = case["blocks"] // -(-(int(number) - 1) // 16)
        raise Wrong(
            f"with {number:g} tokens reserved there are {places} places, and p95 of TTFT is "
            f"{wait:.2f} s; the target is {case['ttft_s']} s"
        )
    return f"{refused} sent away, p95 of TTFT {wait:.2f} s: both targets are met."


PARTS = [
    Part("06.1", "bytes on your server", ("token_bytes", "long_ones", "slower"),
          lambda case, token_bytes, long_ones, slower: {
              "token_bytes": token_bytes, "long_ones": long_ones, "slower": slower},
          judge_bytes, lambda seed: [machine(seed)], truth=true_bytes),
    Part("06.2", "the tightest hole", ("BestFit",), run_places, judge_places, PLACES),
    Part("06.3", "two kinds of waste", ("wasted",),
          lambda case, wasted: wasted(pool_at(case), 16, case["need"]), judge_waste, WASTE),
    Part("06.4", "books that lose memory", ("leakers", "lost", "Mended"),
          run_mended, judge_mended, MENDED),
    Part("06.5", "how much to reserve", ("max_model_len",),
          lambda case, max_model_len: max_model_len,
          judge_reserve, lambda seed: [evening(seed)], truth=lambda case: None),
]  # fmt: skip
