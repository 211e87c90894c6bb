"""The course's words: what each means, the lesson that introduces it, and the code that says so.

    python -m toyserve.course.glossary           # write lessons/glossary.md
    python -m toyserve.course.glossary --check   # fail if the file is not what this module makes

A meaning is taken from the code's own docstring (``definitions.py``), else from the table of words
of the lesson that brings it. Only what neither explains is written down for the glossary, in
``lessons/source/glossary.toml``, which also says which code each word belongs to.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from toyserve.course.definitions import definition, first_sentence

ROOT = Path(__file__).resolve().parents[2]
LESSONS = ROOT / "lessons"
_ROW = re.compile(r"^\| (\*\*[^|]+?)\s*\| ([^|]+?)\s*\|", re.MULTILINE)
_BOLD = re.compile(r"\*\*([^*]+?)\*\*")
MAX_WORDS = 3  # of a term; what is longer and bold is a sentence


class GlossaryError(Exception):
    """One sentence for the author: what the glossary cannot be made from."""


@dataclass(frozen=True)
class Term:
    """One word. lesson: the number of the one that introduces it. place: ``path::symbol`` of the
    code whose sentence ``meaning`` is; None for an idea that no piece of code is."""

    name: str
    meaning: str
    lesson: str
    place: str | None = None


@dataclass(frozen=True)
class Source:
    """One lesson as it was written: all of it, and its prose alone, as Markdown."""

    file: str  # "04_continuous_batching"
    text: str

    @property
    def number(self) -> str:
        return self.file[:2]

    @cached_property
    def prose(self) -> str:
        return "\n".join(line[2:] for line in self.text.splitlines() if line[:2] == "# ")

    @property
    def title(self) -> str:
        return self.prose.partition("· ")[2].partition("\n")[0]


def read_sources(lessons: Path = LESSONS) -> list[Source]:
    """Every lesson, in order."""
    paths = sorted((lessons / "source").glob("[0-9][0-9]_*.py"))
    return [Source(path.stem, path.read_text(encoding="utf-8")) for path in paths]


def bold_words(text: str) -> list[str]:
    """What is bold and short, and no sentence and no heading of a paragraph."""
    found = (" ".join(match.split()) for match in _BOLD.findall(text))
    return [w for w in found if len(w.split()) <= MAX_WORDS and w[-1] not in '.?!:",']


def table_words(sources: Iterable[Source]) -> dict[str, str]:
    """The words of the lessons' own tables, as each was explained first."""
    words: dict[str, str] = {}
    for source in sources:
        for cell, meaning in _ROW.findall(source.prose):
            names = bold_words(cell)
            if names:  # "**grid**, **launch**": one row, one entry
                words.setdefault(", ".join(names), first_sentence(meaning))
    return words


def read_terms(lessons: Path = LESSONS, root: Path = ROOT) -> list[Term]:
    """Every word, by name. Raises GlossaryError for one that cannot be explained or is nowhere."""
    given = tomllib.loads((lessons / "source/glossary.toml").read_text(encoding="utf-8"))
    sources = read_sources(lessons)
    meanings: dict[str, str] = dict(given["ideas"])
    forms = {name: _parts(name) for name in (*given["code"], *meanings)}
    taken = {word.lower() for word in (*given["forms"], *given["no_words"])}.union(*forms.values())
    words = table_words(sources)
    for name in sorted(words, key=lambda name: len(_parts(name))):  # one by one before a pair
        if not taken & _parts(name):
            forms[name], meanings[name] = _parts(name), words[name]
            taken |= forms[name]
    for form, name in given["forms"].items():
        if name not in forms:
            raise GlossaryError(f"{form!r} is to be a form of {name!r}, which is no word")
        forms[name].add(form.lower())
    _refuse_strangers(sources, set(given["no_words"]).union(*forms.values()))
    places: dict[str, str] = given["code"]
    meanings |= {name: _said(name, at, root, forms[name]) for name, at in places.items()}
    terms = [
        Term(name, meaning, _first_lesson(forms[name], sources), places.get(name))
        for name, meaning in meanings.items()
    ]
    return sorted(terms, key=lambda term: term.name.lower())


def _parts(name: str) -> set[str]:
    """The whole and, of "grid, launch", each."""
    return {name.lower(), *name.lower().split(", ")}


def _refuse_strangers(sources: Iterable[Source], known: set[str]) -> None:
    bold = {word for source in sources for word in bold_words(source.prose)}
    strangers = sorted(w for w in bold if w not in known and w.lower() not in known)
    if strangers:
        raise GlossaryError(
            f"bold in a lesson and in no glossary: {', '.join(map(repr, strangers))}; explain it "
            f"in lessons/source/glossary.toml, or name it under no_words"
        )


def _said(name: str, place: str, root: Path, forms: Collection[str]) -> str:
    """The code's sentence, without the word itself in front ("Chunked prefill: …")."""
    try:
        sentence = definition(place, root)
    except LookupError as error:
        raise GlossaryError(f"the word {name!r}: {error}") from None
    start, _, rest = sentence.partition(": ")
    word = start.lower().removeprefix("the ").removeprefix("a ")
    return first_sentence(rest) if rest and word in forms else sentence


def _first_lesson(forms: Collection[str], sources: Iterable[Source]) -> str:
    """The lesson that has the word for its title, else the first that has it bold, or at all."""
    sources = list(sources)
    anywhere = re.compile("|".join(rf"(?<!\w){re.escape(form)}(?!\w)" for form in forms))
    found = [s for s in sources if s.title.lower() in forms]
    found += [s for s in sources if {w.lower() for w in bold_words(s.prose)} & set(forms)]
    found += [s for s in sources if anywhere.search(" ".join(s.text.lower().split()))]
    if not found:
        raise GlossaryError(f"the word {min(forms)!r} stands in no lesson: it needs no entry")
    return found[0].number


HEAD = """<!-- made by: python -m toyserve.course.glossary -->
# Glossary

The words of the course. A meaning with code beside it is the first sentence of what that code says
of itself: the rest stands there. Where there is none, the word is an idea, not a piece of code.

| word | what it means here | first met in | in the code |
|---|---|---|---|
"""


def markdown(lessons: Path = LESSONS, root: Path = ROOT) -> str:
    """The generated page: a table, by name, with a link to the lesson of each word."""
    files = {source.number: source.file for source in read_sources(lessons)}
    rows = []
    for term in read_terms(lessons, root):
        link = f"[{term.lesson}]({files[term.lesson]}.ipynb)"
        place = f"`{term.place}`" if term.place else "–"
        rows.append(f"| **{term.name}** | {term.meaning} | {link} | {place} |\n")
    return HEAD + "".join(rows)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m toyserve.course.glossary")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if it differs")
    options, target = parser.parse_args(argv), LESSONS / "glossary.md"
    try:
        text = markdown()
    except GlossaryError as error:
        print(error, file=sys.stderr)
        return 1
    if not options.check:
        target.write_text(text, encoding="utf-8", newline="\n")
        return 0
    same = target.exists() and target.read_text(encoding="utf-8") == text
    print(f"{target.name} is {'up to date' if same else 'not what the glossary makes'}")
    return 0 if same else 1


if __name__ == "__main__":
    raise SystemExit(main())
