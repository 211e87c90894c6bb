"""What this machine allows, measured in the same run, and the time that the work cannot beat."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from toyserve.bench.ours import Bench
from toyserve.bench.work import Work
from toyserve.clock import VirtualClock
from toyserve.costs import HardwareSpec, ModelSpec, RooflineCostModel
from toyserve.models.linear import packing_available
from toyserve.runners import SimulatedRunner, TimedRunner

_COPY_BYTES = 128 * 2**20  # far beyond any cache
_GEMM_ROWS, _GEMM_WIDTH = 512, 2048


@dataclass(frozen=True)
class MachineLimits:
    """Best rates of this process on this many threads."""

    bandwidth: float  # bytes read and written per second by a large copy
    gemm_flops: float  # fp32 FLOP/s of a large matrix product, the better of two libraries

    def hardware(self) -> HardwareSpec:
        rates = {"fp32": self.gemm_flops}
        return HardwareSpec("this machine", 16e9, self.bandwidth, rates, 0.0, self.bandwidth)


@torch.inference_mode()
def measure_limits(*, cpu: bool, repeats: int = 12) -> MachineLimits:
    """cpu: by CPU time, which with one thread is that of the work, whoever else runs."""
    clock = time.process_time if cpu else time.perf_counter
    source = torch.ones(_COPY_BYTES // 4)
    target = torch.empty_like(source)
    copy_time = _typical(lambda: target.copy_(source), clock, repeats)
    a, b = torch.randn(_GEMM_ROWS, _GEMM_WIDTH), torch.randn(_GEMM_WIDTH, _GEMM_WIDTH)
    products: list[Callable[[], object]] = [lambda: torch.nn.functional.linear(a, b)]
    if packing_available():
        packed = torch.ops.mkldnn._reorder_linear_weight(b, _GEMM_ROWS)
        product = torch.ops.mkldnn._linear_pointwise.default
        products.append(lambda: product(a, packed, None, "none", [], ""))
    gemm_time = min(_typical(p, clock, repeats) for p in products)
    flops = 2 * _GEMM_ROWS * _GEMM_WIDTH * _GEMM_WIDTH
    return MachineLimits(2 * _COPY_BYTES / copy_time, flops / gemm_time)


def _typical(call: Callable[[], object], clock: Callable[[], float], repeats: int) -> float:
    """Seconds of one call: the lower quartile, since a machine is disturbed but never helped."""
    times = []
    for _ in range(repeats + 2):
        start = clock()
        call()
        times.append(clock() - start)
    return statistics.quantiles(times[2:], n=4)[0]


def ideal_seconds(bench: Bench, work: Work, limits: MachineLimits) -> float:
    """The work served in chunked steps, each as short as the roofline allows: weights read once a
    step or every FLOP at the best rate, and every request's KV read once."""
    spec = ModelSpec.from_gpt2_config(bench.config.__dict__).with_dtypes(weight="fp32", kv="fp32")
    cost = RooflineCostModel(
        limits.hardware(),
        spec,
        memory_efficiency=1.0,
        linear_efficiency=1.0,
        attention_efficiency=1.0,
    )
    clock = VirtualClock()
    runner = TimedRunner(SimulatedRunner(work.workload.output_lens), cost, clock)
    engine = bench.engine(runner, clock)
    engine.run(work.workload.requests_for_engine(vocab_size=work.vocab_size))
    return clock.now()


def batch_throughput(
    bench: Bench, batch_size: int, *, cpu: bool, prompt_len: int = 64, num_steps: int = 12
) -> float:
    """Tokens per second of all users together while ``batch_size`` requests decode."""
    from toyserve.request import Request, SamplingParams

    clock = time.process_time if cpu else time.perf_counter
    params = SamplingParams(temperature=0.0, max_tokens=num_steps + 2, ignore_eos=True)
    engine = bench.engine(bench.runner(), scheduler="continuous", max_running=batch_size)
    for i in range(batch_size):
        prompt = [(i + 7 * j) % bench.config.vocab_size for j in range(prompt_len)]
        engine.add_request(Request(f"r{i}", prompt, params))
    engine.step()  # the prompts
    times = []
    while engine.has_unfinished:
        start = clock()
        engine.step()
        times.append(clock() - start)
    return batch_size / statistics.median(times[1:])
