"""A class's bundle: everybody's own exercises, and the course without a solution in it.

    OUT/course/               the course to install: no solutions, no hidden tests, no tests
    OUT/learners/NAME/exercises/NN_name.ipynb
    OUT/teacher-only/seeds.csv

Before it is done the whole of what learners get is searched for lines of the solutions and of the
hidden tests, and a find is an error.
"""

from __future__ import annotations

import csv
import io
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from toyserve.course.exercise import (
    cut_hidden,
    hidden_tests,
    marked_cells,
    seed_in,
    with_seed,
)
from toyserve.course.exercise_files import ROOT, find_solutions, seed_for

# What a learner's installation is made of; everything else of the repository stays at home.
_COURSE = (
    "toyserve", "kernels", "lessons", "exercises", "docs", "README.md", "CHANGELOG.md", "LICENSE",
    "pyproject.toml", "constraints.txt", "Makefile", ".ci/venv", ".ci/constraints",
)  # fmt: skip
_NEVER = ("__pycache__", ".ipynb_checkpoints", "*.pyc", "*.egg-info", ".*cache", "*.new*.ipynb")
# In the course itself and in a wheel of it: what the library and the lessons are made of.
_OURS = ("toyserve/", "kernels/", "lessons/", "docs/", "toyserve_lessons/", "toyserve_kernels/")
_SHORT = 24  # characters: a shorter line may stand anywhere by chance


class Leak(ValueError):
    """One sentence: which file has what."""


@dataclass(frozen=True)
class Released:
    folder: Path
    learners: tuple[str, ...]
    exercises: tuple[str, ...]
    num_files: int


def release(
    out: Path,
    learners: Sequence[str],
    names: Sequence[str],
    class_seed: int | None,
    *,
    solutions: Path | None = None,
    root: Path = ROOT,
    on_learner: Callable[[str], None] = lambda name: None,
) -> Released:
    """Write the bundle. Without learners there is one folder, ``everybody``.

    Raises ValueError if ``out`` holds something already, and Leak if something secret got in.
    """
    if out.exists() and any(out.iterdir()):
        raise ValueError(f"{out} is not empty: release into a new folder, nothing is overwritten")
    everything = find_solutions(solutions)
    teacher = {name: path for name, path in everything.items() if name in names}
    learner_copies = {name: _read(root / "exercises" / f"{name}.ipynb") for name in teacher}
    everybody = list(learners) or ["everybody"]
    seeds = {learner: seed_for(learner, class_seed) for learner in everybody}
    for learner in everybody:
        folder = out / "learners" / learner / "exercises"
        folder.mkdir(parents=True)
        for name, notebook in learner_copies.items():
            text = nbformat.writes(personal(notebook, seeds[learner]))
            (folder / f"{name}.ipynb").write_text(text, encoding="utf-8", newline="\n")
        on_learner(learner)
    _copy_course(root, out / "course")
    for path in (out / "course/exercises").glob("*.ipynb"):
        if path.stem not in teacher:
            path.unlink()  # for a later release
    _write_seeds(out / "teacher-only", seeds)
    secrets = secret_lines({name: _read(path) for name, path in everything.items()})
    num_files = 0
    for part in ("course", "learners"):
        num_files += search_for(out / part, secrets)
    return Released(out, tuple(everybody), tuple(teacher), num_files)


def personal(notebook: NotebookNode, seed: int) -> NotebookNode:
    """The exercise with a learner's own number in it; its checksums stay true."""
    from nbformat.v4 import upgrade

    copy = upgrade(nbformat.from_dict(notebook))
    if seed_in(copy) is None:
        return copy
    for cell, role in marked_cells(copy):
        if role.kind == "given" and with_seed(cell.source, seed) != cell.source:
            cell.source = with_seed(cell.source, seed)
            marks = cell.metadata["nbgrader"]
            marks.pop("checksum", None)  # it was the checksum of another number
    return copy


def _read(path: Path) -> NotebookNode:
    try:
        return nbformat.reads(path.read_text(encoding="utf-8"), as_version=4)
    except OSError:
        raise ValueError(f"{path} is not there: the exercise builder makes it") from None


def _copy_course(root: Path, target: Path) -> None:
    target.mkdir(parents=True)
    ignore = shutil.ignore_patterns(*_NEVER)
    for name in _COURSE:
        source, copy = root / name, target / name
        if source.is_dir():
            shutil.copytree(source, copy, ignore=ignore)
        elif source.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, copy)


def _write_seeds(folder: Path, seeds: Mapping[str, int]) -> None:
    folder.mkdir(parents=True)
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["learner", "seed"])
    writer.writerows(seeds.items())
    (folder / "seeds.csv").write_text(file.getvalue(), encoding="utf-8")


# -- nothing leaks ------------------------------------------------------------------------------


def secret_lines(teacher: Mapping[str, NotebookNode]) -> dict[str, str]:
    """Line of a solution or a hidden test → whose. What learners are given, be it in the middle of
    a sentence, is not secret."""
    secrets: dict[str, str] = {}
    given = ""
    for name, notebook in teacher.items():
        for cell in notebook.cells:
            given += _without_solution(cut_hidden(cell.source)) + "\n"
        for cell, role in marked_cells(notebook):
            if role.kind == "check":
                lines = hidden_tests(cell.source)
            elif role.kind in ("answer", "explain"):
                lines = "\n".join(_SOLUTION.findall(cell.source))
            else:
                continue
            for line in lines.splitlines():
                if len(line.strip()) >= _SHORT and not _IMPORT.match(line):
                    secrets[line.strip()] = f"{name}, {role.kind} {role.key}"
    return {line: whose for line, whose in secrets.items() if line not in given}


_IMPORT = re.compile(r"\s*(?:from [\w.]+ )?import ")  # says nothing of an answer
_SOLUTION = re.compile(r"### BEGIN SOLUTION\n(.*?)### END SOLUTION", re.DOTALL)


def _without_solution(source: str) -> str:
    return _SOLUTION.sub("", source)


def search_for(folder: Path, secrets: Mapping[str, str]) -> int:
    """Look into every file below ``folder``; returns how many. Raises Leak.

    A solution's line that the library itself has (it builds the same things) is no leak there: in
    ``toyserve/`` and ``lessons/`` only whole hidden tests count.
    """
    hidden = {line: whose for line, whose in secrets.items() if ", check " in whose}
    num_files = 0
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder).as_posix()
        if any(part in ("__pycache__", ".ipynb_checkpoints", "solutions") for part in path.parts):
            raise Leak(f"{inside} must not be in a release")
        if not path.is_file():
            continue
        num_files += 1
        text = _text_of(path)
        ours = inside.startswith(_OURS)
        for line, whose in (hidden if ours else secrets).items():
            if line in text:
                raise Leak(f"{inside} has a line of {whose}: {line[:60]!r}")
        if path.suffix == ".ipynb" and re.search(r"BEGIN (SOLUTION|HIDDEN)|_expected_\d", text):
            raise Leak(f"{inside} still has the marks of a teacher's copy")
    return num_files


def _text_of(path: Path) -> str:
    """A notebook's JSON with its escapes undone, so that a line in it is found as it was typed."""
    text = path.read_bytes().decode("utf-8", errors="ignore")
    if path.suffix in (".ipynb", ".json"):
        text = text.replace('\\"', '"').replace("\\\\", "\\")
    return text
