"""The same notebooks are assignments of nbgrader's own: released and graded by its commands."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest

from toyserve.course.exercise import grade_id

pytest.importorskip("nbgrader")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
NAME = "04_continuous_batching"


def run(course: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "nbgrader", *arguments, f"--course-dir={course}"]
    done = subprocess.run(command, cwd=course, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def notebook_in(path: Path) -> nbformat.NotebookNode:
    return nbformat.reads(path.read_text(encoding="utf-8"), as_version=4)


@pytest.fixture(scope="module", autouse=True)
def _programs() -> Iterator[None]:
    """nbgrader starts alembic by its name, so this environment's programs must be found."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
        yield


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A course in which the teacher's notebook is the source; two learners have handed in."""
    folder = tmp_path_factory.mktemp("nbgrader é")
    source = folder / "source" / NAME / f"{NAME}.ipynb"
    source.parent.mkdir(parents=True)
    source.write_bytes((ROOT / "solutions" / f"{NAME}.ipynb").read_bytes())
    run(folder, "generate_assignment", NAME)
    teacher = notebook_in(source)
    solved = notebook_in(folder / "release" / NAME / f"{NAME}.ipynb")
    for mine in solved.cells:
        if mine.metadata.get("nbgrader", {}).get("solution"):
            right = next(c for c in teacher.cells if grade_id(c) == grade_id(mine))
            mine.source = right.source
    cheat = copy.deepcopy(solved)
    for cell in cheat.cells:
        if grade_id(cell) == "ex04-1-answer":
            cell.source = cell.source.replace("self.max_joins", "1")  # right for the first case
        if grade_id(cell) == "ex04-2-check":
            cell.source = "print('PASSED')"
        if grade_id(cell) == "ex04-2-answer":
            cell.source = "WaitForRoom = ContinuousScheduler"
    for learner, notebook in (("good", solved), ("cheat", cheat)):
        path = folder / "submitted" / learner / NAME / f"{NAME}.ipynb"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(notebook), encoding="utf-8")
    run(folder, "autograde", NAME)
    return folder


def scores(course: Path, learner: str) -> dict[str, float | None]:
    from nbgrader.api import Gradebook

    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as book:
        notebook = book.find_submission_notebook(NAME, NAME, learner)
        return {grade.name: grade.auto_score for grade in notebook.grades}


def test_what_nbgrader_releases_is_the_exercise_as_it_is_built(course: Path) -> None:
    released = notebook_in(course / "release" / NAME / f"{NAME}.ipynb")
    built = notebook_in(ROOT / "exercises" / f"{NAME}.ipynb")
    for theirs, ours in zip(released.cells, built.cells, strict=True):
        assert theirs.source.rstrip() == ours.source.rstrip()
        assert grade_id(theirs) == grade_id(ours)
        assert theirs.metadata.get("nbgrader") == ours.metadata.get("nbgrader")


def test_its_autograder_gives_a_right_submission_every_point(course: Path) -> None:
    got = scores(course, "good")
    assert got.pop("ex04-6-explain") is None  # for the teacher to read
    assert got == {f"ex04-{n}-check": points for n, points in enumerate((2, 2, 3, 2, 2), 1)}


def test_its_autograder_runs_the_hidden_tests_and_the_original_check(course: Path) -> None:
    got = scores(course, "cheat")
    assert (got["ex04-1-check"], got["ex04-2-check"]) == (0, 0)
    assert (got["ex04-3-check"], got["ex04-4-check"], got["ex04-5-check"]) == (3, 2, 2)
