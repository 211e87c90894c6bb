"""What the course opens with: a picture, a map of the lessons, and a table with one's progress.

first_picture()    # what the course is about, at a glance
lesson_table()     # links, questions, times, how far you are with lessons and exercises
course_map()       # which part of a server each lesson is about
"""

from __future__ import annotations

import html
import textwrap
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Patch

from toyserve.clock import VirtualClock
from toyserve.costs import cost_model
from toyserve.course.exercise_progress import (
    ExerciseProgress,
    exercise_progress,
    find_lab,
    read_progress,
)
from toyserve.course.outline import LAYERS, Lesson, read_outline
from toyserve.course.progress import LessonProgress, LessonState, lesson_progress
from toyserve.course.show import Shown
from toyserve.course.workspace import find_course_folders
from toyserve.engine import Engine
from toyserve.kv import PagedKV
from toyserve.parts import make_scheduler
from toyserve.policies import FCFS
from toyserve.recording import Recording
from toyserve.runners import SimulatedRunner, TimedRunner
from toyserve.viz import timeline
from toyserve.viz.style import OWNERS, figure_of, new_axes, theme_of
from toyserve.workload import make_workload

_COLUMNS = 5
_LEFT = 'style="text-align:left;vertical-align:top"'


_SERVERS = {
    "static": "All start together, and nobody comes in until the last has finished",
    "continuous": "Whoever finishes makes room at once for whoever waits",
}


def first_picture(*, theme: str = "light") -> Figure:
    """Six requests in four slots, by a server that waits and by one that does not.

    Simulated (no model is loaded): the schedules are those that the engine makes with the model.
    """
    look = theme_of(theme)
    upper, lower = new_axes((10, 5), look, num_rows=2, sharex=False)
    for ax, (name, title) in zip((upper, lower), _SERVERS.items(), strict=True):
        recording = _simulate(name)
        title = f"{title}: {recording.num_steps} steps"
        timeline(recording, ax=ax, title=title, legend=ax is upper, theme=theme)
    lower.set_xlim(upper.get_xlim())
    upper.set_xlabel("")
    return figure_of(upper)


def _simulate(scheduler: str) -> Recording:
    clock, workload = VirtualClock(), make_workload("continuous_example")
    engine = Engine(
        scheduler=make_scheduler(scheduler, max_running=workload.settings["max_running"]),
        kv=PagedKV(64),
        runner=TimedRunner(SimulatedRunner(workload.output_lens), cost_model("h100"), clock),
        policy=FCFS(),
        clock=clock,
    )
    engine.run(workload.requests_for_engine())
    return engine.recording


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
    """Every lesson and its exercise: links, question, time, and how far you are with both."""
    here, lessons = lessons_here(folder)
    progress = [lesson_progress(here / lesson.file) for lesson in lessons]
    exercises = _exercises_beside(here)
    head = "".join(f"<th {_LEFT}>{name}</th>" for name in ("lesson", "time", "you", "exercise"))
    rows = "".join(
        _row(one, far, exercises.get(one.number))
        for one, far in zip(lessons, progress, strict=True)
    )
    lines = [
        f"{one.number} · {one.title:40} {one.time:10} {_how_far(far):16} "
        f"{_parts_done(exercises.get(one.number))}".rstrip()
        for one, far in zip(lessons, progress, strict=True)
    ]
    states = [one.state for one in progress]
    solved = f"{states.count(LessonState.SOLVED)} of {len(lessons)} lessons"
    if exercises:
        right = sum(one.num_right for one in exercises.values())
        solved += f" and {right} of {sum(e.num_parts for e in exercises.values())} exercise parts"
    summary = f"{solved} solved. {_next_step(lessons, states)}"
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return Shown("\n".join([*lines, "", summary]), f"<p><b>{html.escape(summary)}</b></p>{table}")


def _exercises_beside(lessons: Path) -> dict[str, ExerciseProgress]:
    """Number → exercise, of those that lie beside the lessons."""
    lab = find_lab(lessons)
    return {
        one.name[:2]: one
        for one in exercise_progress(read_progress(lab) if lab else {})
        if (lessons.parent / "exercises" / f"{one.name}.ipynb").is_file()
    }


def _row(lesson: Lesson, far: LessonProgress, exercise: ExerciseProgress | None) -> str:
    """A link and, below it, the question: two narrow columns are then left for how far one is."""
    link = f'<a href="{html.escape(lesson.file)}">{lesson.number} · {html.escape(lesson.title)}</a>'
    cells = [f"{link}<br>{html.escape(lesson.question)}", lesson.time, _how_far(far)]
    target = f"../exercises/{exercise.name}.ipynb" if exercise else ""
    parts = _parts_done(exercise)
    cells.append(f'<a href="{html.escape(target)}">{parts}</a>' if exercise else "")
    return "<tr>" + "".join(f"<td {_LEFT}>{cell}</td>" for cell in cells) + "</tr>"


def _how_far(progress: LessonProgress) -> str:
    if progress.state is LessonState.BEGUN:
        return f"◐ begun, {progress.num_passed} of {progress.num_checks} ✓"
    return "● solved" if progress.state is LessonState.SOLVED else "○ not begun"


def _parts_done(exercise: ExerciseProgress | None) -> str:
    if exercise is None:
        return ""
    right, total = exercise.num_right, exercise.num_parts
    begun = any(mark is not None for mark in exercise.marks.values())
    return f"{'●' if right == total else '◐' if begun else '○'} {right} of {total}"


def _next_step(lessons: list[Lesson], states: list[LessonState]) -> str:
    for wanted, verb in ((LessonState.BEGUN, "Go on with"), (LessonState.NEW, "Next:")):
        for lesson, state in zip(lessons, states, strict=True):
            if state is wanted:
                return f"{verb} {lesson.number} · {lesson.title}."
    return "That was all of them."
