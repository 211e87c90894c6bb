"""What a class gets: nothing of a solution or a hidden test, anywhere, and numbers of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import nbformat
import pytest

from toyserve.cli import main
from toyserve.course.exercise import seed_in
from toyserve.course.exercise_files import find_solutions, seed_for
from toyserve.course.release import Leak, search_for, secret_lines

NAME = "04_continuous_batching"


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("Klasse é")
    roster = folder / "roster.csv"
    roster.write_text("Name,Email\nAnna,anna@x.example\nBjørn,bjørn\n", encoding="utf-8")
    out = folder / "out"
    assert main(["release", f"--out={out}", f"--roster={roster}", "--seed=7", "04"]) == 0
    return out


@pytest.fixture(scope="module")
def secrets() -> dict[str, str]:
    teacher = {
        name: nbformat.reads(path.read_text(encoding="utf-8"), as_version=4)
        for name, path in find_solutions().items()
    }
    return secret_lines(teacher)


def test_each_learner_has_the_exercise_with_numbers_of_their_own(released: Path) -> None:
    seeds = {}
    for learner in ("anna@x.example", "bjørn"):
        path = released / "learners" / learner / "exercises" / f"{NAME}.ipynb"
        seeds[learner] = seed_in(nbformat.reads(path.read_text(encoding="utf-8"), as_version=4))
        assert seeds[learner] == seed_for(learner, 7)
    assert len(set(seeds.values())) == 2
    text = (released / "teacher-only/seeds.csv").read_text(encoding="utf-8")
    assert f"bjørn,{seeds['bjørn']}" in text


def test_there_is_enough_to_look_for_and_nothing_of_it_is_found(
    released: Path, secrets: dict[str, str]
) -> None:
    assert len(secrets) > 20
    assert any("check" in whose for whose in secrets.values())
    for part in ("course", "learners"):
        assert search_for(released / part, secrets) > 0
    names = {path.name for path in released.rglob("*")}
    assert not names & {"solutions", "planted", "tests", "__pycache__", ".ipynb_checkpoints"}
    assert [p.name for p in (released / "course/exercises").iterdir()] == [f"{NAME}.ipynb"]


@pytest.mark.parametrize("place", ["source", "output", "metadata", "checkpoint", "pycache", "text"])
def test_a_leak_anywhere_is_found(tmp_path: Path, secrets: dict[str, str], place: str) -> None:
    secret = next(line for line, whose in secrets.items() if '"' in line and "check" in whose)
    cell = nbformat.v4.new_code_cell("x = 1")
    folder = tmp_path / "learners"
    folder.mkdir()
    if place == "source":
        cell.source = secret
    elif place == "output":
        cell.outputs = [nbformat.v4.new_output("stream", text=secret)]
    elif place == "metadata":
        cell.metadata["old"] = secret
    elif place == "text":
        (folder / "notes.txt").write_text(secret, encoding="utf-8")
    else:
        name = {"checkpoint": ".ipynb_checkpoints", "pycache": "__pycache__"}[place]
        (folder / name).mkdir()
        (folder / name / "x.pyc").write_bytes(b"")
    notebook = nbformat.v4.new_notebook(cells=[cell])
    (folder / f"{NAME}.ipynb").write_text(json.dumps(notebook), encoding="utf-8")
    with pytest.raises(Leak):
        search_for(folder, secrets)


@pytest.mark.slow
def test_the_wheel_that_the_released_course_builds_has_no_secret(
    released: Path, secrets: dict[str, str], tmp_path: Path
) -> None:
    pytest.importorskip("setuptools")
    code = f"from setuptools import build_meta; build_meta.build_wheel({str(tmp_path)!r})"
    course = tmp_path / "course"
    shutil.copytree(released / "course", course)
    subprocess.run([sys.executable, "-c", code], cwd=course, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert any("course/checks/ex04" in name for name in archive.namelist())
        assert any(name.endswith(f"checks/expected/{NAME}.json") for name in archive.namelist())
        archive.extractall(tmp_path / "unpacked")
    assert search_for(tmp_path / "unpacked", secrets) > 100


def test_nothing_is_written_over_a_release(
    released: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["release", f"--out={released}"]) == 2
    assert "not empty" in capsys.readouterr().err


def test_a_seed_needs_a_roster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["release", f"--out={tmp_path / 'x'}", "--seed=7"]) == 2
    assert "--roster" in capsys.readouterr().err


def test_what_the_open_text_of_an_exercise_says_is_no_secret() -> None:
    lines = ["self.admit(plan, request)", "self.my_own_idea_of_a_plan(plan)"]
    answer = "\n".join(["### BEGIN SOLUTION", *lines, "### END SOLUTION"])
    cells = [
        nbformat.v4.new_markdown_cell("`self.admit(plan, request)` lets in any request."),
        nbformat.v4.new_code_cell(answer, metadata={"nbgrader": {"grade_id": "ex01-1-answer"}}),
    ]
    secrets = secret_lines({"01_x": nbformat.v4.new_notebook(cells=cells)})
    assert list(secrets) == lines[1:]


def test_all_exercises_can_be_released_together(tmp_path: Path) -> None:
    assert main(["release", f"--out={tmp_path / 'out'}"]) == 0
