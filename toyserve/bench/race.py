"""Contestants take turns: each round runs all of them, in rotated order, and compares tokens."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from toyserve.bench.work import BenchClock, Contestant, Served, Work, latency_p50


@dataclass
class Entry:
    """What one contestant did in the rounds it took part in, by number of the round."""

    name: str
    seconds: dict[int, float] = field(default_factory=dict)
    latency_p50: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Mismatch:
    """The first token in which a contestant differs from the reference."""

    contestant: str
    reference: str
    request_id: str
    position: int
    token_id: int | None  # None: the answer is shorter
    expected: int | None

    def __str__(self) -> str:
        return (
            f"{self.contestant} differs from {self.reference} on request {self.request_id} at "
            f"position {self.position} of its answer: token {self.token_id} instead of "
            f"{self.expected}"
        )


@dataclass(frozen=True)
class Spread:
    """A ratio: the median over the rounds, and the smallest and largest round."""

    median: float
    low: float
    high: float
    num_rounds: int


@dataclass
class Race:
    """All rounds. Ratios are of speeds: 2.0 is twice as fast."""

    work: Work
    entries: dict[str, Entry]
    mismatches: list[Mismatch] = field(default_factory=list)

    def tokens_per_s(self, name: str) -> float:
        seconds = statistics.median(self.entries[name].seconds.values())
        return self.work.num_output_tokens / seconds

    def speedup(self, name: str, over: str) -> Spread | None:
        """How many times as fast as ``over``; None if the two never met in a round."""
        return self._ratio(name, over, lambda entry: entry.seconds)

    def latency_gain(self, name: str, over: str) -> Spread | None:
        """How many times shorter the median latency is than that of ``over``."""
        return self._ratio(name, over, lambda entry: entry.latency_p50)

    def _ratio(
        self, name: str, over: str, values: Callable[[Entry], dict[int, float]]
    ) -> Spread | None:
        if name not in self.entries or over not in self.entries:
            return None
        mine, other = values(self.entries[name]), values(self.entries[over])
        ratios = [other[i] / mine[i] for i in mine if i in other]
        if not ratios:
            return None
        return Spread(statistics.median(ratios), min(ratios), max(ratios), len(ratios))


def run_race(
    contestants: Sequence[Contestant],
    work: Work,
    num_rounds: int,
    *,
    cpu: bool,
    slow_once: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> Race:
    """slow_once: contestants marked as slow take part in the first round only."""
    race = Race(work, {c.name: Entry(c.name) for c in contestants})
    warm_up = work.first(3, output_len=4)
    for contestant in contestants:
        contestant.serve(warm_up, BenchClock(cpu=cpu))
    reference: Served | None = None
    for number in range(num_rounds):
        turn = number % len(contestants)
        for contestant in [*contestants[turn:], *contestants[:turn]]:
            if contestant.slow and slow_once and number:
                continue
            gc.collect()
            served = contestant.serve(work, BenchClock(cpu=cpu))
            entry = race.entries[contestant.name]
            entry.seconds[number] = served.seconds
            entry.latency_p50[number] = latency_p50(work, served)
            if reference is None:
                reference, reference_name = served, contestant.name
            else:
                race.mismatches += compare(contestant.name, served, reference_name, reference)
            rate = work.num_output_tokens / served.seconds
            progress(f"round {number + 1} of {num_rounds}: {contestant.name}, {rate:,.0f} tokens/s")
    return race


def compare(name: str, served: Served, reference_name: str, reference: Served) -> list[Mismatch]:
    """One mismatch for each request whose answers differ, at its first differing position."""
    mismatches = []
    for request_id, expected in reference.token_ids.items():
        found = served.token_ids.get(request_id, [])
        if found == expected:
            continue
        shared = min(len(found), len(expected))
        position = next((i for i in range(shared) if found[i] != expected[i]), shared)
        pair = [ids[position] if position < len(ids) else None for ids in (found, expected)]
        mismatches.append(Mismatch(name, reference_name, request_id, position, pair[0], pair[1]))
    return mismatches
