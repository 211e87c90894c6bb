"""Numbers with their nouns, for every sentence, title and table that people read."""

from __future__ import annotations


def counted(number: float, noun: str) -> str:
    """So many: "1 token", "3 tokens", "1,200 tokens"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
