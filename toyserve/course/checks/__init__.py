"""Instant feedback in an exercise's notebook: ``check("04.2")``.

Here is only what a learner may read: the cases that are shown, and how an answer is judged. The
hidden cases and the solutions are in the teacher's copy alone.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toyserve.course.checks.examine import LIMIT, examine
from toyserve.course.checks.expected import expected_for, unsqueeze
from toyserve.course.checks.feedback import CheckFailed, Feedback, show
from toyserve.course.checks.part import Case, Exercise, Part, Wrong, find_part
from toyserve.course.checks.plain import canonical, pack, unpack

__all__ = ["Case", "CheckFailed", "Exercise", "Part", "Wrong", "check"]


def check(key: str, cases: Sequence[Case] | None = None, *, limit: float = LIMIT) -> None:
    """Say in words whether part ``key`` is right, by what the caller's notebook defines.

    cases: others than those the part brings along (hidden tests). limit: seconds.
    Raises CheckFailed, which shows as one line, when it is not right.
    """
    namespace = sys._getframe(1).f_globals
    exercise, part = find_part(key)
    if cases is None:
        cases = part.cases_for(seed_of(namespace))
        outcome = examine(exercise, part, namespace, cases, _from_table(exercise, part), limit)
    else:
        kept = _from_notebook(part, cases, namespace)
        outcome = examine(exercise, part, namespace, cases, kept, limit)
    show(Feedback(outcome, exercise))
    _remember(key, outcome.right)
    if not outcome.right:
        raise CheckFailed(f"{key} is not right yet: see above.")


def _remember(key: str, right: bool) -> None:
    """For `toyserve progress`, where the notebook lies in a learner's course folder."""
    from toyserve.course.exercise_progress import find_lab, note_progress

    lab = find_lab(Path.cwd())
    if lab is not None:
        note_progress(lab, {key: right})


def seed_of(namespace: Any) -> int:
    """The number that makes a learner's variant; 0 in the course's own copy."""
    seed = namespace.get("SEED", 0)
    return seed if type(seed) is int else 0


def expected_name(key: str) -> str:
    """The variable of the teacher's copy that holds what hidden cases of a part must give."""
    return f"_expected_{key.replace('.', '_')}"


def _from_table(exercise: Exercise, part: Part) -> Any:
    return lambda case: expected_for(exercise, part, case)


def _from_notebook(part: Part, cases: Sequence[Case], namespace: Any) -> Any:
    truth = part.truth
    if truth is not None:
        return lambda case: unpack(pack(truth(case)))
    text = namespace.get(expected_name(part.key))
    kept = unsqueeze(text) if isinstance(text, str) else [None] * len(cases)
    by_case = {canonical(case): data for case, data in zip(cases, kept, strict=True)}
    return lambda case: unpack(by_case[canonical(case)])
