"""One submission of each bad kind, made from the solved exercise 04.

Each changes one part (or the file), and says which parts must then score nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell

from toyserve.course.exercise import grade_id

Change = Callable[[NotebookNode], None]


@dataclass(frozen=True)
class Bad:
    """lost: the parts that score 0. says: a piece of the text or of a note."""

    change: Change
    lost: tuple[str, ...]
    says: str


def cell(notebook: NotebookNode, mark: str) -> NotebookNode:
    return next(c for c in notebook.cells if grade_id(c) == mark)


def index(notebook: NotebookNode, mark: str) -> int:
    return next(i for i, c in enumerate(notebook.cells) if grade_id(c) == mark)


def answer(source: str, key: str = "04.2") -> Change:
    """Another text in the answer cell of a part."""

    def change(notebook: NotebookNode) -> None:
        cell(notebook, f"ex04-{key[3:]}-answer").source = source

    return change


def before(source: str, key: str = "04.2") -> Change:
    """The right answer, after this code in the same cell."""

    def change(notebook: NotebookNode) -> None:
        target = cell(notebook, f"ex04-{key[3:]}-answer")
        target.source = f"{source}\n{target.source}"

    return change


def in_schedule(line: str) -> Change:
    return answer(
        "import os, sys, time\n\nclass WaitForRoom(Scheduler):\n    min_free = 2\n\n"
        f"    def schedule(self):\n        {line}\n        return SchedulerOutput()\n"
    )


def turn_into(kind: str) -> Change:
    def change(notebook: NotebookNode) -> None:
        target = cell(notebook, "ex04-2-answer")
        target.cell_type = kind
        for name in ("outputs", "execution_count"):
            target.pop(name, None)

    return change


def delete(*marks: str) -> Change:
    def change(notebook: NotebookNode) -> None:
        notebook.cells = [c for c in notebook.cells if grade_id(c) not in marks]

    return change


def edit(mark: str, source: str) -> Change:
    def change(notebook: NotebookNode) -> None:
        cell(notebook, mark).source = source

    return change


def duplicate(mark: str) -> Change:
    def change(notebook: NotebookNode) -> None:
        place = index(notebook, mark)
        twin = copy.deepcopy(notebook.cells[place])
        notebook.cells.insert(place + 1, twin)

    return change


def reverse(notebook: NotebookNode) -> None:
    notebook.cells = notebook.cells[::-1]


def extra(source: str, behind: str = "") -> Change:
    """A cell of the learner's own, behind a marked one (or at the very start)."""

    def change(notebook: NotebookNode) -> None:
        place = index(notebook, behind) + 1 if behind else 0
        notebook.cells.insert(place, new_code_cell(source))

    return change


ANYTHING = """
class Anything:
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = lambda self, other: True
    __hash__ = None
    __call__ = __getattr__ = lambda self, *a, **k: self
static_steps = continuous_steps = gain = Anything()
"""
LYING_NUMBER = """
class Lie(int):
    __eq__ = lambda self, other: True
    __ne__ = lambda self, other: False
static_steps, continuous_steps, gain = Lie(1), Lie(1), 1.5
"""
NO_CHECKER = """
import builtins, sys, types
import toyserve.course.checks, toyserve.course.checks.examine as examine
fake = types.ModuleType("toyserve.course.checks.ex04_continuous_batching")
sys.modules[fake.__name__] = fake
check = toyserve.course.checks.check = lambda *a, **k: print("04.2 is right")
examine.judge = lambda *a, **k: None
WaitForRoom = ContinuousScheduler
"""
HOOKS = """
import sys, traceback
sys.excepthook = lambda *a: None
traceback.extract_tb = traceback.format_exc = lambda *a, **k: []
sys.settrace(None)
raise ValueError("nothing to see")
"""
NO_BUILTINS = """
import builtins
builtins.isinstance = lambda *a: True
builtins.len = lambda x: 0
builtins.sorted = lambda *a, **k: []
WaitForRoom = ContinuousScheduler
"""
WRITES_TO_THE_LINE = """
import os, json
for fd in range(3, 64):
    try:
        os.write(fd, b'\\x00\\x00\\x00\\x0c{"seen": []}')
    except OSError:
        pass
WaitForRoom = ContinuousScheduler
"""
HOG = "hog = []\nwhile True:\n    hog.append(bytearray(100_000_000))"
LOOP = "while True:\n    try:\n        x = 1\n    except:\n        pass"
DEAF_LOOP = (
    "import signal\nfor s in (signal.SIGALRM, signal.SIGTERM, signal.SIGINT):\n"
    "    signal.signal(s, signal.SIG_IGN)\nwhile True:\n    pass"
)
READS_SOLUTION = """
import toyserve, pathlib, glob
root = pathlib.Path(toyserve.__file__).parents[1]
text = (root / "solutions/source/04_continuous_batching.py").read_text()
"""
OUTLIVES = """
import os
if os.fork() == 0:
    import time
    time.sleep(600)
"""

SEARCHES_MEMORY = """
import gc, sys
found = [o for o in gc.get_objects() if type(o).__name__ in ("Truth", "Setup", "Plan")]
frame = sys._getframe()
while frame:
    found += [v for name, v in frame.f_locals.items() if name in ("expected", "truth", "data")]
    frame = frame.f_back
raise ValueError("found: " + repr(found))
"""
BY_ANOTHER_DOOR = """
import os, toyserve
root = os.path.dirname(os.path.dirname(os.path.abspath(toyserve.__file__)))
fd = os.open(root, os.O_RDONLY)
text = os.read(os.open("solutions/source/04_continuous_batching.py", os.O_RDONLY, dir_fd=fd), 9)
"""
NO_CLOCK = """
import signal, time
time.time = time.monotonic = time.perf_counter = lambda: 0.0
signal.setitimer = signal.signal = signal.alarm = lambda *a: None
"""
LEAVES_ITS_GROUP = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
"""
LASTS = """
import atexit, os, threading, time
atexit.register(os._exit, 0)
threading.Thread(target=lambda: [time.sleep(0.01) for _ in iter(int, 1)]).start()
"""
NOTEBOOK_ONLY = """
%matplotlib inline
import asyncio, ipywidgets
import matplotlib.pyplot as plt
files = !ls
!pip install nothing
await asyncio.sleep(0)
plt.plot([1, 2])
plt.show()
ipywidgets.interact(lambda x: x, x=3)
größe = ʒ = len(files)
print("x" * 5_000_000)
"""


def as_other_programs_save(notebook: NotebookNode) -> None:
    """Colab and VS Code: format 4.0, no cell ids, fields of their own, sources as lists."""
    notebook.nbformat_minor = 0
    notebook.metadata = {"colab": {"provenance": []}, "vscode": {"interpreter": {}}}
    for one in notebook.cells:
        del one["id"]
        one.source = one.source.splitlines(keepends=True)
        one.metadata |= {"id": "Xy7_abc", "colab": {"base_uri": "https://localhost"}}


def without_marks(notebook: NotebookNode) -> None:
    """Saved by a program that keeps no metadata but the cells' ids."""
    for one in notebook.cells:
        one.metadata = {}


def odd_text(notebook: NotebookNode) -> None:
    cell(notebook, "ex04-6-explain").source = "=1+1 a half \ud83d and a null \x00 in it"


LOST = ("04.2",)
BAD: dict[str, Bad] = {
    "never-ran": Bad(turn_into("raw"), LOST, "raw cell"),
    "markdown": Bad(turn_into("markdown"), LOST, "markdown cell"),
    "untouched": Bad(
        answer("# YOUR CODE HERE\nraise NotImplementedError()"), LOST, "to be written"
    ),
    "empty": Bad(answer(""), LOST, "called `WaitForRoom`"),
    "syntax-error": Bad(answer("class WaitForRoom(:\n  pass"), LOST, "SyntaxError"),
    "sys-exit": Bad(answer("import sys\nsys.exit(0)"), LOST, "exit"),
    "os-exit": Bad(answer("import os\nos._exit(0)"), LOST, "ended the whole process"),
    "exit-in-schedule": Bad(in_schedule("os._exit(0)"), LOST, "ended the whole process"),
    "dead-kernel": Bad(answer("import os\nos.kill(os.getpid(), 9)"), LOST, "whole process"),
    "segfault": Bad(answer("import ctypes\nctypes.string_at(0)"), LOST, "whole process"),
    "kill-parent": Bad(before("import os\nos.kill(os.getppid(), 9)"), LOST, "may not be ended"),
    "kill-group": Bad(before("import os\nos.killpg(0, 9)"), LOST, "may not be ended"),
    "endless": Bad(answer(LOOP), LOST, "had not ended"),
    "endless-deaf": Bad(answer(DEAF_LOOP), LOST, "had not ended"),
    "endless-schedule": Bad(in_schedule("time.sleep(3600)"), LOST, "had not ended"),
    "memory-hog": Bad(answer(HOG), LOST, "memory"),
    "printed-passed": Bad(answer('print("PASSED 04.2: 2/2 points")'), LOST, "called `WaitForRoom`"),
    "equals-everything": Bad(answer(ANYTHING, "04.4"), ("04.4",), "object of the class Anything"),
    "lying-number": Bad(answer(LYING_NUMBER, "04.4"), ("04.4",), "object of the class Lie"),
    "shadowed-checker": Bad(answer(NO_CHECKER), LOST, "lets somebody in"),
    "replaced-hooks": Bad(answer(HOOKS), LOST, ""),
    "replaced-builtins": Bad(answer(NO_BUILTINS), LOST, ""),
    "forged-line": Bad(answer(WRITES_TO_THE_LINE), LOST, ""),
    "reads-solution": Bad(before(READS_SOLUTION), LOST, "teacher's files"),
    "by-another-door": Bad(before(BY_ANOTHER_DOOR), LOST, "teacher's files"),
    "reads-neighbour": Bad(before("open('../../anna/04.ipynb')"), LOST, "teacher's files"),
    "writes-outside": Bad(before("open('/tmp/toyserve-evil', 'w')"), LOST, "files of its own"),
    "searches-memory": Bad(answer(SEARCHES_MEMORY), LOST, "found: []"),
    "outlives": Bad(before(OUTLIVES), (), ""),
    "leaves-its-group": Bad(before(LEAVES_ITS_GROUP), (), ""),
    "comes-back-twice": Bad(before("import os\nif os.fork() == 0:\n    1 / 0"), (), ""),
    "lasts": Bad(before(LASTS), (), ""),
    "no-clock": Bad(before(NO_CLOCK), (), ""),
    "endless-no-clock": Bad(answer(f"{NO_CLOCK}while True: pass"), LOST, "had not ended"),
    "fork-bomb": Bad(answer("import os\nwhile True: os.fork()"), LOST, "so many processes"),
    "not-a-number": Bad(
        answer("static_steps = continuous_steps = gain = float('nan')", "04.4"), ("04.4",), "NaN"
    ),
    "asks-for-input": Bad(before("name = input('Your name: ')"), LOST, "nobody is there"),
    "notebook-only": Bad(before(NOTEBOOK_ONLY), (), ""),
    "timed-cell": Bad(before("%%time"), (), ""),
    "other-programs": Bad(as_other_programs_save, (), ""),
    "without-marks": Bad(without_marks, (), ""),
    "odd-text": Bad(odd_text, (), ""),
    "endless-cell-of-its-own": Bad(extra("while True: pass"), (), ""),
    "no-tests": Bad(delete("ex04-2-check", "ex04-3-check"), (), "missing cells"),
    "edited-test": Bad(edit("ex04-2-check", "print('fine')"), (), "edited cells"),
    "deleted-answer": Bad(delete("ex04-2-answer"), LOST, "missing from the notebook"),
    "duplicated": Bad(duplicate("ex04-2-answer"), (), "copied cells"),
    "reversed": Bad(reverse, (), "another order"),
    "shadowed-library": Bad(
        extra("class Scheduler: pass\nSchedulerOutput = StaticScheduler = None"), (), ""
    ),
}
