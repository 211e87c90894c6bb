"""What exercise 12 looks at: what a prefix cache finds, what it forgets, and what that saves."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from toyserve.clock import VirtualClock
from toyserve.costs import cost_model
from toyserve.course.checks.part import Case, Part, Picture, Wrong
from toyserve.course.checks.runs import close, require_number
from toyserve.engine import Engine
from toyserve.kv import PagedKV
from toyserve.kv.prefix import SharingPool
from toyserve.runners import SimulatedRunner, TimedRunner
from toyserve.schedulers import ContinuousScheduler
from toyserve.workload_types import Workload, WorkloadRequest

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


def serve_cached(case: Case, pool: Any = SharingPool) -> tuple[Any, Any]:
    """One request after the other on an H100's clock; returns (recording, the pool afterwards).

    A request of a case: [name of the beginning, its tokens, tokens of one's own]. A pool other than
    the library's has its books checked after every step.
    """
    kv = PagedKV(case["blocks"], 16, prefix_caching=True)
    kv.sharing = kv.pool = pool(case["blocks"], 16)
    work, clock = prompts_of(case), VirtualClock()
    runner = TimedRunner(SimulatedRunner(work.output_lens), cost_model("h100", "llama-3-8b"), clock)
    engine = Engine(scheduler=ContinuousScheduler(1), kv=kv, runner=runner, clock=clock)
    for request in work.requests_for_engine():
        engine.add_request(request)
    while engine.has_unfinished:
        engine.step()
        if pool is not SharingPool:
            kv.check_integrity(engine.requests.values())
    return engine.recording, kv.sharing


def prompts_of(case: Case) -> Workload:
    requests = []
    for i, (name, shared, own) in enumerate(case["requests"]):
        start = 5000 * (1 + "ABCDEFGHIJKLMNOPQRSTUVWXYZ".index(name))
        prompt = (*range(start, start + shared), *range(10**6 + 100 * i, 10**6 + 100 * i + own))
        requests.append(WorkloadRequest(f"{name}{i}", float(i), prompt=prompt, output_len=2))
    return Workload("prompts", tuple(requests))


def asks(order: str, shared: int = 64, own: int = 8) -> list[list[Any]]:
    return [[name, shared, own] for name in order]


def hits_of(run: Any) -> dict[str, int]:
    """Request → tokens that were found in the cache."""
    return {name: record.num_cached_tokens for name, record in run.requests.items()}


def hit_rate(run: Any) -> float:
    """Prompt tokens found in the cache / all prompt tokens."""
    return sum(hits_of(run).values()) / sum(r.num_prompt_tokens for r in run.requests.values())


def mean_ttft(run: Any) -> float:
    """Seconds from arrival to the first token, on average."""
    waits = [r.token_times[0] - r.arrival_time for r in run.requests.values()]
    return sum(waits) / len(waits)


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
                _bars(case, got, expected),
            )
        way = "fewer" if got[name] < right else "more"
        raise Wrong(
            f"in the order {order} request {i} ({name[0]}) finds {got[name]} tokens, {way} than "
            f"the {right} that are left with this rule",
            _bars(case, got, expected),
        )
    saved, before = sum(got.values()), sum(lru.values())
    return (
        f"{saved} tokens found where plain LRU finds {before}: strangers no longer flush the cache."
    )


def _bars(case: Case, got: Any, expected: Any) -> Picture:
    def draw() -> Any:
        from toyserve.viz.style import THEMES, new_axes

        look = THEMES["light"]
        axes = new_axes((8, 3.4), look, 2)
        names = [request.request_id for request in prompts_of(case).requests]
        for ax, (title, hits) in zip(axes, (("expected", expected), ("yours", got)), strict=True):
            ax.bar(range(len(names)), [hits[name] for name in names], color=look.series[0])
            ax.set_ylim(0, 1.1 * max(1, *got.values(), *expected.values()))
            ax.set_title(f"{title}: tokens found in the cache", loc="left", fontsize=10)
            ax.set_xticks(range(len(names)), [name[0] for name in names])
        return axes[0].figure

    return draw


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


def without_cache(case: Case) -> Any:
    """The run of a server that has no prefix cache."""
    kv, work, clock = PagedKV(case["blocks"], 16), prompts_of(case), VirtualClock()
    costs = cost_model("h100", "llama-3-8b")
    runner = TimedRunner(SimulatedRunner(work.output_lens), costs, clock)
    engine = Engine(scheduler=ContinuousScheduler(1), kv=kv, runner=runner, clock=clock)
    return engine.run(work.requests_for_engine())


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
    roomy = require_number(got["roomy"], "your roomy")
    for wrong, words in (
        (100 * expected["roomy"], "looks like per cent; it must be between 0 and 1"),
        (again * shared / (len(names) * (shared + own)),
         f"shares all {shared} tokens of instructions, and the last block of them is not full of "
         "them: it holds the customer's own, too"),
        (again / len(names), "is a share of requests; the hit rate counts tokens"),
        (expected["roomy"] * len(names) / again, "forgets that whoever comes first finds nothing"),
    ):  # fmt: skip
        if abs(roomy - wrong) < 1e-3 * wrong and abs(wrong - expected["roomy"]) > 2e-3:
            raise Wrong(f"your roomy = {roomy:.4g} {words}")
    close(roomy, expected["roomy"], "your roomy", rel=0.002)
    narrow = require_number(got["narrow"], "your narrow")
    if narrow == 0 != expected["narrow"]:
        raise Wrong("your narrow is 0; but does nobody come twice in a row?")
    if abs(narrow - expected["roomy"]) < 1e-3:
        raise Wrong("your narrow is the large pool's; here only the last prompt is still there")
    close(narrow, expected["narrow"], "your narrow", rel=0.002)
    gain = require_number(got["gain"], "your gain")
    if abs(gain * expected["gain"] - 1) < 0.01:
        raise Wrong(f"your gain = {gain:.3f} is upside down: above 1 means sooner with a cache")
    close(gain, expected["gain"], "your gain")
    return (
        f"Found {roomy:.0%}, first tokens {gain:.1f} × sooner: weights must be read all the same."
    )


# -- 12.4: dead memory --------------------------------------------------------------------------


class Colleague(SharingPool):
    """A pool in which something was changed: give_back."""

    def give_back(self, request: Any) -> None:
        for block in request.block_table:
            self.ref_counts[block] -= 1
            if not self.ref_counts[block]:
                if block in self.by_block:
                    self.unused[block] = None
                else:
                    self.free_blocks.append(block)
        request.block_table.clear()
        request.num_slots = 0
        self.pending.pop(request, None)
        self.chains.pop(request, None)


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


def kept_and_found(pool: Any, num: int = 8) -> tuple[list[int], list[int]]:
    """Of all instructions: how many still have their first, second, … block in the cache; and how
    many of these can be found, because everything before them is there, too."""
    kept: Counter[int] = Counter()
    found: Counter[int] = Counter()
    for cached in pool.by_block.values():
        chain = [cached]
        while chain[-1].parent is not None:
            chain.append(chain[-1].parent)
        if chain[-1].token_ids[0] < 10**6:  # no stranger
            kept[len(chain) - 1] += 1
            found[len(chain) - 1] += not any(one.forgotten for one in chain)
    return [kept[i] for i in range(num)], [found[i] for i in range(num)]


def cache_picture(pool: Any, title: str) -> Any:
    """What is in the cache after a run, by its place in the prompt."""
    from toyserve.viz.style import THEMES, new_axes

    look = THEMES["light"]
    (ax,) = new_axes((8, 2.8), look)
    kept, found = kept_and_found(pool)
    places = np.arange(len(kept))
    ax.bar(places - 0.2, kept, 0.4, color=look.faint, label="in the cache")
    ax.bar(places + 0.2, found, 0.4, color=look.series[0], label="can still be found")
    ax.set(xlabel="block of the prompt (0: its first 16 tokens)", ylabel="sets", xticks=places)
    ax.set_title(title, loc="left", fontsize=11)
    ax.set(ylim=(0, 1.4 * max(1, *kept)), yticks=range(max(kept) + 1))
    ax.legend(frameon=False, loc="upper left", ncols=2)
    return ax.figure


def run_dead(case: Case, gone_first: Any, dead: Any, cls: Any) -> Any:
    return {"gone": gone_first, "dead": dead, "hits": hits_of(serve_cached(case, cls)[0])}


def judge_dead(case: Case, got: Any, expected: Any) -> str:
    kept, found = kept_and_found(serve_cached(DEAD, Colleague)[1])
    gone = require_number(got["gone"], "your gone_first")
    if gone != int(np.argmin(kept)):
        raise Wrong(
            f"your gone_first = {gone:g}: the grey bar of block {gone:g} is not the lowest one"
        )
    dead = require_number(got["dead"], "your dead")
    if dead == sum(kept):
        raise Wrong(f"your dead = {dead:g} counts all that is in the cache; some can be found")
    if dead != sum(kept) - sum(found):
        raise Wrong(
            f"your dead = {dead:g} is not the number of blocks that lie there and cannot be found"
        )
    hits, right = got["hits"], expected["hits"]
    if not isinstance(hits, dict) or set(hits) != set(right):
        raise Wrong("not every request was served")
    if sum(hits.values()) < sum(right.values()):
        theirs = sum(hits_of(serve_cached(case, Colleague)[0]).values())
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
    if type(got) is not int or not 10 <= got <= 4000:
        raise Wrong(f"your blocks must be a whole number from 10 to 4000; it is {got!r}")
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
    Part("12.3", "predict, then measure", ("roomy", "narrow", "gain"),
         lambda case, roomy, narrow, gain: {"roomy": roomy, "narrow": narrow, "gain": gain},
         judge_shop, lambda seed: [shop(seed)], truth=true_shop),
    Part("12.4", "dead memory", ("gone_first", "dead", "Mended"), run_dead, judge_dead, DEADS),
    Part("12.5", "as little memory as will do", ("blocks",), lambda case, blocks: blocks,
         judge_rush, lambda seed: [rush(seed)], truth=lambda case: None),
]  # fmt: skip
