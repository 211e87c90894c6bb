"""toyserve's own contestants: one model and one KV pool, served by one scheduler after another."""

from __future__ import annotations

from collections.abc import Callable

import torch

from toyserve.bench import names
from toyserve.bench.shapes import Weights
from toyserve.bench.work import BenchClock, Contestant, Served, Work
from toyserve.clock import Clock
from toyserve.engine import Engine
from toyserve.models.attention import TorchAttention
from toyserve.models.gpt2 import GPT2
from toyserve.models.kv_pool import KVPool
from toyserve.models.sampler import Sampler
from toyserve.parts import make_kv, make_scheduler
from toyserve.recording import Recording
from toyserve.runners.runner import Runner
from toyserve.runners.simulated import ScriptedLengths
from toyserve.runners.torch_runner import TorchRunner

MAX_RUNNING = 32
STATIC_BATCH = 8
NUM_BLOCKS, BLOCK_SIZE = 1024, 16
LONGEST = NUM_BLOCKS * BLOCK_SIZE // MAX_RUNNING  # so that reserved KV has a place for everybody


class Bench:
    """A loaded model and its KV pool, from which engines are made. All on the CPU, in fp32."""

    def __init__(self, weights: Weights, *, packed: bool | None = None) -> None:
        self.config = config = weights.config
        cpu = torch.device("cpu")
        self.model = GPT2(config, weights.tensors, cpu, torch.float32, packed=packed)
        self.max_model_len = min(LONGEST, config.n_positions)
        self.pool = KVPool(
            config.n_layer,
            config.n_head,
            config.head_dim,
            NUM_BLOCKS,
            BLOCK_SIZE,
            cpu,
            torch.float32,
        )

    def runner(self) -> TorchRunner:
        return TorchRunner(self.model, TorchAttention(self.pool), Sampler(0, None))

    def engine(
        self,
        runner: Runner,
        clock: Clock | None = None,
        *,
        scheduler: str = "chunked",
        kv: str = "paged",
        max_running: int = MAX_RUNNING,
        recording: Recording | None = None,
    ) -> Engine:
        """A fresh engine on the shared pool; only one may run at a time."""
        return Engine(
            scheduler=make_scheduler(scheduler, max_running=max_running),
            kv=make_kv(
                kv, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, max_model_len=self.max_model_len
            ),
            runner=runner,
            clock=clock,
            max_model_len=self.max_model_len,
            recording=recording,
        )

    def contestant(
        self, name: str, scheduler: str, kv: str = "paged", max_running: int = MAX_RUNNING
    ) -> Contestant:
        def serve(work: Work, clock: BenchClock) -> Served:
            runner = ScriptedLengths(self.runner(), work.workload.output_lens)
            engine = self.engine(runner, clock, scheduler=scheduler, kv=kv, max_running=max_running)
            return serve_on(engine, work, clock)

        return Contestant(name, serve, slow=scheduler in ("sequential", "static"))


def serve_on(engine: Engine, work: Work, clock: BenchClock) -> Served:
    """Serve the work from time 0 on and collect the answers."""
    requests = work.workload.requests_for_engine(vocab_size=work.vocab_size)
    clock.restart()
    engine.run(requests)
    seconds = clock.now()
    return Served(
        {r.request_id: r.output_token_ids for r in requests},
        {r.request_id: r.finish_time or seconds for r in requests},
        seconds,
    )


def our_contestants(bench: Bench, plain: Callable[[], Bench]) -> list[Contestant]:
    """plain: makes the same model without packed weights, for the fallback."""
    contestants = [
        bench.contestant(names.SEQUENTIAL, "sequential"),
        bench.contestant(names.STATIC, "static", max_running=STATIC_BATCH),
        bench.contestant(names.CONTINUOUS, "continuous"),
        bench.contestant(names.CHUNKED, "chunked"),
        bench.contestant(names.RESERVED, "chunked", "reserved"),
    ]
    if bench.model.packed:
        fallback = plain()
        fallback.pool = bench.pool
        contestants.append(fallback.contestant(names.FALLBACK, "chunked"))
    return contestants
