"""What is promised, as numbers, and whether a run kept it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from toyserve.bench import names


@dataclass(frozen=True)
class Target:
    """path: where the value stands in a result. higher: whether more is better."""

    text: str
    path: tuple[str | int, ...]
    must: float
    aim: float | None
    higher: bool = True
    unit: str = "x"
    shapes: tuple[str, ...] = ()  # empty: all


@dataclass(frozen=True)
class Verdict:
    target: Target
    value: float

    @property
    def word(self) -> str:
        """ "aim", "must" or "missed": the best that was reached."""
        for word, bar in (("aim", self.target.aim), ("must", self.target.must)):
            if bar is not None and (self.value >= bar if self.target.higher else self.value <= bar):
                return word
        return "missed"

    def to_dict(self) -> dict[str, Any]:
        t = self.target
        return {
            "text": t.text,
            "value": self.value,
            "must": t.must,
            "aim": t.aim,
            "unit": t.unit,
            "higher_is_better": t.higher,
            "reached": self.word,
        }


def _speedup(name: str, over: str) -> tuple[str | int, ...]:
    return ("race", "contestants", name, "speedup", over, "median")


_BEST = names.CHUNKED
TARGETS: Sequence[Target] = (
    Target(
        "chunked over transformers static 8",
        _speedup(_BEST, names.HF_STATIC),
        5.0,
        6.5,
        shapes=("toy", "tiny"),
    ),
    Target(
        "chunked over transformers static 8",
        _speedup(_BEST, names.HF_STATIC),
        5.5,
        7.5,
        shapes=("gpt2-shape",),
    ),
    Target("chunked over transformers continuous", _speedup(_BEST, names.HF_CONTINUOUS), 2.5, 3.3),
    Target(
        "F.linear fallback over transformers static 8",
        _speedup(names.FALLBACK, names.HF_STATIC),
        2.8,
        3.5,
    ),
    Target("paged over reserved KV", _speedup(names.CHUNKED, names.RESERVED), 0.9, 1.0),
    Target(
        "share of the ideal",
        ("race", "contestants", _BEST, "share_of_ideal"),
        0.40,
        0.55,
        unit="share",
        shapes=("toy", "tiny"),
    ),
    Target(
        "share of the ideal",
        ("race", "contestants", _BEST, "share_of_ideal"),
        0.60,
        0.75,
        unit="share",
        shapes=("gpt2-shape",),
    ),
    Target(
        "p50 latency on Poisson, under transformers continuous",
        ("poisson", "contestants", _BEST, "latency_gain", names.HF_CONTINUOUS, "median"),
        3.0,
        8.0,
        shapes=("toy", "tiny"),
    ),
    *(
        Target(
            f"schedule and update, {n} running",
            ("scheduler_us", str(n)),
            must,
            aim,
            higher=False,
            unit="µs",
        )
        for n, must, aim in ((8, 5.0, 3.0), (64, 30.0, 18.0), (256, 120.0, 70.0))
    ),
    Target(
        "host work of a step, 64 running",
        ("host", "64 alone", "total"),
        150.0,
        60.0,
        higher=False,
        unit="µs",
        shapes=("toy", "tiny", "micro"),  # sampling from 50,000 words alone takes longer
    ),
    Target(
        "recording, of the step",
        ("host", "64 in place", "recording_share"),
        0.05,
        None,
        higher=False,
        unit="share",
    ),
    *(
        Target(
            f"calibrated cost model, median error on {phase} steps",
            ("calibration", "errors", phase, "median"),
            0.20,
            None,
            higher=False,
            unit="share",
        )
        for phase in ("prefill", "decode")
    ),
    Target(
        "simulated requests per CPU second",
        ("simulation", "requests_per_cpu_s"),
        3750.0,
        12500.0,
        unit="/s",
    ),
    Target(
        "a step after 20,000 finished over a first one",
        ("simulation", "growth"),
        1.15,
        None,
        higher=False,
    ),
    Target(
        "import toyserve", ("start", "import", "cpu_seconds"), 1.0, None, higher=False, unit="s"
    ),
    Target("toyserve --help", ("start", "help", "cpu_seconds"), 1.0, None, higher=False, unit="s"),
)


def verdicts(result: dict[str, Any]) -> list[Verdict]:
    """Of the targets that apply to the result's model and whose value was measured."""
    found = []
    for target in TARGETS:
        if target.shapes and result["model"]["name"] not in target.shapes:
            continue
        value = _look_up(result, target.path)
        if value is not None:
            found.append(Verdict(target, value))
    return found


def _look_up(result: Any, path: tuple[str | int, ...]) -> float | None:
    for key in path:
        if not isinstance(result, dict) or key not in result:
            return None
        result = result[key]
    return None if result is None else float(result)
