"""The learner's own folder: lessons are copied there, and what was worked on is never overwritten.

A small manifest remembers what each delivered file looked like. A file that is still as delivered
may be replaced by a newer version. A file that has changed is somebody's work: it stays, and the
newer version arrives beside it, once, under its own name.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from dataclasses import dataclass, field
from pathlib import Path

import toyserve

MANIFEST = ".toyserve-delivered.json"
_FOLDERS = ("lessons", "exercises")


class WorkspaceError(ValueError):
    """One sentence for the learner."""


@dataclass
class WorkspaceReport:
    """What ``prepare_workspace`` did; paths are relative to ``folder``. str() says it in words."""

    folder: Path
    new: list[str] = field(default_factory=list)
    updated: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)  # yours, changed by you
    beside: dict[str, str] = field(default_factory=dict)  # yours -> the newer version next to it
    start: str = ""  # the notebook to open first

    def __str__(self) -> str:
        lines = [f"Your course folder is {self.folder}."]
        if self.new:
            lines.append(f"New: {', '.join(self.new)}.")
        if self.updated:
            lines.append(f"Brought up to date (you had not changed them): {_list(self.updated)}.")
        if self.kept:
            lines.append(f"Yours, left as they are: {_list(self.kept)}.")
        lines += [
            f"{yours} has a newer version. Yours was left as it is; the new one is {newer}."
            for yours, newer in self.beside.items()
        ]
        return "\n".join(lines)


def _list(names: list[str]) -> str:
    return ", ".join(names)


def find_course_folders() -> dict[str, Path]:
    """Where the course's notebooks are: in the checkout, else as installed with the package.

    Raises WorkspaceError when this installation came without them.
    """
    checkout = Path(toyserve.__file__).resolve().parent.parent
    found = {}
    for name in _FOLDERS:
        places = [checkout / name]
        spec = importlib.util.find_spec(f"toyserve_{name}")
        places += [Path(p) for p in (spec.submodule_search_locations or ())] if spec else []
        folder = next((p for p in places if any(p.glob("[0-9]*.ipynb"))), None)
        if folder is not None:
            found[name] = folder
    if "lessons" not in found:
        raise WorkspaceError(
            f"this installation of toyserve came without its lessons (looked in "
            f"{checkout / 'lessons'}): get the repository and run `pip install -e .` in it"
        )
    return found


def prepare_workspace(
    folder: Path | str, sources: dict[str, Path] | None = None
) -> WorkspaceReport:
    """Bring the course's notebooks into ``folder``; safe to call again and again.

    sources: name of a subfolder -> where its notebooks come from (default: this installation's).
    Raises WorkspaceError when ``folder`` cannot be written.
    """
    folder = Path(folder).expanduser().resolve()
    sources = find_course_folders() if sources is None else sources
    report = WorkspaceReport(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        delivered = _read_manifest(folder)
        for name, source in sources.items():
            for file in sorted([*source.glob("*.ipynb"), *source.glob("glossary.md")]):
                _deliver(file, f"{name}/{file.name}", delivered, report)
        _write(folder / MANIFEST, json.dumps(delivered, indent=1, sort_keys=True).encode())
    except OSError as error:
        raise WorkspaceError(f"{folder} cannot be used as your course folder: {error}") from None
    notebooks = sorted(p.name for p in (folder / "lessons").glob("[0-9i]*.ipynb"))
    first = next((n for n in notebooks if n.startswith("index")), notebooks[0] if notebooks else "")
    report.start = f"lessons/{first}" if first else ""
    return report


def as_delivered(file: Path) -> bool:
    """Is this notebook of a course folder still the one (in any version) that was brought there?

    False for a file that nobody brought, and for one that is not in a course folder.
    """
    versions = _read_manifest(file.parent.parent).get(f"{file.parent.name}/{file.name}", [])
    return file.is_file() and _digest(file.read_bytes()) in versions


def _deliver(
    file: Path, name: str, delivered: dict[str, list[str]], report: WorkspaceReport
) -> None:
    """``delivered[name]``: digests of every version that this file was delivered in, last last."""
    content, target = file.read_bytes(), report.folder / name
    digest, versions = _digest(content), delivered.setdefault(name, [])
    if not os.path.lexists(target):
        _write(target, content)
        report.new.append(name)
    elif target.is_file() and target.read_bytes() == content:
        pass
    elif target.is_file() and _digest(target.read_bytes()) in versions:
        _write(target, content)
        report.updated.append(name)
    elif digest in versions:
        report.kept.append(name)  # changed, or the newer version has arrived beside it before
    else:
        beside = _free_name(target, content)
        _write(beside, content)
        report.beside[name] = beside.relative_to(report.folder).as_posix()
    if digest not in versions:
        versions.append(digest)


def _free_name(target: Path, content: bytes) -> Path:
    """``04_name.new.ipynb``, or the next number if that is taken by something else."""
    number = 1
    while True:
        suffix = ".new" if number == 1 else f".new{number}"
        path = target.with_name(f"{target.stem}{suffix}{target.suffix}")
        if not os.path.lexists(path) or (path.is_file() and path.read_bytes() == content):
            return path
        number += 1


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.write_bytes(content)
    part.replace(path)


def _read_manifest(folder: Path) -> dict[str, list[str]]:
    """{} when there is none, or it is not ours: every changed file then counts as work."""
    try:
        data = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return {str(name): [str(v) for v in versions] for name, versions in data.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
