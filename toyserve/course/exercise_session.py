"""The cells of an exercise, run in this process: for the author's own code, never for a submission.

The builder takes from here what the solution gives, and the tests of the course what a planted
answer gets. A class's submissions go through ``toyserve.course.grading``, each in its own process.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import linecache
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nbformat import NotebookNode

from toyserve.course.checks.examine import (
    LIMIT,
    Outcome,
    crash_sentence,
    endless_sentence,
    is_missing,
    judge,
    observe,
)
from toyserve.course.checks.limits import TimeIsUp, time_limit
from toyserve.course.checks.part import Case, Exercise, Part
from toyserve.course.checks.plain import canonical, pack, unpack
from toyserve.course.exercise import hidden_tests, marked_cells, with_seed

CELL_LIMIT = 20.0  # seconds for one cell
PATIENCE = 120.0  # for a cell or a part of the author's own, on a machine that is busy
# A part's key, the namespace when its check cell is reached, the code of its hidden tests.
OnPart = Callable[[str, dict[str, Any], str], None]


@dataclass
class Seen:
    """Of one part: its cases, visible and hidden, and what was observed of each (packed)."""

    visible: list[tuple[Case, dict[str, Any]]] = field(default_factory=list)
    hidden: list[tuple[Case, dict[str, Any]]] = field(default_factory=list)


def new_namespace() -> dict[str, Any]:
    """What a notebook's cells find before the first has run."""
    namespace: dict[str, Any] = {"__name__": "__main__", "display": _nothing}
    shell = _Shell(namespace)
    namespace["get_ipython"] = lambda: shell
    return namespace


_RUNS_ITS_CODE = {"time", "capture", "prun"}


class _Shell:
    """Shell lines and most magics do nothing while a notebook is graded. Those that run code beside
    what they are for do so here, too: what a cell under %%time defines is there afterwards."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self.namespace = namespace

    def __getattr__(self, name: str) -> Any:
        return _nothing

    def run_cell_magic(self, name: str, line: str, cell: str) -> None:
        if name in _RUNS_ITS_CODE:
            exec(compile(_python_of(cell), f"<%%{name}>", "exec"), self.namespace)
        elif name == "writefile" and line.strip():
            Path(line.split()[-1]).write_text(cell, encoding="utf-8")

    def run_line_magic(self, name: str, line: str, *_: Any) -> None:
        if name == "time":
            exec(compile(line, f"<%{name}>", "exec"), self.namespace)

    def getoutput(self, *_: Any, **__: Any) -> list[str]:
        return []


def _nothing(*_: Any, **__: Any) -> None:
    """Stands for what only a notebook's front end does."""


def _python_of(source: str) -> str:
    """Magics and shell lines as calls, where IPython is there to translate them."""
    if "%" not in source and "!" not in source and "?" not in source:
        return source
    try:
        from IPython.core.inputtransformer2 import TransformerManager
    except ImportError:
        return source
    return str(TransformerManager().transform_cell(source))


def run_cell(
    source: str, namespace: dict[str, Any], name: str, limit: float = CELL_LIMIT
) -> str | None:
    """Run one cell as a notebook would. Returns None, or in words why it stopped."""
    filename = f"<{name}>"
    lines = source.splitlines(keepends=True)
    linecache.cache[filename] = (len(source), None, lines, filename)
    try:
        quiet = contextlib.redirect_stdout(io.StringIO())
        with warnings.catch_warnings(), quiet, time_limit(limit):
            warnings.simplefilter("ignore")
            code = compile(_python_of(source), filename, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            waiting = eval(code, namespace)
            if inspect.iscoroutine(waiting):
                asyncio.run(waiting)
    except TimeIsUp as error:
        return endless_sentence("the cell", limit, error)
    except NotImplementedError:
        return "it is still to be written"
    except KeyboardInterrupt:
        raise
    except SystemExit:
        return "the cell called exit"
    except MemoryError:
        return "the cell wanted more memory than there is"
    except BaseException as error:
        return crash_sentence(error)
    return None


def walk(
    notebook: NotebookNode,
    seed: int,
    on_part: OnPart,
    on_answer: Callable[[str, dict[str, Any]], None] | None = None,
    cell_limit: float = CELL_LIMIT,
) -> dict[str, str]:
    """Run the notebook's code top to bottom; at each check cell call ``on_part`` instead.

    on_part gets the part's key, the namespace as it is then, and the hidden tests' code; on_answer
    is called before an answer cell runs. Returns why answer cells stopped, by part. Raises
    RuntimeError when a given cell does.
    """
    stopped: dict[str, str] = {}
    namespace = new_namespace()
    namespace["check"] = _nothing
    for number, (cell, role) in enumerate(marked_cells(notebook)):
        if cell.cell_type != "code":
            continue
        if role.kind == "check":
            assert role.key is not None
            on_part(role.key, namespace, hidden_tests(cell.source))
            continue
        if on_answer and role.kind == "answer" and role.key:
            on_answer(role.key, namespace)
        source, name = with_seed(cell.source, seed), f"{role.kind} {number}"
        problem = run_cell(source, namespace, name, cell_limit)
        if problem and role.kind == "given":
            raise RuntimeError(f"a given cell stopped: {problem}\n{cell.source}")
        if problem and role.key:
            stopped[role.key] = problem
    return stopped


def hidden_cases(code: str, key: str, namespace: Mapping[str, Any]) -> list[Case]:
    """The cases that the hidden tests of a part name. Raises ValueError for more than one call."""
    calls: list[list[Case]] = []

    def collect(called: str, cases: Sequence[Case], **_: Any) -> None:
        if called != key:
            raise ValueError(f"the hidden tests of {key} check {called}")
        calls.append(list(cases))

    if not code.strip():
        return []
    exec(compile(code, f"<hidden tests {key}>", "exec"), {**namespace, "check": collect})
    if len(calls) != 1:
        raise ValueError(
            f"the hidden tests of {key} call check {len(calls)} times: once it must be"
        )
    return calls[0]


def look(
    exercise: Exercise,
    notebook: NotebookNode,
    seed: int = 0,
    *,
    hidden: Mapping[str, list[Case]] | None = None,
    limit: float = LIMIT,
    cell_limit: float = CELL_LIMIT,
) -> tuple[dict[str, Seen], dict[str, str]]:
    """Everything there is to see of every part. hidden: the cases, where the notebook has none.

    Returns what was seen, and why answer cells stopped.
    """
    seen: dict[str, Seen] = {}

    def on_part(key: str, namespace: dict[str, Any], code: str) -> None:
        cases = hidden_cases(code, key, namespace) if hidden is None else hidden.get(key, [])
        seen[key] = see(exercise.part(key), seed, namespace, cases, limit)

    stopped = walk(notebook, seed, on_part, cell_limit=cell_limit)
    return seen, stopped


def see(
    part: Part, seed: int, namespace: Mapping[str, Any], hidden: Sequence[Case], limit: float
) -> Seen:
    """One part's visible and hidden cases, observed."""
    entry = Seen()
    for cases, into in ((part.cases_for(seed), entry.visible), (hidden, entry.hidden)):
        for case in cases:
            into.append((case, observe(part, namespace, case, limit)))
            if "failed" in into[-1][1]:
                return entry  # an endless answer would be endless in every case
    return entry


@dataclass(frozen=True)
class Truth:
    """What the solution gives for one seed: the yardstick for everybody with that seed."""

    seed: int
    hidden: dict[str, list[Case]]
    data: dict[tuple[str, str], Any]  # (part, canonical case) → packed

    def expected(self, part: Part, case: Case) -> Any:
        """Unpacked; None where the solution gave nothing."""
        return unpack(self.data.get((part.key, canonical(case))))


def find_truth(exercise: Exercise, solution: NotebookNode, seed: int = 0) -> Truth:
    """Run the solution. Raises RuntimeError when it does not answer all of its own cases."""
    seen, stopped = look(exercise, solution, seed, limit=PATIENCE, cell_limit=PATIENCE)
    return truth_of(exercise, seed, seen, stopped)


def truth_of(
    exercise: Exercise, seed: int, seen: Mapping[str, Seen], stopped: Mapping[str, str]
) -> Truth:
    """What the solution's own observations make; raises RuntimeError as ``find_truth`` does."""
    for key, problem in stopped.items():
        raise RuntimeError(f"the solution of {key} stopped: {problem}")
    data: dict[tuple[str, str], Any] = {}
    for key, entry in seen.items():
        part = exercise.part(key)
        for case, observation in (*entry.visible, *entry.hidden):
            if "failed" in observation:
                raise RuntimeError(f"the solution of {key}: {observation['failed']} ({case})")
            truth, own = part.truth, observation["data"]
            given = part.kept(own) if truth is None else pack(truth(case))
            data[key, canonical(case)] = given
    hidden = {key: [case for case, _ in entry.hidden] for key, entry in seen.items()}
    return Truth(seed, hidden, data)


def outcomes(
    exercise: Exercise, notebook: NotebookNode, truth: Truth, *, limit: float = LIMIT
) -> dict[str, Outcome]:
    """Every part judged on its visible cases, then on its hidden ones."""
    seen, stopped = look(exercise, notebook, truth.seed, hidden=truth.hidden, limit=limit)
    return {
        key: judge_part(exercise.part(key), entry.visible + entry.hidden, truth, stopped.get(key))
        for key, entry in seen.items()
    }


def judge_part(
    part: Part,
    observed: Sequence[tuple[Case, Any]],
    truth: Truth,
    stopped: str | None = None,
) -> Outcome:
    """The first case that fails; all right without one. ``stopped``: why its cell did not end."""
    if not observed:
        return Outcome(part.key, False, stopped or "nothing of it could be looked at")
    praise = ""
    for case, observation in observed:
        outcome = judge(part, case, observation, truth.expected(part, case))
        if not outcome.right:
            if stopped and is_missing(outcome.text):
                return Outcome(part.key, False, stopped, case=case)
            return outcome
        praise = outcome.text or praise
    return Outcome(part.key, True, praise, num_cases=len(observed))


def visible_table(exercise: Exercise, seen: Mapping[str, Seen]) -> dict[str, dict[str, Any]]:
    """Part → canonical case → packed data, for the parts whose truth the library does not know."""
    return {
        part.key: {canonical(case): part.kept(obs["data"]) for case, obs in seen[part.key].visible}
        for part in exercise.parts
        if part.truth is None and not callable(part.cases)
    }
