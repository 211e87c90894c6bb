"""A learner's own exercise, checked without opening it: what ``toyserve check`` does.

Their own code on their own machine: in a process with limits where the system can fork, so that an
endless loop or a crash costs nothing; else in this one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from toyserve.course.checks.examine import Outcome
from toyserve.course.checks.expected import expected_for
from toyserve.course.checks.feedback import feedback_lines
from toyserve.course.checks.part import Exercise, load_exercise
from toyserve.course.checks.plain import canonical, pack
from toyserve.course.exercise import seed_in
from toyserve.course.exercise_files import chosen
from toyserve.course.exercise_session import Truth, outcomes
from toyserve.course.grading.grade import PartResult, grade
from toyserve.course.grading.sessions import Limits, Sessions
from toyserve.course.grading.submission import Unreadable, read_notebook
from toyserve.course.workspace import find_course_folders


def find_notebooks(lab: Path, numbers: Sequence[str]) -> dict[Exercise, Path]:
    """Exercise → the learner's notebook. Raises ValueError where there is none."""
    folder = lab / "exercises" if (lab / "exercises").is_dir() else lab
    originals = find_course_folders().get("exercises")
    names = [p.stem for p in sorted(originals.glob("[0-9]*.ipynb"))] if originals else []
    found = {name: folder / f"{name}.ipynb" for name in names}
    here = [name for name, path in found.items() if path.exists()]
    if not here:
        raise ValueError(f"{folder} has no exercise in it: toyserve lab brings them")
    return {load_exercise(name): found[name] for name in chosen(here, numbers)}


def check_notebook(exercise: Exercise, path: Path) -> Iterator[tuple[str, bool | None, list[str]]]:
    """Part, is it right (None: a teacher reads it), and what to say, part by part."""
    original = read_notebook(find_course_folders()["exercises"] / f"{exercise.name}.ipynb")
    try:
        mine = read_notebook(path)
    except Unreadable as error:
        raise ValueError(str(error)) from None
    truth = visible_truth(exercise, seed_in(mine) or 0)
    if not hasattr(os, "fork"):  # Windows: in this process
        for outcome in outcomes(exercise, mine, truth).values():
            yield outcome.key, outcome.right, feedback_lines(outcome, exercise)
        return
    with Sessions() as sessions:
        result = grade(sessions, exercise, original, mine, truth, Limits(files=_modules(path)))
    for note in result.notes:
        yield "", None, [f"({note})"]
    for part in result.parts:
        yield _told(exercise, part, truth)


def _told(exercise: Exercise, part: PartResult, truth: Truth) -> tuple[str, bool | None, list[str]]:
    if part.key not in exercise.by_key:
        written = part.points is None
        said = "written; a teacher reads it" if written else "nothing is written here yet"
        return part.key, None, [f"{'·' if written else '✗'} {part.key}: {said}."]
    known = exercise.part(part.key)
    cases = {c.get("what"): c for c in known.cases_for(truth.seed)}
    outcome = Outcome(part.key, bool(part.points), part.text, len(cases), cases.get(part.case))
    return part.key, outcome.right, feedback_lines(outcome, exercise)


def visible_truth(exercise: Exercise, seed: int) -> Truth:
    """What is right for the cases that a learner may see."""
    data = {
        (part.key, canonical(case)): pack(expected_for(exercise, part, case))
        for part in exercise.parts
        for case in part.cases_for(seed)
    }
    return Truth(seed, {}, data)


def _modules(path: Path) -> dict[str, str]:
    from toyserve.course.grading.jobs import modules_beside

    return modules_beside(path)
