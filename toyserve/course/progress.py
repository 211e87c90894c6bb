"""How far a learner is, read from the notebooks in the own course folder; nothing else is kept.

A lesson is *begun* when its file is no longer the one that was delivered (running a cell changes
it). Its *checks* are the cells that print a line with ✓, or one that starts with ✗ or "Not yet"; it
is *solved* when all its cells have run and none of its checks says the latter. (A ✗ in a cell whose
code has no ✓ shows a fault on purpose and is no check.) The installation's own files are nobody's
work. Exercises are graded elsewhere.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from toyserve.course.workspace import WorkspaceError, as_delivered, find_course_folders


class LessonState(StrEnum):
    NEW = "not begun"
    BEGUN = "begun"
    SOLVED = "solved"


@dataclass(frozen=True)
class LessonProgress:
    """One lesson: its state, and how many of its checks pass."""

    state: LessonState
    num_passed: int = 0
    num_checks: int = 0


def lesson_progress(file: Path) -> LessonProgress:
    """Of one notebook. A file that is not there, or cannot be read, has not been begun."""
    try:
        cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
        code = [cell for cell in cells if cell["cell_type"] == "code"]
        checks = [passed for cell in code if (passed := _passed(cell)) is not None]
    except (OSError, ValueError, LookupError, TypeError):
        return LessonProgress(LessonState.NEW)
    if as_delivered(file) or _is_the_installation_s(file):
        state = LessonState.NEW
    elif all(checks) and code and all(cell.get("execution_count") for cell in code):
        state = LessonState.SOLVED
    else:
        state = LessonState.BEGUN
    return LessonProgress(state, sum(checks), len(checks))


def _passed(cell: dict[str, Any]) -> bool | None:
    """None for a cell that is no check, or has not been run."""
    lines = "".join("".join(out.get("text", "")) for out in cell.get("outputs", ())).splitlines()
    if "✓" not in "".join(cell["source"]):
        return None
    if any(line.startswith(("✗", "Not yet")) for line in lines):
        return False
    return True if any("✓" in line for line in lines) else None


def _is_the_installation_s(file: Path) -> bool:
    try:
        return file.resolve().parent == find_course_folders()["lessons"].resolve()
    except WorkspaceError:
        return False
