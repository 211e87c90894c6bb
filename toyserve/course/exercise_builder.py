'''From one hand-written source to the learner's exercise and the teacher's copy of it.

    python -m toyserve.course.exercise_builder              # every exercise
    python -m toyserve.course.exercise_builder 04           # one
    python -m toyserve.course.exercise_builder 04 --check   # would it come out the same? (CI)

``solutions/source/NN_name.py`` (py:percent) becomes

    exercises/NN_name.ipynb    the learner's: solutions and hidden tests cut by nbgrader's own tools
    solutions/NN_name.ipynb    the teacher's: a source notebook for nbgrader and `toyserve grade`
    toyserve/course/checks/expected/NN_name.json
                               what the solution gave for the visible cases (data, no code)

# For authors: how an exercise is made

Four hand-written files, all named after the exercise:

1. ``solutions/source/NN_name.py``: what the learner reads, the solutions, the hidden tests.
2. ``toyserve/course/checks/exNN_name.py``: the visible checks. Learners can read it: no solution,
   no number that a prediction asks for. It lists ``PARTS``.
3. ``solutions/planted/NN_name.py``: planted wrong answers (three or more) and right ones that are
   written differently (one or more). Never shipped.
4. Nothing else: ``tests/course/test_exercises.py`` finds and tests every exercise by itself.

## The source

Jupytext percent format. The first cell is the title. Mark cells in their header line:

    # %% answer="09.1"                      the learner's code, between BEGIN and END SOLUTION
    # %% check="09.1" points=2              check("09.1"), then the hidden tests
    # %% [markdown] explain="09.5" points=2 a text for the teacher to grade, the solution inside
    # %%                                    any other code cell: given, the same for everybody

Each part of 09.1, 09.2 … has one answer cell and, directly behind it, its check cell (or it has one
explain cell, and is graded by a person). No part may need another part's answer. What
is outside of the solution marks in an answer cell stays for the learner: a signature, a docstring.
``raise NotImplementedError()`` takes the solution's place.

One given cell must hold the line ``SEED = 0`` (and imports ``check``). For a class, each learner
gets another number there. Let numbers of "predict" parts depend on it
(``numpy.random.default_rng(SEED)``); parts in which code is written can stay the same for all, and
differ in hidden cases. The seeds 0 to 24 must all give a fair exercise (nobody's numbers trivial,
targets that can be met); the tests try 0 and 7, try the others once yourself.

Hidden tests name more *cases*, no expected values: the builder and the grader take those from your
solution. One call of ``check`` with ``cases=`` per check cell; whatever Python makes them:

    check("09.1")
    ### BEGIN HIDDEN TESTS
    check("09.1", cases=[{"blocks": n} for n in (5, 17, 40)])
    ### END HIDDEN TESTS

## The checks

A ``Part`` (see ``toyserve/course/checks/part.py``) has ``observe`` and ``judge``:

- ``observe(case, *objects)`` runs with the learner's objects (those of ``names``) and returns plain
  data (numbers, texts, lists, dicts, numpy arrays) or a Recording. Do here only what needs the
  learner's code: run their class in the engine, call their function, return their number.
- ``judge(case, got, expected)`` sees only that data. ``raise Wrong("…")`` with a sentence that says
  what is wrong *with this answer* (values, step, request), and a picture where there is one:
  ``Wrong(text, two_timelines(expected, got))``. In a class's grading it runs in another process, so
  it must not trust ``got``: no ``eval``, no method of it. Data of an odd shape may raise what it
  likes; the learner is then told that it has not the form that was asked for.
- ``expected`` is what your solution gave for the same case. What a learner has to
  predict stands in no file that learners get: give ``truth=lambda case: …``, which works it out
  (visible cases that depend on the seed have no other expectation anyway), or let the judge do so
  and name in ``expects`` the entries that are kept. ``toyserve/course/checks/kinds.py`` has
  ``prediction`` and ``tuning`` for the two commonest kinds.

Judge behaviour, never names or shapes inside the learner's code. Where several answers are right
(a tuning, a policy with ties), do not compare with ``expected``: test the property.
``toyserve/course/checks/runs.py`` has what most parts need: ``serve(case, scheduler)`` runs a case
in the real engine on the virtual clock; ``same_schedule``, ``close`` and ``require_number`` judge.
A recording came out of the learner's process: before a judge believes its times (TTFT and the like)
it calls ``require_all_served(case, got)``, which works them out again from the decisions.
Cases go from the smallest to the largest, with ``"what"`` in a few words, because the first that
fails is shown. All cases of a part together: under 2 s (the learner waits; the limit is 8 s).
Wrong answers which you foresee deserve their own sentence: test for them in ``judge`` first.

## Planted answers

One cell per answer; after the ``|`` a piece of the sentence that it must get (for ``right``, free
text). Every part has at least one wrong answer.

    # %% wrong 09.1 | step 5 is the first
    # %% right 09.1 | a list instead of a loop

The cell's code stands in for the answer cell of that part (explicit imports only if the notebook
lacks them). Plant what learners really do: off by one, the lesson's version unchanged, an endless
loop, a crash on the empty queue, right only for the visible case (a constant!), the wrong unit.

## A small example

``solutions/source/99_small.py``:

    # %% [markdown]
    # # 99 · A small exercise
    # ## 99.1 How many blocks?
    # Write `blocks_needed(num_tokens, block_size)`.

    # %%
    from toyserve.course.checks import check

    SEED = 0

    # %% answer="99.1"
    def blocks_needed(num_tokens, block_size):
        """Blocks for so many tokens."""
        ### BEGIN SOLUTION
        return -(-num_tokens // block_size)
        ### END SOLUTION

    # %% check="99.1" points=2
    check("99.1")
    ### BEGIN HIDDEN TESTS
    check("99.1", cases=[{"tokens": n, "size": s} for n in (1, 31, 32, 33) for s in (8, 16)])
    ### END HIDDEN TESTS

``toyserve/course/checks/ex99_small.py``:

    from toyserve.course.checks.part import Part, Wrong

    def judge(case, got, expected):
        if got == expected - 1:
            raise Wrong(f"{case['tokens']} tokens need {expected} blocks: the last, half full")
        if got != expected:
            raise Wrong(f"{case['tokens']} tokens in blocks of {case['size']}: you say {got!r}")

    PARTS = [
        Part("99.1", "how many blocks", ("blocks_needed",),
             observe=lambda case, blocks_needed: blocks_needed(case["tokens"], case["size"]),
             judge=judge,
             cases=[{"what": "1 token in blocks of 16", "tokens": 1, "size": 16},
                    {"what": "17 tokens in blocks of 16", "tokens": 17, "size": 16}]),
    ]

``solutions/planted/99_small.py``:

    # %% wrong 99.1 | the last, half full
    def blocks_needed(num_tokens, block_size):
        return num_tokens // block_size

    # %% right 99.1 | by the math module
    import math

    def blocks_needed(num_tokens, block_size):
        return math.ceil(num_tokens / block_size)

Then: ``python -m toyserve.course.exercise_builder 99`` and
``pytest tests/course/test_exercises.py -k 99``.
'''

from __future__ import annotations

import argparse
import copy
import hashlib
import itertools
import logging
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from toyserve.course.builder import BuildError, read_source, source_digest, write
from toyserve.course.checks import expected_name
from toyserve.course.checks.expected import squeeze, table_text
from toyserve.course.checks.part import Exercise, load_exercise
from toyserve.course.exercise import (
    BEGIN_HIDDEN,
    explained_parts,
    grade_id,
    marked_cells,
    seed_in,
)
from toyserve.course.exercise_session import Seen, look, truth_of, visible_table

ROOT = Path(__file__).resolve().parents[2]
_CONTINUE = "raises-exception"  # a cell that fails does not stop "Run All"


def read_exercise(source: Path) -> NotebookNode:
    """The teacher's notebook without what the solution gives. Raises BuildError for a bad mark."""
    notebook = read_source(source)
    number = source.name[:2]
    for cell in notebook.cells:
        _mark(cell, number)
    seen = Counter(grade_id(cell) for cell in notebook.cells if grade_id(cell))
    twice = [name for name, count in seen.items() if count > 1]
    if twice:
        raise BuildError(f"{source.name}: two cells are {twice[0]}")
    if seed_in(notebook) != 0:
        raise BuildError(f"{source.name}: no given cell has the line `SEED = 0`")
    notebook.metadata["toyserve"] = {
        "exercise": source.stem,
        "generated_by": "python -m toyserve.course.exercise_builder",
        "source_sha256": source_digest(source),
    }
    return notebook


def _mark(cell: NotebookNode, number: str) -> None:
    """The author's short mark becomes nbgrader's metadata, and the cell's id."""
    metadata = cell.metadata
    kinds = [kind for kind in ("answer", "check", "explain") if kind in metadata]
    if not kinds and cell.cell_type != "code":
        return
    points = metadata.pop("points", None)
    kind = kinds[0] if kinds else "given"
    if kind == "given":
        digest = hashlib.sha256(cell.source.encode()).hexdigest()[:8]
        name = f"ex{number}-given-{digest}"
    else:
        key = str(metadata.pop(kind))
        if not key.startswith(f"{number}.") or not key[3:].isdigit():
            raise BuildError(f"{kind}={key!r} is not a part of exercise {number}")
        name = f"ex{number}-{key[3:]}-{kind}"
    if (points is None) == (kind in ("check", "explain")):
        raise BuildError(f"{name}: check and explain cells have points, others have none")
    metadata["nbgrader"] = {
        "cell_type": cell.cell_type,
        "grade": kind in ("check", "explain"),
        "grade_id": name,
        "locked": kind in ("check", "given"),
        "schema_version": 3,
        "solution": kind in ("answer", "explain"),
        "task": False,
    }
    if points is not None:
        metadata["nbgrader"]["points"] = points
    if kind in ("answer", "check"):
        metadata["tags"] = sorted({*metadata.get("tags", []), _CONTINUE})
    cell.id = name


def cut(solution: NotebookNode) -> NotebookNode:
    """The learner's version, by nbgrader's own preprocessors, in the order of its assignments."""
    from nbgrader.preprocessors import (
        CheckCellMetadata,
        ClearHiddenTests,
        ClearMarkScheme,
        ClearOutput,
        ClearSolutions,
        ComputeChecksums,
        LockCells,
    )

    notebook = copy.deepcopy(solution)
    resources: dict[str, Any] = {}
    steps = (
        LockCells,
        ClearSolutions,
        ClearOutput,
        CheckCellMetadata,
        ClearHiddenTests,
        ClearMarkScheme,
        ComputeChecksums,
        CheckCellMetadata,
    )
    for step in steps:
        preprocessor = step()
        preprocessor.log.setLevel(logging.WARNING)
        notebook, resources = preprocessor.preprocess(notebook, resources)
    for cell in notebook.cells:
        cell.source = cell.source.rstrip("\n")
    return notebook


def add_expectations(exercise: Exercise, solution: NotebookNode, seen: dict[str, Seen]) -> None:
    """Into each hidden region what the solution gave there: nbgrader has no solution at hand."""
    for cell, role in marked_cells(solution):
        if role.kind != "check" or role.key is None or not seen[role.key].hidden:
            continue
        keep, hidden = exercise.part(role.key).kept, seen[role.key].hidden
        data = squeeze([keep(observation["data"]) for _, observation in hidden])
        line = f'{expected_name(role.key)} = "{data}"  # by the builder, from the solution'
        cell.source = cell.source.replace(BEGIN_HIDDEN, f"{BEGIN_HIDDEN}\n{line}", 1)


def check_parts(exercise: Exercise, notebook: NotebookNode) -> None:
    """The marks and the checks name the same parts. Raises BuildError."""
    cells: dict[str, list[str]] = {}
    for _, role in marked_cells(notebook):
        if role.key:
            cells.setdefault(role.key, []).append(role.kind)
    explained = explained_parts(notebook)
    for key, kinds in cells.items():
        wanted = ["explain"] if key in explained else ["answer", "check"]
        if kinds != wanted:
            raise BuildError(f"part {key} has the cells {kinds}; it must have {wanted}")
    order = [(role.kind, role.key) for _, role in marked_cells(notebook)]
    for (kind, part), following in itertools.pairwise(order):
        if kind == "answer" and following != ("check", part):
            raise BuildError(f"the cell behind the answer to {part} must be its check")
    graded = [key for key in cells if key not in explained]
    if graded != list(exercise.by_key):
        raise BuildError(f"the notebook has parts {graded}, the checks {list(exercise.by_key)}")


def build(source: Path, checks: Path) -> dict[Path, str]:
    """Every file that this source makes, with its text."""
    exercise, solution = load_exercise(source.stem), read_exercise(source)
    check_parts(exercise, solution)
    try:
        seen, stopped = look(exercise, solution)
        truth_of(exercise, 0, seen, stopped)  # says what does not run
    except (RuntimeError, ValueError) as error:
        raise BuildError(f"{source.name}: {error}") from None
    learner = cut(solution)
    add_expectations(exercise, solution, seen)
    packed = visible_table(exercise, seen)
    table = {
        key: {case: squeeze(data) for case, data in cases.items()} for key, cases in packed.items()
    }
    folder = source.parent.parent
    return {
        folder.parent / "exercises" / f"{source.stem}.ipynb": notebook_text(learner),
        folder / f"{source.stem}.ipynb": notebook_text(solution),
        checks / "expected" / f"{source.stem}.json": table_text(table),
    }


def notebook_text(notebook: NotebookNode) -> str:
    """As the file is written. Raises ValidationError for what is no notebook."""
    nbformat.validate(notebook)
    return str(nbformat.writes(notebook)).rstrip("\n") + "\n"


def find_sources(solutions: Path, numbers: list[str]) -> list[Path]:
    """The chosen sources, all without a choice. Raises BuildError for an unknown number."""
    sources = sorted((solutions / "source").glob("[0-9][0-9]_*.py"))
    unknown = [n for n in numbers if not any(s.name.startswith(n) for s in sources)]
    if unknown:
        known = ", ".join(s.stem for s in sources) or "none"
        raise BuildError(
            f"no exercise {unknown[0]!r} in {solutions / 'source'}; there are: {known}"
        )
    return [s for s in sources if not numbers or any(s.name.startswith(n) for n in numbers)]


def main(argv: list[str] | None = None) -> int:
    """Build or check; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m toyserve.course.exercise_builder")
    parser.add_argument("numbers", nargs="*", metavar="NN", help="exercises (default: all)")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if one differs")
    parser.add_argument("--solutions", type=Path, default=ROOT / "solutions", help="folder")
    args = parser.parse_args(argv)
    different = []
    try:
        for source in find_sources(args.solutions, args.numbers):
            start = time.perf_counter()
            files = build(source, Path(__file__).parent / "checks")
            changed = [path for path, text in files.items() if _differs(path, text)]
            if not args.check:
                for path in changed:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    write(path, files[path])
            state = "as committed" if not changed else "differs" if args.check else "written"
            print(f"{source.stem}: {state}, {time.perf_counter() - start:.1f} s", flush=True)
            different += changed
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    for path in different if args.check else []:
        print(f"{path.name} is not what its source builds", file=sys.stderr)
    return 1 if different and args.check else 0


def _differs(path: Path, text: str) -> bool:
    return not path.exists() or path.read_text(encoding="utf-8") != text


if __name__ == "__main__":
    raise SystemExit(main())
