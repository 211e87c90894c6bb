"""Where a KV pool goes while somebody waits for memory: one bill per run, and the picture of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from toyserve.recording import Recording
from toyserve.viz.kvuse import kv_use
from toyserve.viz.style import MEMORY, STATES, State, Theme, figure_of, new_axes, theme_of


@dataclass(frozen=True)
class MemoryBill:
    """Shares of the pool's slots, 1 in all: a mean over the steps in which the head of the queue
    waited for memory (over all steps if it never did)."""

    tokens: float  # hold a token
    empty: float  # taken, but empty: internal fragmentation
    apart: float  # free, but not in the largest hole: external fragmentation
    free: float  # free, and of use to whoever is small enough


def memory_bill(recording: Recording, *, in_one_piece: bool) -> MemoryBill:
    """in_one_piece: does a request need its blocks side by side? If not, no free block is apart."""
    use = kv_use(recording, holes=in_one_piece)
    num_blocks, size = recording.meta["num_blocks"], recording.meta["block_size"]
    waits = np.array([step.waiting_for == "memory" for step in recording.steps])
    if not waits.any():
        waits = np.ones(len(recording.steps), dtype=bool)
    held, free = use.held_blocks[waits], num_blocks - use.held_blocks[waits]
    largest = use.largest_hole[waits] if in_one_piece else free
    written = use.written_slots[waits] / size
    parts = (written, held - written, free - largest, largest)
    return MemoryBill(*(float(part.mean() / num_blocks) for part in parts))


_LABELS = ("holds tokens", "taken but empty", "free, in pieces", "free, too little for the next")


def draw_bills(bills: Mapping[str, MemoryBill], *, ax: Axes | None = None) -> Figure:
    """One bar per run, its shares written into it."""
    look = theme_of("light")
    if ax is None:
        ax = new_axes((9, 1.5 + 0.6 * len(bills)), look)[0]
    for row, bill in enumerate(bills.values()):
        _draw_bar(ax, row, bill, look, with_label=row == 0)
    ax.set_yticks(range(len(bills)), list(bills))
    ax.set(ylim=(len(bills) - 0.5, -0.5), xlim=(0, 100), xlabel="share of the pool, %")
    ax.set_title("Where the pool is while somebody waits for memory", loc="left", fontsize=11)
    ax.legend(frameon=False, ncol=4, fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.28))
    return figure_of(ax)


def _draw_bar(ax: Axes, row: int, bill: MemoryBill, look: Theme, *, with_label: bool) -> None:
    looks = (MEMORY["written"], MEMORY["empty"], STATES[State.PADDING], MEMORY["free"])
    left = 0.0
    for share, part, label in zip(astuple(bill), looks, _LABELS, strict=True):
        ax.barh(
            row, 100 * share, left=100 * left, height=0.62, facecolor=part.fill(look),
            edgecolor=part.edge(look), hatch=part.hatch or None, linewidth=0.6,
            label=label if with_label else None,
        )  # fmt: skip
        if share >= 0.04:
            ax.text(
                100 * (left + share / 2), row, f"{share:.0%}", ha="center", va="center",
                color=look.ink, fontsize=9,
                bbox={"boxstyle": "round,pad=0.15", "facecolor": "#ffffffc0", "linewidth": 0},
            )  # fmt: skip
        left += share
