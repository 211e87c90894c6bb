"""A whole class, graded over several processes; every result is kept as soon as it is there.

A result is kept with a digest of what it came from: a run that was stopped goes on where it was,
and a new submission or a changed exercise is graded anew.
"""

from __future__ import annotations

import base64
import itertools
import multiprocessing
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, replace
from multiprocessing.util import Finalize
from typing import Any

import nbformat
from nbformat import NotebookNode

from toyserve.course.checks.examine import Outcome
from toyserve.course.checks.feedback import picture_png
from toyserve.course.checks.limits import TimeIsUp, time_limit
from toyserve.course.checks.part import load_exercise
from toyserve.course.exercise import points_of
from toyserve.course.exercise_session import Truth, find_truth
from toyserve.course.grading.grade import PartResult, Result, grade
from toyserve.course.grading.jobs import Job, modules_beside
from toyserve.course.grading.results import (
    Setup,
    digest_of,
    kept_result,
    write_result,
)
from toyserve.course.grading.sessions import Died, Sessions
from toyserve.course.grading.submission import Unreadable, printable, read_notebook


def grade_class(
    jobs: Sequence[Job],
    setup: Setup,
    *,
    num_processes: int,
    on_result: Callable[[dict[str, Any]], None],
) -> list[dict[str, Any]]:
    """Grade what has no result yet; returns all results, in the order of ``jobs``."""
    done: dict[tuple[str, str], dict[str, Any]] = {}
    todo = []
    for job in jobs:
        kept = kept_result(job, setup)
        if kept is None:
            todo.append(job)
        else:
            done[job.learner, job.exercise] = kept
            on_result(kept)
    for result in _in_parallel(todo, setup, num_processes):
        done[result["learner"], result["exercise"]] = result
        on_result(result)
    return [done[job.learner, job.exercise] for job in jobs]


def _in_parallel(jobs: Sequence[Job], setup: Setup, num_processes: int) -> Iterable[dict[str, Any]]:
    """The solution of a variant is run once, then the submissions of all who have it, while the
    solution of the next variant runs already."""
    variants: dict[tuple[str, int], list[Job]] = {}
    for job in jobs:
        variants.setdefault((job.exercise, job.seed), []).append(job)
    to_come = iter(variants.items())
    truths: dict[Future[Any], tuple[str, list[Job]]] = {}
    running: set[Future[Any]] = set()
    if not jobs:
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_processes, context, _start_process) as pool:

        def start_variant() -> None:
            for (name, seed), same in itertools.islice(to_come, 1):
                future = pool.submit(_find_truth, name, seed, setup)
                truths[future] = (name, same)
                running.add(future)

        for _ in range(num_processes):
            start_variant()
        while running:
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                running.remove(future)
                if future not in truths:
                    yield _result_of(future)
                    continue
                name, same = truths.pop(future)
                try:
                    truth = _result_of(future)
                except RuntimeError as error:
                    raise ValueError(f"{name}: {error}") from None
                running |= {pool.submit(_grade_one, job, truth, setup) for job in same}
                start_variant()


def _result_of(future: Future[Any]) -> Any:
    try:
        return future.result()
    except (BrokenProcessPool, OSError) as error:
        raise ValueError(
            f"a grading process ended ({error}): run the command again to go on from here"
        ) from None


# -- in a process of the pool -------------------------------------------------------------------

_SESSIONS: dict[str, Sessions] = {}


def _start_process() -> None:
    """Each process of the pool has one worker, for all submissions that it gets."""
    import matplotlib

    matplotlib.use("agg")
    _SESSIONS["mine"] = Sessions()
    Finalize(None, _SESSIONS["mine"].close, exitpriority=10)  # such a process has no atexit


def _find_truth(name: str, seed: int, setup: Setup) -> Truth:
    teacher = nbformat.read(setup.solutions[name], as_version=4)
    return find_truth(load_exercise(name), teacher, seed)


def _grade_one(job: Job, truth: Truth, setup: Setup) -> dict[str, Any]:
    teacher = nbformat.read(setup.solutions[job.exercise], as_version=4)
    exercise = load_exercise(job.exercise)
    limits = replace(setup.limits, files=modules_beside(job.path))
    try:
        submitted = read_notebook(job.path)
        result = grade(_SESSIONS["mine"], exercise, teacher, submitted, truth, limits)
    except (Unreadable, Died) as error:
        result = _nothing(job, teacher, str(error))
    if job.note:
        result.notes.append(job.note)
    row = {
        "learner": job.learner,
        "exercise": job.exercise,
        "file": job.path.name,
        "seed": job.seed,
        "digest": digest_of(job, setup),
        "points": result.points,
        "out_of": result.out_of,
        "notes": result.notes,
        "parts": [_plain(part) for part in result.parts],
    }
    row = printable(row)
    write_result(row, setup.out)  # here, so that it is kept whatever becomes of the others
    return row


def _nothing(job: Job, teacher: NotebookNode, why: str) -> Result:
    exercise = load_exercise(job.exercise)
    parts = [
        PartResult(
            key, exercise.by_key[key].title if key in exercise.by_key else "", 0.0, points, why
        )
        for key, points in points_of(teacher).items()
    ]
    return Result(parts, [why])


def _plain(part: PartResult) -> dict[str, Any]:
    """As JSON, the picture as PNG."""
    picture, part.picture = part.picture, None
    data = asdict(part)
    data["picture"] = ""
    if picture is not None:
        try:
            with time_limit(15):
                png = picture_png(Outcome(part.key, False, "", picture=picture))
        except TimeIsUp:
            png = None
        data["picture"] = base64.b64encode(png).decode("ascii") if png else ""
    return data
