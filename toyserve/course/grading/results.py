"""Results as files, so that a run which was stopped goes on where it was."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import toyserve
from toyserve.course.grading.jobs import Job, modules_beside
from toyserve.course.grading.sessions import Limits


@dataclass(frozen=True)
class Setup:
    """What grading needs besides the submissions; goes to every process."""

    solutions: Mapping[str, Path]
    limits: Limits
    out: Path


def digest_of(job: Job, setup: Setup) -> str:
    """Of all that a result depends on."""
    parts = [toyserve.__version__, job.learner, str(job.seed), job.note]
    digest = hashlib.sha256("\0".join(parts).encode())
    digest.update(setup.solutions[job.exercise].read_bytes())
    try:
        digest.update(job.path.read_bytes())
    except OSError:
        digest.update(b"unreadable")
    digest.update(json.dumps(modules_beside(job.path), sort_keys=True).encode())
    limits = setup.limits
    numbers = (limits.cell_seconds, limits.part_seconds, limits.memory_bytes)
    digest.update(repr(numbers).encode())
    return digest.hexdigest()[:16]


def _result_path(learner: str, exercise: str, out: Path) -> Path:
    return out / "results" / learner / f"{exercise}.json"


def kept_result(job: Job, setup: Setup) -> dict[str, Any] | None:
    """The result of an earlier run, None if anything that it depends on has changed."""
    try:
        text = _result_path(job.learner, job.exercise, setup.out).read_text(encoding="utf-8")
        result: dict[str, Any] = json.loads(text)
        return result if result["digest"] == digest_of(job, setup) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_result(result: dict[str, Any], out: Path) -> None:
    """Whole or not at all."""
    path = _result_path(result["learner"], result["exercise"], out)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(result, ensure_ascii=False, indent=1), encoding="utf-8")
    part.replace(path)
