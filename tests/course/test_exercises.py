"""Every exercise that there is: solutions pass, untouched ones do not, planted faults are named.

All in this process, without a kernel: what a class's grading adds is tested beside it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import nbformat
import pytest

from toyserve.course import exercise_builder as builder
from toyserve.course.checks import expected as store
from toyserve.course.checks.examine import Outcome, examine
from toyserve.course.checks.expected import expected_for
from toyserve.course.checks.feedback import feedback_lines
from toyserve.course.checks.part import exercise_names, load_exercise
from toyserve.course.exercise import explained_parts, hidden_tests, marked_cells, points_of
from toyserve.course.exercise_session import (
    Seen,
    Truth,
    judge_part,
    look,
    outcomes,
    run_cell,
    see,
    truth_of,
    walk,
)

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "solutions/source").glob("[0-9][0-9]_*.py"))
NAMES = [source.stem for source in SOURCES]
_PLANTED = re.compile(r"^# %% (wrong|right) (\d\d\.\d+) \| (.+)$", re.MULTILINE)
LIMIT = 3.0  # seconds: an endless answer costs as much


@dataclass(frozen=True)
class Planted:
    kind: str
    key: str
    words: str
    code: str


def planted(name: str) -> list[Planted]:
    text = (ROOT / "solutions/planted" / f"{name}.py").read_text(encoding="utf-8")
    _, *pieces = _PLANTED.split(text)
    return [Planted(*pieces[i : i + 4]) for i in range(0, len(pieces), 4)]


ANSWERS = [(name, answer) for name in NAMES for answer in planted(name)]


def title(value: object) -> str:
    return f"{value.kind}-{value.key}-{value.words[:30]}" if isinstance(value, Planted) else ""


@cache
def solution(name: str) -> nbformat.NotebookNode:
    return builder.read_exercise(ROOT / "solutions/source" / f"{name}.py")


@cache
def looked(name: str, seed: int) -> tuple[dict[str, Seen], dict[str, str]]:
    return look(load_exercise(name), solution(name), seed)


@cache
def truth(name: str, seed: int = 0) -> Truth:
    return truth_of(load_exercise(name), seed, *looked(name, seed))


@cache
def spaces(name: str) -> tuple[dict[str, dict[str, object]], dict[str, dict[str, object]]]:
    """What the notebook defines, part by part, before its answer cell runs and after."""
    before: dict[str, dict[str, object]] = {}
    after: dict[str, dict[str, object]] = {}

    def keep(key: str, namespace: dict[str, object], _: str) -> None:
        after[key] = dict(namespace)

    walk(solution(name), 0, keep, lambda key, namespace: before.update({key: dict(namespace)}))
    return before, after


@cache
def answered(name: str, key: str, code: str) -> Outcome:
    """One part with ``code`` in its answer's place; the rest of the notebook is the solution's."""
    namespace = dict(spaces(name)[0][key])
    stopped = run_cell(code, namespace, f"planted {key}")
    part = load_exercise(name).part(key)
    seen = see(part, 0, namespace, truth(name).hidden[key], LIMIT)
    return judge_part(part, seen.visible + seen.hidden, truth(name), stopped)


def test_every_exercise_has_a_source_checks_and_planted_answers() -> None:
    assert NAMES
    assert exercise_names() == NAMES
    assert [p.stem for p in sorted((ROOT / "solutions/planted").glob("*.py"))] == NAMES
    for folder in ("exercises", "solutions"):
        assert [p.stem for p in sorted((ROOT / folder).glob("*.ipynb"))] == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_it_has_three_to_six_parts_and_points_for_each(name: str) -> None:
    points = points_of(solution(name))
    assert 3 <= len(points) <= 6
    assert all(value > 0 for value in points.values())
    assert len(load_exercise(name).parts) >= 3
    assert set(points) == {*load_exercise(name).by_key, *explained_parts(solution(name))}


@pytest.mark.parametrize("name", NAMES)
def test_a_rebuild_is_byte_identical(name: str) -> None:
    files = builder.build(ROOT / "solutions/source" / f"{name}.py", Path(store.FOLDER).parent)
    for path, text in files.items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name} is to be built"


@pytest.mark.parametrize("seed", [0, 7])
@pytest.mark.parametrize("name", NAMES)
def test_the_solution_has_all_points_for_several_learners(name: str, seed: int) -> None:
    exercise, (seen, stopped) = load_exercise(name), looked(name, seed)
    assert list(seen) == list(exercise.by_key)
    for key, entry in seen.items():
        part = exercise.part(key)
        outcome = judge_part(
            part, entry.visible + entry.hidden, truth(name, seed), stopped.get(key)
        )
        assert outcome.right, f"{key}: {outcome.text}"


@pytest.mark.parametrize("name", NAMES)
def test_the_solution_passes_the_visible_checks_as_they_are_shipped(name: str) -> None:
    exercise = load_exercise(name)
    for part in exercise.parts:
        outcome = examine(
            exercise,
            part,
            spaces(name)[1][part.key],
            part.cases_for(0),
            lambda case, part=part: expected_for(exercise, part, case),
        )
        assert outcome.right, outcome.text


@pytest.mark.parametrize("name", NAMES)
def test_the_untouched_exercise_has_no_point_anywhere(name: str) -> None:
    exercise = load_exercise(name)
    learner = builder.cut(solution(name))
    got = outcomes(exercise, learner, truth(name), limit=LIMIT)
    assert list(got) == list(exercise.by_key)
    for key, outcome in got.items():
        assert not outcome.right, key
        assert re.search("still to be written|nothing is called|must return", outcome.text), (
            f"{key}: {outcome.text}"
        )


@pytest.mark.parametrize(("name", "answer"), ANSWERS, ids=title)
def test_planted_answers(name: str, answer: Planted) -> None:
    outcome = answered(name, answer.key, answer.code)
    if answer.kind == "right":
        assert outcome.right, outcome.text
    else:
        assert not outcome.right, "a wrong answer passes"
        assert answer.words in outcome.text
        said = feedback_lines(outcome, load_exercise(name))
        assert all(line[0].isupper() or not line[0].isalpha() for line in said)
        assert len(outcome.text.split()) >= 4


@pytest.mark.parametrize("name", NAMES)
def test_enough_wrong_and_right_answers_are_planted(name: str) -> None:
    kinds = [answer.kind for answer in planted(name)]
    assert kinds.count("wrong") >= 3
    assert kinds.count("right") >= 1
    assert {a.key for a in planted(name) if a.kind == "wrong"} == set(load_exercise(name).by_key)


@pytest.mark.parametrize("name", NAMES)
def test_pictures_of_wrong_answers_can_be_drawn(name: str) -> None:
    import matplotlib.pyplot as plt

    drawn = 0
    for answer in planted(name):
        if answer.kind == "wrong" and drawn < 2 and "had not ended" not in answer.words:
            outcome = answered(name, answer.key, answer.code)
            if outcome.picture is not None:
                assert outcome.picture().axes
                drawn += 1
    plt.close("all")


@pytest.mark.parametrize("name", NAMES)
def test_what_is_to_be_predicted_stands_in_no_table_that_learners_get(name: str) -> None:
    """A name that the solution gives a value, and no function or class, is a prediction."""
    table = json.loads((store.FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    for part in load_exercise(name).parts:
        values = [n for n in part.names if not callable(spaces(name)[1][part.key][n])]
        assert not values or part.truth is not None or part.expects is not None, part.key
        for squeezed in table.get(part.key, {}).values():
            kept = store.unsqueeze(squeezed)
            assert not values or not set(values) & set(kept), f"{part.key}: {values}"


@pytest.mark.parametrize("name", NAMES)
def test_a_number_that_is_none_is_right_nowhere(name: str) -> None:
    """NaN is never too far from anything, so a comparison alone would let it pass."""
    for part in load_exercise(name).parts:
        values = [n for n in part.names if not callable(spaces(name)[1][part.key][n])]
        if values:
            code = f"{' = '.join(values)} = float('nan')"
            others = set(part.names) - set(values)
            kept = {n: spaces(name)[1][part.key][n] for n in others}
            namespace = dict(spaces(name)[0][part.key]) | kept
            assert run_cell(code, namespace, f"nan {part.key}") is None
            seen = see(part, 0, namespace, truth(name).hidden[part.key], LIMIT)
            assert not judge_part(part, seen.visible + seen.hidden, truth(name)).right, part.key


@pytest.mark.parametrize("name", NAMES)
def test_nothing_of_the_solution_or_the_hidden_tests_reaches_the_learner(name: str) -> None:
    exercise = (ROOT / "exercises" / f"{name}.ipynb").read_text(encoding="utf-8")
    checks = Path(store.FOLDER).parent
    shipped = exercise + (checks / f"ex{name}.py").read_text(encoding="utf-8")
    for mark in ("SOLUTION", "HIDDEN TESTS", "_expected_"):
        assert mark not in shipped
    learner = nbformat.reads(exercise, as_version=4)
    kept = {line.strip() for cell in learner.cells for line in cell.source.splitlines()}
    for cell, role in marked_cells(solution(name)):
        secret = hidden_tests(cell.source) if role.kind == "check" else ""
        if role.kind in ("answer", "explain"):
            secret = solution_lines(cell.source)
        for line in secret.splitlines():
            if len(line.strip()) > 24 and line.strip() not in kept:
                assert line.strip() not in shipped
    assert all(not cell.get("outputs") for cell in learner.cells)
    assert any("YOUR CODE HERE" in cell.source for cell in learner.cells)


def solution_lines(source: str) -> str:
    return "\n".join(re.findall(r"### BEGIN SOLUTION\n(.*?)\n *### END", source, flags=re.DOTALL))
