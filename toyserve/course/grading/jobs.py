"""What there is to grade: the submissions below a folder, and the class's roster."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nbformat import NotebookNode

from toyserve.course.exercise_files import exercise_of
from toyserve.course.grading.submission import Unreadable, printable, read_notebook

_MAX_MODULE_BYTES = 1_000_000


@dataclass(frozen=True)
class Job:
    """One submission. seed: of the learner's variant. note: about the file, for the learner."""

    learner: str
    exercise: str
    path: Path
    seed: int = 0
    note: str = ""

    def with_seed(self, seed: int) -> Job:
        return replace(self, seed=seed)


def find_submissions(folder: Path, names: Sequence[str], out: Path) -> list[Job]:
    """Every notebook of a wanted exercise below ``folder``, one per learner and exercise.

    The first folder below ``folder`` is the learner's name; for a file that lies in ``folder``
    itself it is what stands before ``__`` or before the exercise's name. Of several files for one
    exercise the newest counts, and a note says so.
    """
    found: dict[tuple[str, str], list[Path]] = {}
    for path in sorted(folder.rglob("*.ipynb")):
        inside = path.relative_to(folder).parts
        if any(part.startswith(".") for part in inside) or path.is_relative_to(out):
            continue
        exercise = exercise_of(path, _peek(path), names)
        if exercise is not None:
            learner = printable(inside[0] if len(inside) > 1 else _learner_in(path.stem))
            found.setdefault((learner, exercise), []).append(path)
    jobs = []
    for (learner, exercise), paths in sorted(found.items()):
        newest = max(paths, key=lambda p: (p.stat().st_mtime, p.stem == exercise))
        note = "" if len(paths) == 1 else f"{len(paths)} files were handed in: {newest.name} counts"
        jobs.append(Job(learner, exercise, newest, note=note))
    return jobs


def _peek(path: Path) -> NotebookNode | None:
    try:
        return read_notebook(path)
    except Unreadable:
        return None


def _learner_in(stem: str) -> str:
    name = re.split(r"__|[-_ ]?\d\d_[a-z]", stem)[0]
    return name or stem


def read_roster(path: Path) -> dict[str, dict[str, str]]:
    """Learner → the row. The name is in a column id, learner, username, email or the first.

    Raises ValueError for an empty file or a name that is there twice.
    """
    rows = list(csv.DictReader(path.read_text(encoding="utf-8-sig").splitlines()))
    if not rows:
        raise ValueError(f"{path} has no rows: it needs a head line and a line per learner")
    columns = {str(name).strip().lower(): name for name in rows[0]}
    wanted = ("id", "learner", "username", "user", "email")
    column = next((columns[w] for w in wanted if w in columns), next(iter(rows[0])))
    roster: dict[str, dict[str, str]] = {}
    for row in rows:
        learner = (row[column] or "").strip()
        if not learner or learner in roster:
            raise ValueError(f"{path}: the learner {learner!r} is there twice, or has no name")
        if re.search(r"[/\\\0]|^\.+$", learner):
            raise ValueError(f"{path}: {learner!r} cannot be the name of a folder")
        roster[learner] = row
    return roster


def modules_beside(path: Path) -> dict[str, str]:
    """Python files that were handed in with the notebook: it may import them."""
    files = {}
    for file in sorted(path.parent.glob("*.py")):
        try:
            if not file.is_symlink() and file.stat().st_size <= _MAX_MODULE_BYTES:
                files[file.name] = file.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError):
            continue
    return files
