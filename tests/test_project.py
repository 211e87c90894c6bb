"""The repository as a whole: what is declared, pinned, documented and shipped fits together."""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import subprocess
import tomllib
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import toyserve
from toyserve.cli import main, make_parser

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
README = (ROOT / "README.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
WORKFLOW_FILES = ("run", "venv", "constraints")


def tracked_files() -> list[str]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: what is tracked cannot be told")
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, check=True
    )
    return [name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).exists()]


# -- packages and pins --------------------------------------------------------------------------


def test_every_package_is_declared() -> None:
    folders = {"toyserve": "toyserve", "kernels": "toyserve_kernels"}
    found = set()
    for folder, package in folders.items():
        for init in (ROOT / folder).rglob("__init__.py"):
            parts = init.parent.relative_to(ROOT / folder).parts
            found.add(".".join((package, *parts)))
    notebooks = {"toyserve_lessons", "toyserve_exercises"}  # without code
    assert set(PYPROJECT["tool"]["setuptools"]["packages"]) == found | notebooks


def test_every_file_beside_the_code_is_package_data() -> None:
    patterns = PYPROJECT["tool"]["setuptools"]["package-data"]["toyserve"]
    files = [n.removeprefix("toyserve/") for n in tracked_files() if n.startswith("toyserve/")]
    left_out = [n for n in files if not n.endswith(".py")]
    left_out = [n for n in left_out if not any(fnmatch(n, pattern) for pattern in patterns)]
    assert not left_out, f"not in [tool.setuptools.package-data]: {left_out}"


def constraints() -> dict[str, str]:
    """Canonical name -> the requirement as it stands."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    lines = [line for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(Requirement(line).name): line for line in lines}


def test_constraints_pin_one_exact_version_each() -> None:
    for line in constraints().values():
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*(; .+)?", line), line


def test_constraints_pin_all_that_any_extra_installs() -> None:
    """Walks what the installed packages ask for. CUDA's own packages are pinned by torch."""
    pinned = constraints()
    extras = PYPROJECT["project"]["optional-dependencies"].values()
    todo = list(PYPROJECT["project"]["dependencies"]) + [line for group in extras for line in group]
    seen: set[str] = set()
    missing = set()
    while todo:
        requirement = Requirement(todo.pop())
        name = canonicalize_name(requirement.name)
        wanted = requirement.extras or {""}
        if requirement.marker and not any(requirement.marker.evaluate({"extra": e}) for e in ("",)):
            continue
        if name.startswith(("nvidia-", "cuda-")) or f"{name}{sorted(wanted)}" in seen:
            continue
        seen.add(f"{name}{sorted(wanted)}")
        if name not in pinned:
            missing.add(name)
        todo += needed_by(name, wanted)
    assert not missing, f"not in constraints.txt: {sorted(missing)} (make constraints)"


def needed_by(name: str, extras: set[str]) -> list[str]:
    """What an installed package asks for here, with these of its extras; [] if not installed."""
    try:
        lines = metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return []
    needed = []
    for line in lines:
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": e}) for e in {"", *extras}):
            requirement.marker = None
            needed.append(str(requirement))
    return needed


def test_the_version_is_the_same_everywhere() -> None:
    assert PYPROJECT["project"]["version"] == toyserve.__version__
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert "## [Unreleased]" in changelog or f"## [{toyserve.__version__}]" in changelog


# -- what the README says -----------------------------------------------------------------------


def code_blocks(*languages: str) -> list[str]:
    return [
        code
        for language, code in re.findall(r"```(\w+)\n(.*?)```", README, flags=re.DOTALL)
        if language in languages
    ]


def shell_lines() -> list[str]:
    lines = [line for block in code_blocks("sh", "powershell") for line in block.splitlines()]
    return [line for line in lines if line.strip() and not line.startswith("#")]


def test_every_make_command_in_the_readme_is_a_target_and_in_the_help() -> None:
    targets = set(re.findall(r"^([a-z]+):", MAKEFILE, flags=re.MULTILINE))
    used = set(re.findall(r"(?:^|`)make ([a-z]+)", README, flags=re.MULTILINE))
    assert {"demo", "lab", "test"} <= used <= targets
    described = set(re.findall(r"make ([a-z]+) ", MAKEFILE.split("demo: ")[0]))
    assert targets - {"help"} <= described


def test_every_toyserve_command_in_the_readme_is_one() -> None:
    parser = make_parser()
    commands = [shlex.split(line, comments=True) for line in shell_lines()]
    commands = [c for c in commands if c[0].endswith("toyserve")]
    names = {"demo", "run", "lab", "doctor", "plan", "bench", "serve", "bench-serve"}
    names |= {"check", "progress", "release", "grade"}
    assert {c[1] for c in commands} == names, "every command is shown, and no other"
    for command in commands:
        if command[1] == "plan":
            assert main(command[1:]) == 0
        elif command[1] in ("serve", "bench-serve"):
            from toyserve.server import bench_command
            from toyserve.server import command as serve_command

            own = {"serve": serve_command, "bench-serve": bench_command}[command[1]]
            own.make_parser().parse_args(command[2:])
        elif command[1] != "bench":  # minutes of measuring, with a parser of its own
            parser.parse_args(command[1:])


def test_every_pip_line_in_the_readme_names_extras_that_exist() -> None:
    extras = set(PYPROJECT["project"]["optional-dependencies"])
    named = re.findall(r'-e "\.\[([a-z,]+)\]"', README)
    assert named
    assert {extra for group in named for extra in group.split(",")} <= extras


def test_every_file_that_the_readme_points_to_exists() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", README)
    targets += re.findall(r"`((?:toyserve|kernels|lessons|docs)/[\w/.]*)`", README)
    assert targets
    for target in targets:
        assert target.startswith("https://") or (ROOT / target).exists(), target


def test_the_python_in_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for code in code_blocks("python"):
        exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    assert (tmp_path / "timeline.png").stat().st_size > 5000


# -- what is shipped ----------------------------------------------------------------------------

# The workshop is not the product.
_FORBIDDEN = (
    "/" + "work/",
    "../" + "shared",
    "pypi.org",
    "pythonhosted.org",
    "npmjs.",
    "deb.debian.org",
    "download.pytorch.org",
    "FAULTS.md",
    "DESIGN.md",
    "STYLE.md",
    "KERNELS.md",
    "PERFORMANCE.md",
)
_TEXT = (".py", ".md", ".toml", ".txt", ".ipynb", ".json", ".js", ".css", ".html", "")
_MOST_BYTES = {".safetensors": 14_000_000, ".ipynb": 2_000_000}


def test_tracked_text_names_no_place_of_the_workshop() -> None:
    words = [word.encode() for word in _FORBIDDEN]
    found = []
    for name in tracked_files():
        # A test may look for such a word too.
        if Path(name).suffix in _TEXT and not name.startswith("tests/"):
            content = (ROOT / name).read_bytes()
            found += [f"{name}: {word.decode()}" for word in words if word in content]
    assert not found


def test_tracked_files_are_small() -> None:
    for name in tracked_files():
        most = _MOST_BYTES.get(Path(name).suffix, 1_000_000)
        assert (ROOT / name).stat().st_size <= most, f"{name} has more than {most:,} bytes"


def test_nothing_generated_by_tools_is_tracked() -> None:
    marks = ("__pycache__", ".ipynb_checkpoints", ".egg-info", ".hypothesis", ".venv/", ".DS_Store")
    assert not [name for name in tracked_files() if any(mark in name for mark in marks)]


def modules() -> list[Path]:
    return sorted([*(ROOT / "toyserve").rglob("*.py"), *(ROOT / "kernels").rglob("*.py")])


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_every_module_with_code_says_what_it_is(path: Path) -> None:
    assert not path.stat().st_size or ast.get_docstring(
        ast.parse(path.read_text(encoding="utf-8"))
    ), path


@pytest.mark.parametrize("name", WORKFLOW_FILES)
def test_set_up_scripts_are_executable_and_parse(name: str) -> None:
    path = ROOT / ".ci" / name
    assert b"\r" not in path.read_bytes()
    shell = path.read_text(encoding="utf-8").splitlines()[0].split()[-1].rpartition("/")[2]
    if os.name == "posix" and shutil.which(shell):
        assert os.access(path, os.X_OK)
        subprocess.run([shell, "-n", str(path)], check=True)


@pytest.mark.skipif(not os.environ.get("CI"), reason="only CI promises a browser")
def test_ci_has_a_browser_so_that_no_browser_test_is_skipped() -> None:
    names = ("chromium", "chromium-browser", "google-chrome")
    assert any(shutil.which(name) for name in names)
