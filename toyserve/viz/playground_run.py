"""What the playground's sliders mean: one simulated run, and the same run as code."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from toyserve.capacity import plan
from toyserve.clock import VirtualClock
from toyserve.engine import Engine
from toyserve.modelspecs import get_model
from toyserve.parts import make_cost_model, make_kv, make_policy, make_scheduler
from toyserve.recording import Recording
from toyserve.runners import SimulatedRunner, TimedRunner
from toyserve.workload import poisson

NUM_USERS = 4  # so that a policy that shares among users has whom to share among


@dataclass(frozen=True)
class Settings:
    """One position of all sliders. rate: arrivals per second; max_chunk: prompt tokens of one
    request per step (None: as many as the budget has). All parts by their names."""

    rate: float = 30.0
    num_requests: int = 60
    scheduler: str = "chunked"
    policy: str = "fcfs"
    max_running: int = 16
    token_budget: int = 256
    max_chunk: int | None = None
    num_blocks: int = 400
    block_size: int = 16
    gpu: str = "h100"
    model: str = "llama-3-8b"
    seed: int = 1234

    def replaced(self, **changes: Any) -> Settings:
        """Raises ValueError that names the settings there are."""
        known = [field.name for field in fields(self)]
        for name in changes:
            if name not in known:
                raise ValueError(f"the playground has no {name!r}: it has {', '.join(known)}")
        return Settings(**{name: getattr(self, name) for name in known} | changes)

    @property
    def scheduler_arguments(self) -> dict[str, Any]:
        """Those that this scheduler uses."""
        arguments: dict[str, Any] = {}
        if self.scheduler != "sequential":
            arguments["max_running"] = self.max_running
        if self.scheduler == "chunked":
            arguments["token_budget"] = self.token_budget
            if self.max_chunk is not None:
                arguments["max_chunk"] = self.max_chunk
        return arguments


def engine_of(settings: Settings) -> Engine:
    """The engine with all its requests, before its first step; it computes without tensors.

    Raises ValueError in one sentence for what cannot be.
    """
    workload = poisson(settings.num_requests, settings.rate, settings.seed, users=NUM_USERS)
    clock, limit = VirtualClock(), get_model(settings.model).max_model_len
    engine = Engine(
        scheduler=make_scheduler(settings.scheduler, **settings.scheduler_arguments),
        kv=make_kv(
            "paged",
            num_blocks=settings.num_blocks,
            block_size=settings.block_size,
            max_model_len=limit,
        ),
        policy=make_policy(settings.policy),
        runner=TimedRunner(
            SimulatedRunner(workload.output_lens),
            make_cost_model(settings.gpu, settings.model),
            clock,
        ),
        clock=clock,
        max_model_len=limit,
    )
    for request in workload.requests_for_engine():
        engine.add_request(request)
    return engine


def run_settings(settings: Settings) -> Recording:
    """Simulate it to its end. Raises ValueError in one sentence for what cannot be."""
    return engine_of(settings).run()


_CODE = """\
from toyserve.clock import VirtualClock
from toyserve.costs import cost_model
from toyserve.engine import Engine
from toyserve.kv import PagedKV
from toyserve.modelspecs import get_model
from toyserve.parts import make_policy, make_scheduler
from toyserve.runners import SimulatedRunner, TimedRunner
from toyserve.viz import explore
from toyserve.workload import poisson

workload = poisson({num_requests}, rate={rate!r}, seed={seed}, users={users})
clock = VirtualClock()
cost = cost_model({gpu!r}, {model!r})
engine = Engine(
    scheduler=make_scheduler({scheduler!r}{arguments}),
    kv=PagedKV({num_blocks}, {block_size}),
    policy=make_policy({policy!r}),
    runner=TimedRunner(SimulatedRunner(workload.output_lens), cost, clock),
    clock=clock,
    max_model_len=get_model({model!r}).max_model_len,
)
recording = engine.run(workload.requests_for_engine())
explore(recording)
"""


def as_code(settings: Settings) -> str:
    """A cell that makes the same run."""
    values = {field.name: getattr(settings, field.name) for field in fields(settings)}
    arguments = "".join(f", {k}={v}" for k, v in settings.scheduler_arguments.items())
    return _CODE.format(**values, users=NUM_USERS, arguments=arguments)


def memory_note(settings: Settings) -> str:
    """A sentence if that GPU could not hold the model and this pool; else nothing."""
    room = plan(settings.model, settings.gpu, 128, block_size=settings.block_size)
    if room.num_blocks >= settings.num_blocks:
        return ""
    if not room.num_blocks:
        return f"{settings.model} does not fit on one {settings.gpu}: only its speed is shown here."
    return (
        f"A real {settings.gpu} has room for {room.num_blocks:,} such blocks beside "
        f"{settings.model}, not for {settings.num_blocks:,}."
    )
