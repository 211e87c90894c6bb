"""The start page: it knows every lesson there is, links to it, and says how far one is."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import nbformat
import pytest

from toyserve.course import start_page
from toyserve.course.builder import find_sources, target_of
from toyserve.course.outline import LAYERS, read_outline
from toyserve.course.progress import LessonState, lesson_progress
from toyserve.course.start_page import course_map, lesson_table
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
    prepare_workspace(tmp_path / "mine", {"lessons": source})
    return tmp_path / "mine/lessons"


def test_a_lesson_introduces_itself(folder: Path) -> None:
    first, second = read_outline(folder)
    assert (first.number, first.title, first.question) == ("00", "First", "Why?")
    assert (first.minutes, first.time, first.layer) == ((5, 10), "5–10 min", "the whole server")
    assert (second.question, second.time, second.layer) == ("Is it so?", "40 min", "scheduler")


def test_notes_copies_and_broken_files_are_no_lessons(folder: Path) -> None:
    notebook(folder / "04_b-Copy1.ipynb", "# 04 · Second")
    notebook(folder / "04_b.new.ipynb", "# 04 · Second")
    notebook(folder / "05_notes.ipynb", "# My notes")
    notebook(folder / "77_later.ipynb", "# 77 · Not of this course")
    (folder / "06_broken.ipynb").write_text("{", encoding="utf-8")
    assert [lesson.file for lesson in read_outline(folder)] == ["00_a.ipynb", "04_b.ipynb"]


def test_every_number_of_the_course_has_one_layer() -> None:
    numbers = sorted(number for row in LAYERS.values() for number in row)
    assert numbers == [f"{n:02}" for n in range(15)]


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
    assert "0 of 2 lessons solved. Next: 00 · First." in table.text
    notebook(folder / "00_a.ipynb", "# 00 · First", "✓")
    notebook(folder / "04_b.ipynb", "# 04 · Second", "✗")
    assert "1 of 2 lessons solved. Go on with 04 · Second." in lesson_table(folder).text
    notebook(folder / "04_b.ipynb", "# 04 · Second", "✓")
    assert "2 of 2 lessons solved. That was all of them." in lesson_table(folder).text


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
    assert shown.count("<a href=") == len(lessons)
    assert "begun" not in shown


def test_lab_opens_the_start_page(tmp_path: Path) -> None:
    report = prepare_workspace(tmp_path)
    assert report.start == "lessons/index.ipynb"
    assert json.loads((tmp_path / report.start).read_text(encoding="utf-8"))["cells"]
