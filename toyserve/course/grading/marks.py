"""The explanations that a person reads: written out as a table to fill in, and read back.

The table has a line for each text: learner, part, out_of, points (to be filled in), text.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_COLUMNS = ("learner", "part", "out_of", "points", "text")


def add_marks(results: Sequence[dict[str, Any]], path: Path) -> int:
    """Put the points of the table at ``path`` into ``results``; write what is not in it yet.

    Returns how many texts have no points still. Raises ValueError for points that cannot be.
    """
    known = _read(path)
    table, still = [], 0
    for row in results:
        for part in row["parts"]:
            if part["points"] is not None or not part["answer"]:
                continue
            given = known.get((row["learner"], part["key"]), "").strip()
            if given:
                part["points"] = _points(given, part["out_of"], row["learner"], part["key"])
                row["points"] += part["points"]
            else:
                still += 1
            table.append((row["learner"], part["key"], part["out_of"], given, part["answer"]))
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(_COLUMNS)
    writer.writerows(table)
    part_file = path.with_name(f"{path.name}.part")
    part_file.write_text(file.getvalue(), encoding="utf-8-sig", newline="")
    part_file.replace(path)
    return still


def _read(path: Path) -> dict[tuple[str, str], str]:
    if not path.exists():
        return {}
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    if rows and not set(_COLUMNS[:2]) | {"points"} <= set(rows[0]):
        raise ValueError(f"{path} must have the columns {', '.join(_COLUMNS)}")
    return {(row["learner"], row["part"]): row["points"] or "" for row in rows}


def _points(text: str, out_of: float, learner: str, key: str) -> float:
    try:
        points = float(text.replace(",", "."))
    except ValueError:
        points = -1.0
    if not 0 <= points <= out_of:
        raise ValueError(f"{learner}, {key}: points are {text!r}; from 0 to {out_of:g} they may be")
    return points
