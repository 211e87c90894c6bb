"""Workloads by name: a burst, Poisson arrivals, the lessons' scenarios, recorded traces.

``make_workload("poisson:n=64,rate=8,seed=1")`` is ``poisson(n=64, rate=8.0, seed=1)``.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

import numpy as np

from toyserve.scenarios import SCENARIOS
from toyserve.traces import azure_like, read_azure_trace
from toyserve.workload_types import Workload, WorkloadRequest

__all__ = [
    "WORKLOADS",
    "Lengths",
    "Workload",
    "WorkloadRequest",
    "azure_like",
    "burst",
    "make_workload",
    "poisson",
    "read_azure_trace",
    "standard_mix",
]


@dataclass(frozen=True)
class Lengths:
    """Prompts uniform, answers log-normal and clipped: most are short and a few very long.

    All in tokens, the bounds included. Everybody declares ``output_max``; few need it.
    """

    prompt_min: int = 16
    prompt_max: int = 256
    output_min: int = 8
    output_max: int = 256
    output_median: float = 48.0
    output_sigma: float = 1.0

    def __post_init__(self) -> None:
        for low, high in (("prompt_min", "prompt_max"), ("output_min", "output_max")):
            if not 1 <= getattr(self, low) <= getattr(self, high):
                raise ValueError(
                    f"{low} is {getattr(self, low)} and {high} is {getattr(self, high)}: the first "
                    f"must be at least 1 and at most the second"
                )
        if not (self.output_median > 0 and math.isfinite(self.output_median)):
            raise ValueError(f"output_median is {self.output_median!r}: it must be above 0")
        if not (self.output_sigma >= 0 and math.isfinite(self.output_sigma)):
            raise ValueError(f"output_sigma is {self.output_sigma!r}: it must be 0 or more")


def burst(
    n: int = 32, seed: int = 1234, lengths: Lengths | None = None, users: int = 1
) -> Workload:
    """``n`` requests all present at time 0, from ``users`` users in turn."""
    return _mix("burst", n, seed, lengths, users, rate=None)


def poisson(
    n: int = 32,
    rate: float = 8.0,
    seed: int = 1234,
    lengths: Lengths | None = None,
    users: int = 1,
) -> Workload:
    """The requests of ``burst``, arriving at random, ``rate`` per second on average, from 0 on."""
    if not (math.isfinite(rate) and rate > 0):
        raise ValueError(f"rate is {rate!r}: it must be above 0 requests per second")
    return _mix(f"poisson, {rate:g}/s", n, seed, lengths, users, rate)


def standard_mix(n: int = 32, rate: float | None = None, seed: int = 1234) -> Workload:
    """The mix of every measurement: prompts of 16 to 256, answers of 8 to 256, all with one seed.

    rate: Poisson arrivals per second; None: all at once.
    """
    return burst(n, seed) if rate is None else poisson(n, rate, seed)


def _mix(
    name: str, n: int, seed: int, lengths: Lengths | None, users: int, rate: float | None
) -> Workload:
    for what, value in (("n", n), ("users", users)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{what} is {value!r}: it must be a whole number, at least 1")
    mix = lengths or Lengths()
    # The order of the draws is fixed: the same seed has the same lengths at every rate.
    rng = np.random.default_rng(seed)
    prompts = rng.integers(mix.prompt_min, mix.prompt_max + 1, n)
    answers = np.rint(rng.lognormal(math.log(mix.output_median), mix.output_sigma, n))
    answers = np.clip(answers, mix.output_min, mix.output_max)
    arrivals = np.cumsum(rng.exponential(1.0, n))
    arrivals = (arrivals - arrivals[0]) / rate if rate is not None else np.zeros(n)
    requests = (
        WorkloadRequest(
            f"r{i}",
            float(arrivals[i]),
            int(prompts[i]),
            int(answers[i]),
            mix.output_max,
            user=f"user-{i % users}" if users > 1 else "default",
        )
        for i in range(n)
    )
    return Workload(name, tuple(requests))


# -- by name ------------------------------------------------------------------------------------

WORKLOADS: Mapping[str, Callable[..., Workload]] = MappingProxyType(
    {
        "burst": burst,
        "poisson": poisson,
        "standard_mix": standard_mix,
        **SCENARIOS,
        "azure_like": azure_like,
        "azure": read_azure_trace,
    }
)


def make_workload(spec: str) -> Workload:
    """From "name", "name:key=value,key=value" or "azure:PATH,key=value".

    Raises ValueError that names the known workloads, or the parameters of this one.
    """
    name, _, rest = spec.partition(":")
    name = name.strip()
    if name not in WORKLOADS:
        raise ValueError(f"unknown workload {name!r}: the known ones are {', '.join(WORKLOADS)}")
    items = [item.strip() for item in rest.split(",") if item.strip()]
    arguments: dict[str, Any] = {}
    if name == "azure":
        if not items or "=" in items[0]:
            raise ValueError(f"workload {spec!r} names no file: write azure:PATH")
        arguments["path"] = items.pop(0)
    known = _parameters(WORKLOADS[name])
    lengths: dict[str, Any] = {}
    for item in items:
        key, equals, text = (part.strip() for part in item.partition("="))
        if not equals or key not in known:
            options = ", ".join(known) or "none"
            raise ValueError(f"workload {name} has no parameter {item!r}: it takes {options}")
        (lengths if key in _LENGTH_TYPES else arguments)[key] = _parse(name, key, text, known[key])
    if lengths:
        arguments["lengths"] = Lengths(**lengths)
    return WORKLOADS[name](**arguments)


_LENGTH_TYPES: Mapping[str, str] = MappingProxyType({f.name: str(f.type) for f in fields(Lengths)})


def _parameters(generator: Callable[..., Workload]) -> dict[str, str]:
    """Name -> annotation of what may stand after the colon; of lengths, the single fields."""
    known = {p.name: str(p.annotation) for p in inspect.signature(generator).parameters.values()}
    known.pop("path", None)
    if known.pop("lengths", None) is not None:
        known |= _LENGTH_TYPES
    return known


def _parse(name: str, key: str, text: str, annotation: str) -> int | float | None:
    kind = float if annotation.startswith("float") else int
    try:
        return None if text == "None" and "None" in annotation else kind(text)
    except ValueError:
        wanted = "a number" if kind is float else "a whole number"
        raise ValueError(f"workload {name}: {key} is {text!r}: it must be {wanted}") from None
