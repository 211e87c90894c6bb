"""A recording that came out of a learner's process: are its times those that its decisions cost?

Decisions are what is compared; but some parts look at latencies, and whoever writes the recording
could write any. Steps that move memory or hold padding are only checked to follow each other.
"""

from __future__ import annotations

from toyserve.costs import RooflineCostModel, cost_model
from toyserve.course.checks.part import Case, Wrong
from toyserve.recording import Recording, StepRecord
from toyserve.stepshape import StepShape

_SLACK = 1e-6  # relative; a recording's floats are written in full


def require_honest_times(case: Case, got: Recording) -> None:
    """Raises Wrong, naming the step, if a step is shorter than the cost model says it lasts, comes
    before the step in front of it, or serves somebody who has not arrived."""
    costs = cost_model(case.get("gpu", "h100"), case.get("model", "llama-3-8b"))
    arrivals = {name: arrival for name, arrival, *_ in case["requests"]}
    computed: dict[str, int] = {}
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
