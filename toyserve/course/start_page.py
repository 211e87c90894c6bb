"""What the course opens with: a map of the lessons, and a table with links and one's progress.

course_map()       # the picture
lesson_table()     # links, questions, times, how far you are
"""

from __future__ import annotations

import html
import textwrap
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Patch

from toyserve.course.outline import LAYERS, Lesson, read_outline
from toyserve.course.progress import LessonProgress, LessonState, lesson_progress
from toyserve.course.show import Shown
from toyserve.course.workspace import find_course_folders
from toyserve.viz.style import OWNERS, figure_of, new_axes, theme_of

_COLUMNS = 5


def lessons_here(folder: Path | None = None) -> tuple[Path, list[Lesson]]:
    """The lessons beside this notebook, or those of the installation if there are none."""
    here = Path.cwd() if folder is None else folder
    lessons = read_outline(here)
    if not lessons:
        here = find_course_folders()["lessons"]
        lessons = read_outline(here)
    return here, lessons


def course_map(folder: Path | None = None, *, theme: str = "light") -> Figure:
    """The lessons in their order, each in the colour of the part of a server it is about."""
    _, lessons = lessons_here(folder)
    look = theme_of(theme)
    num_rows = -(-max(1, len(lessons)) // _COLUMNS)
    (ax,) = new_axes((10, 1.3 * num_rows + 0.7), look)
    colors = dict(zip(LAYERS, ("#D8D8D8", *OWNERS), strict=False))
    for number, lesson in enumerate(lessons):
        x, y = _place(number)
        ax.add_patch(
            FancyBboxPatch(
                (x - 0.4, y - 0.33), 0.8, 0.66, boxstyle="round,pad=0.03",
                facecolor=colors[lesson.layer], edgecolor=look.ink, linewidth=0.8, gid=lesson.file,
            )
        )  # fmt: skip
        title = textwrap.fill(lesson.title, 18)
        ax.text(x, y + 0.2, lesson.number, ha="center", va="center", fontsize=10, weight="bold")
        ax.text(x, y - 0.02, title, ha="center", va="center", fontsize=8.5)
        ax.text(x, y - 0.27, lesson.time, ha="center", va="center", fontsize=7)
        if number:
            start, end = _place(number - 1), (x, y)
            ax.add_patch(_arrow(start, end, look.faint))
    ax.set(xlim=(-0.55, _COLUMNS - 0.45), ylim=(-num_rows + 0.4, 0.6))
    ax.axis("off")
    ax.set_title("The course, and the part of a server that each lesson is about", loc="left")
    ax.legend(
        handles=[Patch(facecolor=colors[name], edgecolor=look.ink, label=name) for name in LAYERS],
        loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=len(LAYERS), frameon=False, fontsize=8,
    )  # fmt: skip
    return figure_of(ax)


def _place(number: int) -> tuple[float, float]:
    """Row by row, every second one from the right: no arrow crosses the picture."""
    row, column = divmod(number, _COLUMNS)
    return (column if row % 2 == 0 else _COLUMNS - 1 - column), -row


def _arrow(start: tuple[float, float], end: tuple[float, float], color: str) -> FancyArrowPatch:
    (x0, y0), (x1, y1) = start, end
    if y0 == y1:
        step = 0.43 if x1 > x0 else -0.43
        a, b = (x0 + step, y0), (x1 - step, y1)
    else:
        a, b = (x0, y0 - 0.36), (x1, y1 + 0.36)
    return FancyArrowPatch(a, b, arrowstyle="-|>", mutation_scale=9, color=color, linewidth=1.2)


def lesson_table(folder: Path | None = None) -> Shown:
    """Every lesson with its link, its question, its time and how far you are with it."""
    here, lessons = lessons_here(folder)
    progress = [lesson_progress(here / lesson.file) for lesson in lessons]
    states = [one.state for one in progress]
    rows = "".join(
        f'<tr><td style="text-align:left;white-space:nowrap"><a href="{html.escape(one.file)}">'
        f"{one.number} · {html.escape(one.title)}</a></td>"
        f'<td style="text-align:left">{html.escape(one.question)}</td>'
        f'<td style="white-space:nowrap">{one.time}</td>'
        f'<td style="white-space:nowrap">{_how_far(far)}</td></tr>'
        for one, far in zip(lessons, progress, strict=True)
    )
    head = "".join(f"<th>{name}</th>" for name in ("lesson", "its question", "time", "you"))
    num_solved = states.count(LessonState.SOLVED)
    summary = f"{num_solved} of {len(lessons)} lessons solved. {_next_step(lessons, states)}"
    lines = [
        f"{one.number} · {one.title:40} {one.time:10} {_how_far(far)}".rstrip()
        for one, far in zip(lessons, progress, strict=True)
    ]
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return Shown("\n".join([*lines, "", summary]), f"{table}<p>{html.escape(summary)}</p>")


def _how_far(progress: LessonProgress) -> str:
    if progress.state is LessonState.BEGUN:
        return f"◐ begun, {progress.num_passed} of {progress.num_checks} ✓"
    return "● solved" if progress.state is LessonState.SOLVED else ""


def _next_step(lessons: list[Lesson], states: list[LessonState]) -> str:
    for wanted, verb in ((LessonState.BEGUN, "Go on with"), (LessonState.NEW, "Next:")):
        for lesson, state in zip(lessons, states, strict=True):
            if state is wanted:
                return f"{verb} {lesson.number} · {lesson.title}."
    return "That was all of them."
