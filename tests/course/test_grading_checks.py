"""Between a learner's code and a verdict: limits, plain data, and a sentence for everything."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest

from toyserve.course.checks import CheckFailed, check
from toyserve.course.checks.examine import judge, observe
from toyserve.course.checks.feedback import Feedback
from toyserve.course.checks.honest import require_honest_times
from toyserve.course.checks.limits import TimeIsUp, time_limit
from toyserve.course.checks.numbers import close, exactly, require_whole
from toyserve.course.checks.part import Part, Wrong, load_exercise
from toyserve.course.checks.plain import NotPlain, canonical, pack, unpack
from toyserve.course.checks.runs import serve
from toyserve.course.exercise_check import check_notebook
from toyserve.course.exercise_progress import find_lab, note_progress, read_progress
from toyserve.course.workspace import prepare_workspace
from toyserve.schedulers import ContinuousScheduler
from toyserve.words import counted

NAME = "04_continuous_batching"


# -- limits -------------------------------------------------------------------------------------


def swallow_everything() -> None:
    while True:
        try:
            sum(range(10))
        except BaseException:
            continue


def swallow_exceptions() -> None:
    while True:
        try:
            math.sqrt(-1)
        except Exception:
            continue


@pytest.mark.parametrize("endless", [swallow_everything, swallow_exceptions])
def test_a_loop_that_catches_everything_is_stopped(endless: Any) -> None:
    with pytest.raises(TimeIsUp), time_limit(0.2):
        endless()
    assert sys.gettrace() is None or "coverage" in repr(sys.gettrace())
    assert sum(range(3)) == 3


def test_a_loop_in_another_thread_is_stopped_too() -> None:
    ended: list[str] = []

    def run() -> None:
        try:
            with time_limit(0.2):
                swallow_exceptions()
        except TimeIsUp:
            ended.append("stopped")

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(20)
    assert ended == ["stopped"]


def test_what_is_quick_is_not_touched() -> None:
    with time_limit(30):
        assert sum(range(10)) == 45


# -- plain data ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "packed"),
    [
        (np.int64(3), 3),
        (np.float32(0.5), 0.5),
        (np.True_, True),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        ((1, (2, None)), [1, [2, None]]),
        ({3: "a", "b": {2, 1}}, {"3": "a", "b": [1, 2]}),
        (True, True),
    ],
)
def test_numbers_of_any_numpy_are_numbers(value: Any, packed: Any) -> None:
    assert pack(value) == packed
    assert type(pack(value)) is type(packed)
    assert json.loads(json.dumps(pack(value))) == packed


def test_infinities_come_back_as_they_went() -> None:
    assert unpack(pack([math.inf, -math.inf]))[:2] == [math.inf, -math.inf]
    assert math.isnan(unpack(pack(math.nan)))


class Anything:
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


class Lie(int):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


class Shifty(dict):  # type: ignore[type-arg]
    pass


@pytest.mark.parametrize("value", [Anything(), Lie(3), [Anything()], {"a": Lie(1)}, Shifty(a=1)])
def test_what_only_looks_like_data_does_not_get_across(value: Any) -> None:
    with pytest.raises(NotPlain, match="class"):
        pack(value)


def test_a_recording_goes_through_json_and_is_the_same_run() -> None:
    case = {"slots": 2, "requests": [["A", 0.0, 4, 3], ["B", 0.0, 4, 2]]}
    run = serve(case, ContinuousScheduler(max_running=2))
    again = unpack(json.loads(json.dumps(pack(run))))
    assert canonical(pack(again)) == canonical(pack(run))
    assert [step.num_scheduled_tokens for step in again.steps] == [
        step.num_scheduled_tokens for step in run.steps
    ]


def forge(run: Any, how: str) -> Any:
    """The same decisions with better times, as a submission might write them."""
    data = pack(run)
    name = next(iter(data))
    lines = [json.loads(line) for line in data[name].splitlines()]
    for line in lines:
        if line["kind"] == "step" and how == "short":
            line["end_time"] = line["start_time"] + 1e-6
        elif line["kind"] == "step" and how == "early":
            line["start_time"] -= 10
            line["end_time"] -= 10
        elif line["kind"] == "end" and how == "tokens":
            line["token_times"] = [0.001] * len(line["token_ids"])
        elif line["kind"] == "arrival" and how == "arrival":
            line["arrival_time"] += 0.001
    return unpack({name: "\n".join(json.dumps(line) for line in lines)})


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("short", "shorter than"),
        ("early", "not arrived|in front"),
        ("tokens", "other times than its steps"),
        ("arrival", "is said to have arrived"),
    ],
)
def test_times_that_were_written_by_hand_are_not_believed(how: str, words: str) -> None:
    case = {"requests": [["A", 0.0, 400, 9], ["B", 0.01, 40, 6], ["C", 0.02, 4, 8]]}
    run = serve(case, ContinuousScheduler(max_running=2))
    require_honest_times(case, unpack(pack(run)))
    with pytest.raises(Wrong, match=words):
        require_honest_times(case, forge(run, how))


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_an_honest_run_that_pauses_people_is_believed(preemption: Any) -> None:
    case = {
        "blocks": 6,
        "requests": [[name, 0.0, 20, 30] for name in "ABCD"],
    }
    blocks = 6 if preemption == "swap" else 0
    scheduler = ContinuousScheduler(4, preemption=preemption, num_host_blocks=blocks)
    run = serve(case, scheduler)
    assert sum(len(step.preempted) for step in run.steps) > 0
    require_honest_times(case, unpack(pack(run)))


# -- numbers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, True, "3", None, [3]])
def test_what_is_no_number_is_never_close_enough_to_one(value: Any) -> None:
    for judge_it in (close, exactly):
        with pytest.raises(Wrong):
            judge_it(value, 3.0, "gain")


def test_a_slip_is_named_and_otherwise_the_way_it_is_off() -> None:
    slips = ((6.0, "counts both ways"),)
    for judge_it in (close, exactly):
        judge_it(3.0, 3.0, "gain", slips)
        with pytest.raises(Wrong, match="counts both ways"):
            judge_it(6.0, 3.0, "gain", slips)
        with pytest.raises(Wrong, match=r"few|low"):
            judge_it(2.0, 3.0, "gain", slips)


@pytest.mark.parametrize("value", [0, 9, 2.5, math.nan, math.inf, True, "2", None])
def test_a_whole_number_has_bounds(value: Any) -> None:
    with pytest.raises(Wrong, match="a whole number from 1 to 8"):
        require_whole(value, "slots", 1, 8)
    assert require_whole(4.0, "slots", 1, 8) == 4


def test_one_is_one_and_more_are_more() -> None:
    assert [counted(n, "token") for n in (0, 1, 2, 1200)] == [
        "0 tokens", "1 token", "2 tokens", "1,200 tokens"]  # fmt: skip


# -- every answer gets a sentence ---------------------------------------------------------------


def must_be_three(case: Any, got: Any, expected: Any) -> None:
    if got["value"] != 3:
        raise Wrong("three it must be")


PART = Part("04.1", "x", ("f",), lambda case, f: {"value": f()}, must_be_three, [{}])


def fails(function: Any) -> str:
    outcome = judge(PART, {}, observe(PART, {"f": function}, {}, 0.3), None)
    assert not outcome.right
    return outcome.text


def exits() -> None:
    sys.exit(0)


def recurses() -> None:
    recurses()


def unwritten() -> None:
    raise NotImplementedError


def raise_eof() -> None:
    raise EOFError("EOF when reading a line")


class Rude(BaseException):
    def __str__(self) -> str:
        raise RuntimeError


def raises_rudely() -> None:
    raise Rude


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (swallow_everything, "had not ended"),
        (exits, "exit"),
        (recurses, "calls itself"),
        (unwritten, "still to be written"),
        (raises_rudely, "Rude"),
        (lambda: 1 / 0, "ZeroDivisionError"),
        (raise_eof, "nobody is there"),
        (lambda: 4, "three it must be"),
        (lambda: Lie(3), "class Lie"),
        (None, "TypeError"),
    ],
)
def test_whatever_it_does_there_is_a_sentence(function: Any, words: str) -> None:
    assert words in fails(function)


def test_an_endless_answer_is_told_in_which_line_it_was_stopped() -> None:
    assert "in the line `" in fails(swallow_exceptions)


def test_what_is_not_there_is_named() -> None:
    assert "nothing is called `f` yet" in observe(PART, {}, {}, 1)["failed"]


@pytest.mark.parametrize(
    "forged", [None, [], "PASSED", {"right": True}, {"data": {}}, {"data": [1]}, {"failed": 1}, 3]
)
def test_no_forged_observation_is_right(forged: Any) -> None:
    assert not judge(PART, {}, forged, None).right


def test_feedback_says_what_comes_next_and_escapes_what_it_shows() -> None:
    exercise = load_exercise("04")
    part = exercise.part("04.1")
    outcome = judge(part, {"what": "<b>"}, {"failed": "<script>"}, None)
    page = Feedback(outcome, exercise).html()
    assert "&lt;script&gt;" in page
    assert "<script>" not in page


def test_an_unknown_part_names_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"04\.1, 04\.2"):
        check("04.99")
    with pytest.raises(ValueError, match="there are: "):
        check("77.1")


# -- in a learner's own folder ------------------------------------------------------------------


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    return prepare_workspace(tmp_path / "mein Kurs é").folder


def test_the_lab_has_the_exercises_and_never_overwrites_work(lab: Path) -> None:
    mine = lab / "exercises" / f"{NAME}.ipynb"
    mine.write_text("my work", encoding="utf-8")
    report = prepare_workspace(lab)
    assert mine.read_text(encoding="utf-8") == "my work"
    assert f"exercises/{NAME}.ipynb" in report.kept


def test_a_newer_exercise_arrives_beside_work_and_is_said(tmp_path: Path) -> None:
    course = tmp_path / "course" / "exercises"
    course.mkdir(parents=True)
    (course / "04_x.ipynb").write_text("one", encoding="utf-8")
    lab = tmp_path / "lab"
    prepare_workspace(lab, {"exercises": course})
    (lab / "exercises/04_x.ipynb").write_text("my work", encoding="utf-8")
    (course / "04_x.ipynb").write_text("two", encoding="utf-8")
    report = prepare_workspace(lab, {"exercises": course})
    assert (lab / "exercises/04_x.ipynb").read_text(encoding="utf-8") == "my work"
    assert (lab / "exercises/04_x.new.ipynb").read_text(encoding="utf-8") == "two"
    assert "newer version" in str(report)


def test_check_in_a_lab_remembers_for_progress(lab: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(lab / "exercises")
    space: dict[str, Any] = {"check": check, "CheckFailed": CheckFailed}
    exec("try:\n    check('04.1')\nexcept CheckFailed as error:\n    said = str(error)", space)
    assert "not right yet" in space["said"]
    assert read_progress(lab) == {"04.1": False}
    note_progress(lab, {"04.1": True, "04.2": False})
    assert read_progress(lab) == {"04.1": True, "04.2": False}
    assert find_lab(lab.parent / "elsewhere") is None


def test_check_works_where_no_process_can_fork(lab: Path, monkeypatch: Any) -> None:
    monkeypatch.delattr(os, "fork")
    exercise = load_exercise("04")
    told = list(check_notebook(exercise, lab / "exercises" / f"{NAME}.ipynb"))
    assert [(key, right) for key, right, _ in told] == [(k, False) for k in exercise.by_key]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a system that can fork")
def test_check_and_progress_in_a_terminal_that_knows_only_ascii(lab: Path) -> None:
    path = lab / "exercises" / f"{NAME}.ipynb"
    notebook = nbformat.reads(path.read_text(encoding="utf-8"), as_version=4)
    answer = next(c for c in notebook.cells if c.id == "ex04-3-answer")
    answer.source = 'starved = "BIG"\nMended = ContinuousScheduler  # é'
    path.write_text(nbformat.writes(notebook), encoding="utf-8")
    environment = os.environ | {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0"}
    environment["PYTHONIOENCODING"] = "ascii"
    command = [sys.executable, "-m", "toyserve"]
    checked = subprocess.run(
        [*command, "check", "04"], cwd=lab, env=environment, capture_output=True, check=False
    )
    text = checked.stdout.decode("ascii")
    assert checked.returncode == 1, checked.stderr
    assert "04.3 is right" in text
    assert "Next: 04.4" in text
    assert text.count("It is still to be written.") == 4
    shown = subprocess.run(
        [*command, "progress", "--json"], cwd=lab, env=environment, capture_output=True, check=True
    )
    parts = json.loads(shown.stdout)["parts"]
    assert (parts["04.3"], parts["04.1"]) == (True, False)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("static_steps = 5 is too many", "`static_steps` = 5 is too many."),
        ("watermark = 6: it is a share", "`watermark` = 6: it is a share."),
        ("tokens_again(run) is 3", "`tokens_again(run)` is 3."),
        ("Crowds.schedule() lets 3 run", "`Crowds.schedule()` lets 3 run."),
        ("step 3 lets A in", "Step 3 lets A in."),
        ("is that so?", "Is that so?"),
    ],
)
def test_a_sentence_begins_with_a_capital_unless_with_a_name_of_code(text: str, shown: str) -> None:
    from toyserve.course.checks.feedback import sentence

    assert sentence(text) == shown
