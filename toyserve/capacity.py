"""How many requests fit on a GPU: weights first, the rest is KV cache.

The arithmetic that a server does when it starts, and that whoever buys the GPU should do before.
Bytes are decimal (1 GB = 1e9), as in the vendors' tables.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from toyserve.hardware import HardwareSpec, dtype_bytes, get_hardware
from toyserve.modelspecs import ModelSpec, get_model


def kv_bytes_per_token(model: str | ModelSpec, kv_dtype: str | None = None) -> float:
    """2 (K and V) x layers x KV heads x head dimension x bytes per number."""
    return get_model(model).with_dtypes(kv=kv_dtype).kv_bytes_per_token


def kv_bytes_per_request(
    model: str | ModelSpec, context_len: int, kv_dtype: str | None = None, block_size: int = 1
) -> float:
    """Bytes of one request's cache at ``context_len`` tokens, in whole blocks.

    With a sliding window no more than the window is kept.
    """
    spec = get_model(model)
    _whole("context_len", context_len)
    _whole("block_size", block_size)
    kept = min(context_len, spec.sliding_window or context_len)
    num_blocks = -(-kept // block_size)
    return num_blocks * block_size * kv_bytes_per_token(spec, kv_dtype)


def num_that_fit(memory_bytes: float, weight_bytes: float, bytes_per_request: float) -> int:
    """How many requests fit beside the weights: 80 GB, 50 GB and 500 MB each give 60."""
    for name, value in (("memory_bytes", memory_bytes), ("weight_bytes", weight_bytes)):
        if not value >= 0:
            raise ValueError(f"{name} is {value!r}: it must be 0 or more")
    if not bytes_per_request > 0:
        raise ValueError(f"bytes_per_request is {bytes_per_request!r}: it must be above 0")
    return max(0, math.floor((memory_bytes - weight_bytes) / bytes_per_request))


@dataclass(frozen=True)
class CapacityPlan:
    """What fits. Bytes are per GPU; every GPU holds its part of each request."""

    model: ModelSpec
    hardware: HardwareSpec
    num_gpus: int
    context_len: int
    block_size: int
    memory_utilization: float
    usable_bytes: float
    weight_bytes: float
    kv_bytes_per_token: float
    kv_bytes_per_request: float
    num_blocks: int

    @property
    def kv_memory_bytes(self) -> float:
        """What the weights leave; 0 when they do not fit themselves."""
        return max(0.0, self.usable_bytes - self.weight_bytes)

    @property
    def blocks_per_request(self) -> int:
        kept = min(self.context_len, self.model.sliding_window or self.context_len)
        return -(-kept // self.block_size)

    @property
    def num_requests(self) -> int:
        """Requests of ``context_len`` tokens at the same time."""
        return self.num_blocks // self.blocks_per_request

    @property
    def num_tokens(self) -> int:
        """Token slots in the pool."""
        return self.num_blocks * self.block_size

    def explain(self) -> str:
        """The sum, line by line, in words."""
        model, gpus = self.model, f"{self.num_gpus} x {self.hardware.name}"
        each = " per GPU" if self.num_gpus > 1 else ""
        lines = [
            f"{model.name} on {gpus}, {self.context_len:,} tokens per request",
            f"memory{each}: {_size(self.hardware.memory_bytes)}, of which "
            f"{self.memory_utilization:.0%} is used: {_size(self.usable_bytes)}",
            f"weights{each}: {self._weights()}",
        ]
        if self.weight_bytes > self.usable_bytes:
            short = _size(self.weight_bytes - self.usable_bytes)
            return "\n".join([*lines, f"the weights do not fit, by {short}: {self._way_out()}"])
        lines += [
            f"left for the KV cache{each}: {_size(self.kv_memory_bytes)} = "
            f"{self.num_blocks:,} blocks of {self.block_size} tokens",
            f"one token{each}: {self._token()}",
            f"one request{each}: {self._request()}",
            f"fits: {self.num_requests:,} requests at the same time",
        ]
        return "\n".join(lines)

    def _way_out(self) -> str:
        whole = self.weight_bytes * self.num_gpus
        for num_gpus in range(self.num_gpus + 1, self.model.num_heads + 1):
            if self.model.num_heads % num_gpus == 0 and whole / num_gpus <= self.usable_bytes:
                return f"take {num_gpus} GPUs, or narrower weights"
        return "take a GPU with more memory, or narrower weights"

    def _weights(self) -> str:
        model = self.model
        text = f"{_count(model.total_params)} parameters in {model.weight_dtype}"
        if self.num_gpus > 1:
            text += f", cut in {self.num_gpus}"
        text += f": {_size(self.weight_bytes)}"
        if model.num_experts > 1:
            text += (
                f" (all {model.num_experts} experts must be there, though a token uses "
                f"{model.experts_per_token}: {_count(model.active_params)})"
            )
        return text

    def _token(self) -> str:
        model = self.model
        text = (
            f"2 x {model.num_layers} layers x {_kv_heads_per_gpu(model, self.num_gpus)} KV heads x "
            f"{model.head_dim} x {dtype_bytes(model.kv_dtype):g} bytes = "
            f"{self.kv_bytes_per_token:,.0f} bytes"
        )
        shared = model.num_heads // model.num_kv_heads
        if shared > 1:
            text += f" ({shared} query heads share each KV head, else {shared} times as much)"
        return text

    def _request(self) -> str:
        text = f"{self.blocks_per_request:,} blocks = {_size(self.kv_bytes_per_request)}"
        window = self.model.sliding_window
        if window is not None and window < self.context_len:
            text += f" (no more than the window's {window:,} tokens are kept)"
        return text


def plan(
    model: str | ModelSpec,
    hardware: str | HardwareSpec,
    context_len: int = 2048,
    *,
    num_gpus: int = 1,
    weight_dtype: str | None = None,
    kv_dtype: str | None = None,
    block_size: int = 16,
    memory_utilization: float = 0.9,
) -> CapacityPlan:
    """How many requests of ``context_len`` tokens fit, on ``num_gpus`` GPUs that share each layer.

    memory_utilization: what is left is for activations and everything else. Weights and KV heads
    are cut evenly; with more GPUs than KV heads, a KV head is held several times. Raises ValueError
    on an unknown name, a context the model has not, or heads that cannot be cut.
    """
    spec = get_model(model).with_dtypes(weight=weight_dtype, kv=kv_dtype)
    gpu = get_hardware(hardware)
    for name, value in (
        ("context_len", context_len),
        ("num_gpus", num_gpus),
        ("block_size", block_size),
    ):
        _whole(name, value)
    if context_len > spec.max_model_len:
        raise ValueError(
            f"context_len is {context_len}: {spec.name} takes at most {spec.max_model_len} tokens"
        )
    if spec.num_heads % num_gpus:
        raise ValueError(f"num_gpus is {num_gpus}: {spec.num_heads} heads cannot be cut evenly")
    if not 0 < memory_utilization <= 1:
        raise ValueError(
            f"memory_utilization is {memory_utilization!r}: it must be above 0 and at most 1"
        )
    usable = gpu.memory_bytes * memory_utilization
    weights = spec.weight_bytes / num_gpus
    share = _kv_heads_per_gpu(spec, num_gpus) / spec.num_kv_heads
    per_token = spec.kv_bytes_per_token * share
    per_request = kv_bytes_per_request(spec, context_len, block_size=block_size) * share
    return CapacityPlan(
        spec,
        gpu,
        num_gpus,
        context_len,
        block_size,
        memory_utilization,
        usable,
        weights,
        per_token,
        per_request,
        num_that_fit(usable, weights, per_token * block_size),
    )


def requests_that_fit(
    model: str | ModelSpec,
    hardware: str | HardwareSpec,
    context_len: int = 2048,
    *,
    num_gpus: int = 1,
    weight_dtype: str | None = None,
    kv_dtype: str | None = None,
    block_size: int = 16,
    memory_utilization: float = 0.9,
) -> int:
    """The bottom line of ``plan``."""
    return plan(
        model,
        hardware,
        context_len,
        num_gpus=num_gpus,
        weight_dtype=weight_dtype,
        kv_dtype=kv_dtype,
        block_size=block_size,
        memory_utilization=memory_utilization,
    ).num_requests


def _kv_heads_per_gpu(model: ModelSpec, num_gpus: int) -> int:
    return -(-model.num_kv_heads // num_gpus)


def _whole(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} is {value!r}: it must be a whole number, at least 1")


def _size(num_bytes: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if num_bytes >= size:
            return f"{num_bytes / size:.3g} {unit}"
    return f"{num_bytes / 1e3:.3g} kB"


def _count(number: int) -> str:
    return f"{number / 1e9:.3g} billion" if number >= 1e9 else f"{number / 1e6:.3g} million"
