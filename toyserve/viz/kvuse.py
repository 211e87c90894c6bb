"""KV use over a run: slots that hold tokens, slots taken but empty, free slots, and holes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from toyserve.kv.manager import BlockEvent
from toyserve.recording import Recording
from toyserve.replay import replay_work
from toyserve.viz.bars import bars_of, x_axis
from toyserve.viz.style import (
    MEMORY,
    Theme,
    add_legend,
    check_choice,
    claim_x,
    dress,
    figure_of,
    look_patch,
    new_axes,
    set_title,
    theme_of,
)
from toyserve.viz.words import require_steps, run_name, say_empty


@dataclass
class KVUse:
    """Per step, while it runs; arrays of one number per step."""

    held_blocks: NDArray[np.int64]
    written_slots: NDArray[np.int64]
    cached_blocks: NDArray[np.int64]  # held by nobody, kept for whoever begins the same
    largest_hole: NDArray[np.int64]  # free blocks side by side


@dataclass
class _Books:
    num_blocks: int
    block_size: int
    num_refs: list[int] = field(default_factory=list)  # per block
    num_held: int = 0
    num_extra_refs: int = 0  # holders of a block beyond its first
    tables: dict[str, int] = field(default_factory=dict)  # request -> number of blocks
    computed: dict[str, int] = field(default_factory=dict)
    cached: set[int] = field(default_factory=set)
    num_only_cached: int = 0

    def apply(self, events: Iterable[BlockEvent]) -> None:
        for kind, block, name in events:
            if kind == "take":
                self.num_refs[block] += 1
                first = self.num_refs[block] == 1
                self.tables[name] = self.tables.get(name, 0) + 1
                self.num_held += first
                self.num_only_cached -= first and block in self.cached
                self.num_extra_refs += not first
            elif kind == "drop":
                self.num_refs[block] -= 1
                last = self.num_refs[block] == 0
                self.tables[name] -= 1
                if not self.tables[name]:
                    del self.tables[name]
                    self.computed.pop(name, None)
                self.num_held -= last
                self.num_only_cached += last and block in self.cached
                self.num_extra_refs -= not last

            elif (kind == "cache") != (block in self.cached):
                self.num_only_cached += (not self.num_refs[block]) * (1 if kind == "cache" else -1)
                (self.cached.add if kind == "cache" else self.cached.discard)(block)

    @property
    def num_written(self) -> int:
        """A block that several share is full, and counts once."""
        tokens = sum(self.computed.values()) - self.num_extra_refs * self.block_size
        return max(0, min(tokens, self.num_held * self.block_size))

    def largest_hole(self) -> int:
        free = np.concatenate(([0], np.array(self.num_refs) == 0, [0])).astype(np.int8)
        edges = np.flatnonzero(np.diff(free))
        return int((edges[1::2] - edges[::2]).max(initial=0))


def kv_use(recording: Recording, *, holes: bool = False, after: bool = False) -> KVUse:
    """How much of the pool each step holds and fills, or (``after``) leaves held and filled.

    holes: also find the largest gap.
    """
    num_blocks, size = int(recording.meta["num_blocks"]), int(recording.meta["block_size"])
    books = _Books(num_blocks, size, [0] * num_blocks)
    rows = []
    for step, work in replay_work(recording):
        books.apply(step.block_events)
        for item in work:
            if item.request_id in books.tables:
                books.computed[item.request_id] = item.context_len
        if after:
            books.apply(step.block_events_after)
        hole = books.largest_hole() if holes else 0
        rows.append((books.num_held, books.num_written, books.num_only_cached, hole))
        if not after:
            books.apply(step.block_events_after)
    table = np.array(rows, dtype=np.int64).reshape(-1, 4)
    return KVUse(*table.T)


def kv_usage(
    recording: Recording,
    *,
    x: Literal["step", "time"] = "step",
    holes: bool | None = None,
    ax: Axes | None = None,
    title: str | None = None,
    legend: bool = True,
    theme: str = "light",
) -> Figure:
    """The pool over a run: slots that hold tokens, slots taken but empty, free slots.

    holes: draw the largest free stretch too, where a manager needs one (external fragmentation);
    None: if its name says that it is contiguous.
    """
    check_choice("x", x, ("step", "time"))
    require_steps(recording)
    look = theme_of(theme)
    if holes is None:
        holes = "contiguous" in str(recording.meta.get("kv", "")).lower()
    if ax is None:
        ax = new_axes((10, 3.2), look)[0]
    else:
        dress(ax, look)
    claim_x(ax, x)
    use, size = kv_use(recording, holes=holes), int(recording.meta["block_size"])
    pool = int(recording.meta["num_blocks"]) * size
    bars = bars_of(recording, x)
    rest = kv_use(recording, holes=holes, after=True) if x == "time" else use
    written = bars.heights(use.written_slots, rest.written_slots)
    held = bars.heights(use.held_blocks * size, rest.held_blocks * size)
    cached = bars.heights(use.cached_blocks * size, rest.cached_blocks * size)
    heights = {"written": written, "empty": held - written, "cached": cached}
    if not cached.any():
        del heights["cached"]
    heights["free"] = pool - held - cached
    _stack_memory(ax, heights, bars.edges, look)
    handles: list[Any] = [look_patch(MEMORY[name], look) for name in heights]
    if holes and len(written):
        hole = bars.heights(use.largest_hole, rest.largest_hole)
        ax.stairs(
            pool - hole * size, bars.edges, baseline=None, color=look.ink,
            linestyle=":", linewidth=1.6, gid="largest hole",
        )  # fmt: skip
        label = "from the dots up: the largest hole"
        handles.append(Line2D([], [], color=look.ink, linestyle=":", label=label))
    ax.set_ylim(0, pool)
    ax.set_ylabel("KV slots (tokens)")
    x_axis(ax, x, bars.edges)
    set_title(ax, title or _usage_title(recording, use, pool, size, holes), look)
    if not recording.steps:
        say_empty(ax, recording, look)
    if legend:
        add_legend(ax, handles, look)
    return figure_of(ax)


def _stack_memory(
    ax: Axes, heights: dict[str, NDArray[np.float64]], edges: NDArray[np.float64], theme: Theme
) -> None:
    base: Any = 0.0
    for name, height in heights.items():
        look = MEMORY[name]
        if len(height):
            ax.stairs(
                base + height, edges, baseline=base, fill=True, facecolor=look.fill(theme),
                edgecolor=look.edge(theme), hatch=look.hatch or None, linewidth=0.0, gid=name,
            )  # fmt: skip
            base = base + height


def _usage_title(recording: Recording, use: KVUse, pool: int, size: int, holes: bool) -> str:
    held = int(use.held_blocks.sum()) * size
    peak = int(use.held_blocks.max(initial=0)) * size
    name = f"{run_name(recording)}, {recording.meta.get('kv', 'KV')}"
    text = f"{name}: {peak / pool:.0%} of the pool taken at its fullest"
    if held:
        text += f"; {int(use.written_slots.sum()) / held:.0%} of what is taken holds tokens"
    apart = pool - (use.held_blocks + use.largest_hole) * size
    if holes and apart.any():
        text += f"; up to {apart.max() / pool:.0%} of the pool free but not in one piece"
    return text
