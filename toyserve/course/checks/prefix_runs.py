"""A server with a prefix cache, one request after the other: what is found, kept and saved."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from toyserve.course.checks.part import Case, Picture
from toyserve.course.checks.runs import engine_of
from toyserve.kv import PagedKV
from toyserve.kv.prefix import SharingPool
from toyserve.schedulers import ContinuousScheduler
from toyserve.workload_types import Workload, WorkloadRequest


def prompts_of(case: Case) -> Workload:
    """The requests of a case, a second apart, those of one letter with one beginning."""
    requests = []
    for i, (name, shared, own) in enumerate(case["requests"]):
        start = 5000 * (1 + "ABCDEFGHIJKLMNOPQRSTUVWXYZ".index(name))
        prompt = (*range(start, start + shared), *range(10**6 + 100 * i, 10**6 + 100 * i + own))
        requests.append(WorkloadRequest(f"{name}{i}", float(i), prompt=prompt, output_len=2))
    return Workload("prompts", tuple(requests))


def serve_cached(case: Case, pool: Any = SharingPool) -> tuple[Any, Any]:
    """One request after the other on an H100's clock; returns (recording, the pool afterwards).

    A request of a case: [name of the beginning, its tokens, tokens of one's own]. A pool other than
    the library's has its books checked after every step.
    """
    kv = PagedKV(case["blocks"], 16, prefix_caching=True)
    kv.sharing = kv.pool = pool(case["blocks"], 16)
    work = prompts_of(case)
    engine = engine_of(case, ContinuousScheduler(1), work.output_lens, kv=kv)
    for request in work.requests_for_engine():
        engine.add_request(request)
    while engine.has_unfinished:
        engine.step()
        if pool is not SharingPool:
            kv.check_integrity(engine.requests.values())
    return engine.recording, kv.sharing


def without_cache(case: Case) -> Any:
    """The run of a server that has no prefix cache."""
    work = prompts_of(case)
    engine = engine_of(case, ContinuousScheduler(1), work.output_lens)
    return engine.run(work.requests_for_engine())


def asks(order: str, shared: int = 64, own: int = 8) -> list[list[Any]]:
    """A request for each letter: ``shared`` tokens of its own beginning and ``own`` others."""
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


def hit_bars(case: Case, got: Any, expected: Any) -> Picture:
    """Tokens found, request by request: expected at the left, the learner's at the right."""

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
