"""Where exercises and their teacher's copies are, and which notebook is which exercise."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from nbformat import NotebookNode

import toyserve
from toyserve.course.checks.part import exercise_names
from toyserve.course.exercise import grade_id, role_of

ROOT = Path(toyserve.__file__).resolve().parent.parent
NUM_VARIANTS = 24


def find_solutions(folder: Path | None = None) -> dict[str, Path]:
    """Exercise → the teacher's notebook. Raises ValueError where there are none."""
    folder = ROOT / "solutions" if folder is None else folder
    found = {path.stem: path for path in sorted(folder.glob("[0-9][0-9]_*.ipynb"))}
    found = {name: path for name, path in found.items() if name in exercise_names()}
    if not found:
        raise ValueError(
            f"{folder} has no teacher's notebooks (NN_name.ipynb): they are in the course's "
            f"repository, in solutions/, and never in what learners get"
        )
    return found


def chosen(names: Sequence[str], wanted: Sequence[str]) -> list[str]:
    """The exercises named by number or by the start of their name; all for none."""
    unknown = [w for w in wanted if not any(n.startswith(w) for n in names)]
    if unknown:
        raise ValueError(
            f"there is no exercise {unknown[0]!r}; there are: {', '.join(n[:2] for n in names)}"
        )
    return [n for n in names if not wanted or any(n.startswith(w) for w in wanted)]


def exercise_of(path: Path, notebook: NotebookNode | None, names: Sequence[str]) -> str | None:
    """Which exercise a file is: by its cells' marks, then by the number in its name."""
    numbers = set()
    if notebook is not None:
        numbers = {grade_id(cell)[2:4] for cell in notebook.cells if role_of(cell)}
    match = re.search(r"(?<!\d)(\d\d)_[a-z]", path.name)
    number = next(iter(numbers)) if len(numbers) == 1 else match[1] if match else ""
    return next((name for name in names if name[:2] == number), None)


def seed_for(learner: str, class_seed: int | None, variants: int = NUM_VARIANTS) -> int:
    """The number that makes a learner's variant, 1 to ``variants``; 0 where a class has no seed."""
    if class_seed is None:
        return 0
    digest = hashlib.sha256(f"{class_seed}:{learner}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % variants + 1
