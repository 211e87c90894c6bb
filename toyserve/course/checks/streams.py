"""What a recording says of prompts that are read in pieces, and of streams that must not stop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from toyserve.course.checks.part import Case, Wrong
from toyserve.course.checks.pictures import two_timelines


def prompt_pieces(run: Any) -> Iterator[tuple[int, int, dict[str, tuple[int, int]]]]:
    """Per step: its number, all its tokens, and per prompt (tokens run, tokens it still had)."""
    done = dict.fromkeys(run.requests, 0)
    for number, step in enumerate(run.steps, 1):
        tokens = dict(step.num_scheduled_tokens)
        pieces = {}
        for name, n in tokens.items():
            left = run.requests[name].num_prompt_tokens - done[name]
            if left > 0:
                pieces[name] = n, left
            done[name] += n
        yield number, sum(tokens.values()), pieces


def streams_that_stop(run: Any) -> tuple[str, int] | None:
    """The first (name, step) in which somebody who writes already gets no token."""
    done, written = dict.fromkeys(run.requests, 0), dict.fromkeys(run.requests, 0)
    for number, step in enumerate(run.steps, 1):
        for name, record in run.requests.items():
            n = step.num_scheduled_tokens.get(name, 0)
            if n == 0 and 0 < written[name] < record.max_tokens:
                return name, number
            done[name] += n
            written[name] += n > 0 and done[name] >= record.num_prompt_tokens
    return None


def require_budget(case: Case, got: Any, expected: Any) -> None:
    """Nobody's stream stops, and no step is longer than the budget. Raises Wrong."""
    for number, total, _ in prompt_pieces(got):
        if total > case["budget"]:
            raise Wrong(
                f"step {number} holds {total} tokens, and the budget is {case['budget']}",
                two_timelines(expected, got),
            )
    stopped = streams_that_stop(got)
    if stopped:
        raise Wrong(
            f"{stopped[0]} is writing its answer and gets no token in step {stopped[1]}: decodes "
            "come first",
            two_timelines(expected, got),
        )
