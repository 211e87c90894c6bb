"""The quiz as ipywidgets: a field or a list, a button, and the verdict below. Plain core widgets
only, so that every front end that knows ipywidgets can draw it."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

import ipywidgets as w

if TYPE_CHECKING:
    from toyserve.course.quiz import Quiz, Verdict

# Seen on a light and on a dark page; the sign and the word say it without the colour.
_RIGHT = "border-left:4px solid #228833;background:rgba(34,136,51,.15)"
_WRONG = "border-left:4px solid #ee7733;background:rgba(238,119,51,.15)"


def quiz_widget(quiz: Quiz) -> Any:
    """A box of widgets; answering sets ``quiz.verdict``."""
    question = quiz.question
    title = w.HTML(f"<b>Predict.</b> {html.escape(question.question)}")
    title.add_class("toyserve-quiz-question")
    field = _entry(quiz)
    check = w.Button(description="Check", button_style="primary", tooltip="Check my prediction")
    reveal = w.Button(description="Show the answer", layout=w.Layout(display="none"))
    verdict = w.HTML()
    verdict.add_class("toyserve-quiz-verdict")

    def on_check(_: object) -> None:
        quiz.verdict = question.judge(field.value)
        verdict.value = _verdict_html(quiz.verdict)
        reveal.layout.display = "none" if quiz.verdict.right else ""  # first a try, then the answer

    def on_reveal(_: object) -> None:
        verdict.value = (
            f'<div style="{_RIGHT};padding:6px 12px;line-height:1.5">The answer is '
            f"<b>{html.escape(question.answer_text)}</b>. {html.escape(question.explanation)}</div>"
        )

    check.on_click(on_check)
    reveal.on_click(on_reveal)
    unit = [w.Label(question.unit)] if question.unit else []
    if question.options:
        return w.VBox([title, field, w.HBox([check, reveal]), verdict])
    return w.VBox([title, w.HBox([field, *unit, check, reveal]), verdict])


def _entry(quiz: Quiz) -> Any:
    """Empty at first, so that nobody answers by pressing the button."""
    question = quiz.question
    if question.options:
        return w.RadioButtons(
            options=question.options, value=None, layout=w.Layout(width="auto", margin="0 0 6px")
        )
    return w.Text(placeholder="a number", layout=w.Layout(width="9em"))


def _verdict_html(verdict: Verdict) -> str:
    style, word = (_RIGHT, "✓ Right.") if verdict.right else (_WRONG, "✗ Not yet.")
    return (
        f'<div style="{style};padding:6px 12px;line-height:1.5"><b>{word}</b> '
        f"{html.escape(verdict.reason)}</div>"
    )
