"""How a pool of blocks is laid out as a picture, from a dozen blocks to a hundred thousand.

A pool that the run hardly touches is cut after what it touched, and where a cell per block would be
too small to be seen, one cell stands for several. Both are said beside the picture.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from toyserve.recording import Recording

MAX_SINGLE_BLOCKS = 512  # drawn one by one, with their hatches
LEAST_SHOWN = 64
CELLS_PER_INCH = 19.0  # at most: five pixels a cell on a common screen


@dataclass(frozen=True)
class BlockGrid:
    """Blocks 0 .. num_shown - 1 of num_blocks, ``per_cell`` to a cell, ``columns`` cells a line."""

    num_blocks: int
    num_shown: int
    per_cell: int
    columns: int

    @property
    def num_cells(self) -> int:
        return -(-self.num_shown // self.per_cell)

    @property
    def num_lines(self) -> int:
        return -(-self.num_cells // self.columns)

    @property
    def note(self) -> str:
        """What the cells stand for, where it is not one block each and all of them."""
        notes = []
        if self.per_cell > 1:
            notes.append(f"1 cell = {self.per_cell} blocks")
        if self.num_shown < self.num_blocks:
            rest = self.num_blocks - self.num_shown
            notes.append(
                f"blocks 0 to {self.num_shown - 1:,}; "
                f"the other {rest:,} are never taken in this run"
            )
        return "; ".join(notes)


def num_touched_blocks(recording: Recording) -> int:
    """No block of this or a higher number changes hands in the run."""
    events = (
        event.block
        for step in recording.steps
        for event in chain(step.block_events, step.block_events_after)
    )
    return max(events, default=-1) + 1


def num_shown_blocks(num_blocks: int, num_touched: int) -> int:
    """All of them; of a large pool whose greater part is never touched, the part that is.

    A power of two then, so that a picture which grows seldom changes its shape.
    """
    if num_blocks <= MAX_SINGLE_BLOCKS:
        return num_blocks
    shown = LEAST_SHOWN
    while shown < num_touched:
        shown *= 2
    return shown if 2 * shown <= num_blocks else num_blocks


def grid_of(
    num_blocks: int, num_shown: int, shape: tuple[float, float], columns: int | None = None
) -> BlockGrid:
    """The grid of a panel's shape (inches: width, height). columns: cells a line, if it is set.

    Raises ValueError for less than one column.
    """
    if columns is not None and columns < 1:
        raise ValueError(f"columns is {columns}: a block map has at least 1")
    if num_shown <= MAX_SINGLE_BLOCKS:
        wide = num_shown if num_shown <= 16 else max(16, round((num_shown * 3) ** 0.5))
        return BlockGrid(num_blocks, num_shown, 1, columns or wide)
    (width, height), per_cell = shape, 1
    while num_shown / per_cell > width * height * CELLS_PER_INCH**2:
        per_cell *= 2
    num_cells = -(-num_shown // per_cell)
    fitting = max(8, 8 * round((num_cells * width / height) ** 0.5 / 8))
    return BlockGrid(num_blocks, num_shown, per_cell, columns or fitting)
