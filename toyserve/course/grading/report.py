"""The grades as a table, as JSON, and as pages: one for each learner, one for the class."""

from __future__ import annotations

import csv
import html
import io
import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from toyserve.course.checks.feedback import as_html, sentence, was_not_tried

Rows = Sequence[dict[str, Any]]
_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;
color:#1b1b1b;background:#fff}
table{border-collapse:collapse}
td,th{padding:.25em .7em;border-bottom:1px solid #ccc;text-align:left}
td.n{text-align:right;font-variant-numeric:tabular-nums}img{max-width:100%}
.part{border-left:4px solid #cc6677;padding:.2em 1em;margin:1em 0}.right{border-color:#228833}
.open{border-color:#4477aa}.bar{fill:#4477aa}pre{white-space:pre-wrap;background:#f4f4f4;padding:.6em}
"""


def to_csv(results: Rows, learners: Sequence[str]) -> str:
    """A line per learner and exercise: points, the maximum, and the points of each part.

    A part that a person has still to read is empty. Whoever handed nothing in has a line, too.
    """
    keys = sorted({p["key"] for r in results for p in r["parts"]})
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["learner", "exercise", "points", "out_of", "to_be_read", "notes", *keys])
    for row in results:
        points = {p["key"]: p["points"] for p in row["parts"]}
        to_read = sum(p["points"] is None for p in row["parts"])
        cells = [_cell(points.get(key, "")) for key in keys]
        notes = "; ".join(row["notes"])
        writer.writerow(
            [_safe(row["learner"]), row["exercise"], _cell(row["points"]), _cell(row["out_of"]),
             to_read, _safe(notes), *cells]
        )  # fmt: skip
    handed_in = {row["learner"] for row in results}
    for learner in learners:
        if learner not in handed_in:
            writer.writerow(
                [_safe(learner), "", 0, "", 0, "nothing was handed in", *([""] * len(keys))]
            )
    return file.getvalue()


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _safe(text: str) -> str:
    """No spreadsheet takes it for a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def to_json(results: Rows, learners: Sequence[str]) -> str:
    """Everything but the pictures."""
    plain = [
        row | {"parts": [{k: v for k, v in p.items() if k != "picture"} for p in row["parts"]]}
        for row in results
    ]
    handed_in = {row["learner"] for row in results}
    missing = [learner for learner in learners if learner not in handed_in]
    return json.dumps(
        {"results": plain, "nothing_handed_in": missing}, indent=1, ensure_ascii=False
    )


def write_pages(results: Rows, learners: Sequence[str], folder: Path) -> Path:
    """index.html for the teacher, and ``learners/NAME.html`` to give to each. Returns the index."""
    pages = folder / "learners"
    pages.mkdir(parents=True, exist_ok=True)
    by_learner: dict[str, list[dict[str, Any]]] = {learner: [] for learner in learners}
    for row in results:
        by_learner.setdefault(row["learner"], []).append(row)
    names = _page_names(list(by_learner))
    for learner, rows in by_learner.items():
        (pages / names[learner]).write_text(_learner_page(learner, rows), encoding="utf-8")
    index = folder / "index.html"
    index.write_text(_class_page(results, by_learner, names), encoding="utf-8")
    return index


def _page_names(learners: list[str]) -> dict[str, str]:
    """Safe file names, different for different learners."""
    names: dict[str, str] = {}
    used: set[str] = set()
    for learner in learners:
        base = re.sub(r"[^\w.@-]+", "_", learner) or "learner"
        name, number = base, 2
        while name.lower() in used:
            name, number = f"{base}-{number}", number + 1
        used.add(name.lower())
        names[learner] = f"{name}.html"
    return names


def _page(title: str, body: str) -> str:
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style>"
        f"<h1>{html.escape(title)}</h1>{body}</html>\n"
    )


def _learner_page(learner: str, rows: Rows) -> str:
    body = "".join(_exercise_section(row) for row in rows)
    return _page(learner, body or "<p>Nothing was handed in.</p>")


def _exercise_section(row: dict[str, Any]) -> str:
    notes = "".join(f"<li>{as_html(sentence(note))}</li>" for note in row["notes"])
    parts = "".join(_part_block(part) for part in row["parts"])
    title = html.escape(row["exercise"].replace("_", " "))
    head = f"<h2>{title}: {_number(row['points'])} of {_number(row['out_of'])} points</h2>"
    return head + (f"<ul>{notes}</ul>" if notes else "") + parts


def _part_block(part: dict[str, Any]) -> str:
    points, esc = part["points"], html.escape
    kind = "open" if points is None else "right" if points else ""
    got = (
        "still to be read" if points is None else f"{_number(points)} of {_number(part['out_of'])}"
    )
    lines = [f"<b>{esc(part['key'])} {esc(part['title'])}: {got}</b>"]
    if part["text"] and points is not None:
        lines.append(as_html(sentence(part["text"])))
    if part["case"] and not points:
        lines.append(f"The smallest case that shows it: {esc(part['case'])}.")
    block = "<br>".join(lines)
    if part["answer"]:
        block += f"<pre>{esc(part['answer'])}</pre>"
    if part.get("picture"):
        block += (
            '<br><img alt="the expected run above, the submitted one below" '
            f'src="data:image/png;base64,{part["picture"]}">'
        )
    return f'<div class="part {kind}">{block}</div>'


def _class_page(
    results: Rows, by_learner: dict[str, list[dict[str, Any]]], names: dict[str, str]
) -> str:
    nothing = sum(not rows for rows in by_learner.values())
    body = f"<p>{len(results)} submissions of {len(by_learner) - nothing} learners"
    body += f"; {nothing} more on the roster handed in nothing.</p>" if nothing else ".</p>"
    for exercise in sorted({row["exercise"] for row in results}):
        rows = [row for row in results if row["exercise"] == exercise]
        body += f"<h2>{html.escape(exercise.replace('_', ' '))}</h2>{_distribution(rows)}"
        body += _part_table(rows) + _commonest(rows)
    body += "<h2>Everybody</h2><table><tr><th>learner<th>points<th>to be read<th>notes</tr>"
    for learner, rows in by_learner.items():
        points, out_of = (sum(row[k] for row in rows) for k in ("points", "out_of"))
        total = f"{_number(points)} of {_number(out_of)}"
        to_read = sum(p["points"] is None for row in rows for p in row["parts"])
        notes = sum(len(row["notes"]) for row in rows)
        body += (
            f'<tr><td><a href="learners/{quote(names[learner])}">{html.escape(learner)}</a>'
            f'<td class="n">{total if rows else "nothing handed in"}'
            f'<td class="n">{to_read or ""}'
            f'<td class="n">{notes or ""}</tr>'
        )
    return _page("Grades", body + "</table>")


def _distribution(rows: Rows) -> str:
    """How many submissions got so many per cent of the points: a bar per ten, and one for all."""
    counts = Counter(min(10, int(10 * _share(row) + 1e-9)) for row in rows)
    top, bars = max(counts.values()), ""
    for tenth in range(11):
        n, x = counts.get(tenth, 0), 46 * tenth + 4
        height = 70 * n / top
        bars += (
            f'<rect class="bar" x="{x}" y="{80 - height:.0f}" width="38" height="{height:.0f}"/>'
        )
        if n:
            bars += f'<text x="{x + 19}" y="{76 - height:.0f}" text-anchor="middle">{n}</text>'
        bars += f'<text x="{x + 19}" y="98" text-anchor="middle">{10 * tenth}</text>'
    return (
        '<svg viewBox="0 -10 516 130" width="516" role="img" font-size="12" '
        'aria-label="how many submissions got how many per cent of the points">'
        f'{bars}<text x="4" y="116">per cent of the points so far: from 0 to below 10, …; '
        "100 is all of them</text></svg>"
    )


def _share(row: dict[str, Any]) -> float:
    """Of the points that could be given: what nobody has read yet does not count against one."""
    unread = sum(part["out_of"] for part in row["parts"] if part["points"] is None)
    return float(row["points"] / max(row["out_of"] - unread, 1e-9))


def _part_table(rows: Rows) -> str:
    keys = {part["key"]: part["title"] for row in rows for part in row["parts"]}
    table = "<table><tr><th>part<th><th>points<th>wrong<th>not tried<th>to be read</tr>"
    for key, title in keys.items():
        parts = [p for row in rows for p in row["parts"] if p["key"] == key]
        none = [p for p in parts if p["points"] == 0]
        untried = sum(was_not_tried(p["text"]) for p in none)
        to_read = sum(p["points"] is None for p in parts)
        counts = (len(parts) - len(none) - to_read, len(none) - untried, untried, to_read)
        cells = "".join(f'<td class="n">{count or ""}' for count in counts)
        table += f"<tr><td>{html.escape(key)}<td>{html.escape(title)}{cells}</tr>"
    return table + "</table>"


def _commonest(rows: Rows, most: int = 8) -> str:
    """What was wrong most often; numbers in a sentence do not make it another one."""
    examples: dict[tuple[str, str], str] = {}
    counts: Counter[tuple[str, str]] = Counter()
    for row in rows:
        for part in row["parts"]:
            if part["points"] == 0 and not was_not_tried(part["text"]):
                kind = (part["key"], re.sub(r"\d[\d,.]*", "#", part["text"]))
                counts[kind] += 1
                examples.setdefault(kind, part["text"])
    lines = "".join(
        f"<li>{html.escape(kind[0])}, {_times(count)}: {as_html(sentence(examples[kind]))}</li>"
        for kind, count in counts.most_common(most)
    )
    return f"<p>The commonest wrong answers:</p><ul>{lines}</ul>" if lines else ""


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _number(value: float) -> str:
    return f"{value:g}"
