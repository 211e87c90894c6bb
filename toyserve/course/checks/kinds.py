"""Two kinds of part that most exercises have: predict numbers, and tune one number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from toyserve.course.checks.part import Case, Part

Draw = Callable[[int], Mapping[str, Any]]
Judge = Callable[[Case, Any, Any], str | None]


def by_property(case: Case) -> None:
    """The ``truth`` of a part whose judge tests what must hold, and needs nothing expected."""


def by_name(*names: str) -> Callable[..., dict[str, Any]]:
    """An ``observe`` that brings back the learner's values under their own names."""
    return lambda case, *values: dict(zip(names, values, strict=True))


def prediction(
    key: str,
    title: str,
    names: tuple[str, ...],
    draw: Draw,
    truth: Callable[[Case], Any],
    judge: Judge,
) -> Part:
    """Numbers that the learner predicts or measures, for a case that is drawn from their seed.

    truth(case) works the right ones out when they are asked for, by running the engine or the cost
    model: none of them is written down anywhere. judge gets both as dicts, the learner's by name.
    """
    return Part(key, title, names, by_name(*names), judge, lambda seed: [draw(seed)], truth)


def tuning(key: str, title: str, name: str, draw: Draw, judge: Judge) -> Part:
    """One value that has to meet the targets of a drawn case; whichever meets them is right, so
    judge runs the engine with the learner's and has no expected one."""
    return Part(
        key, title, (name,), lambda case, got: got, judge, lambda seed: [draw(seed)], by_property
    )  # fmt: skip
