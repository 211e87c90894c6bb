"""The library's code beside the learner's, and the coloured difference between two versions.

    show_source(ContinuousScheduler)                 # one
    show_source(MyScheduler, ContinuousScheduler)    # two, side by side
    show_diff(StaticScheduler.schedule, ContinuousScheduler.schedule)

Works for classes and functions of the library and of notebook cells. Docstrings are left out (the
lesson says it already); ``docstrings=True`` keeps them. HTML for a notebook, plain text elsewhere;
readable on a light and on a dark page, and added and removed lines carry a sign besides a colour.
"""

from __future__ import annotations

import ast
import difflib
import html
import inspect
import linecache
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from toyserve.words import counted

_PRE = (
    "margin:0;padding:6px 0;overflow-x:auto;font-family:ui-monospace,Menlo,Consolas,monospace;"
    "font-size:13px;line-height:1.4;background:rgba(128,128,128,.08);color:inherit;"
    "white-space:pre;word-break:normal;overflow-wrap:normal"
)
_COLORS = {"+": "rgba(34,136,51,.28)", "-": "rgba(221,68,68,.28)", " ": "transparent"}


@dataclass(frozen=True)
class Shown:
    """Something to look at, with a text for where HTML is not drawn."""

    text: str
    html: str

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/plain": self.text, "text/html": self.html}


def show_source(*objects: Any, docstrings: bool = False) -> Shown:
    """The code of one object, or of several beside each other."""
    if not objects:
        raise ValueError("show_source needs a class or a function to show")
    parts = [(_title(o), source_of(o, docstrings=docstrings)) for o in objects]
    text = "\n\n".join(f"# {title}\n{code}" for title, code in parts)
    columns = "".join(
        f'<div style="flex:1 1 38em;min-width:0"><b>{html.escape(title)}</b>'
        f'<pre style="{_PRE}">{_lines((" ", line) for line in code.splitlines())}</pre></div>'
        for title, code in parts
    )
    return Shown(text, f'<div style="display:flex;gap:12px;flex-wrap:wrap">{columns}</div>')


def show_diff(before: Any, after: Any, *, docstrings: bool = False) -> Shown:
    """All lines of both: the removed ones marked -, the added ones +."""
    old, new = (source_of(o, docstrings=docstrings).splitlines() for o in (before, after))
    rows: list[tuple[str, str]] = []
    for kind, i, j, k, end in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind == "equal":
            rows += [(" ", line) for line in old[i:j]]
        else:  # what goes, then what comes: two blocks read better than lines taking turns
            rows += [("-", line) for line in old[i:j]] + [("+", line) for line in new[k:end]]
    removed, added = (sum(sign == mark for sign, _ in rows) for mark in "-+")
    changes = f"{counted(removed, 'line')} out, {counted(added, 'line')} in"
    title = f"{_title(before)} → {_title(after)}: {changes}"
    text = f"{title}\n" + "\n".join(f"{sign} {line}".rstrip() for sign, line in rows)
    return Shown(text, f'<b>{html.escape(title)}</b><pre style="{_PRE}">{_lines(rows, "x")}</pre>')


def _lines(rows: Any, signs: str = "") -> str:
    """One block per line, so that its colour reaches from edge to edge, however long the lines."""
    lines = "".join(
        f'<span style="display:block;padding:0 8px;background:{_COLORS[sign]}">'
        f"{sign + ' ' if signs else ''}{html.escape(line) or ' '}</span>"
        for sign, line in rows
    )
    return f'<span style="display:inline-block;min-width:100%">{lines}</span>'


def source_of(obj: Any, *, docstrings: bool = True) -> str:
    """The code of a class or a function, also when it was typed into a notebook cell."""
    if isinstance(obj, str):
        return obj.strip("\n")
    if not inspect.isclass(obj) and not inspect.isroutine(obj):
        obj = type(obj)  # an instance: its class
    try:
        code = inspect.getsource(obj)
    except (OSError, TypeError):
        code = _class_in_cell(obj)
    code = textwrap.dedent(code).strip("\n")
    return code if docstrings else _without_docstrings(code)


def _class_in_cell(cls: type) -> str:
    """A class of a notebook has no file of its own; its methods know the cell they came from."""
    functions: list[Callable[..., Any]] = [f for f in vars(cls).values() if inspect.isfunction(f)]
    for function in functions:
        place = function.__code__
        lines = linecache.getlines(place.co_filename)
        if not lines:
            continue
        for node in ast.walk(ast.parse("".join(lines))):
            if isinstance(node, ast.ClassDef) and node.name == cls.__name__:
                end = node.end_lineno or node.lineno
                if node.lineno <= place.co_firstlineno <= end:
                    return "".join(lines[node.lineno - 1 : end])
    raise ValueError(f"the code of {cls.__name__} is not to be found: run its cell again")


def _without_docstrings(code: str) -> str:
    lines = code.splitlines()
    drop: set[int] = set()
    kinds = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(ast.parse(code)):
        if not isinstance(node, kinds) or ast.get_docstring(node) is None or len(node.body) == 1:
            continue
        first, after = node.body[0], node.body[1]
        end = first.end_lineno or first.lineno
        drop |= set(range(first.lineno, end + 1))
        drop |= {n for n in range(end + 1, after.lineno) if not lines[n - 1].strip()}
    return "\n".join(line for n, line in enumerate(lines, 1) if n not in drop)


def _title(obj: Any) -> str:
    """Where a reader would find it."""
    if isinstance(obj, str):
        return "text"
    if not inspect.isclass(obj) and not inspect.isroutine(obj):
        obj = type(obj)
    name: str = obj.__qualname__
    module = sys.modules.get(obj.__module__)
    if obj.__module__ == "__main__" or module is None:
        return f"{name} (this notebook)"
    return f"{name} ({obj.__module__.replace('.', '/')}.py)"
