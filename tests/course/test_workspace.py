"""Nobody's work is ever overwritten."""

from __future__ import annotations

from pathlib import Path

import pytest

from toyserve.course import workspace
from toyserve.course.workspace import MANIFEST, WorkspaceError, prepare_workspace

NAME = "lessons/04_x.ipynb"


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, Path]:
    folder = tmp_path / "course" / "lessons"
    folder.mkdir(parents=True)
    (folder / "04_x.ipynb").write_bytes(b"version 1")
    (folder / "05_y.ipynb").write_bytes(b"other")
    (folder / "notes.txt").write_bytes(b"not a notebook")
    return {"lessons": folder}


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    return tmp_path / "mein Kurs é"


def deliver(sources: dict[str, Path], content: bytes) -> None:
    (sources["lessons"] / "04_x.ipynb").write_bytes(content)


def test_the_first_call_copies_every_notebook(sources: dict[str, Path], mine: Path) -> None:
    report = prepare_workspace(mine, sources)
    assert report.new == [NAME, "lessons/05_y.ipynb"]
    assert (mine / NAME).read_bytes() == b"version 1"
    assert not (mine / "lessons/notes.txt").exists()
    assert report.start == NAME


def test_a_second_call_changes_nothing(sources: dict[str, Path], mine: Path) -> None:
    prepare_workspace(mine, sources)
    before = {p: p.stat().st_mtime_ns for p in (mine / "lessons").iterdir()}
    report = prepare_workspace(mine, sources)
    assert before == {p: p.stat().st_mtime_ns for p in (mine / "lessons").iterdir()}
    assert (report.new, report.updated, report.kept, report.beside) == ([], [], [], {})


def test_a_changed_file_stays(sources: dict[str, Path], mine: Path) -> None:
    prepare_workspace(mine, sources)
    (mine / NAME).write_bytes(b"my work")
    report = prepare_workspace(mine, sources)
    assert (mine / NAME).read_bytes() == b"my work"
    assert report.kept == [NAME]
    assert not report.beside


def test_a_newer_version_arrives_beside_changed_work_once(
    sources: dict[str, Path], mine: Path
) -> None:
    prepare_workspace(mine, sources)
    (mine / NAME).write_bytes(b"my work")
    deliver(sources, b"version 2")
    report = prepare_workspace(mine, sources)
    assert (mine / NAME).read_bytes() == b"my work"
    assert report.beside == {NAME: "lessons/04_x.new.ipynb"}
    assert (mine / "lessons/04_x.new.ipynb").read_bytes() == b"version 2"
    assert "04_x.new.ipynb" in str(report)
    again = prepare_workspace(mine, sources)
    assert (again.kept, again.beside) == ([NAME], {})


def test_a_newer_version_never_lands_on_work_in_an_earlier_one(
    sources: dict[str, Path], mine: Path
) -> None:
    prepare_workspace(mine, sources)
    (mine / NAME).write_bytes(b"my work")
    deliver(sources, b"version 2")
    prepare_workspace(mine, sources)
    (mine / "lessons/04_x.new.ipynb").write_bytes(b"more work")
    deliver(sources, b"version 3")
    report = prepare_workspace(mine, sources)
    assert (mine / "lessons/04_x.new.ipynb").read_bytes() == b"more work"
    assert report.beside == {NAME: "lessons/04_x.new2.ipynb"}


def test_an_untouched_file_is_brought_up_to_date(sources: dict[str, Path], mine: Path) -> None:
    prepare_workspace(mine, sources)
    deliver(sources, b"version 2")
    report = prepare_workspace(mine, sources)
    assert report.updated == [NAME]
    assert (mine / NAME).read_bytes() == b"version 2"


@pytest.mark.parametrize("manifest", [None, b"{", b"[1]", b'{"lessons/04_x.ipynb": 3}', b"\xff"])
def test_without_a_readable_manifest_every_difference_counts_as_work(
    sources: dict[str, Path], mine: Path, manifest: bytes | None
) -> None:
    prepare_workspace(mine, sources)
    (mine / MANIFEST).unlink()
    if manifest is not None:
        (mine / MANIFEST).write_bytes(manifest)
    deliver(sources, b"version 2")
    report = prepare_workspace(mine, sources)
    assert (mine / NAME).read_bytes() == b"version 1"
    assert report.beside


def test_a_deleted_lesson_comes_back(sources: dict[str, Path], mine: Path) -> None:
    prepare_workspace(mine, sources)
    (mine / NAME).unlink()
    assert prepare_workspace(mine, sources).new == [NAME]


def test_a_folder_in_the_way_is_left_alone(sources: dict[str, Path], mine: Path) -> None:
    (mine / NAME).mkdir(parents=True)
    report = prepare_workspace(mine, sources)
    assert (mine / NAME).is_dir()
    assert report.beside


def test_working_in_the_course_s_own_folder_is_harmless(sources: dict[str, Path]) -> None:
    report = prepare_workspace(sources["lessons"].parent, sources)
    assert (report.new, report.updated, report.kept, report.beside) == ([], [], [], {})


def test_a_file_where_the_folder_should_be_is_said_in_one_sentence(
    sources: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(WorkspaceError, match="cannot be used as your course folder"):
        prepare_workspace(tmp_path / "file", sources)


def test_an_installation_without_lessons_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "site-packages" / "toyserve" / "__init__.py"
    monkeypatch.setattr(workspace.toyserve, "__file__", str(fake))
    monkeypatch.setattr(workspace.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(WorkspaceError, match="came without its lessons"):
        prepare_workspace(tmp_path / "mine")
