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
    from toyserve.course.exercise_progress import exercise_progress, lab_of, read_progress

    lab = lab_of(options.lab)
    exercises = exercise_progress(read_progress(lab))
    if options.json:
        import json

        parts = {key: mark for exercise in exercises for key, mark in exercise.marks.items()}
        print(json.dumps({"lab": str(lab), "parts": parts}))
        return 0
    for one in exercises:
        row = " ".join("✓" if m else "·" if m is None else "✗" for m in one.marks.values())
        count = f"{one.num_right} of {one.num_parts}"
        print(f"{one.name.replace('_', ' '):28} {row:12} {count}")
    right, total = sum(e.num_right for e in exercises), sum(e.num_parts for e in exercises)
    print(f"\n{right} of {total} parts are right (✗ not yet, · not checked). Explanations that a")
    print("teacher reads are not counted.")
    return 0
