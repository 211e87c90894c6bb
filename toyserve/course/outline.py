"""What the course is made of: each lesson's question (here), title and time (from its notebook).

A lesson's own first cell asks its question of people who stand in its story; a list of lessons has
to ask it of somebody who has read none of them.
"""

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

QUESTIONS: Mapping[str, str] = MappingProxyType(
    {
        "00": "Who gets the next word?",
        "01": "What does an answer consist of, and who waits for whom?",
        "02": "Why is a step for 32 users hardly slower than a step for one?",
        "03": "What does it cost to start together and to end together?",
        "04": "What if anybody may come and go between any two steps?",
        "05": "What if somebody brings a prompt of 50,000 tokens?",
        "06": "Why do 100 requests not fit?",
        "07": "What if a request's memory need not be in one piece?",
        "08": "How does a GPU read pages that lie scattered?",
        "09": "Memory is full and somebody urgent comes: who has to go?",
        "10": "Who pays for whose speed?",
        "11": "At which arrival rate does it break?",
        "12": "Must the same prompt be read twice?",
        "13": "Which model is cheap to serve?",
        "14": "Does it work with a real client?",
    }
)

_TITLE = re.compile(r"^# (?P<number>\d\d) · (?P<title>.+)$", re.MULTILINE)
_MINUTES = re.compile(r"(\d+)(?:–(\d+))? minutes")


@dataclass(frozen=True)
class Lesson:
    """One lesson as its own first cell introduces it. ``minutes``: (at least, at most)."""

    file: str
    number: str
    title: str
    minutes: tuple[int, int] | None

    @property
    def layer(self) -> str:
        """Which part of the server it is about."""
        return next(name for name, numbers in LAYERS.items() if self.number in numbers)

    @property
    def question(self) -> str:
        """What it answers, for somebody who has read no lesson yet."""
        return QUESTIONS[self.number]

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
    if title is None or title["number"] not in QUESTIONS:
        return None
    minutes = _MINUTES.search(text)
    return Lesson(
        path.name,
        title["number"],
        title["title"].strip(),
        (int(minutes[1]), int(minutes[2] or minutes[1])) if minutes else None,
    )
