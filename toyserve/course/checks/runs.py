"""What most parts need: a case run through the real engine, and two runs compared in words.

A case here is a dict such as

    {"what": "two requests in one slot", "slots": 1,
     "requests": [["A", 0.0, 4, 3], ["B", 0.0, 4, 2]]}       # id, arrival, prompt, answer

with, where wanted, "blocks" and "block_size" of the KV memory, "gpu" and "model" of the cost model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from toyserve.clock import VirtualClock
from toyserve.costs import cost_model
from toyserve.course.checks.honest import require_honest_times
from toyserve.course.checks.part import Case, Wrong
from toyserve.course.checks.pictures import two_timelines
from toyserve.engine import Engine
from toyserve.kv import PagedKV
from toyserve.recording import Recording
from toyserve.runners import SimulatedRunner, TimedRunner
from toyserve.words import counted
from toyserve.workload_types import Workload, WorkloadRequest

# A learner's endless schedule ends here; no case of the course needs as many.
MAX_STEPS = 20_000


def numbered(arrivals: Any, prompts: Any, answers: Any) -> list[list[Any]]:
    """Drawn seconds and tokens as the requests r0, r1, … of a case."""
    rows = zip(arrivals, prompts, answers, strict=True)
    return [[f"r{i}", round(float(t), 3), int(p), int(a)] for i, (t, p, a) in enumerate(rows)]


def workload_of(case: Case) -> Workload:
    """The requests of a case: ``[id, arrival, prompt, answer]``, and a dict of further fields."""
    requests = []
    for name, arrival, prompt, answer, *more in case["requests"]:
        fields = more[0] if more else {}
        requests.append(
            WorkloadRequest(name, arrival, num_prompt_tokens=prompt, output_len=answer, **fields)
        )
    return Workload("case", tuple(requests))


def lettered(rows: Iterable[Sequence[Any]], gap: float = 0.0) -> list[list[Any]]:
    """Requests A, B, … of a case, ``gap`` seconds apart: each a prompt's and an answer's tokens,
    and perhaps a dict of further fields."""
    return [[chr(65 + i), round(gap * i, 4), *row] for i, row in enumerate(rows)]


def engine_of(
    case: Case,
    scheduler: Any,
    output_lens: Mapping[str, int],
    *,
    kv: Any = None,
    policy: Any = None,
) -> Engine:
    """The real engine, nobody in it, on the virtual clock of the case's GPU and model."""
    clock = VirtualClock()
    costs = cost_model(case.get("gpu", "h100"), case.get("model", "llama-3-8b"))
    runner = TimedRunner(SimulatedRunner(output_lens), costs, clock)
    memory = kv or PagedKV(case.get("blocks", 4000), case.get("block_size", 16))
    return Engine(scheduler=scheduler, kv=memory, runner=runner, policy=policy, clock=clock)


def serve(
    case: Case, scheduler: Any, *, kv: Any = None, policy: Any = None, max_steps: int = MAX_STEPS
) -> Recording:
    """Run the case on the virtual clock until every request has ended.

    Raises Wrong when after ``max_steps`` steps somebody is still unserved.
    """
    workload = workload_of(case)
    engine = engine_of(case, scheduler, workload.output_lens, kv=kv, policy=policy)
    for request in workload.requests_for_engine():
        engine.add_request(request)
    while engine.has_unfinished:
        if engine.recording.num_steps >= max_steps:
            left = counted(len(engine.requests), "request")
            raise Wrong(f"after {max_steps:,} steps the engine still has {left} to serve")
        engine.step()
    return engine.recording


def same_schedule(case: Case, got: Any, expected: Any) -> None:
    """Judge: the same requests run the same tokens in the same steps. Raises Wrong with both."""
    from toyserve.viz.compare import first_difference

    require_all_served(case, got)
    step = first_difference([expected, got])
    if step is not None:
        raise Wrong(difference(expected, got), two_timelines(expected, got))


def difference(expected: Recording, got: Recording) -> str:
    """The first step whose decision differs, in words."""
    from toyserve.viz.compare import compare

    words = str(compare({"the expected schedule": expected, "yours": got}))
    return words.split(" With yours instead")[0]


def require_all_served(case: Case, got: Any) -> Recording:
    """A whole run of the case's own requests by ``serve``: nobody's answer cut or lengthened, and
    no step shorter than its work takes. Raises Wrong."""
    if not isinstance(got, Recording):
        raise Wrong("no run of the engine came back")
    for name, _, prompt, answer, *more in case["requests"]:
        record, declared = got.requests.get(name), answer
        if more and isinstance(more[0], dict):
            declared = more[0].get("max_tokens", answer)
        if record is None or record.num_prompt_tokens != prompt or record.max_tokens != declared:
            raise Wrong(f"request {name} is not in the run as it was asked for")
        if len(record.token_times) != answer:
            raise Wrong(f"request {name} got {len(record.token_times)} of its {answer} tokens")
    require_honest_times(case, got)
    return got
