"""The course's words in one place: what each means, where it is met first, and its code.

python -m toyserve.course.glossary           # write lessons/glossary.md
python -m toyserve.course.glossary --check   # fail if the file is not what this module makes
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

TARGET = Path(__file__).resolve().parents[2] / "lessons/glossary.md"


@dataclass(frozen=True)
class Term:
    """One word. lesson: the number of the lesson that introduces it. symbol: module:name."""

    name: str
    meaning: str
    lesson: str
    symbol: str

    @property
    def object(self) -> Any:
        """What the symbol names. Raises AttributeError or ImportError if there is no such thing."""
        module, _, path = self.symbol.partition(":")
        value: Any = import_module(module)
        for name in path.split("."):
            fields = getattr(value, "__dataclass_fields__", {})
            value = fields[name] if name in fields else getattr(value, name)
        return value


# One sentence each, sorted by name.
TERMS = (
    Term(
        "active parameters",
        "The weights that one token meets; of a mixture of experts, only some.",
        "13",
        "toyserve.modelspecs:ModelSpec.active_params",
    ),
    Term(
        "aging",
        "A waiting request's priority rises with time, so that nobody waits for ever.",
        "10",
        "toyserve.policies.priority:Priority",
    ),
    Term(
        "arithmetic intensity",
        "FLOPs per byte moved; below the ridge of the roofline, memory is the limit.",
        "02",
        "toyserve.costs:PartCost.intensity",
    ),
    Term(
        "block",
        "A fixed number of token slots of the KV cache: the unit in which memory is given out.",
        "06",
        "toyserve.kv:PagedKV",
    ),
    Term(
        "block table",
        "For each request, the physical block that holds each of its pages.",
        "07",
        "toyserve.request:Request",
    ),
    Term(
        "chunked prefill",
        "A long prompt is run in pieces, beside everybody's decodes.",
        "05",
        "toyserve.schedulers:ChunkedScheduler",
    ),
    Term(
        "continuous batching",
        "Whoever has finished leaves between two steps and whoever waits takes the place.",
        "04",
        "toyserve.schedulers:ContinuousScheduler",
    ),
    Term(
        "copy-on-write",
        "A shared block is copied before somebody writes to it, and the copy is written.",
        "12",
        "toyserve.kv.prefix:SharingPool",
    ),
    Term(
        "cost model",
        "What says how long a step would take on some GPU with some model.",
        "02",
        "toyserve.costs:RooflineCostModel",
    ),
    Term(
        "deadline",
        "When a user was promised the first token; the earliest may go first.",
        "10",
        "toyserve.policies:Deadline",
    ),
    Term(
        "decode",
        "A step of a request that runs one token and yields the next.",
        "00",
        "toyserve.stepshape:StepShape",
    ),
    Term(
        "evict",
        "To forget what a cached block holds, because the block is needed.",
        "12",
        "toyserve.kv.prefix:SharingPool.forget",
    ),
    Term(
        "fair share",
        "Users take turns, counted in tokens: whoever has been given least goes next.",
        "10",
        "toyserve.policies.fair_share:FairShare",
    ),
    Term(
        "FCFS",
        "First come, first served.",
        "01",
        "toyserve.policies.fcfs:FCFS",
    ),
    Term(
        "fragmentation",
        "Memory nobody can use: free in small pieces (external), or taken and empty (internal).",
        "06",
        "toyserve.kv:ContiguousKV",
    ),
    Term(
        "goodput",
        "Requests per second that met their targets.",
        "11",
        "toyserve.metrics:goodput",
    ),
    Term(
        "GQA",
        "Grouped-query attention: several query heads share one KV head.",
        "13",
        "toyserve.modelspecs:ModelSpec.num_kv_heads",
    ),
    Term(
        "head-of-line blocking",
        "A large request at the front makes small ones behind it wait.",
        "01",
        "toyserve.schedulers:SequentialScheduler",
    ),
    Term(
        "hit rate",
        "Prompt tokens found in the prefix cache, of all prompt tokens.",
        "12",
        "toyserve.kv:KVManager.match_prefix",
    ),
    Term(
        "ITL",
        "Inter-token latency: each gap between two tokens of a user.",
        "01",
        "toyserve.metrics:itl",
    ),
    Term(
        "kernel",
        "A function that the GPU runs many times at once, each time for another part of the work.",
        "08",
        "toyserve_kernels.decode_attention:decode_attention",
    ),
    Term(
        "knee",
        "The highest arrival rate at which p95 is still within its target.",
        "11",
        "toyserve.viz.load:knee",
    ),
    Term(
        "KV cache",
        "The keys and values of all tokens so far, kept so that they need not be computed again.",
        "00",
        "toyserve.kv:KVManager",
    ),
    Term(
        "LRU",
        "Least recently used: what nobody has used for longest is evicted first.",
        "12",
        "toyserve.kv.prefix:SharingPool.take",
    ),
    Term(
        "MoE",
        "Mixture of experts: many MLPs in a layer, of which each token uses a few.",
        "13",
        "toyserve.modelspecs:ModelSpec.active_params",
    ),
    Term(
        "online softmax",
        "A softmax taken tile by tile with a running maximum and sum; exact.",
        "08",
        "toyserve_kernels.playground:online_softmax_steps",
    ),
    Term(
        "open loop",
        "Users arrive when they like, whether or not others have been served.",
        "11",
        "toyserve.workload:poisson",
    ),
    Term(
        "page",
        "Sixteen neighbouring positions of a request; the block table says which block holds it.",
        "07",
        "toyserve.request:Request",
    ),
    Term(
        "percentile",
        "What so many per cent of the users stay below: p50 is for half of them, p95 for 95 %.",
        "01",
        "toyserve.metrics:percentile",
    ),
    Term(
        "policy",
        "The rule that says who of the waiting goes next, and who is preempted.",
        "10",
        "toyserve.policies:Policy",
    ),
    Term(
        "preemption",
        "A running request is sent out of the batch and comes back later.",
        "09",
        "toyserve.schedulers:Scheduler",
    ),
    Term(
        "prefill",
        "Running a request's prompt; its last position yields the first token.",
        "00",
        "toyserve.stepshape:StepShape",
    ),
    Term(
        "prefix cache",
        "Blocks of earlier requests, found again by what they and all tokens before them hold.",
        "12",
        "toyserve.kv.prefix:SharingPool",
    ),
    Term(
        "quantisation",
        "Storing numbers in fewer bits, such as 8 or 4 instead of 16.",
        "13",
        "toyserve.modelspecs:ModelSpec.with_dtypes",
    ),
    Term(
        "quota",
        "The most that one user may have at a time, in requests, KV blocks or tokens per second.",
        "10",
        "toyserve.policies.quotas:Quotas",
    ),
    Term(
        "recording",
        "Everything a run did, step by step; every picture is drawn from it.",
        "00",
        "toyserve.recording:Recording",
    ),
    Term(
        "reference count",
        "How many requests use a block right now.",
        "12",
        "toyserve.kv.prefix:SharingPool.give_back",
    ),
    Term(
        "roofline",
        "The best a machine can do at each arithmetic intensity.",
        "02",
        "toyserve.viz:roofline",
    ),
    Term(
        "scheduler",
        "The code that decides, before each step, who runs how many tokens.",
        "00",
        "toyserve.schedulers:Scheduler",
    ),
    Term(
        "sliding window",
        "A token attends to at most so many tokens before it; older KV can go.",
        "13",
        "toyserve.modelspecs:ModelSpec.sliding_window",
    ),
    Term(
        "slot",
        "A place in the batch, or room for one token in the KV cache.",
        "00",
        "toyserve.schedulers:Scheduler",
    ),
    Term(
        "starvation",
        "A wait without end, because others always go first.",
        "10",
        "toyserve.policies.priority:Priority",
    ),
    Term(
        "static batching",
        "A batch starts together and lets nobody in until all have finished.",
        "03",
        "toyserve.schedulers:StaticScheduler",
    ),
    Term(
        "step",
        "One run of the model for everybody in the batch.",
        "00",
        "toyserve.engine:Engine.step",
    ),
    Term(
        "swap",
        "A preempted request's KV goes to the host's memory and comes back.",
        "09",
        "toyserve.kv.swap:SwapSpace",
    ),
    Term(
        "token budget",
        "How many tokens one step may hold, of all requests together.",
        "05",
        "toyserve.schedulers:ChunkedScheduler",
    ),
    Term(
        "TPOT",
        "Time per output token after the first; undefined for one token.",
        "01",
        "toyserve.metrics:tpot",
    ),
    Term(
        "TTFT",
        "Time to first token, from arrival, queue included.",
        "01",
        "toyserve.metrics:ttft",
    ),
    Term(
        "virtual clock",
        "A clock that moves by what a cost model says instead of waiting.",
        "04",
        "toyserve.clock:VirtualClock",
    ),
    Term(
        "wall clock",
        "The time that passes on this machine.",
        "04",
        "toyserve.clock:WallClock",
    ),
    Term(
        "watermark",
        "A share of the pool that admitting new requests leaves free.",
        "09",
        "toyserve.schedulers:Scheduler",
    ),
)


def markdown() -> str:
    """The generated page: a table, by name."""
    head = (
        "<!-- made by: python -m toyserve.course.glossary -->\n# Glossary\n\n"
        "| term | what it means here | first met in lesson | in the code |\n|---|---|---|---|\n"
    )
    rows = (
        f"| **{t.name}** | {t.meaning} | {t.lesson} | `{t.symbol.replace(':', '.')}` |\n"
        for t in TERMS
    )
    return head + "".join(rows)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m toyserve.course.glossary")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if it differs")
    text = markdown()
    if not parser.parse_args(argv).check:
        TARGET.write_text(text, encoding="utf-8", newline="\n")
        return 0
    same = TARGET.exists() and TARGET.read_text(encoding="utf-8") == text
    print(f"{TARGET.name} is {'up to date' if same else 'not what the glossary makes'}")
    return 0 if same else 1


if __name__ == "__main__":
    raise SystemExit(main())
