"""What exercise 07 looks at: slots behind a block table, and who takes how many blocks."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np

from toyserve.course.checks.colleague import slots_read
from toyserve.course.checks.kinds import by_property, prediction, tuning
from toyserve.course.checks.numbers import close, exactly, require_whole
from toyserve.course.checks.part import Case, Part, Wrong
from toyserve.course.checks.pictures import two_maps
from toyserve.course.checks.places import draw_reads, slots_of
from toyserve.course.checks.runs import require_all_served, same_schedule, serve
from toyserve.kv import PagedKV, ReservedKV
from toyserve.schedulers import ContinuousScheduler
from toyserve.words import counted

# -- 07.1: as few pieces as possible ------------------------------------------------------------


def walk(what: str, table: list[int], start: int, end: int, size: int) -> dict[str, Any]:
    """A case of 07.1: positions ``start`` to ``end`` - 1 behind a block table."""
    return {"what": what, "table": table, "start": start, "end": end, "size": size}


def shuffled(seed: int, num_blocks: int) -> list[int]:
    """A block table in which some neighbours are neighbours in memory, too."""
    rng = random.Random(seed)
    groups = [[10 * i + k for k in range(rng.randint(1, 3))] for i in range(num_blocks)]
    rng.shuffle(groups)
    return [block for group in groups for block in group][:num_blocks]


WALKS = [
    walk("positions 3 to 9 of one block", [5], 3, 10, 16),
    walk("positions 10 to 19, blocks of 16", [17, 42], 10, 20, 16),
    walk("positions 0 to 31: two whole blocks", [17, 42, 9], 0, 32, 16),
    walk("no position at all", [17, 42], 16, 16, 16),
    walk("blocks 7 and 8 are neighbours in memory", [7, 8, 3], 2, 44, 16),
    walk("blocks 8 and 7 are not in this order", [8, 7, 3], 2, 44, 16),
    walk("positions 5 to 33, blocks of 10", [4, 5, 0, 2], 5, 34, 10),
]


def run_walk(case: Case, pieces: Any) -> Any:
    found = pieces(list(case["table"]), case["start"], case["end"], case["size"])
    return [[int(first), int(length)] for first, length in found]


def judge_walk(case: Case, got: Any, expected: Any) -> None:
    size, wanted = case["size"], range(case["start"], case["end"])
    right = slots_of(case["table"], wanted, size)
    mine = [first + i for first, length in got for i in range(length)]
    if any(length < 1 for _, length in got):
        raise Wrong(f"there is a piece without a slot in {got}")
    if len(mine) != len(right):
        have, due = counted(len(mine), "slot"), counted(len(right), "position")
        raise Wrong(f"your pieces {got} have {have}, for {due}")
    for position, slot, other in zip(wanted, mine, right, strict=True):
        if slot != other:
            raise Wrong(
                f"position {position} lives in slot {other} (block {other // size}, offset "
                f"{other % size}), and yours is {slot}"
            )
    fewest = bool(right) + sum(b != a + 1 for a, b in pairwise(right))
    if len(got) > fewest:
        raise Wrong(f"all slots are right, but in {len(got)} pieces; {fewest} would do")


# -- 07.2: one block ahead ----------------------------------------------------------------------

AHEAD = [
    {"what": "one request that grows, and plenty of room", "slots": 1, "blocks": 8,
     "block_size": 4, "spare": 2, "requests": [["A", 0.0, 4, 20]]},
    {"what": "one that ends in its second block", "slots": 1, "blocks": 8,
     "block_size": 4, "spare": 2, "requests": [["A", 0.0, 4, 5]]},
    {"what": "two requests, and 3 blocks shall stay free", "slots": 2, "blocks": 8,
     "block_size": 4, "spare": 3, "requests": [["A", 0.0, 4, 12], ["B", 0.0, 3, 14]]},
    {"what": "three requests, memory for two", "slots": 3, "blocks": 6,
     "block_size": 4, "spare": 0, "requests": [["A", 0.0, 5, 9], ["B", 0.0, 5, 12],
                                              ["C", 0.0, 9, 4]]},
    {"what": "four requests and a watermark", "slots": 4, "blocks": 10, "watermark": 0.3,
     "block_size": 4, "spare": 1, "requests": [["A", 0.0, 9, 9], ["B", 0.0, 9, 12],
                                              ["C", 0.0, 9, 4], ["D", 0.0, 9, 4]]},
]  # fmt: skip


def run_ahead(case: Case, cls: Any) -> Any:
    kv = cls(case["blocks"], case["block_size"])
    kv.spare = case["spare"]
    return serve(
        case, ContinuousScheduler(case["slots"], watermark=case.get("watermark", 0)), kv=kv
    )


def _taken(step: Any) -> Counter[str]:
    return Counter(e.request_id for e in step.block_events if e.kind == "take")


def judge_ahead(case: Case, got: Any, expected: Any) -> None:
    require_all_served(case, got)
    held: Counter[str] = Counter()
    for number, (step, right) in enumerate(zip(got.steps, expected.steps, strict=False), 1):
        mine, wanted = _taken(step), _taken(right)
        for name in step.num_scheduled_tokens:
            if name in right.num_scheduled_tokens and mine[name] != wanted[name]:
                words = _wrong_take(case, name, mine[name], wanted[name], held[name], step, right)
                raise Wrong(f"in step {number} {words}", two_maps(expected, got, number))
        if mine != wanted:
            break
        for event in (*step.block_events, *step.block_events_after):
            held[event.request_id] += 1 if event.kind == "take" else -1
    same_schedule(case, got, expected)


def _wrong_take(
    case: Case, name: str, mine: int, wanted: int, held: int, step: Any, right: Any
) -> str:
    said = f"{name} takes {counted(mine, 'block')}, and it should be {wanted}: "
    if name in step.admitted:
        return said + "whoever comes in takes what its tokens need, and no more"
    if mine < wanted:
        return said + f"{right.num_free_blocks} would still be free, so it takes one ahead"
    prompt, answer = next((p, a) for n, _, p, a, *_ in case["requests"] if n == name)
    longest = -(-(prompt + answer - 1) // case["block_size"])
    if held + mine > longest:
        return said + f"at its longest it needs {longest} blocks (the last token takes no slot)"
    if wanted == 0:
        return said + "its last block is not full yet"
    return said + f"with one more only {step.num_free_blocks} stay free; {case['spare']} shall"


# -- 07.3: a fault at the end of a block --------------------------------------------------------


READS: list[dict[str, Any]] = [
    {"what": "1 to 64 tokens, blocks of 12", "table": [7, 2, 9, 3, 0, 5], "size": 12,
     "longest": 64},
    {"what": "1 to 8 tokens, blocks of 4", "table": [2, 0], "size": 4, "longest": 8},
    {"what": "blocks of 1", "table": [3, 1, 2, 0], "size": 1, "longest": 4},
]  # fmt: skip


def read_all(case: Case, to_read: Any) -> list[list[int]]:
    """What is read with 1, 2, 3 … tokens."""
    return [
        [int(slot) for slot in to_read(list(case["table"]), num, case["size"])]
        for num in range(1, case["longest"] + 1)
    ]


def run_reads(case: Case, first_bad: Any, bad: Any, to_read: Any) -> Any:
    return {"first_bad": first_bad, "bad": bad, "reads": read_all(case, to_read)}


def judge_reads(case: Case, got: Any, expected: Any) -> str:
    shown = READS[0]
    wrong = [
        num
        for num, slots in enumerate(read_all(shown, slots_read), 1)
        if slots != slots_of(shown["table"], range(num), shown["size"])
    ]
    exactly(got["first_bad"], wrong[0], "first_bad", (
        (wrong[0] - 1, "is too few: with so many tokens all is read; count tokens from 1"),
    ), otherwise="is not it: which is the first row with red in it?")  # fmt: skip
    exactly(got["bad"], len(wrong), "bad", otherwise="is not the number of rows with red in them")
    if len(got["reads"]) != case["longest"]:
        raise Wrong("not every number of tokens was tried")
    for num, slots in enumerate(got["reads"], 1):
        right = slots_of(case["table"], range(num), case["size"])
        missing = [p for p, slot in enumerate(right) if slot not in slots]
        so_many = counted(num, "token")
        if missing:
            raise Wrong(
                f"with {so_many} position {missing[0]} is not read (missing: {len(missing)})",
                lambda: draw_reads(case, got["reads"], "Yours"),
            )
        strange = [slot for slot in slots if slot not in right]
        if strange:
            raise Wrong(f"with {so_many} slot {strange[0]} is read: no token of it lies there")
        if len(slots) != len(right):
            raise Wrong(f"with {so_many} some slots are read twice")
    return "A rest of 0 means a full last block. Nothing crashes, and one block is forgotten."


# -- 07.4: predict, then measure ----------------------------------------------------------------


def office(seed: int) -> dict[str, Any]:
    """The learner's own five requests, and a crowd for the measurement."""
    rng = np.random.default_rng(seed)
    size = int(rng.choice([8, 16, 32]))
    requests = [[name, 0.0, int(rng.integers(20, 150)), 40] for name in "ABCDE"]
    crowd = [[f"r{i}", 0.0, int(rng.integers(20, 200)), int(rng.integers(10, 200))]
             for i in range(40)]  # fmt: skip
    return {"what": "your five requests", "block_size": size, "step": int(rng.integers(5, 35)),
            "requests": requests, "crowd": crowd, "slots_in_all": 4096,
            "max_model_len": 512}  # fmt: skip


def crowd_run(case: Case, kv: Any) -> Any:
    """The crowd of a case through the engine, with this memory."""
    return serve({"requests": case["crowd"]}, ContinuousScheduler(64), kv=kv)


def true_office(case: Case) -> dict[str, float]:
    size = case["block_size"]
    blocks, tokens = _held(case, case["step"] - 1)
    pool = case["slots_in_all"] // size
    reserved = ReservedKV(pool, size, max_model_len=case["max_model_len"])
    times = [crowd_run(case, kv).summary()["makespan_s"] for kv in (reserved, PagedKV(pool, size))]
    return {"blocks": blocks, "empty": blocks * size - tokens, "gain": times[0] / times[1]}


def _held(case: Case, answered: int) -> tuple[int, int]:
    """Blocks and tokens, when each request has so many tokens of its answer in the cache."""
    lengths = [prompt + answered for _, _, prompt, _ in case["requests"]]
    return sum(-(-n // case["block_size"]) for n in lengths), sum(lengths)


def judge_office(case: Case, got: Any, expected: Any) -> str:
    size, step = case["block_size"], case["step"]
    right, empty = expected["blocks"], expected["empty"]
    tokens, num = right * size - empty, len(case["requests"])
    exactly(got["blocks_used"], right, "blocks_used", (
        (_held(case, 0)[0], "is for the prompts alone; each step adds a token"),
        (-(-tokens // size), "puts all into one table; each has a last block of its own"),
        (sum((p + step - 1) // size for _, _, p, _ in case["requests"]),
         "counts full blocks; the last of each is there too"),
        (_held(case, step)[0], "is a token per request too many: the newest has no KV yet"),
    ))  # fmt: skip
    late = ("is off by one per request: in step 1 the prompt is written, in step 2 the first token "
            "of the answer")  # fmt: skip
    exactly(got["empty_slots"], empty, "empty_slots", ((empty + num, late), (empty - num, late)),
            hint="Slots of those blocks, less the tokens")  # fmt: skip
    what = "`gain` (time with reserved memory over time with pages)"
    close(got["gain"], expected["gain"], what, (
        (1 / expected["gain"], "is the wrong way round: reserved time over paged time"),
    ), near=0.01)  # fmt: skip
    return (
        f"{right} blocks for five, {expected['empty']} slots empty; and the crowd is done "
        f"{expected['gain']:.2f} × as fast, because more of it fits at once."
    )


# -- 07.5: how large is a page ------------------------------------------------------------------


def library(seed: int) -> dict[str, Any]:
    """30 requests, and the two targets of this learner."""
    rng = np.random.default_rng(seed)
    requests = [
        [f"r{i}", 0.0, int(rng.integers(20, 400)), int(rng.integers(10, 120))] for i in range(30)
    ]
    case = {"what": "your library", "requests": requests}
    size = int(rng.choice([12, 16, 20, 24, 28]))
    return case | {"empty": round(1.12 * size_costs(case, size)[0], 3),
                   "entries": size_costs(case, size)[1] + 1}  # fmt: skip


def size_costs(case: Case, block_size: int) -> tuple[float, int]:
    """(share of the taken slots that is empty, entries of the longest table), with this size."""
    from toyserve.viz.kvuse import kv_use

    kv = PagedKV(-(-20_000 // block_size), block_size)
    use = kv_use(serve(case, ContinuousScheduler(64), kv=kv))
    empty = 1 - use.written_slots.sum() / (use.held_blocks.sum() * block_size)
    longest = max(prompt + answer - 1 for _, _, prompt, answer in case["requests"])
    return float(empty), -(-longest // block_size)


def judge_size(case: Case, got: Any, expected: Any) -> str:
    size = require_whole(got, "block_size (in slots)", 1, 2048)
    empty, entries = size_costs(case, size)
    if empty > case["empty"]:
        raise Wrong(
            f"with blocks of {size:g} {empty:.1%} of what is taken is empty, and at most "
            f"{case['empty']:.1%} may be: the last pages are too large"
        )
    if entries > case["entries"]:
        raise Wrong(
            f"with blocks of {size:g} the longest table has {entries} entries, and at most "
            f"{case['entries']} may be looked up in each step"
        )
    return f"{empty:.1%} empty, {entries} entries at most: both targets are met."


PARTS = [
    Part("07.1", "as few pieces as possible", ("pieces",), run_walk, judge_walk, WALKS),
    Part("07.2", "one block ahead", ("AheadKV",), run_ahead, judge_ahead, AHEAD),
    Part("07.3", "a fault at the end of a block", ("first_bad", "bad", "to_read"),
         run_reads, judge_reads, READS, by_property),
    prediction("07.4", "predict, then measure", ("blocks_used", "empty_slots", "gain"),
               office, true_office, judge_office),
    tuning("07.5", "how large is a page", "block_size", library, judge_size),
]  # fmt: skip
