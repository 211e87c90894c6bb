"""What somebody gets who installs the package instead of cloning the repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("toyserve", "kernels", "lessons", "exercises", "solutions", "LICENSE", "README.md")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, for a build leaves its own folders behind."""
    copy = tmp_path_factory.mktemp("source")
    for name in (*PARTS, "pyproject.toml"):
        source, target = ROOT / name, copy / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--no-index", "-w", str(out), str(copy)], check=True)
    (path,) = out.glob("*.whl")
    return path


@pytest.mark.slow
def test_the_wheel_holds_every_lesson_and_exercise_and_no_solution(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for folder in ("lessons", "exercises"):
        notebooks = sorted(path.name for path in (ROOT / folder).glob("*.ipynb"))
        assert notebooks
        inside = sorted(n.split("/")[1] for n in names if n.startswith(f"toyserve_{folder}/"))
        assert [name for name in inside if name.endswith(".ipynb")] == notebooks
    assert "toyserve_lessons/glossary.md" in names
    assert not [n for n in names if "solution" in n or "planted" in n]


@pytest.mark.slow
def test_the_installed_package_prepares_a_course_folder_without_the_repository(
    wheel: Path, tmp_path: Path
) -> None:
    installed, course = tmp_path / "site", tmp_path / "my course"
    zipfile.ZipFile(wheel).extractall(installed)
    command = [sys.executable, "-m", "toyserve", "lab", "--prepare-only", str(course)]
    environment = os.environ | {"PYTHONPATH": str(installed)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for folder in ("lessons", "exercises"):
        there = sorted(path.name for path in (course / folder).glob("*.ipynb"))
        assert there == sorted(path.name for path in (ROOT / folder).glob("*.ipynb"))
