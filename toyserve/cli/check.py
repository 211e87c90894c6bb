"""Check your exercises in the terminal, each part in words, as the notebook's own check does."""

from __future__ import annotations

import argparse
from pathlib import Path

NAME = "check"
HELP = "check your exercises, in words"
EXAMPLES = (
    "toyserve check            # every exercise in this folder, or in toyserve-lab",
    "toyserve check 04",
    "toyserve check --lab ~/course 04 05",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("numbers", nargs="*", metavar="NN", help="exercises (default: all)")
    parser.add_argument("--lab", type=Path, metavar="DIR", help="your course folder")


def execute(options: argparse.Namespace) -> int:
    """0 when every part is right. Raises ValueError for what the user can mend."""
    from toyserve.course.exercise_check import check_notebook, find_notebooks
    from toyserve.course.exercise_progress import lab_of, note_progress

    lab = lab_of(options.lab)
    all_right = True
    for exercise, path in find_notebooks(lab, options.numbers).items():
        print(f"{exercise.name.replace('_', ' ')}  ({path.name})", flush=True)
        results = {}
        for key, right, lines in check_notebook(exercise, path):
            print("\n".join(f"  {line}" for line in lines), flush=True)
            if right is not None:
                results[key] = right
        note_progress(lab, results)
        all_right = all_right and all(results.values())
    return 0 if all_right else 1
