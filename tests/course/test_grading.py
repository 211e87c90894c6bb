"""A class of more than thirty in one run, one of each bad kind: nobody gets a point by a trick, and
nobody loses one by an accident elsewhere.
"""

from __future__ import annotations

import copy
import csv
import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import nbformat
import pytest
from bad_answers import BAD

from toyserve.cli import main
from toyserve.course import exercise_builder as builder
from toyserve.course.grading import classroom
from toyserve.course.grading.jobs import find_submissions, read_roster
from toyserve.course.grading.marks import add_marks

ROOT = Path(__file__).resolve().parents[2]
NAME = "04_continuous_batching"
NOT_A_NOTEBOOK = {
    "cut-off": b'{"cells": [{"cell_type": "co',
    "latin-1": '{"cells": ["é"]}'.encode("latin-1"),
    "nothing": b"",
    "a-list": b"[1, 2]",
}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="a class is graded where processes fork"),
]


@cache
def solution() -> nbformat.NotebookNode:
    """The exercise solved, as a learner hands it in: no hidden tests."""
    solved = builder.read_exercise(ROOT / "solutions/source" / f"{NAME}.py")
    notebook = builder.cut(solved)
    for mine, theirs in zip(notebook.cells, solved.cells, strict=True):
        if mine.get("metadata", {}).get("nbgrader", {}).get("solution"):
            lines = theirs.source.splitlines()
            mine.source = "\n".join(line for line in lines if "### " not in line)
    return notebook


def hand_in(folder: Path, learner: str, notebook: nbformat.NotebookNode) -> Path:
    path = folder / learner / f"{NAME}.ipynb"
    path.parent.mkdir(parents=True)
    half = learner == "odd-text"  # half a character can be written as an escape only
    path.write_text(json.dumps(notebook, ensure_ascii=half), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def graded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[str, Any]]:
    """The folder of submissions, where the reports went, and every result by learner."""
    folder = tmp_path_factory.mktemp("Abgabe é") / "class a"
    for kind, bad in BAD.items():
        notebook = copy.deepcopy(solution())
        bad.change(notebook)
        hand_in(folder, kind, notebook)
    hand_in(folder, "gründlich, all right", solution())
    for kind, data in NOT_A_NOTEBOOK.items():
        (folder / kind).mkdir()
        (folder / kind / f"{NAME}.ipynb").write_bytes(data)
    out = folder.parent
    roster = out / "roster.csv"
    roster.write_text("id\nnever-ran\nabsent\n", encoding="utf-8")
    reports = [f"--csv={out / 'g.csv'}", f"--json={out / 'g.json'}", f"--html={out / 'pages'}"]
    limits = ["--cell-seconds=6", "--part-seconds=6", f"--roster={roster}"]
    assert main(["grade", str(folder), "04", *reports, *limits]) == 0
    results = json.loads((out / "g.json").read_text(encoding="utf-8"))["results"]
    return folder, out, {row["learner"]: row for row in results}


def lost(row: dict[str, Any]) -> tuple[str, ...]:
    return tuple(part["key"] for part in row["parts"] if part["points"] == 0)


def test_there_are_thirty_and_each_has_a_result(graded: tuple[Path, Path, dict[str, Any]]) -> None:
    assert len(BAD) >= 29
    assert set(graded[2]) == {*BAD, *NOT_A_NOTEBOOK, "gründlich, all right"}


def test_a_good_one_has_all_points(graded: tuple[Path, Path, dict[str, Any]]) -> None:
    row = graded[2]["gründlich, all right"]
    assert (lost(row), row["notes"]) == ((), [])
    assert [part["points"] for part in row["parts"]] == [2, 2, 3, 2, 2, None]
    assert "Whoever arrives in a burst pays" in row["parts"][-1]["answer"]


@pytest.mark.parametrize("kind", list(BAD))
def test_it_costs_that_part_and_nothing_else(
    graded: tuple[Path, Path, dict[str, Any]], kind: str
) -> None:
    row = graded[2][kind]
    assert lost(row) == BAD[kind].lost
    said = " ".join([part["text"] for part in row["parts"]] + row["notes"])
    assert BAD[kind].says in said


@pytest.mark.parametrize("kind", list(NOT_A_NOTEBOOK))
def test_what_is_no_notebook_is_said_and_scores_nothing(
    graded: tuple[Path, Path, dict[str, Any]], kind: str
) -> None:
    row = graded[2][kind]
    assert row["points"] == 0
    assert "is not" in row["notes"][0]


def test_the_reports_have_everybody(graded: tuple[Path, Path, dict[str, Any]]) -> None:
    _, out, results = graded
    rows = list(csv.DictReader((out / "g.csv").read_text(encoding="utf-8-sig").splitlines()))
    assert {row["learner"] for row in rows} == {*results, "absent"}
    by_name = {row["learner"]: row for row in rows}
    assert by_name["gründlich, all right"]["points"] == "11"
    assert by_name["gründlich, all right"]["04.6"] == ""
    assert by_name["never-ran"]["04.2"] == "0"
    index = (out / "pages/index.html").read_text(encoding="utf-8")
    assert "commonest wrong answers" in index
    page = (out / "pages/learners/shadowed-checker.html").read_text(encoding="utf-8")
    assert "data:image/png" in page
    assert "smallest case" in page
    for row in results.values():
        assert "SECRET" not in json.dumps(row)


def test_a_second_run_grades_only_what_is_new(
    graded: tuple[Path, Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _, _ = graded
    seen: list[str] = []

    def parallel(jobs: Any, *_: Any) -> list[Any]:
        seen.extend(job.learner for job in jobs)
        return [json.loads(kept.read_text(encoding="utf-8")) for kept in
                (folder / ".toyserve-grades/results" / job.learner / f"{NAME}.json"
                 for job in jobs)]  # fmt: skip

    monkeypatch.setattr(classroom, "_in_parallel", parallel)
    limits = ["--cell-seconds=6", "--part-seconds=6"]
    assert main(["grade", str(folder), "04", *limits]) == 0
    assert seen == []
    changed = folder / "empty" / f"{NAME}.ipynb"
    changed.write_text(changed.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    assert main(["grade", str(folder), "04", *limits]) == 0
    assert seen == ["empty"]


def test_names_of_learners_and_the_newest_of_two_files(tmp_path: Path) -> None:
    text = json.dumps(solution())
    for name in ("ada__04_continuous_batching.ipynb", "bob 04_continuous_batching.ipynb"):
        (tmp_path / name).write_text(text, encoding="utf-8")
    for name in (
        f"eve/deep/{NAME}.ipynb",
        f"eve/{NAME} (1).ipynb",
        "eve/.ipynb_checkpoints/x.ipynb",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    os.utime(tmp_path / f"eve/deep/{NAME}.ipynb", (1, 1))
    jobs = find_submissions(tmp_path, [NAME], tmp_path / "out")
    assert [job.learner for job in jobs] == ["ada", "bob", "eve"]
    assert "(1).ipynb counts" in jobs[2].note


@pytest.mark.parametrize("text", ["", "id\n", "id\na\na\n", "id\n../x\n", "id\n \n"])
def test_a_roster_that_cannot_be_used_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "r.csv").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"r\.csv"):
        read_roster(tmp_path / "r.csv")


def explained(points: float | None = None) -> list[dict[str, Any]]:
    part = {"key": "04.6", "points": points, "out_of": 2.0, "answer": "Because, they say; =1+1"}
    return [{"learner": "ånna", "exercise": NAME, "points": 3.0, "parts": [part]}]


def test_explanations_are_written_out_and_their_points_read_back(tmp_path: Path) -> None:
    table = tmp_path / "é.csv"
    assert add_marks(explained(), table) == 1
    assert add_marks(explained(), table) == 1
    text = table.read_text(encoding="utf-8-sig")
    assert text.count("04.6") == 1
    table.write_text(text.replace("2.0,,", "2.0,1.5,"), encoding="utf-8")
    results = explained()
    assert add_marks(results, table) == 0
    assert results[0]["points"] == 4.5
    assert "1.5" in table.read_text(encoding="utf-8-sig")


@pytest.mark.parametrize("points", ["3", "-1", "x", "nan"])
def test_points_that_cannot_be_are_refused(tmp_path: Path, points: str) -> None:
    table = tmp_path / "marks.csv"
    table.write_text(f"learner,part,points\nånna,04.6,{points}\n", encoding="utf-8")
    with pytest.raises(ValueError, match="from 0 to 2"):
        add_marks(explained(), table)
