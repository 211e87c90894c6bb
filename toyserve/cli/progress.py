"""How far you are: the parts of every exercise that were right when they were last checked."""

from __future__ import annotations

import argparse
from pathlib import Path

NAME = "progress"
HELP = "which exercises you have solved so far"
EXAMPLES = ("toyserve progress", "toyserve progress --json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lab", type=Path, metavar="DIR", help="your course folder")
    parser.add_argument("--json", action="store_true", help="one JSON object")


def execute(options: argparse.Namespace) -> int:
    from toyserve.course.checks.part import exercise_names, load_exercise
    from toyserve.course.exercise_progress import lab_of, read_progress

    lab = lab_of(options.lab)
    known = read_progress(lab)
    exercises = [load_exercise(name) for name in exercise_names()]
    if options.json:
        import json

        parts = {key: known.get(key) for exercise in exercises for key in exercise.by_key}
        print(json.dumps({"lab": str(lab), "parts": parts}))
        return 0
    total = right = 0
    for exercise in exercises:
        marks = [known.get(key) for key in exercise.by_key]
        row = " ".join("✓" if m else "·" if m is None else "✗" for m in marks)
        count = sum(m is True for m in marks)
        print(f"{exercise.name.replace('_', ' '):28} {row:12} {count} of {len(marks)}")
        total, right = total + len(marks), right + count
    print(f"\n{right} of {total} parts are right (✗ not yet, · not checked). Explanations that a")
    print("teacher reads are not counted.")
    return 0
