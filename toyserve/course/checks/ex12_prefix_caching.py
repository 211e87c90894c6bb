"""What exercise 12 looks at: what a prefix cache finds, what it forgets, and what that saves."""

from __future__ import annotations

from typing import Any

import numpy as np

from toyserve.course.checks.colleague import ForgetsBeginnings
from toyserve.course.checks.kinds import prediction, tuning
from toyserve.course.checks.numbers import close, exactly, require_number, require_whole
from toyserve.course.checks.part import Case, Part, Wrong
from toyserve.course.checks.prefix_runs import (
    asks,
    hit_bars,
    hit_rate,
    hits_of,
    kept_and_found,
    mean_ttft,
    prompts_of,
    serve_cached,
    without_cache,
)

# -- 12.1: what is found ------------------------------------------------------------------------


def tokens(text: str) -> list[int]:
    """A token per letter, so that a case can be read."""
    return [ord(letter) for letter in text]


FINDS = [
    {"what": "blocks of 4: ABCDEFGHIJ is there, ABCDEFGHIJ is asked", "size": 4,
     "does": [["add", "ann", "ABCDEFGHIJ"], ["ask", "ann", "ABCDEFGHIJ"]]},
    {"what": "prompts that differ inside the first, second and third block", "size": 4,
     "does": [["add", "ann", "ABCDEFGHIJKL"], ["ask", "ann", "ABCDEFGHIxKL"],
              ["ask", "ann", "ABCDxFGHIJKL"], ["ask", "ann", "AxCDEFGHIJKL"]]},
    {"what": "the whole prompt is there: ABCDEFGH in blocks of 4", "size": 4,
     "does": [["add", "ann", "ABCDEFGHIJ"], ["ask", "ann", "ABCDEFGH"]]},
    {"what": "EFGH is known, but behind another beginning", "size": 4,
     "does": [["add", "ann", "ABCDEFGH"], ["add", "ann", "xxxxyyyy"],
              ["ask", "ann", "xxxxEFGHz"], ["ask", "ann", "EFGHz"]]},
    {"what": "bob asks what ann has asked", "size": 4,
     "does": [["add", "ann", "ABCDEFGH"], ["ask", "bob", "ABCDEFGHz"],
              ["add", "bob", "ABCDxxxx"], ["ask", "ann", "ABCDxxxxz"]]},
]  # fmt: skip


def run_finds(case: Case, cls: Any) -> Any:
    index, found = cls(case["size"]), []
    for verb, customer, text in case["does"]:
        if verb == "add":
            index.add(customer, tokens(text))
        else:
            found.append(index.cached(customer, tokens(text)))
    return found


def judge_finds(case: Case, got: Any, expected: Any) -> str:
    size = case["size"]
    asked, sent = [], []
    for verb, customer, text in case["does"]:
        if verb == "add":
            sent.append((customer, text))
        else:
            asked.append((customer, text, {who for who, t in sent if t[:size] == text[:size]}))
    for (customer, text, others), number, right in zip(asked, got, expected, strict=True):
        require_number(number, f"what cached returns for {text}")
        if number == right:
            continue
        if number > right and right == 0 and others and customer not in others:
            raise Wrong(
                f"{customer} finds {number:g} tokens that only {others.pop()} has ever sent"
            )
        if number == len(text):
            raise Wrong(
                f"{text}: all {len(text)} tokens are taken from the cache. From what is the first "
                "token of the answer sampled then?"
            )
        if right == len(text) - 1 and number == len(text) - size:
            raise Wrong(
                f"{text}: a whole block is computed again. Many engines do that, since nothing "
                "need be copied; here only one token is left to run"
            )
        if number > right and right % size == 0 and number - right < size:
            raise Wrong(f"{text}: {number:g} tokens; a block that is not full cannot be shared")
        if number > right:
            raise Wrong(
                f"{text}: you find {number:g} tokens. The same tokens behind *another beginning* "
                "have other keys and values: a block is only good behind the same past"
            )
        raise Wrong(f"{text}: you find {number:g} tokens, and {right} are there for {customer}")
    return "Nobody gets another's past, and nobody computes their own twice."


# -- a server whose prefix cache is the learner's -----------------------------------------------


# -- 12.2: whom to forget -----------------------------------------------------------------------

FORGETS = [
    {"what": "room for all: nothing need be forgotten", "blocks": 40, "requests": asks("ABABAC")},
    {"what": "A is popular; B, C, D, E and F come once", "blocks": 14,
     "requests": asks("AABCDEFA")},
    {"what": "nobody comes twice but A, which comes late", "blocks": 14,
     "requests": asks("BCDEFAGHAIJKA")},
    {"what": "all are popular: the oldest goes", "blocks": 14, "requests": asks("AABBCCADDA")},
    {"what": "two popular ones, and a stream of strangers", "blocks": 17,
     "requests": asks("ABABCDEFGHABIJKLAB")},
    {"what": "C moves in where A was, and D comes", "blocks": 9, "requests": asks("AABBCDB")},
]  # fmt: skip


def run_forgets(case: Case, cls: Any) -> Any:
    return hits_of(serve_cached(case, cls)[0])


def judge_forgets(case: Case, got: Any, expected: Any) -> str:
    if not isinstance(got, dict) or set(got) != set(expected):
        raise Wrong("not every request was served")
    lru = hits_of(serve_cached(case)[0])
    names = [request.request_id for request in prompts_of(case).requests]
    order = " ".join(name[0] for name in names)
    for i, name in enumerate(names, 1):
        right = expected[name]
        if got[name] == right:
            continue
        if got == lru:
            raise Wrong(
                f"that is no better than plain LRU: in the order {order} request {i} finds "
                f"{got[name]} tokens, and {right} if those go first that nobody has found since "
                "they were computed",
                hit_bars(case, got, expected),
            )
        way = "fewer" if got[name] < right else "more"
        raise Wrong(
            f"in the order {order} request {i} ({name[0]}) finds {got[name]} tokens, {way} than "
            f"the {right} that are left with this rule",
            hit_bars(case, got, expected),
        )
    saved, before = sum(got.values()), sum(lru.values())
    return (
        f"{saved} tokens found where plain LRU finds {before}: strangers no longer flush the cache."
    )


# -- 12.3: predict, then measure ----------------------------------------------------------------


def shop(seed: int) -> dict[str, Any]:
    """A few sets of instructions whose length is no multiple of a block, and who asks when."""
    rng = np.random.default_rng(1200 + seed)
    sets, shared, own = int(rng.integers(3, 6)), int(rng.integers(20, 60)) * 16 + 9, 30
    order = [int(k) for k in rng.integers(0, sets, 22)]
    order[:sets] = range(sets)
    order[10] = order[9]  # somebody comes twice in a row
    return {"what": "your shop", "blocks": 4000, "requests": asks(
        "".join("ABCDE"[k] for k in order), shared, own)}  # fmt: skip


def tight(case: Case) -> dict[str, Any]:
    """The same shop with memory for one prompt and its answer, and not a block more."""
    _, shared, own = case["requests"][0]
    return dict(case) | {"blocks": -(-(shared + own + 1) // 16)}


def true_shop(case: Case) -> Any:
    roomy = serve_cached(case)[0]
    return {
        "roomy": hit_rate(roomy),
        "narrow": hit_rate(serve_cached(tight(case))[0]),
        "gain": mean_ttft(without_cache(case)) / mean_ttft(roomy),
    }


def judge_shop(case: Case, got: Any, expected: Any) -> str:
    names = [name for name, _, _ in case["requests"]]
    _, shared, own = case["requests"][0]
    again = len(names) - len(set(names))
    roomy, narrow, gain = (expected[name] for name in ("roomy", "narrow", "gain"))
    close(got["roomy"], roomy, "your roomy", (
        (100 * roomy, "looks like per cent; it must be between 0 and 1"),
        (again * shared / (len(names) * (shared + own)),
         f"shares all {shared} tokens of instructions, and the last block of them is not full of "
         "them: it holds the customer's own, too"),
        (again / len(names), "is a share of requests; the hit rate counts tokens"),
        (roomy * len(names) / again, "forgets that whoever comes first finds nothing"),
    ), rel=0.002)  # fmt: skip
    close(got["narrow"], narrow, "your narrow", (
        (0, "is too few; does nobody come twice in a row?"),
        (roomy, "is the large pool's; here only the last prompt is still there"),
    ), rel=0.002)  # fmt: skip
    close(got["gain"], gain, "your gain", (
        (1 / gain, "is upside down: above 1 means sooner with a cache"),
    ), near=0.01)  # fmt: skip
    return (
        f"Found {roomy:.0%}, first tokens {gain:.1f} × sooner: weights must be read all the same."
    )


# -- 12.4: dead memory --------------------------------------------------------------------------


def with_strangers(order: str, shared: int = 128) -> list[list[Any]]:
    """Each letter is somebody with these instructions; a dot is a stranger with 20 tokens."""
    return [["Z", 0, 20] if name == "." else [name, shared, 8] for name in order]


DEAD: dict[str, Any] = {
    "what": "three sets of 8 blocks, strangers in between, a pool of 30", "blocks": 30,
    "requests": with_strangers("ABC..A..B..C..A..B..C.."),
}  # fmt: skip
DEADS = [
    DEAD,
    {"what": "one prompt twice, room enough", "blocks": 20, "requests": asks("AA")},
    {"what": "B needs some of A's blocks, then A comes again", "blocks": 7,
     "requests": asks("ABA")},
]  # fmt: skip


def run_dead(case: Case, gone_first: Any, dead: Any, cls: Any) -> Any:
    return {"gone_first": gone_first, "dead": dead, "hits": hits_of(serve_cached(case, cls)[0])}


def judge_dead(case: Case, got: Any, expected: Any) -> str:
    kept, found = kept_and_found(serve_cached(DEAD, ForgetsBeginnings)[1])
    lowest = "is not it: the grey bar of that block is not the lowest one"
    exactly(got["gone_first"], int(np.argmin(kept)), "your gone_first", otherwise=lowest)
    exactly(got["dead"], sum(kept) - sum(found), "your dead", (
        (sum(kept), "counts all that is in the cache; some can be found"),
    ), otherwise="is not the number of blocks that lie there and cannot be found")  # fmt: skip
    hits, right = got["hits"], expected["hits"]
    if not isinstance(hits, dict) or set(hits) != set(right):
        raise Wrong("not every request was served")
    if sum(hits.values()) < sum(right.values()):
        theirs = sum(hits_of(serve_cached(case, ForgetsBeginnings)[0]).values())
        less = "no more than before" if sum(hits.values()) <= theirs else "still too few"
        if theirs and not any(hits.values()):
            less = "nothing at all (is anything kept?)"
        raise Wrong(
            f"with your Mended the prompts find {sum(hits.values())} tokens, {less}; "
            f"{sum(right.values())} are to be had"
        )
    return "The end of a prompt goes first; its beginning is of use to more people, for longer."


# -- 12.5: as little memory as will do ----------------------------------------------------------


def rush(seed: int) -> dict[str, Any]:
    """Twelve sets of instructions, some more popular than others, and a target."""
    rng = np.random.default_rng(1250 + seed)
    popular = 1 / np.arange(1, 13)
    order = rng.choice(12, 90, p=popular / popular.sum())
    names = "".join("ABCDEFGHIJKL"[k] for k in order)
    target = round(float(rng.uniform(0.55, 0.7)), 2)
    return {"what": "your rush", "requests": asks(names, 128), "target": target}


def rate_with(case: Case, blocks: int) -> float:
    """The hit rate of this rush in a pool of so many blocks."""
    return hit_rate(serve_cached(dict(case) | {"blocks": blocks})[0])


def judge_rush(case: Case, got: Any, expected: Any) -> str:
    got = require_whole(got, "your blocks", 10, 4000)
    rate = rate_with(case, got)
    if rate < case["target"]:
        raise Wrong(
            f"with {got} blocks {rate:.1%} are found, and {case['target']:.0%} is the target"
        )
    if got > 12 and rate_with(case, got - 3) >= case["target"]:
        raise Wrong(f"with {got} blocks {rate:.1%} are found, but with 3 fewer it is still enough")
    return f"{got} blocks, {rate:.1%}: more memory would only hold what hardly anybody asks for."


PARTS = [
    Part("12.1", "what is found", ("Index",), run_finds, judge_finds, FINDS),
    Part("12.2", "whom to forget", ("StrangersFirst",), run_forgets, judge_forgets, FORGETS),
    prediction("12.3", "predict, then measure", ("roomy", "narrow", "gain"),
               shop, true_shop, judge_shop),
    Part("12.4", "dead memory", ("gone_first", "dead", "Mended"), run_dead, judge_dead, DEADS,
         expects=("hits",)),
    tuning("12.5", "as little memory as will do", "blocks", rush, judge_rush),
]  # fmt: skip
