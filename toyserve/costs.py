"""How long a step would take on some GPU with some model: the roofline, for a whole step.

Williams, Waterman, Patterson, "Roofline: An Insightful Visual Performance Model for Multicore
Architectures", CACM 2009. A part of the step takes as long as the slower of its two bills, bytes
moved over bandwidth and FLOPs over peak. A step has two parts, which run one after the other:

- the linear layers: all rows go through the same weights, so these are read once a step, however
  many rows there are. That reuse is why batching pays;
- attention: every row reads its own KV cache, and nothing is shared.

Each gets its own maximum: the linear layers of a big prefill can be bound by arithmetic while the
attention of the decodes beside it is bound by bandwidth. A fixed launch time is added.

Left out: activations, the embedding lookup, norms, sampling, copies of blocks on the device, and
(with several GPUs) the communication between them. What these cost is in the efficiencies, or in
the error that a calibration reports (``fitted.py``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from toyserve.fitted import FittedCostModel, StepSample, fit_cost_model
from toyserve.hardware import DTYPE_BYTES, HARDWARE, HardwareSpec, dtype_bytes, get_hardware
from toyserve.modelspecs import MODELS, ModelSpec, get_model
from toyserve.schedulers.output import SchedulerOutput
from toyserve.stepshape import StepShape

__all__ = [
    "DTYPE_BYTES",
    "HARDWARE",
    "MODELS",
    "FittedCostModel",
    "HardwareSpec",
    "ModelSpec",
    "PartCost",
    "RooflineCostModel",
    "StepBreakdown",
    "StepSample",
    "StepShape",
    "cost_model",
    "fit_cost_model",
    "get_hardware",
    "get_model",
]


@dataclass(frozen=True)
class PartCost:
    """One part of a step on the roofline."""

    num_bytes: float
    num_flops: float
    memory_time: float  # seconds for the bytes alone
    compute_time: float  # seconds for the FLOPs alone

    @property
    def time(self) -> float:
        return max(self.memory_time, self.compute_time)

    @property
    def bound(self) -> Literal["memory", "compute"]:
        """Memory-bound if the bytes take longer than the arithmetic, else compute-bound."""
        return "memory" if self.memory_time >= self.compute_time else "compute"

    @property
    def intensity(self) -> float:
        """FLOPs done per byte moved; 0 when nothing is moved."""
        return self.num_flops / self.num_bytes if self.num_bytes else 0.0


@dataclass(frozen=True)
class StepBreakdown:
    """Where the time of one step goes, in seconds."""

    shape: StepShape
    linear: PartCost
    attention: PartCost
    launch_time: float

    @property
    def time(self) -> float:
        return self.linear.time + self.attention.time + self.launch_time

    @property
    def bound(self) -> Literal["memory", "compute", "launch"]:
        """The longest single item of the bill."""
        part = max(self.linear, self.attention, key=lambda p: p.time)
        return "launch" if self.launch_time > part.time else part.bound


@dataclass(frozen=True)
class RooflineCostModel:
    """Seconds per step from a machine's and a model's printed figures.

    num_gpus: weights, KV and arithmetic cut in equal parts (tensor parallelism, free of talk).
    memory_efficiency: share of the printed bandwidth that kernels reach; 0.8 is usual.
    linear_efficiency, attention_efficiency: share of the printed FLOP/s; 0.6 and 0.4 are usual for
    large matrix products and for fused attention. All 1 gives the bound that nobody can beat.
    launch_time: overrides the hardware's, in seconds.
    """

    hardware: HardwareSpec
    model: ModelSpec
    num_gpus: int = 1
    memory_efficiency: float = 0.8
    linear_efficiency: float = 0.6
    attention_efficiency: float = 0.4
    launch_time: float | None = None

    def __post_init__(self) -> None:
        for name in ("memory_efficiency", "linear_efficiency", "attention_efficiency"):
            value = getattr(self, name)
            if not 0 < value <= 1:
                raise ValueError(f"{name} is {value!r}: it must be above 0 and at most 1")
        gpus = self.num_gpus
        if isinstance(gpus, bool) or not isinstance(gpus, int) or gpus < 1:
            raise ValueError(f"num_gpus is {gpus!r}: it must be a whole number, at least 1")
        if self.launch_time is None:
            object.__setattr__(self, "launch_time", self.hardware.launch_time)
        elif not self.launch_time >= 0:
            raise ValueError(f"launch_time is {self.launch_time!r}: it must be 0 or more seconds")
        object.__setattr__(self, "_rates", _Rates.of(self))

    # -- a step ---------------------------------------------------------------------------------

    def step_time(self, plan: SchedulerOutput) -> float:
        """Seconds that the planned step takes. Call it before the counters move.

        KV that is swapped crosses the bus before anything else runs: nothing hides that time.
        """
        seconds = self.time_of(StepShape.of_plan(plan, self.model.sliding_window))
        if plan.swapped_out or plan.swapped_in:
            num_tokens = sum(r.num_computed_tokens for r in (*plan.swapped_out, *plan.swapped_in))
            seconds += self.swap_time(num_tokens * self.model.kv_bytes_per_token)
        return seconds

    def time_of(self, shape: StepShape) -> float:
        """Seconds of a step of this shape; 0 for an empty one."""
        if not shape.num_tokens:
            return 0.0
        # The sum of breakdown(), without building it: this runs once per simulated step.
        rates: _Rates = self._rates  # type: ignore[attr-defined]
        rows = shape.decode_rows + shape.prefill_rows
        linear_memory = rates.dense_memory_time + rates.expert_memory_time(shape.num_tokens)
        linear_compute = shape.num_tokens * rates.token_time + rows * rates.head_time
        attention_memory = (shape.decode_context + shape.prefill_context) * rates.kv_time
        attention_compute = (shape.decode_context + shape.prefill_pairs) * rates.pair_time
        return (
            max(linear_memory, linear_compute)
            + max(attention_memory, attention_compute)
            + rates.launch_time
        )

    def breakdown(self, step: SchedulerOutput | StepShape) -> StepBreakdown:
        """Bytes, FLOPs and what binds, per part; over all GPUs together."""
        shape = step
        if not isinstance(shape, StepShape):
            shape = StepShape.of_plan(shape, self.model.sliding_window)
        rates: _Rates = self._rates  # type: ignore[attr-defined]
        memory_rate = self.hardware.bandwidth * self.memory_efficiency * self.num_gpus
        some = 1 if shape.num_tokens else 0
        linear_memory = rates.dense_memory_time + rates.expert_memory_time(shape.num_tokens)
        kv_tokens = shape.decode_context + shape.prefill_context
        num_pairs = shape.decode_context + shape.prefill_pairs
        linear = PartCost(
            some * linear_memory * memory_rate,
            shape.num_tokens * _flops_per_token(self.model)
            + shape.num_rows * 2 * self.model.head_params,
            some * linear_memory,
            shape.num_tokens * rates.token_time + shape.num_rows * rates.head_time,
        )
        attention = PartCost(
            kv_tokens * self.model.kv_bytes_per_token,
            num_pairs * _flops_per_pair(self.model),
            kv_tokens * rates.kv_time,
            num_pairs * rates.pair_time,
        )
        return StepBreakdown(shape, linear, attention, some * rates.launch_time)

    # -- for lessons ----------------------------------------------------------------------------

    def time_of_rows(self, rows: Iterable[tuple[int, int]]) -> float:
        """Seconds of a step of (tokens already computed, tokens to run) per request."""
        return self.time_of(StepShape.of_rows(rows, self.model.sliding_window))

    def decode_time(self, batch_size: int, context_len: int) -> float:
        """Seconds for one token of each of ``batch_size`` requests with ``context_len`` behind."""
        return self.time_of_rows([(context_len, 1)] * batch_size)

    def prefill_time(self, num_tokens: int, context_len: int = 0) -> float:
        """Seconds to run ``num_tokens`` of one prompt after ``context_len`` that are cached."""
        return self.time_of_rows([(context_len, num_tokens)])

    def decode_throughput(self, batch_size: int, context_len: int) -> tuple[float, float]:
        """Tokens per second (of all users together, of each user)."""
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size!r}: it must be at least 1")
        per_user = 1 / self.decode_time(batch_size, context_len)
        return batch_size * per_user, per_user

    def swap_time(self, num_bytes: float) -> float:
        """Seconds to move bytes between the device and the host, in one direction."""
        return num_bytes / (self.hardware.pcie_bandwidth * self.memory_efficiency * self.num_gpus)


def _flops_per_token(model: ModelSpec) -> int:
    """A multiplication and an addition per weight that a token meets; the head counts per row."""
    layer = model.attention_params + model.router_params
    return 2 * model.num_layers * (layer + model.experts_per_token * model.expert_params)


def _flops_per_pair(model: ModelSpec) -> int:
    """q.k and p.v: two multiplications and two additions per dimension, head and layer."""
    return 4 * model.num_layers * model.num_heads * model.head_dim


@dataclass(frozen=True)
class _Rates:
    """Seconds per unit of everything, worked out once."""

    dense_memory_time: float  # all weights that every step reads
    one_expert_memory_time: float  # one expert of every layer
    num_experts: int
    missed: float  # chance that one token does not use a given expert
    token_time: float
    head_time: float
    kv_time: float
    pair_time: float
    launch_time: float

    @classmethod
    def of(cls, cost: RooflineCostModel) -> _Rates:
        model, hardware = cost.model, cost.hardware
        memory_rate = hardware.bandwidth * cost.memory_efficiency * cost.num_gpus
        peak = hardware.peak_flops_for(model.weight_dtype) * cost.num_gpus
        linear_rate = peak * cost.linear_efficiency
        # K and V are widened to at least 16 bits before they are multiplied.
        wide = "fp32" if "fp32" in (model.kv_dtype, model.weight_dtype) else "bf16"
        attention_rate = hardware.peak_flops_for(wide) * cost.num_gpus * cost.attention_efficiency
        byte_time = dtype_bytes(model.weight_dtype) / memory_rate
        moe = model.num_experts > 1
        every_step = model.attention_params + model.router_params
        if not moe:
            every_step += model.expert_params
        assert cost.launch_time is not None
        return cls(
            (model.num_layers * every_step + model.head_params) * byte_time,
            model.num_layers * model.expert_params * byte_time if moe else 0.0,
            model.num_experts if moe else 0,
            1 - model.experts_per_token / model.num_experts,
            _flops_per_token(model) / linear_rate,
            2 * model.head_params / linear_rate,
            model.kv_bytes_per_token / memory_rate,
            _flops_per_pair(model) / attention_rate,
            cost.launch_time,
        )

    def expert_memory_time(self, num_tokens: int) -> float:
        """Reading the experts that at least one token chose, if each chooses evenly at random."""
        if not self.num_experts:
            return 0.0
        used = self.num_experts * (1 - self.missed**num_tokens)
        return used * self.one_expert_memory_time


def cost_model(hardware: str | HardwareSpec, model: str | ModelSpec = "toy") -> RooflineCostModel:
    """By names. On a machine without 16-bit arithmetic the model is held in fp32.

    Raises ValueError that names the known ones.
    """
    spec, shape = get_hardware(hardware), get_model(model)
    if not spec.has_16_bit:
        shape = shape.with_dtypes(weight="fp32", kv="fp32")
    return RooflineCostModel(spec, shape)
