"""Grade one submission: run it in a session, judge here, part by part."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nbformat import NotebookNode

from toyserve.course.checks.examine import NOTHING_WRITTEN, Outcome
from toyserve.course.checks.part import Exercise
from toyserve.course.exercise import points_of
from toyserve.course.exercise_session import Truth, judge_part
from toyserve.course.grading.sessions import Died, Limits, Session, Sessions
from toyserve.course.grading.submission import Plan, merge

_MAX_RESTARTS = 12
_OWN_SECONDS = 60.0  # for all cells that the learner added


@dataclass
class PartResult:
    """points: None while a person has still to read it."""

    key: str
    title: str
    points: float | None
    out_of: float
    text: str = ""  # what was wrong, or what to say to a right answer
    case: str = ""
    answer: str = ""  # the text, of a part that a person grades
    picture: Any = None


@dataclass
class Result:
    """One submission's grade. notes: about the file, not about the answers."""

    parts: list[PartResult] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def points(self) -> float:
        return sum(part.points or 0.0 for part in self.parts)

    @property
    def out_of(self) -> float:
        return sum(part.out_of for part in self.parts)


def grade(
    sessions: Sessions,
    exercise: Exercise,
    teacher: NotebookNode,
    submitted: NotebookNode,
    truth: Truth,
    limits: Limits,
) -> Result:
    """Raises nothing that a submission can cause."""
    plan = merge(submitted, teacher, truth.seed)
    outcomes = _Run(sessions, exercise, plan, truth, limits).all_parts()
    result = Result(notes=plan.notes)
    for key, points in points_of(teacher).items():
        if key in plan.texts:
            result.parts.append(_to_be_read(key, points, plan))
        else:
            result.parts.append(_part_result(exercise, outcomes[key], points))
    return result


def _part_result(exercise: Exercise, outcome: Outcome, points: float) -> PartResult:
    part = exercise.part(outcome.key)
    case = str(outcome.case.get("what", "")) if outcome.case else ""
    got = points if outcome.right else 0.0
    return PartResult(
        part.key, part.title, got, points, outcome.text, case, picture=outcome.picture
    )


def _to_be_read(key: str, points: float, plan: Plan) -> PartResult:
    if key in plan.untouched:
        return PartResult(key, "an explanation", 0.0, points, NOTHING_WRITTEN)
    return PartResult(key, "an explanation", None, points, "to be read", answer=plan.texts[key])


class _Run:
    """All parts of one submission, each with its outcome whatever the others do."""

    def __init__(
        self, sessions: Sessions, exercise: Exercise, plan: Plan, truth: Truth, limits: Limits
    ) -> None:
        self.sessions, self.exercise, self.plan = sessions, exercise, plan
        self.truth, self.limits = truth, limits
        self.outcomes: dict[str, Outcome] = {}
        self.deadly: dict[int, str] = {}  # steps that ended their process → why
        self.own_seconds = 0.0  # spent in cells that the learner added

    def all_parts(self) -> Mapping[str, Outcome]:
        for _ in range(_MAX_RESTARTS):
            if self._pass(range(len(self.plan.steps))):
                break
        for part in self.exercise.parts:
            if part.key not in self.outcomes:
                self._give_up(part.key)
            if not self.outcomes[part.key].right and self._worth_another_look(part.key):
                self._alone(part.key)
        return self.outcomes

    def _pass(self, indices: range | list[int]) -> bool:
        """Run these steps in one process. False when it died: the step is then known as deadly."""
        problems: dict[str, str] = {}
        index = 0
        try:
            with self.sessions.session(self.exercise.name, self.limits) as session:
                for index in indices:
                    if index not in self.deadly:
                        self._step(session, index, problems)
        except Died as death:
            self._died(index, str(death))
            return False
        return True

    def _step(self, session: Session, index: int, problems: dict[str, str]) -> None:
        step = self.plan.steps[index]
        if step.kind == "extra":
            self._own_cell(session, step.source, index)
        elif step.kind != "check":
            problem = session.run(step.source, f"{step.kind} {step.key or index}")
            if problem and step.key:
                problems[step.key] = problem
        elif step.key and step.key not in self.outcomes:
            part = self.exercise.part(step.key)
            cases = [*part.cases_for(self.truth.seed), *self.truth.hidden.get(part.key, [])]
            seen = session.observe(part.key, cases)
            self.outcomes[part.key] = self._judged(part.key, cases, seen, problems.get(part.key))

    def _own_cell(self, session: Session, source: str, index: int) -> None:
        """A cell that the learner added; a hundred slow ones are not waited for."""
        if self.own_seconds > _OWN_SECONDS:
            note = f"cells of your own took more than {_OWN_SECONDS:.0f} s: the rest was left out"
            if note not in self.plan.notes:
                self.plan.notes.append(note)
            return
        start = time.monotonic()
        try:
            session.run(source, f"extra {index}")
        finally:
            self.own_seconds += time.monotonic() - start

    def _judged(self, key: str, cases: list[Any], seen: list[Any], stopped: str | None) -> Outcome:
        missing = self.plan.missing.get(key)
        part = self.exercise.part(key)
        # Cut short without a failure among them: something was left out, so it is not all right.
        whole = len(seen) == len(cases) or (seen and "failed" in _dict(seen[-1]))
        if not whole or len(seen) > len(cases):
            return Outcome(key, False, "not every case came back")
        outcome = judge_part(
            part, list(zip(cases, seen, strict=False)), self.truth, missing or stopped
        )
        if missing and not outcome.right:
            return Outcome(key, False, missing)
        return outcome

    def _died(self, index: int, why: str) -> None:
        step = self.plan.steps[index]
        self.deadly[index] = why
        if step.key:
            self.outcomes[step.key] = Outcome(step.key, False, why)

    def _worth_another_look(self, key: str) -> bool:
        """Only if other code of the learner's ran before it, which may have done the damage."""
        steps = self.plan.steps
        end = next(i for i, s in enumerate(steps) if s.kind == "check" and s.key == key)
        mine = [i for i, s in enumerate(steps) if s.kind == "answer" and s.key == key]
        others = [s for s in steps[:end] if s.kind in ("answer", "extra") and s.key != key]
        text = self.outcomes[key].text
        unfinished = re.search("still to be written|had not ended", text) or (
            key in self.plan.missing
        )
        return bool(others and mine) and not unfinished and not set(mine) & set(self.deadly)

    def _alone(self, key: str) -> None:
        """Once more in a process where no other answer has run; only a better outcome counts."""
        before = self.outcomes.pop(key)
        deadly = dict(self.deadly)
        wanted = [
            index
            for index, step in enumerate(self.plan.steps)
            if step.kind == "given" or step.key == key
        ]
        for index in wanted:
            self.deadly.pop(index, None)
        self._pass(wanted)
        self.deadly = deadly
        after = self.outcomes.get(key)
        if after is None or not after.right:
            self.outcomes[key] = before
        else:
            self.plan.notes.append(
                f"{key} was right by itself, and failed after the other cells had run"
            )

    def _give_up(self, key: str) -> None:
        self.outcomes[key] = Outcome(key, False, "other cells ended the process again and again")


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
