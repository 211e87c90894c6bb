"""What exercise 08 looks at: numbers that a kernel must get right, and bytes that it must not move.

Wrong kernels are computed here, to recognise them; none of them is the right one.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from toyserve.costs import StepBreakdown, StepShape, cost_model
from toyserve.course.checks.kinds import by_property, prediction
from toyserve.course.checks.numbers import close, require_number, require_whole
from toyserve.course.checks.part import Case, Part, Wrong
from toyserve.course.checks.wrong_kernels import (
    NEAR,
    SIGNS,
    broken,
    drawn,
    error_map,
    is_near,
    pretend,
    problem,
)

# -- 08.1: merge the parts of one context -------------------------------------------------------

MERGES = [
    {"what": "two parts of 3 and 5 keys", "keys": [3, 5], "shift": 0, "seed": 1},
    {"what": "four parts, one of them without any key", "keys": [4, 4, 0, 1],
     "shift": 0, "seed": 2},
    {"what": "three parts whose scores are near 1,000", "keys": [2, 7, 5],
     "shift": 1000, "seed": 3},
    {"what": "two parts whose scores are near -1,000", "keys": [6, 2], "shift": -1000, "seed": 4},
    {"what": "three parts, all without a key", "keys": [0, 0, 0], "shift": 0, "seed": 5},
]  # fmt: skip


def parts_of(case: Case) -> tuple[Any, Any]:
    """Each part's own answer, [parts, 6], and the logarithm of its sum of exp(score), [parts]."""
    rng = np.random.default_rng(case["seed"])
    outs, lses = np.zeros((len(case["keys"]), 6)), np.full(len(case["keys"]), -np.inf)
    for i, num_keys in enumerate(case["keys"]):
        scores, values = rng.normal(0, 2, num_keys), rng.normal(0, 3, (num_keys, 6))
        if num_keys:
            weights = np.exp(scores)
            outs[i] = weights @ values / weights.sum()
            lses[i] = np.log(weights.sum()) + case["shift"]
    return outs, lses


def run_merge(case: Case, merge: Any) -> Any:
    with np.errstate(all="ignore"):
        both = merge(*parts_of(case))
    if not isinstance(both, tuple | list) or len(both) != 2:
        raise Wrong("your merge must return two things: the answer (out) and its log-sum (lse)")
    return {"out": both[0], "lse": both[1]}


def judge_merge(case: Case, got: Any, expected: Any) -> str:
    outs, lses = parts_of(case)
    out, wanted = np.array(got["out"], dtype=float), np.array(expected["out"])
    if out.shape != wanted.shape:
        raise Wrong(
            f"your out must have the form {wanted.shape}, like one part's; it has {out.shape}"
        )
    if not any(case["keys"]):
        if not is_near(out, 0):
            raise Wrong(f"nothing to attend to must give zeros; out begins with {out[0]:g}")
    elif not np.isfinite(out).all():
        why = {1000: "exp(1000) is infinity", -1000: "exp(-1000) is 0"}
        raise Wrong(
            f"the answer begins with {out[0]:g}: is a factor infinity, or a sum 0? "
            f"({why.get(case['shift'], 'exp of a large lse is infinity')}; only differences of two "
            "lse are harmless numbers.)"
        )
    elif not is_near(out, wanted):
        if is_near(out, outs.mean(axis=0)):
            raise Wrong("that is the plain average of the parts: each must weigh what it summed")
        if is_near(out, outs.sum(axis=0)):
            raise Wrong("that is the sum of the parts; their weights must add up to 1")
        if is_near(out, outs[np.argmax(lses)]):
            raise Wrong("that is the answer of the heaviest part alone")
        raise Wrong(f"your out begins with {out[0]:.4f}, and all keys at once give {wanted[0]:.4f}")
    lse = require_number(got["lse"], "your lse")
    if not is_near(lse, expected["lse"]):
        if is_near(lse, max(lses)):
            raise Wrong(
                f"your lse = {lse:.3f} is the largest of the parts'; together they sum to more"
            )
        raise Wrong(
            f"out is right, but lse is {lse:.3f}: whoever merges this result once more will weigh "
            "it wrongly"
        )
    return "So a context can be cut anywhere, and merged in any order, without an approximation."


# -- 08.2: a chunk of new tokens over a block table ---------------------------------------------

ATTENDS = [
    {"what": "one sequence, 6 tokens in blocks of 4, 1 of them new", "seq_lens": [6], "new": [1],
     "heads": 1, "kv_heads": 1, "dim": 5, "block_size": 4, "seed": 1},
    {"what": "two sequences of 9 and 6 tokens in blocks of 4", "seq_lens": [9, 6], "new": [1, 1],
     "heads": 2, "kv_heads": 2, "dim": 6, "block_size": 4, "seed": 2},
    {"what": "four query heads share two KV heads", "seq_lens": [11, 7], "new": [1, 1],
     "heads": 4, "kv_heads": 2, "dim": 6, "block_size": 4, "seed": 3},
    {"what": "a chunk: tokens 6, 7 and 8 of a sequence are new", "seq_lens": [9], "new": [3],
     "heads": 2, "kv_heads": 1, "dim": 6, "block_size": 4, "seed": 4},
    {"what": "a whole prompt, a chunk and two decodes in one launch", "seq_lens": [7, 13, 1, 18],
     "new": [7, 5, 1, 1], "heads": 6, "kv_heads": 2, "dim": 7, "block_size": 5, "seed": 5},
]  # fmt: skip


def run_attend(case: Case, attend: Any) -> Any:
    p, loads = problem(case), []

    def load(block: Any) -> tuple[Any, Any]:
        """K and V of one block, fetched from the slow memory."""
        if not 0 <= block < len(p["k"]):
            raise ValueError(f"block {block} was asked for; the pool has 0 to {len(p['k']) - 1}")
        loads.append(int(block))
        return p["k"][int(block)].copy(), p["v"][int(block)].copy()

    with np.errstate(all="ignore"):
        out = attend(p["q"], load, p["table"], p["query_start"], p["seq_lens"], case["block_size"])
    return {"out": out, "loads": loads}


def judge_attend(case: Case, got: Any, expected: Any) -> str:
    out, wanted = np.array(got["out"], dtype=float), np.array(expected["out"])
    if out.shape != wanted.shape:
        raise Wrong(f"it must return an array of the form {wanted.shape}; it has {out.shape}")
    p = problem(case)
    if not is_near(out, wanted):
        raise Wrong(_what_is_wrong(case, p, got["loads"], out, wanted), error_map(out, wanted))
    mine, loads = Counter(block for blocks in p["table"] for block in blocks), Counter(got["loads"])
    missing = sorted(set(mine) - set(loads))
    if missing:
        raise Wrong(f"the numbers are right, but block {missing[0]} was never fetched with load")
    for block, times in sorted(loads.items()):
        if times > mine[block]:
            raise Wrong(
                f"the numbers are right, but block {block} is fetched {times} times, and once is "
                "enough: all heads and all new tokens of a sequence can use it while it is there"
            )
    return "Right, and every byte of K and V was fetched once: no kernel could move less."


def _what_is_wrong(case: Case, p: Any, loads: Any, out: Any, wanted: Any) -> str:
    if is_near(out, pretend(case)):
        return "a new token sees the ones after it: the causal mask is missing inside the chunk"
    for fault, words in SIGNS.items():
        if is_near(out, broken(case, fault)):
            return words
    if is_near(out, pretend(case, sees=lambda length, i: range(i + 1))):
        return "the first new token is treated as position 0; it stands behind what is computed"
    if is_near(out, pretend(case, head=lambda h: 0)):
        return "every query head uses KV head 0"
    strangers = set(loads) - {block for blocks in p["table"] for block in blocks}
    if strangers:
        return f"block {min(strangers)} is read, and it belongs to none of the sequences"
    if not np.isfinite(out).all():
        return "there are NaNs in the answer: is a sum 0, or minus infinity less minus infinity?"
    r, h = np.argwhere(~np.isclose(out, wanted, rtol=NEAR, atol=NEAR))[0][:2]
    s = int(np.searchsorted(p["query_start"], r, side="right")) - 1
    return (
        f"sequence {s}, new token {r - p['query_start'][s]}, head {h} is the first that is wrong: "
        f"it begins with {out[r, h, 0]:.4f} instead of {wanted[r, h, 0]:.4f}"
    )


# -- 08.3: five error pictures ------------------------------------------------------------------


LOOKS_LIKE = {
    "no mask": "would be right wherever the last page is full, and worst just above that",
    "last page": "would be right wherever the last page is full, and worst (no answer at all) "
    "below one page",
    "no scale": "would leave one row alone: with a single key, the weight is 1 whatever its score",
    "first table": "would leave one sequence alone: the first, which has 32 tokens",
    "wrong KV head": "would leave some whole columns alone, at every length",
}


def judge_pictures(case: Case, got: Any, expected: Any) -> str:
    if not isinstance(got, dict) or set(got) != set(expected):
        raise Wrong("your faults must be a dict with the keys 'P', 'Q', 'R', 'S' and 'T'")
    for letter, fault in got.items():
        if fault not in LOOKS_LIKE:
            raise Wrong(f"{letter}: {fault!r} is none of the five faults; take their short names")
        if fault != expected[letter]:
            raise Wrong(f"{letter} is not {fault!r}: that {LOOKS_LIKE[fault]}")
    return "No message, no crash, only a pattern: now you can read it."


# -- 08.4: bytes --------------------------------------------------------------------------------


def decode_step(seed: int) -> dict[str, Any]:
    """The learner's own step: so many users, each with so many tokens behind it."""
    rng = np.random.default_rng(8400 + seed)
    users, context = int(rng.integers(20, 90)), int(rng.integers(15, 60)) * 100
    return {"what": "your decode step", "users": users, "context": context, "gpu": "h100"}


def bill_of(case: Case) -> StepBreakdown:
    """The cost model's bill for one decode step of the case: Llama-3-8B."""
    costs = cost_model(case["gpu"], "llama-3-8b")
    return costs.breakdown(StepShape.of_rows([(case["context"], 1)] * case["users"]))


def true_bytes(case: Case) -> Any:
    bill = bill_of(case)
    gathered = bill.time + 2 * bill.attention.memory_time
    return {
        "kv_gb": bill.attention.num_bytes / 1e9,
        "share": bill.attention.time / bill.time,
        "slower": gathered / bill.time,
    }


def judge_bytes(case: Case, got: Any, expected: Any) -> str:
    right, share, slower = (expected[name] for name in ("kv_gb", "share", "slower"))
    close(got["kv_gb"], right, "your kv_gb", (
        (right / 32, "is one layer; the model has 32"),
        (right / 2, "is K alone, or one byte per number"),
        (4 * right, "counts 32 heads; K and V have 8, which the query heads share"),
        (3 * right, "is what gathering moves: read, write, read"),
        (right * 1e9 / 2**30, "counts in 2^30 bytes; a GB is 10^9 here"),
        (right / case["users"], "is one user's"),
    ), unit="GB", near=0.01)  # fmt: skip
    close(got["share"], share, "your share", (
        (100 * share, "looks like per cent; it must be between 0 and 1"),
    ), near=0.02)  # fmt: skip
    close(got["slower"], slower, "your slower", (
        (3, "is attention alone; the weights are read once, gathering or not"),
    ), near=0.005)  # fmt: skip
    return f"{right:.1f} GB for one token each: that is why attention must not copy."


# -- 08.5: how many splits ----------------------------------------------------------------------

PROCESSORS, KV_HEADS = 132, 8


def split_us(users: int, context: int, splits: int) -> float:
    """Microseconds of one layer's decode attention whose contexts are cut into so many parts.

    A program takes 2 µs to start and 0.5 µs per page of 16 tokens; 132 run at a time. Merging takes
    5 µs and another 0.2 µs per part.
    """
    pages = -(-context // 16)
    rounds = -(-users * KV_HEADS * splits // PROCESSORS)
    merging = 5 + 0.2 * splits if splits > 1 else 0
    return rounds * (2 + 0.5 * -(-pages // splits)) + merging


SPLITS = [
    {"what": "one user, 200 tokens", "users": 1, "context": 200},
    {"what": "one user, 8,000 tokens", "users": 1, "context": 8000},
    {"what": "64 users, 4,000 tokens", "users": 64, "context": 4000},
    {"what": "three users, 30,000 tokens", "users": 3, "context": 30_000},
]  # fmt: skip


def judge_splits(case: Case, got: Any, expected: Any) -> str:
    got = require_whole(got, "what it returns", 1, 64)
    where = (case["users"], case["context"])
    times = {n: split_us(*where, n) for n in range(1, 65)}
    limit = 1.05 * min(times.values())
    if times[got] > limit:
        busy = min(1, case["users"] * KV_HEADS * got / PROCESSORS)
        merging = 5 + 0.2 * got if got > 1 else 0
        raise Wrong(
            f"{got} part{'s take' if got > 1 else ' takes'} {times[got]:.1f} µs, and at most "
            f"{limit:.1f} are allowed: {busy:.0%} of the processors get work in the first round, "
            f"and merging takes {merging:.1f} µs"
        )
    if any(times[n] <= limit for n in range(1, got)):
        raise Wrong(
            f"{got} parts are fast enough, but so is a smaller number, and every part needs memory "
            "for its result"
        )
    return "Few users and long contexts want splits; a full GPU wants none."


PARTS = [
    Part("08.1", "merge the parts", ("merge",), run_merge, judge_merge, MERGES),
    Part("08.2", "a chunk over a block table", ("attend",), run_attend, judge_attend, ATTENDS),
    Part("08.3", "five error pictures", ("faults",), lambda case, faults: faults, judge_pictures,
         lambda seed: [{"what": "your five pictures", "seed": seed}],
         truth=lambda case: drawn(case["seed"])),
    prediction("08.4", "what a copy costs", ("kv_gb", "share", "slower"),
               decode_step, true_bytes, judge_bytes),
    Part("08.5", "how many parts", ("choose_splits",),
         lambda case, choose_splits: choose_splits(case["users"], case["context"]),
         judge_splits, SPLITS, by_property),
]  # fmt: skip
