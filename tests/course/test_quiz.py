"""A quiz asks first; a wrong answer gets its reason; nothing leaks without a click."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path

import pytest

from toyserve.course import quiz as module
from toyserve.course.quiz import FOLDER, Question, load_question, quiz

KEYS = [
    f"{path.name[:2]}.{name}"
    for path in sorted(FOLDER.glob("*.toml"))
    for name in tomllib.loads(path.read_text(encoding="utf-8"))
]
NUMBER = Question("t.n", "How many?", 9, "Nine it is.", reasons={"8": "One early."}, unit="steps")
CHOICE = Question(
    "t.c", "Which?", "left", "Left it is.", options=("left", "right"), reasons={"right": "No: <b>"}
)


class OutsideDetails(HTMLParser):
    """The text that is seen before anything is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.depth, self.seen = 0, ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.depth += tag == "details"

    def handle_endtag(self, tag: str) -> None:
        self.depth -= tag == "details"

    def handle_data(self, data: str) -> None:
        self.seen += data if not self.depth else ""


def test_numbers_get_their_own_reason() -> None:
    assert NUMBER.judge("9").right
    assert NUMBER.judge(9.0).reason == "Nine it is."
    assert NUMBER.judge("8").reason == "One early."
    assert NUMBER.judge("77").reason == NUMBER.otherwise
    for nothing in ("", None, "nine", "nan", "inf"):
        assert not NUMBER.judge(nothing).right


def test_choices_get_their_own_reason() -> None:
    assert CHOICE.judge("left").right
    assert CHOICE.judge("right").reason == "No: <b>"
    assert not CHOICE.judge(None).right


def test_a_quiz_whose_answer_cannot_be_given_is_refused() -> None:
    with pytest.raises(ValueError, match="not an option"):
        Question("x.y", "?", "middle", "", options=("left", "right"))
    with pytest.raises(ValueError, match="not a number"):
        Question("x.y", "?", "middle", "")
    with pytest.raises(ValueError, match="not an option"):
        Question("x.y", "?", "left", "", options=("left", "right"), reasons={"up": "no"})


def test_an_unknown_quiz_names_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"there are: 04\."):
        quiz("04.nothing")
    with pytest.raises(ValueError, match="none for this lesson"):
        quiz("99.nothing")


@pytest.mark.parametrize("key", KEYS)
def test_without_widgets_the_question_shows_and_the_answer_does_not(key: str) -> None:
    question = load_question(key)
    parser = OutsideDetails()
    bundle = quiz(key)._repr_mimebundle_()
    parser.feed(bundle["text/html"])
    for seen in (parser.seen, bundle["text/plain"]):
        assert question.question.split()[0] in seen
        assert question.explanation not in seen
        assert not any(reason in seen for reason in question.reasons.values())
        if not question.options:
            rest = seen.replace(question.question, "").replace(key, "")
            assert question.answer_text not in rest
    assert parser.depth == 0


@pytest.mark.parametrize("key", KEYS)
def test_every_question_of_the_course_can_be_answered_and_explains(key: str) -> None:
    question = load_question(key)
    assert question.judge(question.answer).right
    assert len(question.explanation.split()) >= 8
    assert question.reasons, "a near miss deserves its own reason"
    assert all(not question.judge(wrong).right for wrong in question.reasons)


def test_the_widget_asks_then_judges_then_offers_the_answer() -> None:
    widgets = pytest.importorskip("ipywidgets")
    from toyserve.course.quiz_widget import quiz_widget

    asked = module.Quiz(NUMBER)
    box = quiz_widget(asked)
    (row,) = [child for child in box.children if isinstance(child, widgets.HBox)]
    field = row.children[0]
    check, reveal = (c for c in row.children if isinstance(c, widgets.Button))
    verdict = box.children[-1]
    assert (field.value, verdict.value, reveal.layout.display) == ("", "", "none")
    field.value = "8"
    check.click()
    assert "One early." in verdict.value
    assert reveal.layout.display != "none"
    assert asked.verdict is not None
    assert not asked.verdict.right
    field.value = "9"
    check.click()
    assert "Nine it is." in verdict.value
    assert asked.verdict.right


def test_the_choice_widget_shows_its_options_and_escapes_what_it_says() -> None:
    widgets = pytest.importorskip("ipywidgets")
    from toyserve.course.quiz_widget import quiz_widget

    box = quiz_widget(module.Quiz(CHOICE))
    (field,) = [c for c in box.children if isinstance(c, widgets.RadioButtons)]
    assert field.value is None
    field.value = "right"
    box.children[2].children[0].click()
    assert "No: &lt;b&gt;" in box.children[-1].value


def test_it_works_where_ipywidgets_is_not_installed(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['ipywidgets'] = None\n"
        "from toyserve.course.quiz import quiz\n"
        f"bundle = quiz({KEYS[0]!r})._repr_mimebundle_()\n"
        "assert set(bundle) == {'text/plain', 'text/html'}, bundle\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


def test_a_decimal_key_without_quotes_is_named(tmp_path: Path) -> None:
    text = '[a]\nquestion = "q"\nanswer = 1.0\nexplanation = "e"\n[a.reasons]\n0.6 = "no"\n'
    (tmp_path / "99_x.toml").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"99\.a.*'0'.*in quotes"):
        load_question("99.a", tmp_path)
