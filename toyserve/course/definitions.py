"""What a piece of the code says of itself: the first sentence of its docstring, or its comment.

    definition("toyserve/metrics.py::ttft", root)            # a function, a class, a method
    definition("toyserve/policies/fcfs.py", root)            # a module
    definition("toyserve/schedulers/base.py::Scheduler.watermark", root)

A field or a parameter has no docstring of its own. What is said of it is the entry ``name: …`` in
its class's docstring, else the comment on its line, else the comment above it. The files are read
and not imported, so a kernel needs no GPU to be explained.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

# A capital, a bracket, a name in quotes or the next entry ("name, other: …") begins a sentence.
_SENTENCE_END = re.compile(r"(?<=[^.][.!?])\s+(?=[\"'*]*[A-Z0-9]|\(|`|[a-z_]+(?:, [a-z_]+)*: )")
_DEFINED = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def definition(place: str, root: Path) -> str:
    """One sentence. place: ``path::Class.member``, below ``root``.

    Raises LookupError, in one sentence, when there is no such thing or nothing is said of it.
    """
    path, _, symbol = place.partition("::")
    file = root / path
    if not file.is_file():
        raise LookupError(f"{place} is not there: {path} is no file")
    text = file.read_text(encoding="utf-8")
    node: ast.AST = ast.parse(text)
    comments = _comments(text)
    said = ast.get_docstring(node) if isinstance(node, ast.Module) else None
    for name in symbol.split(".") if symbol else ():
        owner_says, found = said or "", _member(node, name)
        entry = _entry(owner_says, name)
        if found is None and not entry:
            raise LookupError(f"{place} is not there: {path} has no {symbol}")
        said = _own_words(found, text, comments) if isinstance(found, _DEFINED) else None
        if found is not None and said is None:
            said = entry or _own_words(found, text, comments)
        said, node = said or entry, found or node
    if not said:
        raise LookupError(f"{place} has no docstring and no comment that could explain it")
    return first_sentence(said)


def first_sentence(text: str) -> str:
    """The first sentence of the first paragraph, as Markdown, with a capital and a full stop."""
    paragraph = " ".join(text.strip().split("\n\n")[0].split())
    sentence = _SENTENCE_END.split(paragraph)[0].replace("``", "`").rstrip(".;,: ")
    return f"{sentence[:1].upper()}{sentence[1:]}{'' if sentence[-1:] in '?!…' else '.'}"


def _member(node: ast.AST | None, name: str) -> ast.AST | None:
    """What ``node`` defines by that name: a def, a field, or what ``__init__`` gives ``self``."""
    body = getattr(node, "body", ())
    for child in body:
        if isinstance(child, _DEFINED) and child.name == name:
            return child
        if name in _targets(child):
            return child
    if not isinstance(node, ast.ClassDef):
        return None
    start = _member(node, "__init__") if name != "__init__" else None
    inside = list(ast.walk(start)) if start else []
    places = [n for n in inside if name in _targets(n)]
    return next(
        iter(places or [n for n in inside if isinstance(n, ast.arg) and n.arg == name]), None
    )


def _targets(node: ast.AST) -> set[str]:
    """The names, or names of ``self``, that an assignment gives a value (or only a type)."""
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    if not isinstance(node, ast.Assign | ast.AnnAssign):
        return set()
    parts = [part for target in targets if target for part in ast.walk(target)]
    return {p.attr for p in parts if isinstance(p, ast.Attribute)} | {
        p.id for p in parts if isinstance(p, ast.Name) and p.id != "self"
    }


def _own_words(node: ast.AST | None, text: str, comments: dict[int, str]) -> str | None:
    """The docstring of a definition; of a field the comment on its line, else the one above it."""
    if isinstance(node, _DEFINED):
        return ast.get_docstring(node)
    if not isinstance(node, ast.stmt | ast.arg):
        return None
    if node.lineno in comments:
        return comments[node.lineno]
    lines, above = text.splitlines(), []
    number = node.lineno - 1
    while number in comments and lines[number - 1].lstrip().startswith("#"):
        above.append(comments[number])
        number -= 1
    return " ".join(reversed(above)) or None


def _entry(docstring: str, name: str) -> str | None:
    """What stands behind ``name:`` (or ``name, other:``) in a text that explains several names."""
    flat = " ".join(docstring.split())
    match = re.search(rf"(?:^|(?<=[.,;] )){re.escape(name)}(?:, \w+)*: (.+)", flat)
    return match[1] if match else None


def _comments(text: str) -> dict[int, str]:
    """Line number → what its comment says."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return {t.start[0]: t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT}
