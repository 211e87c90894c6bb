"""What the tests of every lesson do: run it once in a clean kernel, and ask it for its own values.

PROBE = "print(json.dumps({'steps': run.num_steps}))"     # runs as the last cell
notebook, values = run_lesson("03_static_batching", PROBE)
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import nbformat

from toyserve.course.builder import execute, read_source, target_of
from toyserve.course.normalise import normalise

SOURCES = Path(__file__).resolve().parents[2] / "lessons/source"


@cache
def run_lesson(name: str, probe: str) -> tuple[nbformat.NotebookNode, dict[str, Any]]:
    """The lesson as a fresh kernel runs it today, and the JSON that ``probe`` prints at its end."""
    source = SOURCES / f"{name}.py"
    notebook = read_source(source)
    notebook.cells.append(nbformat.v4.new_code_cell("import json\n" + probe))
    execute(notebook, source.parent)
    cell = notebook.cells.pop()
    normalise(notebook)
    return notebook, json.loads(cell.outputs[0].text)


def run_changed(name: str, changes: dict[str, str], last: str) -> tuple[nbformat.NotebookNode, int]:
    """The lesson up to the first cell that contains ``last``, its code replaced as a learner would.

    Returns the executed notebook and the index of that cell. Each key of ``changes`` must occur in
    exactly one cell.
    """
    source = SOURCES / f"{name}.py"
    notebook = read_source(source)
    for old, new in changes.items():
        (cell,) = [c for c in notebook.cells if c.cell_type == "code" and old in c.source]
        cell.source = cell.source.replace(old, new)
    end = next(
        i for i, c in enumerate(notebook.cells) if c.cell_type == "code" and last in c.source
    )
    notebook.cells = notebook.cells[: end + 1]
    execute(notebook, source.parent)
    return notebook, end


def printed(notebook: nbformat.NotebookNode, index: int) -> str:
    """All text that a cell printed."""
    return "".join(o.get("text", "") for o in notebook.cells[index].outputs)


def assert_committed_is_today_s(name: str, notebook: nbformat.NotebookNode) -> None:
    """Every printed line and the place of every picture, except in cells tagged ``wall-clock`` or
    ``real-model``: those numbers depend on the machine or on a model's last bit."""
    target = target_of(SOURCES / f"{name}.py")
    committed = nbformat.reads(target.read_text(encoding="utf-8"), as_version=4)
    compared = 0
    for now, then in zip(notebook.cells, committed.cells, strict=True):
        free = {"wall-clock", "real-model"} & set(now.metadata.get("tags", []))
        if now.cell_type == "code" and not free:
            assert [_seen(o) for o in now.outputs] == [_seen(o) for o in then.outputs], now.source
            compared += len(now.outputs)
    assert compared, "no cell was compared: are all of them tagged?"


def _seen(output: nbformat.NotebookNode) -> object:
    data = output.get("data", {})
    return output.get("text"), data.get("text/plain"), sorted(data)
