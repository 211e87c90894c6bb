"""A question that asks for a prediction before the lesson shows the answer.

    quiz("04.first-entry")

The questions live in ``quizzes/NN_name.toml``, not in the notebook: a learner who reads the cell
must not read the answer. With a widget front end (JupyterLab, VS Code, Colab) it is a field and a
button; a wrong answer gets its reason. Without one (GitHub, a page exported to HTML, no
ipywidgets) the question is shown and its answer stays folded away.
"""

from __future__ import annotations

import html
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "quizzes"
_VIEW = "application/vnd.jupyter.widget-view+json"


@dataclass(frozen=True)
class Verdict:
    """What an answer gets: right or not, and why."""

    right: bool
    reason: str


@dataclass(frozen=True)
class Question:
    """One quiz. ``options`` empty: the answer is a number within ``tolerance`` of ``answer``.

    reasons: for a known wrong answer (a number as text, or an option) what is wrong with it.
    otherwise: for every other wrong answer. explanation: shown with the right answer.
    """

    key: str
    question: str
    answer: float | str
    explanation: str
    otherwise: str = "Not that. Look at the picture once more."
    unit: str = ""
    tolerance: float = 0.0
    options: tuple[str, ...] = ()
    reasons: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.options and self.answer not in self.options:
            raise ValueError(f"quiz {self.key}: the answer {self.answer!r} is not an option")
        if not self.options and isinstance(self.answer, str):
            raise ValueError(f"quiz {self.key}: the answer {self.answer!r} is not a number")
        for wrong, reason in self.reasons.items():
            if not isinstance(reason, str):  # TOML reads 0.6 = "…" as a table 0 with a key 6
                raise ValueError(f"quiz {self.key}: write the key {wrong!r} of reasons in quotes")
        unknown = set(self.reasons) - set(self.options) if self.options else set()
        if unknown:
            raise ValueError(f"quiz {self.key}: {sorted(unknown)[0]!r} is not an option")

    def judge(self, given: float | str | None) -> Verdict:
        """Raises nothing: whatever a learner types gets a sentence."""
        if given is None or given == "":
            return Verdict(False, "Choose first: a wrong prediction teaches more than none.")
        if self.options:
            right = given == self.answer
            reason = self.reasons.get(str(given), self.otherwise)
            return Verdict(right, self.explanation if right else reason)
        try:
            number = float(given)
        except ValueError:
            return Verdict(False, f"{given!r} is not a number.")
        if abs(number - float(self.answer)) <= self.tolerance:
            return Verdict(True, self.explanation)
        for wrong, reason in self.reasons.items():
            if abs(number - float(wrong)) <= self.tolerance:
                return Verdict(False, reason)
        return Verdict(False, self.otherwise)

    @property
    def answer_text(self) -> str:
        if isinstance(self.answer, str):
            return self.answer
        unit = self.unit if self.unit in ("", "%", "×") else f" {self.unit}"
        return f"{self.answer:g}{unit}"


def load_question(key: str, folder: Path = FOLDER) -> Question:
    """``key`` is ``"NN.name"``. Raises ValueError, with the names there are, for an unknown one."""
    number, _, name = key.partition(".")
    tables: dict[str, Any] = {}
    for path in sorted(folder.glob(f"{number}_*.toml")):
        tables |= tomllib.loads(path.read_text(encoding="utf-8"))
    if name not in tables:
        known = ", ".join(f"{number}.{n}" for n in tables) or "none for this lesson"
        raise ValueError(f"there is no quiz {key!r}; there are: {known}")
    table = dict(tables[name])
    table["options"] = tuple(table.get("options", ()))
    table["explanation"] = " ".join(table["explanation"].split())
    return Question(key=key, **table)


class Quiz:
    """What ``quiz(key)`` puts below the cell."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self.verdict: Verdict | None = None  # of the last answer given in the widget

    def answer(self, given: float | str) -> str:
        """Answer without a widget: ``quiz("04.first-entry").answer(12)``."""
        self.verdict = self.question.judge(given)
        return ("Right. " if self.verdict.right else "Not yet. ") + self.verdict.reason

    def __repr__(self) -> str:
        options = "".join(f"\n  ( ) {option}" for option in self.question.options)
        how = f'quiz("{self.question.key}").answer(…)'
        return f"Predict: {self.question.question}{options}\nAnswer in a cell: {how}"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        bundle: dict[str, Any] = {"text/plain": repr(self), "text/html": _folded(self.question)}
        try:
            from toyserve.course.quiz_widget import quiz_widget
        except ImportError:  # no ipywidgets: the folded text is all there is
            return bundle
        view = quiz_widget(self)._repr_mimebundle_()
        if view and _VIEW in view:
            bundle[_VIEW] = view[_VIEW]
        return bundle


def quiz(key: str) -> Quiz:
    """The question ``key``; as the last line of a cell it shows itself."""
    return Quiz(load_question(key))


def _folded(question: Question) -> str:
    """Static HTML: the question to be seen, the answer and every reason behind one click."""
    options = "".join(f"<li>{html.escape(option)}</li>" for option in question.options)
    wrong = "".join(
        f"<li><b>{html.escape(text)}</b>: {html.escape(reason)}</li>"
        for text, reason in question.reasons.items()
    )
    return (
        '<div style="border-left:4px solid #4477aa;padding:4px 12px;margin:4px 0">'
        f"<b>Predict.</b> {html.escape(question.question)}"
        + (f"<ul>{options}</ul>" if options else "")
        + "<details><summary>Decide first, then open the answer</summary>"
        f"<p><b>{html.escape(question.answer_text)}</b>. {html.escape(question.explanation)}</p>"
        + (f"<p>Near misses:</p><ul>{wrong}</ul>" if wrong else "")
        + "</details></div>"
    )
