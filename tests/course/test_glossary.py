"""The glossary: no word of the course is undefined, and what code defines is not defined twice."""

from __future__ import annotations

import inspect
import re
import shutil
from importlib import import_module
from pathlib import Path

import pytest

from toyserve.course.definitions import definition, first_sentence
from toyserve.course.glossary import (
    LESSONS,
    ROOT,
    GlossaryError,
    Term,
    bold_words,
    main,
    markdown,
    read_sources,
    read_terms,
)

TERMS = read_terms()
FROM_CODE = [term for term in TERMS if term.place]
TIMES = ("TTFT", "TPOT", "ITL", "E2E", "deadline")


def words(text: str) -> str:
    """For comparing: without marks of comments, quotes and backticks, and in lower case."""
    return re.sub(r"\s+", " ", re.sub(r"[`#\"]", "", text)).strip(" .").lower()


@pytest.mark.parametrize("term", FROM_CODE, ids=lambda term: term.name)
def test_a_meaning_is_what_the_code_itself_says(term: Term) -> None:
    path, _, symbol = str(term.place).partition("::")
    assert words(term.meaning) in words((ROOT / path).read_text(encoding="utf-8"))
    package = path.replace("kernels/", "toyserve_kernels/").removesuffix(".py").replace("/", ".")
    found: object = import_module(package.removesuffix(".__init__"))
    for name in filter(None, symbol.split(".")):
        found = getattr(found, name, None)
    if inspect.ismodule(found) or inspect.isroutine(found) or isinstance(found, type | property):
        docstring = words(inspect.getdoc(found) or "")
        said = words(term.meaning)
        assert docstring.startswith(said) or docstring.partition(": ")[2].startswith(said)


def test_no_word_stands_in_the_page_twice() -> None:
    names = [part for term in TERMS for part in term.name.lower().split(", ")]
    assert len(names) == len(set(names))


def test_most_words_are_defined_by_code_and_few_for_the_glossary_alone() -> None:
    assert len(FROM_CODE) > len(TERMS) / 2


@pytest.mark.parametrize("name", TIMES)
def test_a_time_says_its_unit(name: str) -> None:
    assert "seconds" in next(term.meaning for term in TERMS if term.name == name)


@pytest.mark.parametrize("term", TERMS, ids=lambda term: term.name)
def test_a_meaning_is_one_sentence_that_fits_a_table(term: Term) -> None:
    assert term.meaning[0].isupper() or not term.meaning[0].isalpha()
    assert term.meaning[-1] in ".?!…"
    assert len(term.meaning.split()) <= 30
    assert "|" not in term.meaning and "``" not in term.meaning


def test_a_word_is_introduced_by_the_lesson_that_is_named_after_it_or_has_it_bold_first() -> None:
    where = {term.name: term.lesson for term in TERMS}
    assert (where["token"], where["TTFT"], where["roofline"]) == ("00", "01", "02")
    assert where["chunked prefill"] == "05"  # bold in 04 already, as what comes next
    assert (where["block table"], where["preemption"], where["knee"]) == ("07", "09", "11")


def test_every_bold_word_of_the_lessons_is_in_the_page(tmp_path: Path) -> None:
    bold = {w.lower() for source in read_sources() for w in bold_words(source.prose)}
    assert {"ttft", "block table", "victim", "watermark"} <= bold
    lessons = copy_of_the_sources(tmp_path)
    file = lessons / "source/05_chunked_prefill.py"
    file.write_text(f"{file.read_text()}\n# %% [markdown]\n# A **flux capacitor** decides.\n")
    with pytest.raises(GlossaryError, match="'flux capacitor'"):
        read_terms(lessons)


def test_a_word_whose_code_is_gone_stops_the_build(tmp_path: Path) -> None:
    lessons = copy_of_the_sources(tmp_path)
    file = lessons / "source/glossary.toml"
    text = file.read_text(encoding="utf-8")
    for gone in ("metrics.py::no_such", "metrics_of_old.py::ttft"):
        file.write_text(text.replace("metrics.py::ttft", gone), encoding="utf-8")
        with pytest.raises(GlossaryError, match=r"'TTFT': .* is not there"):
            read_terms(lessons)


def test_a_word_that_no_lesson_uses_stops_the_build(tmp_path: Path) -> None:
    lessons = copy_of_the_sources(tmp_path)
    file = lessons / "source/glossary.toml"
    text = file.read_text(encoding="utf-8").replace("[ideas]\n", '[ideas]\n"gizmo" = "A thing."\n')
    file.write_text(text, encoding="utf-8")
    with pytest.raises(GlossaryError, match="'gizmo' stands in no lesson"):
        read_terms(lessons)


def copy_of_the_sources(folder: Path) -> Path:
    shutil.copytree(LESSONS / "source", folder / "lessons/source")
    return folder / "lessons"


CODE = '''"""A module: it explains itself. Not more."""

# one: the first. two: another
Choice = Literal["one", "two"]


class Box:
    """A box.

    depth: how deep, in metres; None: flat. width, height: as it says. Not this.
    """

    height: float
    colour: str = "red"  # of the paint

    def __init__(self, depth: float) -> None:
        # Who is in it.
        self.inside: list[str] = []
        self.bare = depth

    @property
    def area(self) -> float:
        """Square metres (of one side, ``x`` by 2.5). Rounded."""
'''


@pytest.mark.parametrize(
    ("symbol", "said"),
    [
        ("", "A module: it explains itself."),
        ("::Choice.one", "The first."),
        ("::Choice.two", "Another."),
        ("::Box", "A box."),
        ("::Box.depth", "How deep, in metres; None: flat."),
        ("::Box.height", "As it says."),
        ("::Box.colour", "Of the paint."),
        ("::Box.inside", "Who is in it."),
        ("::Box.area", "Square metres (of one side, `x` by 2.5)."),
    ],
)
def test_what_code_says_of_itself_is_found(tmp_path: Path, symbol: str, said: str) -> None:
    (tmp_path / "box.py").write_text(CODE, encoding="utf-8")
    assert definition(f"box.py{symbol}", tmp_path) == said


@pytest.mark.parametrize("symbol", ["Box.bare", "Box.lid", "Lid", "Choice.three"])
def test_what_code_does_not_say_is_not_made_up(tmp_path: Path, symbol: str) -> None:
    (tmp_path / "box.py").write_text(CODE, encoding="utf-8")
    with pytest.raises(LookupError, match=re.escape(f"box.py::{symbol}")):
        definition(f"box.py::{symbol}", tmp_path)


def test_a_sentence_ends_where_a_reader_would_say() -> None:
    assert first_sentence("a (q: 0 .. 100) b. Next one.") == "A (q: 0 .. 100) b."
    assert first_sentence("one. ``two`` is next") == "One."
    assert first_sentence("0, 1, …") == "0, 1, …"


def test_the_committed_page_is_what_the_module_makes() -> None:
    assert (LESSONS / "glossary.md").read_text(encoding="utf-8") == markdown()
    assert main(["--check"]) == 0


def test_every_link_of_the_page_leads_to_a_lesson() -> None:
    links = set(re.findall(r"\]\(([^)]+)\)", markdown()))
    assert links and all((LESSONS / link).is_file() for link in links)
