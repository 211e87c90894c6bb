"""A session's walls, what may stand in its cells, and which files are somebody's work."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from bad_answers import cell, extra
from test_grading import NAME, solution

from toyserve.course.checks.part import load_exercise
from toyserve.course.exercise_session import find_truth, new_namespace, run_cell
from toyserve.course.grading import grade as grading
from toyserve.course.grading.jobs import find_submissions, modules_beside
from toyserve.course.grading.landlock import walls
from toyserve.course.grading.sessions import Limits, Sessions
from toyserve.course.grading.submission import Unreadable, printable, read_notebook

ROOT = Path(__file__).resolve().parents[2]
SECRET = ROOT / "solutions" / "source" / f"{NAME}.py"
posix = pytest.mark.skipif(not hasattr(os, "fork"), reason="a class is graded where one can fork")
walled = pytest.mark.skipif(walls() is None, reason="this kernel has no Landlock")


@pytest.fixture(scope="module")
def sessions() -> Iterator[Sessions]:
    with Sessions() as all_of_them:
        yield all_of_them


def said(sessions: Sessions, source: str, **limits: Any) -> str | None:
    """What became of a cell in a session of its own."""
    chosen = Limits(cell_seconds=8, forbidden=(ROOT / "solutions",), **limits)
    with sessions.session(NAME, chosen) as session:
        return session.run(source, "cell")


# -- walls --------------------------------------------------------------------------------------

C_OPEN = f"""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
raise ValueError(("opened", libc.open({str(SECRET)!r}.encode(), 0) >= 0))
"""
C_WRITE = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
raise ValueError(("opened", libc.open({place!r}.encode(), os.O_CREAT | os.O_WRONLY, 0o600) >= 0))
"""
C_RUN = """
import ctypes, os
libc, pid = ctypes.CDLL(None, use_errno=True), os.fork()
if pid == 0:
    libc.execv(b"/bin/true", (ctypes.c_char_p * 2)(b"true", None))
    os._exit(7)
raise ValueError(("opened", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 7))
"""
C_KILL = """
import ctypes, os
raise ValueError(("opened", ctypes.CDLL(None).kill(os.getppid(), 0) == 0))
"""


@posix
@walled
@pytest.mark.parametrize("how", ["read", "write", "run", "kill"])
def test_the_kernel_refuses_what_goes_around_python(
    sessions: Sessions, tmp_path: Path, how: str
) -> None:
    kernel = walls()
    if how == "kill" and kernel and not kernel.scopes:
        pytest.skip("this kernel's Landlock knows nothing of signals")
    place = str(tmp_path / "written")
    source = {"read": C_OPEN, "write": C_WRITE.format(place=place), "run": C_RUN, "kill": C_KILL}
    assert "('opened', False)" in str(said(sessions, source[how]))
    assert not Path(place).exists()


@posix
@pytest.mark.parametrize(
    "source",
    [
        f"open({str(SECRET)!r})",
        f"import os\nos.listdir({str(SECRET.parent)!r})",
        f"import os\nos.link({str(SECRET)!r}, 'mine')",
        f"import os\nos.symlink({str(SECRET)!r}, 'mine')",
        "open('/tmp/toyserve-evil', 'w')",
        "import toyserve\nopen(toyserve.__file__, 'a')",
        "import os, toyserve\nos.remove(toyserve.__file__)",
        "import subprocess\nsubprocess.run(['true'])",
        "import os\nos.system('true')",
        "import urllib.request\nurllib.request.urlopen('http://127.0.0.1:9')",
        "open('/proc/1/environ')",
        "from pathlib import Path\nlist(Path.home().iterdir())",
    ],
)
def test_a_submission_reaches_nothing_but_its_own_folder(sessions: Sessions, source: str) -> None:
    problem = str(said(sessions, source))
    assert "PermissionError" in problem or "not allowed" in problem
    assert not Path("/tmp/toyserve-evil").exists()


@posix
def test_it_may_write_and_read_what_is_its_own(sessions: Sessions) -> None:
    source = (
        "import tempfile\nfrom pathlib import Path\nPath('x').write_text('é')\n"
        "assert Path('x').read_text() == 'é'\nPath('x').unlink()\n"
        "with tempfile.TemporaryDirectory() as t:\n    Path(t, 'y').write_text('z')\n"
        "import matplotlib.pyplot as plt\nplt.plot([1])\nplt.savefig('p.png')\n"
        "import numpy, asyncio, multiprocessing, sqlite3, toyserve.viz.compare\n"
    )
    assert said(sessions, source) is None


@posix
def test_a_teachers_passwords_are_not_in_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLASS_PASSWORD", "x")
    with Sessions() as fresh:
        assert "False" in str(
            said(fresh, "import os\nraise ValueError('CLASS_PASSWORD' in os.environ)")
        )


@posix
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="orphans are found in /proc")
def test_what_leaves_its_group_and_its_parent_ends_with_the_session(sessions: Sessions) -> None:
    source = (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n"
        "    time.sleep(600)\n    os._exit(0)\n"
    )
    assert said(sessions, source) is None
    worker = sessions._process
    assert worker is not None
    stats = (p.read_text(encoding="utf-8") for p in Path("/proc").glob("[0-9]*/stat"))
    assert not [s for s in stats if s.rpartition(")")[2].split()[1] == str(worker.pid)]


# -- what a notebook may have in it -------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "defines"),
    [
        ("%%time\nx = 1", True),
        ("%time x = 1", True),
        ("%%capture out\nx = 1", True),
        ("%matplotlib inline\nx = 1", True),
        ("%load_ext autoreload\n%autoreload 2\nx = 1", True),
        ("!pip install nothing\nx = 1", True),
        ("files = !ls\nx = len(files) + 1", True),
        ("x = 1\nx?", True),
        ("import asyncio\nx = await asyncio.sleep(0, 1)", True),
        ("%%timeit\nx = 1", False),
        ("%%bash\nexit 1", False),
    ],
)
def test_magics_measure_and_shell_lines_do_nothing(source: str, defines: bool) -> None:
    pytest.importorskip("IPython")
    namespace = new_namespace()
    assert run_cell(source, namespace, "cell") is None
    assert ("x" in namespace) == defines


@posix
def test_a_hundred_slow_cells_of_ones_own_are_not_waited_for(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grading, "_OWN_SECONDS", 0.3)
    notebook, exercise = nbformat.from_dict(json.loads(json.dumps(solution()))), load_exercise("04")
    for _ in range(100):
        extra("import time\ntime.sleep(0.2)")(notebook)
    teacher = nbformat.read(ROOT / "solutions" / f"{NAME}.ipynb", as_version=4)
    truth = find_truth(exercise, teacher)
    result = grading.grade(sessions, exercise, teacher, notebook, truth, Limits())
    assert result.points == 11
    assert any("the rest was left out" in note for note in result.notes)


# -- files --------------------------------------------------------------------------------------


def test_a_link_to_the_teachers_copy_is_nobodys_work(tmp_path: Path) -> None:
    (tmp_path / "eve").mkdir()
    link = tmp_path / "eve" / f"{NAME}.ipynb"
    link.symlink_to(ROOT / "solutions" / f"{NAME}.ipynb")
    (tmp_path / "eve" / "helper.py").symlink_to(SECRET)
    with pytest.raises(Unreadable, match="is a link"):
        read_notebook(link)
    jobs = find_submissions(tmp_path, [NAME], tmp_path / "out")
    assert [job.learner for job in jobs] == ["eve"]  # named in the report, with nothing for it
    assert modules_beside(link) == {}


def test_text_that_no_file_can_hold_is_made_printable() -> None:
    odd = {"a": ["half \ud83d", "null \x00", "tab\tand\nline"], "n": 1.5, "none": None}
    clean = printable(odd)
    assert clean["a"][2] == odd["a"][2]  # type: ignore[index]
    assert json.loads(json.dumps(clean, ensure_ascii=False).encode("utf-8")) == clean
    assert "\x00" not in clean["a"][1]


def test_a_cell_keeps_its_role_by_its_id_where_the_marks_are_lost() -> None:
    from toyserve.course.exercise import role_of

    notebook = nbformat.from_dict(json.loads(json.dumps(solution())))
    target = cell(notebook, "ex04-2-answer")
    target.metadata = nbformat.from_dict({})
    role = role_of(target)
    assert role is not None
    assert (role.kind, role.key) == ("answer", "04.2")
    target.id = "1234"
    target.metadata = nbformat.from_dict({"id": "ex04-2-answer"})
    assert role_of(target) == role


@posix
def test_a_cell_that_takes_the_timer_away_is_stopped_and_leaves_none_behind() -> None:
    namespace = new_namespace()
    source = "import signal, time\n"
    with pytest.MonkeyPatch.context() as patch:  # what the cell does to this process is undone
        for name in ("setitimer", "signal", "alarm"):
            patch.setattr(signal, name, getattr(signal, name))
            source += f"signal.{name} = lambda *a: None\n"
        stopped = run_cell(source + "while True: pass", namespace, "takes it away", 0.3)
        assert stopped is not None and "had not ended" in stopped
        for number in range(3):  # longer than a timer waits before it tries again
            later = "import time\ntime.sleep(0.3)"
            assert run_cell(later, namespace, f"later {number}", 20) is None
