"""The rules that every lesson's source keeps, checked by machine.

python -m toyserve.course.lint        # every lesson; prints what to mend, fails if there is any
"""

from __future__ import annotations

import re
from pathlib import Path

from nbformat import NotebookNode

from toyserve.course.builder import find_sources, read_source

MAX_PROSE_WORDS = 120
MAX_CODE_LINES = 25
# What belongs to the making of the course and not in front of a learner.
_INTERNAL = re.compile(r"\.\./shared|/work\b|\bissue #?\d+|\bsession \d+|\bTODO\b|\bFIXME\b")
_FENCE = re.compile(r"```.*?```", re.DOTALL)
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_ABSOLUTE = re.compile(r"""(?:open|Path)\(\s*["']/""")


def count_words(markdown: str) -> int:
    """Of the prose: tables, code blocks and the addresses of links do not count."""
    text = _LINK.sub(r"\1", _FENCE.sub("", markdown))
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("|")]
    return sum(1 for word in " ".join(lines).split() if any(c.isalnum() for c in word))


def count_lines(code: str) -> int:
    """Lines that hold something."""
    return sum(1 for line in code.splitlines() if line.strip())


def lint_notebook(notebook: NotebookNode) -> list[str]:
    """What to mend, one sentence each; empty when all is well."""
    problems = []
    for number, cell in enumerate(notebook.cells, 1):
        where = f"cell {number} ({cell.source.strip().splitlines()[0][:50]!r})"
        if cell.cell_type == "markdown" and (n := count_words(cell.source)) > MAX_PROSE_WORDS:
            problems.append(f"{where} has {n} words; at most {MAX_PROSE_WORDS}")
        if cell.cell_type == "code" and (n := count_lines(cell.source)) > MAX_CODE_LINES:
            problems.append(f"{where} has {n} lines of code; at most {MAX_CODE_LINES}")
        if match := _INTERNAL.search(cell.source):
            problems.append(f"{where} mentions {match[0]!r}, which no learner knows")
        if _ABSOLUTE.search(cell.source):
            problems.append(f"{where} opens an absolute path")
    if not notebook.cells or not notebook.cells[0].source.lstrip().startswith("# "):
        problems.append("the first cell is not a title")
    return problems


def main() -> int:
    lessons = Path(__file__).resolve().parents[2] / "lessons"
    problems = [
        f"{source.name}: {problem}"
        for source in find_sources(lessons, [])
        for problem in lint_notebook(read_source(source))
    ]
    print("\n".join(problems) or "every lesson keeps the rules")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
