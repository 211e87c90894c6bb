"""The README's cell for hosted notebooks: it takes what lies beside them, and only if it must."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BADGE = re.search(r"\[!\[Open in Colab\]\([^)]+\)\]\(([^)]+)\)", README)


def cell() -> str:
    """The one install cell."""
    (code,) = re.findall(r"```ipython\n(.*?)```", README, re.DOTALL)
    return str(code)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """What would be run, in a folder that holds a notebook and nothing else."""
    seen: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", lambda command, **_: seen.append(command))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "04_continuous_batching.ipynb").write_text("{}")
    return seen


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without toyserve."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)


def run_cell(text: str) -> None:
    namespace: dict[str, Any] = {}
    exec(compile(text, "<install cell>", "exec"), namespace)


def test_where_toyserve_is_installed_nothing_is(calls: list[list[str]]) -> None:
    run_cell(cell())
    assert calls == []


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize("name", ["toyserve.zip", "toyserve-main.zip", "toyserve-course"])
def test_what_lies_beside_the_notebook_is_installed(
    calls: list[list[str]], tmp_path: Path, name: str
) -> None:
    beside = tmp_path / name
    if beside.suffix:
        beside.write_bytes(b"")
    else:
        beside.mkdir()
        (beside / "pyproject.toml").write_text("")
    (tmp_path / "my-toyserve-notes").mkdir()  # not a copy of the course
    run_cell(cell())
    (command,) = calls
    assert command[:4] == [sys.executable, "-m", "pip", "install"]
    assert command[-1] == f"toyserve[serve] @ {beside.as_uri()}"


@pytest.mark.usefixtures("bare")
def test_else_it_comes_from_the_address_once_there_is_one(calls: list[list[str]]) -> None:
    with pytest.raises(ValueError, match="say where toyserve is"):
        run_cell(cell().replace(address(), "https://github.com/OWNER/toyserve"))
    run_cell(cell().replace(address(), "https://github.com/ada/toyserve"))
    assert calls[0][-1] == "toyserve[serve] @ git+https://github.com/ada/toyserve"


def address() -> str:
    match = re.search(r'REPOSITORY = "([^"]+)"', cell())
    assert match is not None
    return match[1]


def test_badge_and_cell_have_the_address_that_the_project_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    known = project.get("urls", {}).get("Repository")
    assert BADGE is not None
    if known is None:  # then the README has to say so
        assert "names no public address" in README
        assert (BADGE[1], "/OWNER/" in address()) == (
            "https://colab.research.google.com/github/",
            True,
        )
        return
    place = known.removeprefix("https://github.com/").removesuffix(".git")
    assert BADGE[1].startswith(f"https://colab.research.google.com/github/{place}/blob/")
    assert address() == known
    assert "names no public address" not in README


@pytest.mark.parametrize("page", ["README.md", "docs/teaching.md"])
def test_who_installs_with_pip_gets_what_make_lab_gives(page: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (extras,) = re.findall(r"^EXTRAS_lab := (\S+)$", makefile, re.MULTILINE)
    lines = re.findall(
        r'pip install -c constraints.txt -e "\.(\[lab\S*\])"', (ROOT / page).read_text()
    )
    assert lines and set(lines) == {extras}
