"""``toyserve bench``: this engine and others, on the same work, in one run, token for token.

Speeds on a shared machine wander by tens of per cent within a minute. So the contestants take
turns, round after round, and what is reported is the ratio within each round. By default all runs
on one thread and time is the CPU time of this process, which a busy neighbour hardly changes.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0, or 1 if contestants disagree about a token. Loads torch only now."""
    from toyserve.bench.command import main as run

    return run(argv)
