"""How far a learner is, read from the notebooks in the own course folder; nothing else is kept.

A lesson is *begun* when its file is no longer the one that was delivered (running a cell changes
it), and *solved* when no output says "✗" or "Not yet" any more. The installation's own files are
nobody's work. Exercises are graded elsewhere.
"""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Any

from toyserve.course.workspace import WorkspaceError, as_delivered, find_course_folders


class LessonState(StrEnum):
    NEW = "not begun"
    BEGUN = "begun"
    SOLVED = "solved"


def lesson_state(file: Path) -> LessonState:
    """Of one notebook. A file that is not there, or cannot be read, has not been begun."""
    try:
        cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
        code = [cell for cell in cells if cell["cell_type"] == "code"]
        text = "\n".join(_printed(cell) for cell in code)
    except (OSError, ValueError, LookupError, TypeError):
        return LessonState.NEW
    if as_delivered(file) or _is_the_installation_s(file):
        return LessonState.NEW
    done = code and all(cell.get("execution_count") for cell in code)
    return LessonState.BEGUN if not done or "✗" in text or "Not yet" in text else LessonState.SOLVED


def _is_the_installation_s(file: Path) -> bool:
    try:
        return file.resolve().parent == find_course_folders()["lessons"].resolve()
    except WorkspaceError:
        return False


def _printed(cell: dict[str, Any]) -> str:
    return "".join("".join(output.get("text", "")) for output in cell.get("outputs", ()))
