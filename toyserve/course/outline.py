"""What the course is made of, read from its notebooks: each lesson's title, question and time."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

# The four parts of a server that together explain what its users see; a lesson is about one of
# them, the first and the last about all.
LAYERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "the whole server": ("00", "14"),
        "model execution": ("01", "02", "08", "13"),
        "scheduler": ("03", "04", "05", "09"),
        "memory": ("06", "07", "12"),
        "queue and users": ("10", "11"),
    }
)

_TITLE = re.compile(r"^# (?P<number>\d\d) · (?P<title>.+)$", re.MULTILINE)
_QUESTION = re.compile(r"\*\*([^*]+\?)\*\*")
_MINUTES = re.compile(r"(\d+)(?:–(\d+))? minutes")


@dataclass(frozen=True)
class Lesson:
    """One lesson as its own first cell introduces it. ``minutes``: (at least, at most)."""

    file: str
    number: str
    title: str
    question: str
    minutes: tuple[int, int] | None

    @property
    def layer(self) -> str:
        """Which part of the server it is about."""
        return next(name for name, numbers in LAYERS.items() if self.number in numbers)

    @property
    def time(self) -> str:
        """ "30–40 min", or "" where the lesson does not say."""
        if self.minutes is None:
            return ""
        low, high = self.minutes
        return f"{low} min" if low == high else f"{low}–{high} min"


def read_outline(folder: Path) -> list[Lesson]:
    """The lessons among the notebooks of ``folder``, in order.

    A learner's own copies and notes, whose first cell is no lesson's, are left out.
    """
    lessons: dict[str, Lesson] = {}
    for path in sorted(folder.glob("[0-9][0-9]_*.ipynb")):
        lesson = _read_lesson(path)
        if lesson is not None and not path.stem.endswith(("-Copy1", ".new")):
            lessons.setdefault(lesson.number, lesson)
    return [lessons[number] for number in sorted(lessons)]


def _read_lesson(path: Path) -> Lesson | None:
    try:
        cell = json.loads(path.read_text(encoding="utf-8"))["cells"][0]
        text = "".join(cell["source"])
    except (OSError, ValueError, LookupError, TypeError):
        return None
    title = _TITLE.search(text)
    if title is None or title["number"] not in {n for row in LAYERS.values() for n in row}:
        return None
    question, minutes = _QUESTION.search(text), _MINUTES.search(text)
    return Lesson(
        path.name,
        title["number"],
        title["title"].strip(),
        " ".join(question[1].split()) if question else "",
        (int(minutes[1]), int(minutes[2] or minutes[1])) if minutes else None,
    )
