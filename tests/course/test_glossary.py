"""The glossary: every word is explained once, has its code, and the page is today's."""

from __future__ import annotations

import re

import pytest

from toyserve.course.glossary import TARGET, TERMS, Term, main, markdown


@pytest.mark.parametrize("term", TERMS, ids=lambda term: term.name)
def test_a_term_s_code_exists_and_its_meaning_is_one_sentence(term: Term) -> None:
    assert term.object is not None
    assert term.meaning.endswith(".")
    assert not re.search(r"\. [A-Z]", term.meaning)
    assert re.fullmatch(r"0[0-9]|1[0-4]", term.lesson)


def test_a_symbol_that_is_gone_is_noticed() -> None:
    with pytest.raises(AttributeError):
        _ = Term("x", "X.", "00", "toyserve.metrics:no_such_thing").object


def test_terms_are_sorted_and_unique() -> None:
    names = [term.name.lower() for term in TERMS]
    assert names == sorted(set(names))


def test_the_committed_page_is_what_the_module_makes() -> None:
    assert TARGET.read_text(encoding="utf-8") == markdown()
    assert main(["--check"]) == 0
