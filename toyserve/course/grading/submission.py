"""A learner's notebook, as it comes: read it whatever its state, and merge it into the teacher's.

Everything that is not the learner's own is taken from the teacher's copy, by cell: given code and
tests cannot be edited, deleted or moved by a submission. Answers are found by their mark, wherever
they stand; cells that the learner added keep their place behind the cell they followed.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from toyserve.course.exercise import (
    Kind,
    cut_hidden,
    grade_id,
    marked_cells,
    role_of,
    seed_in,
    with_seed,
)

MAX_BYTES = 20_000_000


class Unreadable(ValueError):
    """One sentence: why this file cannot be graded at all."""


@dataclass(frozen=True)
class Step:
    """A cell to run, or (kind "check") a part to look at. key: of an answer or a check."""

    kind: Kind | str  # "given", "answer", "check", or "extra"
    source: str
    key: str | None = None


@dataclass
class Plan:
    """What to run, in order, and what to tell the learner about their file."""

    steps: list[Step] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)  # part → why it has no answer cell
    texts: dict[str, str] = field(default_factory=dict)  # part that a person grades → the text
    untouched: set[str] = field(default_factory=set)  # … that still is as it was handed out


def read_notebook(path: Path) -> NotebookNode:
    """Raises Unreadable in words for whatever is no notebook."""
    try:
        if path.is_symlink():  # to the teacher's copy, or a neighbour's?
            raise Unreadable(f"{path.name} is a link and no file of its own")
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise Unreadable(f"{path.name} has {size:,} bytes; at most {MAX_BYTES:,} are read")
        text = path.read_bytes().decode("utf-8-sig")
        data = json.loads(text)
        if not isinstance(data, dict) or not isinstance(data.get("cells"), list):
            raise Unreadable(f"{path.name} is not a notebook: it has no cells")
        notebook = nbformat.from_dict(data)
        for cell in notebook.cells:
            _repair(cell)
    except OSError as error:
        raise Unreadable(f"{path.name} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise Unreadable(f"{path.name} is not UTF-8 text, as a notebook must be") from None
    except RecursionError:
        raise Unreadable(f"{path.name} is nested too deeply") from None
    except (ValueError, AttributeError, TypeError) as error:
        if isinstance(error, Unreadable):
            raise
        raise Unreadable(f"{path.name} is not a whole notebook: was it cut off?") from None
    return notebook


def _repair(cell: Any) -> None:
    """Source as one text, metadata as a dict: what other tools may have left out."""
    source = cell.get("source", "")
    cell["source"] = "".join(map(str, source)) if isinstance(source, list) else str(source)
    if not isinstance(cell.get("metadata"), dict):
        cell["metadata"] = nbformat.from_dict({})
    if not isinstance(cell["metadata"].get("nbgrader", {}), dict):
        del cell["metadata"]["nbgrader"]
    cell["cell_type"] = str(cell.get("cell_type", "raw"))


def printable(data: Any) -> Any:
    """The same with no character that a file cannot hold, or that a table or a page trips over."""
    if isinstance(data, str):
        text = data.encode("utf-8", "replace").decode("utf-8")
        return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)
    if isinstance(data, list):
        return [printable(item) for item in data]
    if isinstance(data, dict):
        return {name: printable(item) for name, item in data.items()}
    return data


_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def merge(submitted: NotebookNode, teacher: NotebookNode, seed: int) -> Plan:
    """The teacher's cells in the teacher's order, with the learner's answers and extra cells."""
    plan = Plan()
    answers, extras = _sort(submitted)
    known = {grade_id(cell) for cell in teacher.cells if grade_id(cell)}
    _add_extras(plan, extras, "")
    for cell, role in marked_cells(teacher):
        mine, name = answers.pop(grade_id(cell), []), grade_id(cell)
        if role.kind == "given":
            plan.steps.append(Step("given", with_seed(cell.source, seed)))
        elif role.kind == "check" and role.key:
            plan.steps.append(Step("check", cell.source, role.key))
        elif role.kind == "answer" and role.key:
            _add_answer(plan, role.key, mine)
        elif role.key:
            _add_text(plan, role.key, mine)
        _add_extras(plan, extras, name)
    for name in list(extras):  # behind a cell that this exercise does not have
        _add_extras(plan, extras, name)
    plan.notes += _notes(submitted, teacher, known, seed)
    return plan


def _sort(submitted: NotebookNode) -> tuple[dict[str, list[Any]], dict[str, list[str]]]:
    """Marked cells by mark; the learner's own code by the mark of the cell before it."""
    answers: dict[str, list[Any]] = {}
    extras: dict[str, list[str]] = {}
    anchor = ""
    for cell in submitted.cells:
        name = grade_id(cell) if role_of(cell) else ""
        if name:
            anchor = name
            answers.setdefault(name, []).append(cell)
        elif cell.cell_type == "code" and cell.source.strip():
            extras.setdefault(anchor, []).append(cell.source)
    return answers, extras


def _add_extras(plan: Plan, extras: dict[str, list[str]], anchor: str) -> None:
    plan.steps += [Step("extra", source) for source in extras.pop(anchor, [])]


def _add_answer(plan: Plan, key: str, cells: list[Any]) -> None:
    code = [cell.source for cell in cells if cell.cell_type == "code"]
    plan.steps += [Step("answer", source, key) for source in code]
    if not cells:
        plan.missing[key] = "its answer cell is missing from the notebook"
    elif not code:
        kind = cells[0].cell_type
        plan.missing[key] = f"its answer cell is a {kind} cell now: code in it never runs"


def _add_text(plan: Plan, key: str, cells: list[Any]) -> None:
    text = "\n\n".join(cell.source for cell in cells).strip()
    plan.texts[key] = text
    if text in ("", "YOUR ANSWER HERE"):
        plan.untouched.add(key)


def _named(cells: list[str]) -> str:
    """Checks by name; given cells, whose marks say nothing to anybody, as a number."""
    checks = [name for name in cells if "-given-" not in name]
    given = len(cells) - len(checks)
    return ", ".join(checks + ([f"{given} of the given code"] if given else []))


def _notes(submitted: NotebookNode, teacher: NotebookNode, known: set[str], seed: int) -> list[str]:
    notes = []
    names = [grade_id(c) for c in submitted.cells if role_of(c)]
    twice = sorted(name for name, count in Counter(names).items() if count > 1 and name in known)
    if twice:
        notes.append(f"copied cells ({', '.join(twice)}): all copies were run, in order")
    first = [name for name in dict.fromkeys(names) if name in known]
    order = [grade_id(c) for c in teacher.cells if grade_id(c) in first]
    if first != order:
        notes.append("cells stood in another order; they were run in the exercise's own")
    handed_out = {grade_id(c): c.source for c in teacher.cells if grade_id(c)}
    edited, deleted = [], []
    for cell, role in marked_cells(submitted):
        name = grade_id(cell)
        if role.kind in ("given", "check") and name in known:
            was = cut_hidden(with_seed(handed_out[name], 0)).strip()
            if cut_hidden(with_seed(cell.source, 0)).strip() != was:
                edited.append(name)
    for cell, role in marked_cells(teacher):
        if role.kind in ("given", "check") and grade_id(cell) not in names:
            deleted.append(grade_id(cell))
    if edited:
        notes.append(f"edited cells ({_named(edited)}): the original was used instead")
    if deleted:
        notes.append(f"missing cells ({_named(deleted)}): the original was used")
    own = seed_in(submitted)
    if own is not None and own != seed:
        whose = "another learner" if own else "the course's own copy"
        notes.append(f"this notebook has the numbers of {whose} (SEED {own}, not {seed})")
    return notes
