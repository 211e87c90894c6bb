"""Make a class's bundle: each learner's own exercises, and the course without the solutions."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

NAME = "release"
HELP = "for teachers: what a class gets, without solutions"
EXAMPLES = (
    "toyserve release --out class-a                       # one bundle, the same for everybody",
    "toyserve release --out class-a --roster class-a.csv --seed 7   # numbers differ per learner",
    "toyserve release --out class-a 01 02 03",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("numbers", nargs="*", metavar="NN", help="exercises (default: all)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="a new folder")
    parser.add_argument("--roster", type=Path, metavar="CSV", help="a line per learner")
    parser.add_argument("--seed", type=int, help="of the class: each learner gets other numbers")
    parser.add_argument("--solutions", type=Path, metavar="DIR", help="the teacher's notebooks")


def execute(options: argparse.Namespace) -> int:
    """0 when it is written. Raises ValueError for what the teacher can mend, a leak too."""
    from toyserve.course.exercise_files import chosen, find_solutions
    from toyserve.course.grading.jobs import read_roster
    from toyserve.course.release import release
    from toyserve.words import counted

    learners = list(read_roster(options.roster)) if options.roster else []
    if options.seed is not None and not learners:
        raise ValueError("--seed gives each learner other numbers: it needs a --roster of them")
    names = chosen(list(find_solutions(options.solutions)), options.numbers)
    done = release(options.out, learners, names, options.seed, solutions=options.solutions)
    print(
        f"{done.folder}: {counted(len(done.exercises), 'exercise')} for "
        f"{counted(len(done.learners), 'learner')}. {counted(done.num_files, 'file')} searched: no "
        f"line of a solution or a hidden test is in there."
    )
    if options.seed is not None:
        print(
            f"Keep --seed {options.seed} and the roster: toyserve grade needs both.",
            file=sys.stderr,
        )
    return 0
