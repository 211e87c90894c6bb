"""A cost model fitted to measured steps, and how wrong it is on steps it has not seen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from toyserve.schedulers.output import SchedulerOutput
from toyserve.stepshape import StepPhase, StepShape

# Positions at which the price of one more position may rise. Below the knee of the roofline a
# position is nearly free, above it each costs its FLOPs: a bent line, which is a sum of hinges.
_KNEES = (4, 16, 64, 256)
FEATURES = (
    "step",
    "position",
    *(f"position above {knee}" for knee in _KNEES),
    "decode row",
    "decode KV token",
    "prefill row",
    "prefill KV token",
    "prefill pair",
)


@dataclass(frozen=True)
class StepSample:
    """One measured step."""

    shape: StepShape
    seconds: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.seconds) and self.seconds > 0):
            raise ValueError(f"a measured step took {self.seconds!r} s: it must be above 0")

    @property
    def phase(self) -> StepPhase:
        return self.shape.phase


@dataclass(frozen=True)
class PhaseError:
    """Relative errors |model - measured| / measured over the held-out steps of one phase.

    bias: mean of the signed relative error; above 0 the model is too slow.
    """

    num_samples: int
    median: float
    p95: float
    bias: float


@dataclass(frozen=True)
class FittedCostModel:
    """Seconds per step: a price per feature, none negative.

    prices: seconds per unit, by ``FEATURES``. errors: per phase, on steps held out of the fit; a
    phase of which nothing was held out is missing.
    """

    prices: tuple[float, ...]
    errors: Mapping[StepPhase, PhaseError]
    window: int | None = None

    def step_time(self, plan: SchedulerOutput) -> float:
        """Seconds that the planned step takes. Call it before the counters move."""
        return self.time_of(StepShape.of_plan(plan, self.window))

    def time_of(self, shape: StepShape) -> float:
        """Seconds of a step of this shape; 0 for an empty one."""
        if not shape.num_tokens:
            return 0.0
        return sum(p * f for p, f in zip(self.prices, features_of(shape), strict=True))

    def explain(self) -> str:
        """The prices in microseconds and the errors in per cent, one line each."""
        lines = [
            f"{price * 1e6:12.4f} µs per {name}"
            for name, price in zip(FEATURES, self.prices, strict=True)
            if price > 0
        ]
        for phase, error in self.errors.items():
            lines.append(
                f"{phase}: off by {error.median:.1%} (median), {error.p95:.1%} (p95) on "
                f"{error.num_samples} steps not used for the fit"
            )
        return "\n".join(lines)


def features_of(shape: StepShape) -> tuple[float, ...]:
    """The features of a step, in the order of ``FEATURES``."""
    return (
        1.0,
        shape.num_tokens,
        *(max(0, shape.num_tokens - knee) for knee in _KNEES),
        shape.decode_rows,
        shape.decode_context,
        shape.prefill_rows,
        shape.prefill_context,
        shape.prefill_pairs,
    )


def fit_cost_model(
    samples: Sequence[StepSample],
    *,
    held_out: float = 0.25,
    seed: int = 0,
    window: int | None = None,
) -> FittedCostModel:
    """Prices that make the relative error smallest (least squares, no price below 0).

    held_out: share of each phase's samples kept for the errors. Raises ValueError with fewer than
    8 samples.
    """
    if len(samples) < 8:
        raise ValueError(f"{len(samples)} measured steps are too few to fit: at least 8 are needed")
    if not 0 < held_out < 1:
        raise ValueError(f"held_out is {held_out!r}: it must be above 0 and below 1")
    train, test = _split(samples, held_out, seed)
    matrix = np.array([features_of(s.shape) for s in train], dtype=float)
    seconds = np.array([s.seconds for s in train])
    # Divided by the measured time, a residual is a relative error: short steps count as much.
    matrix /= seconds[:, None]
    scale = np.maximum(np.linalg.norm(matrix, axis=0), 1e-300)
    prices = nonnegative_least_squares(matrix / scale, np.ones(len(train))) / scale
    model = FittedCostModel(tuple(prices.tolist()), MappingProxyType({}), window)
    return FittedCostModel(model.prices, MappingProxyType(phase_errors(model, test)), window)


def phase_errors(
    model: FittedCostModel, samples: Sequence[StepSample]
) -> dict[StepPhase, PhaseError]:
    """The model's relative errors on measured steps, each phase apart."""
    relative: dict[StepPhase, list[float]] = {}
    for sample in samples:
        error = model.time_of(sample.shape) / sample.seconds - 1
        relative.setdefault(sample.phase, []).append(error)
    return {
        phase: PhaseError(
            len(errors),
            float(np.median(np.abs(errors))),
            float(np.percentile(np.abs(errors), 95)),
            float(np.mean(errors)),
        )
        for phase, errors in sorted(relative.items())
    }


def _split(
    samples: Sequence[StepSample], held_out: float, seed: int
) -> tuple[list[StepSample], list[StepSample]]:
    """(to fit, to test), of each phase in the same proportion."""
    order = np.random.default_rng(seed).permutation(len(samples))
    by_phase: dict[StepPhase, list[StepSample]] = {}
    for index in order:
        by_phase.setdefault(samples[index].phase, []).append(samples[index])
    train: list[StepSample] = []
    test: list[StepSample] = []
    for group in by_phase.values():
        num_test = round(held_out * len(group))
        test += group[:num_test]
        train += group[num_test:]
    return train, test


def nonnegative_least_squares(
    matrix: np.ndarray, target: np.ndarray, max_rounds: int = 200
) -> np.ndarray:
    """The x >= 0 with the smallest |matrix x - target|. matrix: [n, k], target: [n] -> [k].

    Lawson and Hanson, "Solving Least Squares Problems", 1974, algorithm NNLS: let in the variable
    that helps most, solve for those that are in, and take out whichever would turn negative.
    """
    num_variables = matrix.shape[1]
    x = np.zeros(num_variables)
    inside = np.zeros(num_variables, dtype=bool)
    for _ in range(max_rounds):
        gradient = matrix.T @ (target - matrix @ x)
        gradient[inside] = -np.inf
        best = int(np.argmax(gradient))
        if gradient[best] <= 1e-10 * max(1.0, float(np.linalg.norm(target))):
            break
        inside[best] = True
        while True:
            trial = np.zeros(num_variables)
            trial[inside] = np.linalg.lstsq(matrix[:, inside], target, rcond=None)[0]
            negative = inside & (trial <= 0)
            if not negative.any():
                x = trial
                break
            # Go as far towards the trial point as no variable becomes negative.
            step = np.min(x[negative] / (x[negative] - trial[negative]))
            x = x + step * (trial - x)
            inside &= x > 1e-14
            x[~inside] = 0.0
            if not inside.any():
                break
    return x
