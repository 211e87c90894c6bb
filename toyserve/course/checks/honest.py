"""A recording that came out of a learner's process: are its times those that its decisions cost?

Decisions are what is compared; but some parts look at latencies, and whoever writes the recording
could write any. Steps that move memory or hold padding are only checked to follow each other, and
where KV is swapped out the tokens' times are not worked out again.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest

from toyserve.costs import RooflineCostModel, cost_model
from toyserve.course.checks.part import Case, Wrong
from toyserve.recording import Recording, StepRecord
from toyserve.stepshape import StepShape

_SLACK = 1e-6  # relative; a recording's floats are written in full


def require_honest_times(case: Case, got: Recording) -> None:
    """Raises Wrong, naming the step, if a step is shorter than the cost model says it lasts, comes
    before the step in front of it, or serves somebody who has not arrived; or if somebody's tokens
    came at other times than the ends of the steps that wrote them."""
    costs = cost_model(case.get("gpu", "h100"), case.get("model", "llama-3-8b"))
    arrivals = {name: arrival for name, arrival, *_ in case["requests"]}
    computed: dict[str, int] = {}
    written: dict[str, list[float]] = {name: [] for name in got.requests}
    now = 0.0
    if len(got.steps) != got.num_steps:
        raise Wrong("the recording has no steps in it")
    for number, step in enumerate(got.steps, 1):
        early = [n for n in step.num_scheduled_tokens if step.start_time < arrivals.get(n, 0.0)]
        if early:
            raise Wrong(f"step {number} runs {early[0]}, who has not arrived yet")
        if step.start_time < now - _SLACK:
            raise Wrong(f"step {number} begins before the one in front of it has ended")
        now = step.end_time
        shortest = _shortest(step, computed, costs)
        if step.end_time - step.start_time < shortest * (1 - _SLACK) - 1e-12:
            raise Wrong(f"step {number} is shorter than its work takes on this GPU")
        for name in step.num_scheduled_tokens:
            if computed[name] == got.requests[name].num_prompt_tokens + len(written[name]):
                written[name].append(step.end_time)
    if not any(step.swapped_out for step in got.steps):
        _require_token_times(got, arrivals, written)


def _require_token_times(
    got: Recording, arrivals: Mapping[str, float], written: Mapping[str, list[float]]
) -> None:
    for name, record in got.requests.items():
        if abs(record.arrival_time - arrivals.get(name, record.arrival_time)) > _SLACK:
            raise Wrong(f"{name} is said to have arrived at {record.arrival_time:g} s")
        pairs = zip_longest(record.token_times, written[name], fillvalue=-1.0)
        if any(abs(time - end) > _SLACK for time, end in pairs):
            raise Wrong(f"the tokens of {name} came at other times than its steps ended")


def _shortest(step: StepRecord, computed: dict[str, int], costs: RooflineCostModel) -> float:
    """Seconds for the rows of a step, and the counters moved on; 0 where they cannot be told."""
    moves = step.swapped_in or step.swapped_out or step.num_copied_blocks or step.num_padded_tokens
    for name in step.preempted:
        computed[name] = 0
    computed.update({name: int(known) for name, known in step.admitted.items()})
    rows = [(computed.get(name, 0), n) for name, n in step.num_scheduled_tokens.items()]
    for name, n in step.num_scheduled_tokens.items():
        if n < 1:
            raise Wrong(f"a step runs {n} tokens of {name}")
        computed[name] = computed.get(name, 0) + n
    return 0.0 if moves or not rows else costs.time_of(StepShape.of_rows(rows))
