"""A learner's number, judged in words: is it one, how is it off, and by which slip?"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from toyserve.course.checks.part import Picture, Wrong

# A wrong number and the words for how one comes by it: (4.0, "counts 32 heads; there are 8").
Slips = Iterable[tuple[float, str]]


def require_number(got: Any, what: str) -> float:
    """A number; not True, a text, or NaN, from which nothing is too far. Raises Wrong."""
    if isinstance(got, bool) or not isinstance(got, int | float):
        raise Wrong(f"{what} must be a number; yours is {got!r}")
    if math.isnan(got):
        raise Wrong(f"{what} is NaN, which is no number: was 0 divided by 0?")
    return got


def require_whole(got: Any, what: str, low: int, high: int) -> int:
    """A whole number within these bounds. Raises Wrong."""
    whole = type(got) is int or (type(got) is float and got.is_integer())
    if not whole or not low <= got <= high:
        raise Wrong(f"{what} must be a whole number from {low:,} to {high:,}; yours is {got!r}")
    return int(got)


def way(number: float, right: float, *, high: str = "is too many", low: str = "is too few") -> str:
    """On which side of the truth a wrong number lies."""
    return high if number > right else low


def slip(number: float, slips: Slips, rel: float = 1e-3) -> str | None:
    """The words of the first slip that gives this number, within ``rel``; None if none does."""
    for value, words in slips:
        if abs(number - value) <= rel * abs(value) + 1e-12:
            return words
    return None


def exactly(
    got: Any,
    right: float,
    name: str,
    slips: Slips = (),
    *,
    form: str = "g",
    otherwise: str = "",
    hint: str = "",
) -> None:
    """Judge a number that is right or is not. Raises Wrong with the slip's words; else with
    ``otherwise``, or the way it is off and the hint."""
    number = require_number(got, name)
    if number == right:
        return
    off = f"{way(number, right)}. {hint}" if hint else way(number, right)
    said = slip(number, slips, 1e-9) or otherwise or off
    raise Wrong(f"{name} = {number:{form}} {said}")


def close(
    got: Any,
    expected: float,
    what: str,
    slips: Slips = (),
    *,
    rel: float = 0.01,
    unit: str = "",
    near: float = 1e-3,
    otherwise: str = "",
    picture: Picture | None = None,
) -> None:
    """Judge a measured number: within ``rel`` of the truth, else Wrong with the words of the slip
    that it is ``near`` to, else with ``otherwise``, else with the way it is off."""
    number = require_number(got, what)
    if abs(number - expected) <= rel * abs(expected) + 1e-12:
        return
    said = slip(number, slips, near) or otherwise
    shown = f"{number:.4g} {unit}".rstrip()
    if said:
        raise Wrong(f"{what} = {shown} {said}", picture)
    off = way(number, expected, high="too high", low="too low")
    raise Wrong(f"{what} is {off}: {shown}", picture)
