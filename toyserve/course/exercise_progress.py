"""What a learner has solved so far, remembered in their own folder.

``check`` in a notebook and ``toyserve check`` write it, ``toyserve progress`` shows it. It is no
grade: grades come from running a submission anew.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from toyserve.course.workspace import MANIFEST

FILE = ".toyserve-progress.json"


@dataclass(frozen=True)
class ExerciseProgress:
    """One exercise. What a teacher reads is not counted.

    marks: of each part that a machine grades, was it right when it was last checked? None: never.
    """

    name: str  # "04_continuous_batching"
    marks: Mapping[str, bool | None]

    @property
    def num_right(self) -> int:
        return sum(mark is True for mark in self.marks.values())

    @property
    def num_parts(self) -> int:
        return len(self.marks)


def exercise_progress(known: Mapping[str, bool]) -> list[ExerciseProgress]:
    """Every exercise there is, in order. known: what ``read_progress`` found."""
    from toyserve.course.checks.part import exercise_names, load_exercise

    return [
        ExerciseProgress(name, {key: known.get(key) for key in load_exercise(name).by_key})
        for name in exercise_names()
    ]


def find_lab(start: Path) -> Path | None:
    """The learner's course folder: ``start``, one above it, or ``toyserve-lab`` in it."""
    start = start.resolve()
    for folder in (start, *start.parents, start / "toyserve-lab"):
        if (folder / MANIFEST).is_file():
            return folder
    return None


def lab_of(given: Path | None) -> Path:
    """The folder that the user named, else the one around them. Raises ValueError without one."""
    lab = given or find_lab(Path.cwd())
    if lab is None:
        raise ValueError(
            "this is no course folder (one that `toyserve lab` made): go into it, or say --lab DIR"
        )
    return lab


def read_progress(lab: Path) -> dict[str, bool]:
    """Part → was it right when it was last checked? {} when nothing (readable) is there."""
    try:
        data = json.loads((lab / FILE).read_text(encoding="utf-8"))
        return {str(key): value is True for key, value in data.items()}
    except (OSError, ValueError, AttributeError):
        return {}


def note_progress(lab: Path, results: dict[str, bool]) -> None:
    """Remember these; a folder that cannot be written is no reason to stop."""
    known = read_progress(lab) | results
    part = lab / f"{FILE}.part"
    with contextlib.suppress(OSError):
        part.write_text(json.dumps(known, indent=1, sort_keys=True), encoding="utf-8")
        part.replace(lab / FILE)
