"""The picture of who read what is what the record says."""

from dataclasses import dataclass, field

import pytest

from toyserve.viz.programs import program_map


@dataclass(frozen=True)
class Record:
    program: tuple[int, int, int]
    sequence: int | None
    blocks: list[int]
    num_keys: int
    kv_head: int | None = 0
    new_tokens: list[int] = field(default_factory=list)


PROGRAMS = [
    Record((0, 0, 0), 0, [17, 42, 9, 31], 7),
    Record((1, 0, 0), 1, [3], 2),
    Record((2, 0, 0), None, [], 0),
]


def test_every_block_that_was_read_is_painted_in_its_order() -> None:
    (ax,) = program_map(PROGRAMS, 48, names=["E", "F"]).axes
    painted = {p.get_gid() for p in ax.patches if (p.get_gid() or "").startswith("read")}
    assert painted == {"read-0-17", "read-0-42", "read-0-9", "read-0-31", "read-1-3"}
    first = sorted(ax.texts[:4], key=lambda text: int(text.get_text()))
    assert [int(text.get_position()[0]) for text in first] == [17, 42, 9, 31]
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert labels == ["(0, 0, 0) E: 7 keys", "(1, 0, 0) F: 2 keys", "(2, 0, 0) no work"]
    assert ax.get_title(loc="left") == "2 of 3 programs have work"


def test_too_many_programs_are_refused_with_both_numbers() -> None:
    with pytest.raises(ValueError, match="41 programs were given: a picture shows 1 to 40"):
        program_map([PROGRAMS[0]] * 41, 48)
