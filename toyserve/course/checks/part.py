"""A graded part of an exercise: what the learner defines, what is seen of it, and who judges that.

The judging is split in two on purpose. ``observe`` runs beside the learner's code and brings back
plain data; ``judge`` looks at that data and nothing else. In a notebook both run in the kernel.
When a class is graded, only ``observe`` runs in the submission's process, and ``judge`` in the
grader's, where no code of the learner's has ever been: printing "PASSED", an object that equals
everything or a replaced module can change what is brought back, and never what is thought of it.

In the exercises' modules a function run_… is a part's ``observe``, judge_… its ``judge`` and true_…
its ``truth``; what each takes, returns and raises is said at ``Part``.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# What a case is: numbers and texts in a dict that JSON can hold. "what" says it in a few words.
Case = Mapping[str, Any]
# Draws the picture that goes with a sentence: a matplotlib figure.
Picture = Callable[[], Any]


class Wrong(Exception):
    """Raised by a judge: what is wrong, in a sentence for the learner, and perhaps a picture."""

    def __init__(self, text: str, picture: Picture | None = None) -> None:
        super().__init__(text)
        self.text, self.picture = text, picture


@dataclass(frozen=True)
class Part:
    """One graded question.

    key: ``"04.2"``. names: what the learner's cell must define, in the order in which ``observe``
    gets the objects. cases: smallest first, the first that fails is the one shown; a function gets
    the learner's seed. observe(case, *objects): plain data, or a Recording. judge(case, got,
    expected): raises Wrong; may return a sentence for those who got it right.

    expected is what the author's own solution gave for that case (kept in ``expected/``, made by
    the builder), or, where ``truth`` is given, what ``truth(case)`` computes with the library.
    ``expects`` names the entries that are kept: what a learner has to predict is not among them, so
    that it is written down nowhere; the judge works it out.
    """

    key: str
    title: str
    names: tuple[str, ...]
    observe: Callable[..., Any]
    judge: Callable[[Case, Any, Any], str | None]
    cases: Sequence[Case] | Callable[[int], Sequence[Case]]
    truth: Callable[[Case], Any] | None = None
    expects: tuple[str, ...] | None = None

    def kept(self, packed: Any) -> Any:
        """What of the solution's own (packed) observation becomes the expectation."""
        return packed if self.expects is None else {name: packed[name] for name in self.expects}

    def cases_for(self, seed: int) -> list[Case]:
        return list(self.cases(seed) if callable(self.cases) else self.cases)


@dataclass(frozen=True, eq=False)
class Exercise:
    """All parts that a machine grades, in order."""

    name: str  # "04_continuous_batching"
    parts: tuple[Part, ...]
    by_key: dict[str, Part] = field(init=False)

    def __post_init__(self) -> None:
        by_key = {part.key: part for part in self.parts}
        if len(by_key) != len(self.parts) or any(k[:3] != f"{self.number}." for k in by_key):
            raise ValueError(f"the parts of {self.name} are {[p.key for p in self.parts]}")
        object.__setattr__(self, "by_key", by_key)

    @property
    def number(self) -> str:
        return self.name[:2]

    def part(self, key: str) -> Part:
        if key not in self.by_key:
            known = ", ".join(self.by_key)
            raise ValueError(f"exercise {self.number} has no part {key!r}; there are: {known}")
        return self.by_key[key]

    def after(self, key: str) -> Part | None:
        """The next part, None behind the last."""
        keys = list(self.by_key)
        later = keys[keys.index(key) + 1 :]
        return self.by_key[later[0]] if later else None


def exercise_names() -> list[str]:
    """``["04_continuous_batching", …]``: every exercise whose checks are installed."""
    modules = pkgutil.iter_modules([str(Path(__file__).parent)])
    return sorted(m.name[2:] for m in modules if m.name[:2] == "ex" and m.name[2:4].isdigit())


def load_exercise(number: str) -> Exercise:
    """By number ("04") or name. Raises ValueError, with those there are, for an unknown one."""
    for name in exercise_names():
        if name == number or name[:2] == number:
            module = importlib.import_module(f"{__package__}.ex{name}")
            return Exercise(name, tuple(module.PARTS))
    known = ", ".join(n[:2] for n in exercise_names())
    raise ValueError(f"there is no exercise {number!r} with checks; there are: {known}")


def find_part(key: str) -> tuple[Exercise, Part]:
    """``"04.2"`` → its exercise and itself. Raises ValueError for an unknown one."""
    exercise = load_exercise(str(key)[:2])
    return exercise, exercise.part(str(key))
