"""The start page: it knows every lesson there is, links to it, and says how far one is."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import nbformat
import pytest

from toyserve.cli import main
from toyserve.course import start_page
from toyserve.course.builder import find_sources, target_of
from toyserve.course.exercise_progress import note_progress
from toyserve.course.outline import LAYERS, QUESTIONS, read_outline
from toyserve.course.progress import LessonState, lesson_progress
from toyserve.course.start_page import course_map, first_picture, lesson_table
from toyserve.course.workspace import prepare_workspace

LESSONS = Path(__file__).resolve().parents[2] / "lessons"


def notebook(path: Path, first: str, *outputs: str, run: bool = True) -> Path:
    cells = [nbformat.v4.new_markdown_cell(first)]
    for text in outputs:
        stream = nbformat.v4.new_output("stream", text=text)
        code = "print('wrong', '✗')" if text.startswith("wrong") else "print('✓' if x else '✗')"
        cells.append(nbformat.v4.new_code_cell(code, outputs=[stream], execution_count=int(run)))
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A course folder with two lessons as delivered."""
    source = tmp_path / "course"
    notebook(source / "00_a.ipynb", "# 00 · First\n\n**Why?**\n\n*5–10 minutes.*", "fine")
    notebook(source / "04_b.ipynb", "# 04 · Second\n\n**Is it\nso?** *40 minutes*", "✗ no", "ok")
    exercises = tmp_path / "exercises"
    notebook(exercises / "04_continuous_batching.ipynb", "# Exercise 04")
    prepare_workspace(tmp_path / "mine", {"lessons": source, "exercises": exercises})
    return tmp_path / "mine/lessons"


def test_a_lesson_introduces_itself(folder: Path) -> None:
    first, second = read_outline(folder)
    assert (first.number, first.title) == ("00", "First")
    assert first.question == "Who gets the next word?"
    assert (first.minutes, first.time, first.layer) == ((5, 10), "5–10 min", "the whole server")
    assert (second.time, second.layer) == ("40 min", "scheduler")


def test_notes_copies_and_broken_files_are_no_lessons(folder: Path) -> None:
    notebook(folder / "04_b-Copy1.ipynb", "# 04 · Second")
    notebook(folder / "04_b.new.ipynb", "# 04 · Second")
    notebook(folder / "05_notes.ipynb", "# My notes")
    notebook(folder / "77_later.ipynb", "# 77 · Not of this course")
    (folder / "06_broken.ipynb").write_text("{", encoding="utf-8")
    assert [lesson.file for lesson in read_outline(folder)] == ["00_a.ipynb", "04_b.ipynb"]


def test_every_number_of_the_course_has_one_layer() -> None:
    numbers = sorted(number for row in LAYERS.values() for number in row)
    assert numbers == [f"{n:02}" for n in range(15)] == sorted(QUESTIONS)


def test_the_readme_asks_the_same_questions_as_the_start_page() -> None:
    readme = (LESSONS.parent / "README.md").read_text(encoding="utf-8")
    asked = dict(re.findall(r"^\| (\d\d) \| [^|]+ \| ([^|]+) \|$", readme, re.MULTILINE))
    assert asked == QUESTIONS
    assert all(question.endswith("?") for question in QUESTIONS.values())


def test_a_teacher_s_four_weeks_hold_all_lessons_and_no_week_is_overfull() -> None:
    readme = (LESSONS.parent / "README.md").read_text(encoding="utf-8")
    (plan,) = re.findall(r"^\| \*\*4 weeks, 2 × 90 min each\*\* \| (.*) \|$", readme, re.MULTILINE)
    weeks = [range(int(a), int(b) + 1) for a, b in re.findall(r"Week \d: (\d\d) to (\d\d)", plan)]
    lessons = {int(one.number): one for one in read_outline(LESSONS)}
    assert [number for week in weeks for number in week] == sorted(lessons)
    for week in weeks:
        assert sum((lessons[number].minutes or (0, 999))[1] for number in week) <= 2 * 90


def test_progress_is_read_from_the_learner_s_own_files(folder: Path) -> None:
    file = folder / "04_b.ipynb"

    def progress() -> tuple[LessonState, int, int]:
        found = lesson_progress(file)
        return found.state, found.num_passed, found.num_checks

    assert progress() == (LessonState.NEW, 0, 1)  # executed, but as delivered
    assert lesson_progress(folder / "99_gone.ipynb").state is LessonState.NEW
    notebook(file, "# 04 · Second", "✗ no", "✓ yes", "no check")
    assert progress() == (LessonState.BEGUN, 1, 2)
    notebook(file, "# 04 · Second", "✓ yes", "Not yet: 12")
    assert progress() == (LessonState.BEGUN, 1, 2)
    notebook(file, "# 04 · Second", "✓ yes", "more", run=False)
    assert progress()[0] is LessonState.BEGUN
    notebook(file, "# 04 · Second", "✓ yes", "wrong ✗ on purpose")
    assert progress() == (LessonState.SOLVED, 1, 1)


def test_every_lesson_of_the_course_has_checks_and_starts_unsolved() -> None:
    for lesson in read_outline(LESSONS):
        progress = lesson_progress(LESSONS / lesson.file)
        assert progress.state is LessonState.NEW
        assert progress.num_checks > progress.num_passed, lesson.file


def test_the_table_links_every_lesson_and_says_what_is_next(folder: Path) -> None:
    table = lesson_table(folder)
    assert '<a href="04_b.ipynb">04 · Second</a>' in table.html
    assert "0 of 2 lessons and 0 of 5 exercise parts solved. Next: 00 · First." in table.text
    notebook(folder / "00_a.ipynb", "# 00 · First", "✓")
    notebook(folder / "04_b.ipynb", "# 04 · Second", "✗")
    text = lesson_table(folder).text
    assert "1 of 2 lessons and" in text and "Go on with 04 · Second." in text
    notebook(folder / "04_b.ipynb", "# 04 · Second", "✓")
    text = lesson_table(folder).text
    assert "2 of 2 lessons and" in text and "That was all of them." in text


def test_the_table_counts_the_parts_of_an_exercise_as_the_terminal_does(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    link = '<a href="../exercises/04_continuous_batching.ipynb">'
    assert f"{link}○ 0 of 5</a>" in lesson_table(folder).html
    for known, seen in (
        ({"04.1": False}, "◐ 0 of 5"),
        ({"04.1": True, "04.3": True, "99.1": True}, "◐ 2 of 5"),
        ({f"04.{n}": True for n in range(1, 6)}, "● 5 of 5"),
    ):
        note_progress(folder.parent, known)
        table = lesson_table(folder)
        assert f"{link}{seen}</a>" in table.html and seen in table.text
        assert main(["progress", "--lab", str(folder.parent)]) == 0
        row = next(r for r in capsys.readouterr().out.splitlines() if r.startswith("04 "))
        assert row.endswith(seen[2:])
    assert "and 5 of 5 exercise parts" in lesson_table(folder).text


def test_lessons_without_exercises_beside_them_have_a_table_too(tmp_path: Path) -> None:
    notebook(tmp_path / "lessons/00_a.ipynb", "# 00 · First", "fine")
    text = lesson_table(tmp_path / "lessons").text
    assert "1 of 1 lessons solved. That was all of them." in text


def test_the_first_picture_is_made_by_the_engine_without_a_model(tmp_path: Path) -> None:
    upper, lower = first_picture().axes
    assert upper.get_title(loc="left").endswith("140 steps")
    assert lower.get_title(loc="left").endswith("100 steps")
    assert upper.get_xlim() == lower.get_xlim()
    code = "import sys; from toyserve.course.start_page import first_picture as f; f(); "
    code += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False).returncode == 0


def test_the_map_has_a_box_for_each_lesson_in_place(folder: Path) -> None:
    (ax,) = course_map(folder).axes
    assert [p.get_gid() for p in ax.patches if p.get_gid()] == ["00_a.ipynb", "04_b.ipynb"]
    places = [start_page._place(n) for n in range(15)]
    assert len(set(places)) == 15
    assert all(abs(a - c) + abs(b - d) == 1 for (a, b), (c, d) in pairwise(places))


def test_the_start_page_is_built_and_checked_like_a_lesson_and_comes_last() -> None:
    assert find_sources(LESSONS, [])[-1].name == "index.py"
    assert [s.name for s in find_sources(LESSONS, ["index"])] == ["index.py"]


def test_the_committed_page_knows_every_lesson_there_is() -> None:
    page = nbformat.reads((LESSONS / "index.ipynb").read_text(encoding="utf-8"), as_version=4)
    shown = "".join(o.data["text/html"] for c in page.cells if c.cell_type == "code"
                    for o in c.outputs if "text/html" in o.get("data", {}))  # fmt: skip
    lessons = [t for s in find_sources(LESSONS, ["0", "1"]) if (t := target_of(s)).exists()]
    for lesson in lessons:
        first = nbformat.reads(lesson.read_text(encoding="utf-8"), as_version=4).cells[0]
        title = first.source.splitlines()[0].removeprefix("# ")
        assert f'<a href="{lesson.name}">{title}</a>' in shown, (
            f"{lesson.name} is not on the start page: python -m toyserve.course.builder index"
        )
    exercises = sorted((LESSONS.parent / "exercises").glob("[0-9]*.ipynb"))
    for exercise in exercises:
        assert f'<a href="../exercises/{exercise.name}">○ 0 of 5</a>' in shown
    assert shown.count("<a href=") == len(lessons) + len(exercises)
    assert shown.count("○ not begun") == len(lessons)  # nobody's progress is in it


def test_lab_opens_the_start_page(tmp_path: Path) -> None:
    report = prepare_workspace(tmp_path)
    assert report.start == "lessons/index.ipynb"
    assert json.loads((tmp_path / report.start).read_text(encoding="utf-8"))["cells"]
