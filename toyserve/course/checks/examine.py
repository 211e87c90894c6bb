"""Observe a learner's answer on one case after another, and judge what was seen."""

from __future__ import annotations

import json
import linecache
import os
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toyserve.course.checks.limits import TimeIsUp, time_limit
from toyserve.course.checks.part import Case, Exercise, Part, Picture, Wrong
from toyserve.course.checks.plain import MAX_BYTES, NotPlain, pack, unpack

LIMIT = 8.0  # seconds for all cases of one part
JUDGE_LIMIT = 20.0  # for what a judge has to run itself
# Files whose lines a learner did not write: toyserve's and Python's own.
_NOT_THEIRS = (str(Path(__file__).resolve().parents[2]), os.path.dirname(os.__file__), "<frozen")


@dataclass(frozen=True)
class Outcome:
    """right: all cases. text: one or a few sentences. case: the first that failed."""

    key: str
    right: bool
    text: str
    num_cases: int = 0
    case: Case | None = None
    picture: Picture | None = None


# -- beside the learner's code ------------------------------------------------------------------


def observe(part: Part, namespace: Mapping[str, Any], case: Case, limit: float) -> dict[str, Any]:
    """{"data": packed} or {"failed": a sentence}; JSON can hold either. Raises nothing but
    KeyboardInterrupt and SystemExit's like from the outside."""
    missing = [name for name in part.names if name not in namespace]
    if missing:
        return {"failed": _not_defined(part, missing[0])}
    objects = [namespace[name] for name in part.names]
    try:
        with time_limit(limit):
            data = pack(part.observe(json.loads(json.dumps(case)), *objects))
            size = len(json.dumps(data))
    except TimeIsUp as error:
        return {"failed": endless_sentence("it", limit, error)}
    except NotPlain as error:
        return {"failed": str(error)}
    except NotImplementedError as error:
        return {"failed": _still_to_write(part, error)}
    except Wrong as wrong:
        return {"failed": wrong.text}
    except KeyboardInterrupt:
        raise
    except SystemExit:
        return {"failed": "it called exit, which would end the whole server"}
    except RecursionError:
        return {"failed": "it calls itself without end (RecursionError)"}
    except MemoryError:
        return {"failed": "it wanted more memory than there is"}
    except BaseException as error:
        return {"failed": crash_sentence(error)}
    if size > MAX_BYTES:
        return {
            "failed": f"it gave back {size:,} bytes of data; at most {MAX_BYTES:,} are looked at"
        }
    return {"data": data}


_MISSING = "nothing is called "
NOTHING_WRITTEN = "nothing was written here"


def _not_defined(part: Part, name: str) -> str:
    return f"{_MISSING}`{name}` yet. Has the cell that defines it been run?"


def is_missing(text: str) -> bool:
    """Does this sentence say that a name is not defined?"""
    return text.startswith(_MISSING)


def _still_to_write(part: Part, error: BaseException) -> str:
    text = str(error)
    return text if "still to be written" in text else "it is still to be written"


def endless_sentence(what: str, limit: float, error: BaseException) -> str:
    """That it was stopped, and at which line of the learner's own code."""
    line = _line_of(error)
    where = f" It was stopped in the line `{line}`" if line else ""
    return f"{what} had not ended after {limit:.0f} seconds: does a loop never end?{where}"


def _line_of(error: BaseException) -> str:
    """The innermost line that the learner wrote; "" when there is none."""
    for entry in reversed(traceback.extract_tb(error.__traceback__)):
        if not entry.filename.startswith(_NOT_THEIRS) and "site-packages" not in entry.filename:
            return entry.line or linecache.getline(entry.filename, entry.lineno or 0).strip()
    return ""


def crash_sentence(error: BaseException) -> str:
    """What was raised, and at which line of the learner's own code."""
    try:
        text = " ".join(str(error).split())[:300]
    except BaseException:
        text = ""
    kind = type(error).__name__
    line = _line_of(error)
    where = f", in the line `{line}`" if line else ""
    if isinstance(error, EOFError) and "reading a line" in text:
        return f"it asks for something to be typed (input), and nobody is there{where}"
    if isinstance(error, ValueError | RuntimeError) and text:
        return f"the engine or your code stopped with: {text}{where}"
    return f"it crashed with {kind}{': ' + text if text else ''}{where}"


# -- without it ---------------------------------------------------------------------------------


def judge(part: Part, case: Case, observation: Any, expected: Any) -> Outcome:
    """What to think of one observation. ``expected`` is unpacked. Raises nothing."""
    if not isinstance(observation, dict) or set(observation) not in ({"data"}, {"failed"}):
        return Outcome(part.key, False, "nothing that can be judged came back", case=case)
    if "failed" in observation:
        return Outcome(part.key, False, str(observation["failed"])[:2000], case=case)
    try:
        with time_limit(JUDGE_LIMIT):
            praise = part.judge(case, unpack(observation["data"]), expected)
    except TimeIsUp:
        return Outcome(part.key, False, "what came back took too long to look at", case=case)
    except Wrong as wrong:
        return Outcome(part.key, False, wrong.text, case=case, picture=wrong.picture)
    except NotPlain as error:
        return Outcome(part.key, False, str(error), case=case)
    except Exception as error:  # data that the author did not think of
        text = f"what came back does not have the form that was asked for ({type(error).__name__})"
        return Outcome(part.key, False, text, case=case)
    return Outcome(part.key, True, praise or "")


def examine(
    exercise: Exercise,
    part: Part,
    namespace: Mapping[str, Any],
    cases: Sequence[Case],
    expected: Callable[[Case], Any],
    limit: float = LIMIT,
) -> Outcome:
    """All cases, up to the first that fails."""
    end, praise = time.monotonic() + limit, ""
    for case in cases:
        observation = observe(part, namespace, case, max(0.5, end - time.monotonic()))
        outcome = judge(part, case, observation, expected(case))
        if not outcome.right:
            return outcome
        praise = outcome.text or praise
    return Outcome(part.key, True, praise, num_cases=len(cases))
