"""Grade a folder of submissions: each runs in a process of its own, with limits, beside the
teacher's tests. What was graded already is kept; stop and start again as you like.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

NAME = "grade"
HELP = "for teachers: grade a folder of submissions"
EXAMPLES = (
    "toyserve grade submitted --csv grades.csv --html pages",
    "toyserve grade submitted --roster class-a.csv --seed 7 --json grades.json",
    "toyserve grade submitted --marks explanations.csv   # fill in its points, and run it again",
    "toyserve grade submitted 04 --jobs 4 --memory-mb 4000",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("folder", type=Path, metavar="DIR", help="DIR/LEARNER/…/NN_name.ipynb")
    parser.add_argument("numbers", nargs="*", metavar="NN", help="exercises (default: all)")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="a line per submission")
    parser.add_argument("--json", type=Path, metavar="FILE", help="everything but the pictures")
    parser.add_argument(
        "--html", type=Path, metavar="DIR", help="a page per learner and the class's"
    )
    parser.add_argument(
        "--marks",
        type=Path,
        metavar="FILE",
        help="a table of the explanations, to fill in and reuse",
    )
    parser.add_argument("--work", type=Path, metavar="DIR", help="where results are kept")
    parser.add_argument("--roster", type=Path, metavar="CSV", help="as given to toyserve release")
    parser.add_argument("--seed", type=int, help="as given to toyserve release")
    parser.add_argument("--solutions", type=Path, metavar="DIR", help="the teacher's notebooks")
    parser.add_argument("--jobs", type=int, help="processes (default: one per CPU)")
    parser.add_argument("--cell-seconds", type=float, default=10, help="for one cell (10)")
    parser.add_argument("--part-seconds", type=float, default=8, help="for one case of a part (8)")
    parser.add_argument("--memory-mb", type=int, default=2000, help="for one submission (2000)")


def execute(options: argparse.Namespace) -> int:
    """0 when all is graded and written. Raises ValueError for what the teacher can mend."""
    from toyserve.course.exercise_files import chosen, find_solutions, seed_for
    from toyserve.course.grading.classroom import grade_class
    from toyserve.course.grading.jobs import find_submissions, read_roster
    from toyserve.course.grading.results import Setup
    from toyserve.course.grading.sessions import Limits

    if not options.folder.is_dir():
        raise ValueError(f"{options.folder} is not a folder of submissions")
    solutions = find_solutions(options.solutions)
    names = chosen(list(solutions), options.numbers)
    roster = list(read_roster(options.roster)) if options.roster else []
    out = options.work or options.folder / ".toyserve-grades"
    jobs = [
        job.with_seed(seed_for(job.learner, options.seed))
        for job in find_submissions(options.folder, names, out)
    ]
    if not jobs:
        raise ValueError(
            f"{options.folder} has no notebook of exercise {', '.join(n[:2] for n in names)}: it "
            f"must hold a folder per learner with NN_name.ipynb in it"
        )
    secret = [next(iter(solutions.values())).parent, options.folder, out]
    limits = Limits(
        options.cell_seconds,
        options.part_seconds,
        options.memory_mb * 1_000_000,
        tuple(place.resolve() for place in secret),
    )
    setup = Setup({name: solutions[name] for name in names}, limits, out)
    with _bar(len(jobs)) as tick:
        results = grade_class(
            jobs, setup, num_processes=options.jobs or os.cpu_count() or 1, on_result=tick
        )
    _write(options, results, roster)
    return 0


class _bar:
    """Progress on stderr, with what is left."""

    def __init__(self, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

        columns = ("graded", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=Console(stderr=True))
        self._task = self._progress.add_task("graded", total=total)

    def __enter__(self) -> Any:
        self._progress.start()
        return lambda result: self._progress.advance(self._task)

    def __exit__(self, *_: object) -> None:
        self._progress.stop()


def _write(options: argparse.Namespace, results: list[dict[str, Any]], roster: list[str]) -> None:
    from toyserve.course.grading.marks import add_marks
    from toyserve.course.grading.report import to_csv, to_json, write_pages
    from toyserve.words import counted

    if options.marks:
        still = add_marks(results, options.marks)
        missing = f"{options.marks}: {counted(still, 'explanation')} without points"
        print(missing if still else "All are read.")
    if options.csv:
        options.csv.write_text(to_csv(results, roster), encoding="utf-8-sig", newline="")
    if options.json:
        options.json.write_text(to_json(results, roster), encoding="utf-8")
    if options.html:
        print(f"The class's page: {write_pages(results, roster, options.html)}")
    points, out_of = (sum(row[k] for row in results) for k in ("points", "out_of"))
    to_read = sum(part["points"] is None for row in results for part in row["parts"])
    left = f", {counted(to_read, 'explanation')} still to be read" if to_read else ""
    graded = counted(len(results), "submission")
    print(f"{graded} graded: {points:g} of {out_of:g} points in all{left}.")
    if not (options.csv or options.json or options.html):
        for row in results:
            print(
                f"{row['learner']:24} {row['exercise']:28} {row['points']:g} of {row['out_of']:g}"
            )
        print("(--csv, --json and --html write them down)", file=sys.stderr)
