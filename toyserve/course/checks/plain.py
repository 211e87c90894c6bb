"""Plain data: what may cross from a learner's process to the judge. JSON can hold all of it.

An object that claims to equal everything is no number, and does not get across.
"""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from typing import Any

from toyserve.recording import Recording

_RECORDING = "recording.jsonl"
MAX_BYTES = 8_000_000  # of one observation, as JSON


class NotPlain(ValueError):
    """One sentence: what was given, and what was expected."""


def pack(value: Any) -> Any:
    """The same as lists, dicts, numbers, texts, True, False and None. Raises NotPlain.

    numpy's numbers and arrays become Python's, a tuple becomes a list, a Recording its file's text.
    """
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else {"float": str(value)}
    if kind in (list, tuple, set, frozenset):
        items = value if kind in (list, tuple) else sorted(value)
        return [pack(item) for item in items]
    if isinstance(value, dict) and kind.__module__ in ("builtins", "collections"):
        return {_key(name): pack(item) for name, item in value.items()}
    if kind is Recording:
        return {_RECORDING: _text_of(value)}
    if kind.__module__ == "numpy" and kind.__name__ == "ndarray":
        return pack(value.tolist())
    if kind.__module__ == "numpy" and hasattr(kind, "item"):
        return pack(value.item())
    raise NotPlain(
        f"an object of the class {kind.__name__} came back where a number, a text or a list "
        f"was expected"
    )


def _key(name: Any) -> str:
    if type(name) in (str, int, bool):
        return str(name)
    raise NotPlain(
        f"an object of the class {type(name).__name__} came back as a key where a name was expected"
    )


def unpack(data: Any) -> Any:
    """What a judge sees: recordings are recordings again. Raises NotPlain for a broken one."""
    if isinstance(data, list):
        return [unpack(item) for item in data]
    if isinstance(data, dict):
        if set(data) == {"float"}:
            return float(data["float"])
        if set(data) == {_RECORDING}:
            return _recording_of(data[_RECORDING])
        return {name: unpack(item) for name, item in data.items()}
    return data


def canonical(data: Any) -> str:
    """One text for equal data, with keys in order."""
    return json.dumps(data, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _text_of(recording: Recording) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / _RECORDING
        recording.save(path)
        return path.read_text(encoding="utf-8")


def _recording_of(text: Any) -> Recording:
    if not isinstance(text, str):
        raise NotPlain("a broken recording came back")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / _RECORDING
        path.write_text(text, encoding="utf-8")
        try:
            return Recording.load(path)
        except ValueError:
            raise NotPlain("a broken recording came back") from None
