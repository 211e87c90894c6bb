"""From a lesson's hand-written source to the notebook that learners open. One way only.

    python -m toyserve.course.builder                 # every lesson
    python -m toyserve.course.builder 04 --check      # would lesson 04 come out the same? (CI)
    python -m toyserve.course.builder 04 --remeasure  # take its wall-clock results anew

``lessons/source/NN_name.py`` (py:percent) becomes ``lessons/NN_name.ipynb``: run from a clean
kernel, pictures kept, and everything that varies from run to run taken out, so that two builds are
equal byte for byte.

What a real clock measured does vary, and that is the point of it. A cell tagged ``wall-clock`` is
run in every build (an error still stops the build), but its committed output stays until
``--remeasure`` is given, or any code up to that cell or the bundled model changes; the cell's
metadata says when and where it was taken. A measured number is thus a quoted result with its date,
never a fresh one that nobody looked at.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import os
import platform
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import nbformat
from nbformat import NotebookNode

import toyserve
from toyserve.course.normalise import NotReproducible, normalise

WALL_CLOCK = "wall-clock"
CELL_TIMEOUT = 120  # seconds; a whole lesson may take 60
_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


class BuildError(Exception):
    """A lesson that cannot be built; one sentence for its author."""


def read_source(source: Path) -> NotebookNode:
    """The notebook that ``source`` describes: no outputs, cell ids that depend only on content."""
    import jupytext

    notebook = jupytext.reads(source.read_text(encoding="utf-8"), fmt="py:percent")
    seen: Counter[str] = Counter()
    for cell in notebook.cells:
        digest = hashlib.sha256(f"{cell.cell_type}\n{cell.source}".encode()).hexdigest()[:12]
        seen[digest] += 1
        cell.id = digest if seen[digest] == 1 else f"{digest}-{seen[digest]}"
        cell.metadata.pop("lines_to_next_cell", None)
    notebook.metadata = nbformat.from_dict(_METADATA)
    notebook.metadata["toyserve"] = {
        "generated_by": "python -m toyserve.course.builder",
        "source": f"lessons/source/{source.name}",
        "source_sha256": source_digest(source),
    }
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    return notebook


def source_digest(source: Path) -> str:
    """Of the text, so that a checkout with other line ends has the same one."""
    return hashlib.sha256(source.read_text(encoding="utf-8").encode()).hexdigest()


def execute(notebook: NotebookNode, folder: Path) -> None:
    """Run every cell in a clean kernel that starts in ``folder``; outputs go into ``notebook``."""
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        record_timing=False,
        store_widget_state=False,
        coalesce_streams=True,
    )
    try:
        client.execute(env={**os.environ, "PYTHONHASHSEED": "0"})
    except CellExecutionError as error:
        raise BuildError(f"a cell failed:\n{error}") from None


def keep_measured(
    notebook: NotebookNode, committed: NotebookNode | None, *, remeasure: bool
) -> list[str]:
    """Give wall-clock cells their committed outputs back. Returns the ids measured just now."""
    before = {cell.id: cell for cell in committed.cells} if committed else {}
    code = hashlib.sha256(_model_digest().encode())
    fresh = []
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        code.update(cell.source.encode() + b"\0")
        if WALL_CLOCK not in cell.metadata.get("tags", []):
            continue
        digest = code.hexdigest()[:12]
        old = before.get(cell.id)
        note = old.metadata.get("toyserve", {}) if old else {}
        if old and note.get("code_so_far") == digest and not remeasure:
            cell.outputs, cell.metadata["toyserve"] = old.outputs, note
        else:
            cell.metadata["toyserve"] = {"code_so_far": digest, "measured": _here_and_now()}
            fresh.append(cell.id)
    return fresh


def _model_digest() -> str:
    """Other weights make other answers, so a measurement with them is another one."""
    weights = Path(toyserve.__file__).parent / "models/toy/model.safetensors"
    return hashlib.sha256(weights.read_bytes()).hexdigest() if weights.exists() else ""


def _here_and_now() -> str:
    return (
        f"{datetime.date.today().isoformat()}, {platform.machine()}, {os.cpu_count()} CPUs, "
        f"Python {platform.python_version()}"
    )


def build(source: Path, committed: Path | None, *, remeasure: bool = False) -> str:
    """The text of the notebook. ``committed``: where wall-clock outputs are kept from."""
    notebook = read_source(source)
    with tempfile.TemporaryDirectory(prefix="lesson-") as folder:
        execute(notebook, Path(folder))
        normalise(notebook, forbidden=(folder, str(Path.home()), str(source.resolve().parents[2])))
    keep_measured(notebook, _read_notebook(committed), remeasure=remeasure)
    nbformat.validate(notebook)
    return str(nbformat.writes(notebook)).rstrip("\n") + "\n"


def _read_notebook(path: Path | None) -> NotebookNode | None:
    """None also for a file that is no notebook (a merge conflict): it will be built anew."""
    try:
        text = path.read_text(encoding="utf-8") if path else ""
        return nbformat.reads(text, as_version=4)
    except (OSError, ValueError):
        return None


def target_of(source: Path) -> Path:
    """``lessons/source/NN_name.py`` → ``lessons/NN_name.ipynb``."""
    return source.parent.parent / f"{source.stem}.ipynb"


def find_sources(lessons: Path, numbers: list[str]) -> list[Path]:
    """The sources of the lessons named by number ("04") or by the start of their name.

    The start page, "index", is one of them, and comes last: it is made from the others.
    """
    sources = sorted((lessons / "source").glob("[0-9]*.py"))
    sources += (lessons / "source").glob("index.py")
    unknown = [n for n in numbers if not any(s.name.startswith(n) for s in sources)]
    if unknown:
        known = ", ".join(s.stem for s in sources) or "none"
        raise BuildError(f"no lesson {unknown[0]!r} in {lessons / 'source'}; there are: {known}")
    return [s for s in sources if not numbers or any(s.name.startswith(n) for n in numbers)]


def write(target: Path, text: str) -> None:
    """Whole or not at all: an interrupted build leaves the old notebook."""
    part = target.with_name(target.name + ".part")
    part.write_text(text, encoding="utf-8", newline="\n")
    part.replace(target)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m toyserve.course.builder", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("numbers", nargs="*", metavar="NN", help="lessons (default: all)")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if one differs")
    parser.add_argument("--remeasure", action="store_true", help="renew wall-clock outputs")
    default = Path(__file__).resolve().parents[2] / "lessons"
    parser.add_argument(
        "--lessons", type=Path, default=default, help="folder (default: %(default)s)"
    )
    args = parser.parse_args(argv)
    try:
        sources = find_sources(args.lessons, args.numbers)
        different = [s for s in sources if not _build_one(s, args.check, args.remeasure)]
    except (BuildError, NotReproducible) as error:
        print(error, file=sys.stderr)
        return 1
    for source in different:
        print(f"{target_of(source).name} is not what {source.name} builds", file=sys.stderr)
    return 1 if different else 0


def _build_one(source: Path, check: bool, remeasure: bool) -> bool:
    """True unless ``check`` found a difference."""
    start, target = time.perf_counter(), target_of(source)
    text = build(source, target, remeasure=remeasure)
    same = target.exists() and target.read_text(encoding="utf-8") == text
    if not check:
        write(target, text)
    state = "as committed" if same else "differs" if check else "written"
    seconds = time.perf_counter() - start
    print(f"{source.stem}: {state}, {len(text) / 1024:.0f} KiB, {seconds:.0f} s", flush=True)
    return same or not check


if __name__ == "__main__":
    raise SystemExit(main())
