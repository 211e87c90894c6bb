"""The cells of an exercise: which is whose, and how they are marked.

The marks are nbgrader's (``metadata.nbgrader.grade_id``), so that the notebooks are assignments of
its own, too. Four kinds of cell have one:

    answer    the learner's code for a part          ex04-1-answer
    check     the part's tests, never the learner's  ex04-1-check
    explain   a text that the teacher grades         ex04-6-explain
    given     code that everybody has                ex04-given-3f2a91bc
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from nbformat import NotebookNode

Kind = Literal["answer", "check", "explain", "given"]
_GRADE_ID = re.compile(r"ex(\d\d)-(?:(\d+)-(answer|check|explain)|given-[0-9a-f]+)")
BEGIN_HIDDEN, END_HIDDEN = "### BEGIN HIDDEN TESTS", "### END HIDDEN TESTS"
BEGIN_SOLUTION, END_SOLUTION = "### BEGIN SOLUTION", "### END SOLUTION"
_SEED = re.compile(r"^SEED = (\d+)", re.MULTILINE)


@dataclass(frozen=True)
class Role:
    """kind, and the part's key ("04.1") unless it is a given cell."""

    kind: Kind
    key: str | None
    points: float = 0.0


def role_of(cell: NotebookNode) -> Role | None:
    """None for a cell that has no mark of ours: prose, or one that the learner added."""
    marks = cell.get("metadata", {}).get("nbgrader", {})
    match = _GRADE_ID.fullmatch(grade_id(cell))
    if match is None:
        return None
    number, part, kind = match.groups()
    points = marks.get("points", 0)
    points = float(points) if isinstance(points, int | float) else 0.0
    kinds: dict[str | None, Kind] = {"answer": "answer", "check": "check", "explain": "explain"}
    if kind is None:
        return Role("given", None)
    return Role(kinds[kind], f"{number}.{part}", points)


def grade_id(cell: NotebookNode) -> str:
    """Its mark; "" without one. Where a program has thrown nbgrader's away on saving, it is the
    cell's own id, which the builder makes the same."""
    metadata = cell.get("metadata", {})
    marks = (metadata.get("nbgrader", {}).get("grade_id"), cell.get("id"), metadata.get("id"))
    return next((str(mark) for mark in marks if _GRADE_ID.fullmatch(str(mark))), "")


def marked_cells(notebook: NotebookNode) -> Iterator[tuple[NotebookNode, Role]]:
    """Cells with a mark of ours, and their role, from top to bottom."""
    for cell in notebook.cells:
        role = role_of(cell)
        if role is not None:
            yield cell, role


def hidden_tests(source: str) -> str:
    """What stands between the marks in a check cell; "" when there is nothing."""
    return _split_hidden(source)[1]


def cut_hidden(source: str) -> str:
    """The cell without its hidden tests, as learners get it."""
    return _split_hidden(source)[0]


def _split_hidden(source: str) -> tuple[str, str]:
    """(what everybody sees, what stands between the marks)"""
    parts: tuple[list[str], list[str]] = ([], [])
    inside = False
    for line in source.splitlines():
        if BEGIN_HIDDEN in line or END_HIDDEN in line:
            inside = BEGIN_HIDDEN in line
        else:
            parts[inside].append(line)
    return "\n".join(parts[0]), "\n".join(parts[1])


def with_seed(source: str, seed: int) -> str:
    """The same cell for another learner: its line ``SEED = 0`` says ``seed`` instead."""
    return _SEED.sub(f"SEED = {seed}", source)


def seed_in(notebook: NotebookNode) -> int | None:
    """The seed that a notebook's given cell names; None without such a line."""
    for cell, role in marked_cells(notebook):
        match = _SEED.search(cell.source) if role.kind == "given" else None
        if match:
            return int(match[1])
    return None


def points_of(notebook: NotebookNode) -> dict[str, float]:
    """Part → points, teacher-graded parts too."""
    return {
        role.key: role.points
        for _, role in marked_cells(notebook)
        if role.key and role.kind in ("check", "explain")
    }


def explained_parts(notebook: NotebookNode) -> list[str]:
    """The parts that a person grades."""
    return [r.key for _, r in marked_cells(notebook) if r.key and r.kind == "explain"]
