"""The scripted scenarios of the lessons: few requests, chosen so that one thing shows.

Where a request must arrive "while the others run", it arrives a microsecond after them: no step is
that short on any clock, so it is there for the second step on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from toyserve.workload_types import Workload, WorkloadRequest

NEXT_STEP = 1e-6  # seconds


def static_example() -> Workload:
    """A 100, B 10, C 60, D 8 tokens to answer, all there from the start, in four slots."""
    return Workload("static_example", _letters(), {"max_running": 4})


def continuous_example() -> Workload:
    """The same four, with E and F waiting: E takes D's slot at step 9, F takes B's at step 11."""
    waiting = (_request("E", 8, 40), _request("F", 8, 24))
    return Workload("continuous_example", _letters() + waiting, {"max_running": 4})


def _letters() -> tuple[WorkloadRequest, ...]:
    return tuple(_request(k, 8, n) for k, n in (("A", 100), ("B", 10), ("C", 60), ("D", 8)))


def head_of_line() -> Workload:
    """A: long prompt, short answer. B: short prompt, long answer. C: short and short, and last."""
    requests = (_request("A", 600, 8), _request("B", 12, 200), _request("C", 12, 8))
    return Workload("head_of_line", requests)


def budget_example() -> Workload:
    """Six decode when G comes with 100 tokens; of a budget of 8, two a step are left for G."""
    decoding = tuple(_request(letter, 1, 64) for letter in "ABCDEF")
    late = _request("G", 100, 16, NEXT_STEP)
    return Workload("budget_example", (*decoding, late), {"max_running": 7, "token_budget": 8})


def long_prompt(num_decoding: int = 0) -> Workload:
    """G's prompt of 1000 tokens in chunks of at most 256: 256 + 256 + 256 + 232.

    num_decoding: requests that decode beside it; the budget has room for them.
    """
    if num_decoding < 0:
        raise ValueError(f"num_decoding is {num_decoding}: it must be 0 or more")
    decoding = tuple(_request(f"user-{i}", 1, 32) for i in range(num_decoding))
    late = _request("G", 1000, 8, NEXT_STEP if num_decoding else 0.0)
    settings = {
        "max_running": num_decoding + 1,
        "token_budget": 256 + num_decoding,
        "max_chunk": 256,
    }
    return Workload("long_prompt", (*decoding, late), settings)


def freeze(num_decoding: int = 50, prompt_len: int = 50_000, arrival_time: float = 1.0) -> Workload:
    """50 users are reading along when, after a second, somebody sends a prompt of 50,000 tokens.

    For the virtual clock, and a model with that much context, such as llama-3.1-8b.
    """
    decoding = tuple(_request(f"user-{i}", 100, 600) for i in range(num_decoding))
    late = _request("long", prompt_len, 100, arrival_time)
    block_size = 16
    num_tokens = num_decoding * 700 + prompt_len + 100
    settings = {
        "max_running": num_decoding + 1,
        "num_blocks": -(-num_tokens // block_size) + num_decoding + 1,
        "block_size": block_size,
    }
    return Workload("freeze", (*decoding, late), settings)


def preemption_example() -> Workload:
    """A, B, C and D fill all 16 blocks; E is more urgent, needs 3, and comes in the second step."""
    running = tuple(_request(letter, 49, 15, priority=1) for letter in "ABCD")
    urgent = _request("E", 33, 8, NEXT_STEP, priority=0)
    settings = {"max_running": 5, "num_blocks": 16, "block_size": 16}
    return Workload("preemption_example", (*running, urgent), settings)


def _request(
    request_id: str, prompt_len: int, output_len: int, arrival: float = 0.0, priority: int = 0
) -> WorkloadRequest:
    """Declares the round number above its true length, as a user would who does not know it."""
    declared = next((n for n in (16, 128) if n >= output_len), output_len)
    return WorkloadRequest(
        request_id, arrival, prompt_len, output_len, declared, user=request_id, priority=priority
    )


SCENARIOS: Mapping[str, Callable[..., Workload]] = MappingProxyType(
    {
        "static_example": static_example,
        "continuous_example": continuous_example,
        "head_of_line": head_of_line,
        "budget_example": budget_example,
        "long_prompt": long_prompt,
        "freeze": freeze,
        "preemption_example": preemption_example,
    }
)
