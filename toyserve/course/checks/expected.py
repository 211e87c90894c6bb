"""What the author's own solutions gave: kept as data, so that no solution has to be shipped.

``expected/NN_name.json`` holds, per part, the visible cases with their expected data, packed; the
builder makes it. The same packing carries the expectations of hidden tests in the teacher's copy.
"""

from __future__ import annotations

import base64
import json
import zlib
from functools import lru_cache
from pathlib import Path
from typing import Any

from toyserve.course.checks.part import Case, Exercise, Part
from toyserve.course.checks.plain import canonical, pack, unpack

FOLDER = Path(__file__).parent / "expected"


def squeeze(data: Any) -> str:
    """Packed data as one short text; the same text for the same data."""
    packed = zlib.compress(canonical(data).encode("utf-8"), 9)
    return base64.b85encode(packed).decode("ascii")


def unsqueeze(text: str) -> Any:
    """What ``squeeze`` was given. Raises ValueError for what is no such text."""
    return json.loads(zlib.decompress(base64.b85decode(text)))


@lru_cache(maxsize=32)
def _table(path: Path) -> dict[str, dict[str, str]]:
    """Part → case as canonical text → squeezed data; {} while the builder has not run."""
    if not path.exists():
        return {}
    table: dict[str, dict[str, str]] = json.loads(path.read_text(encoding="utf-8"))
    return table


def expected_for(exercise: Exercise, part: Part, case: Case) -> Any:
    """What is right for this case, unpacked, or None if nothing is known (a judge may not need it).

    Raises nothing: a case that is not in the table has no expectation.
    """
    if part.truth is not None:
        return unpack(pack(part.truth(case)))
    table = _table(FOLDER / f"{exercise.name}.json").get(part.key, {})
    text = table.get(canonical(case))
    return None if text is None else unpack(unsqueeze(text))


def table_text(table: dict[str, dict[str, str]]) -> str:
    """The file's text."""
    return json.dumps(table, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
