"""The block map: who holds which physical block of the KV cache in one step, and how full it is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from toyserve.kv.manager import BlockEvent
from toyserve.recording import Recording
from toyserve.replay import replay_work
from toyserve.viz.blockgrid import (
    MAX_SINGLE_BLOCKS,
    BlockGrid,
    grid_of,
    num_shown_blocks,
    num_touched_blocks,
)
from toyserve.viz.kvuse import kv_use
from toyserve.viz.style import (
    MEMORY,
    OWNERS,
    Theme,
    add_legend,
    claim_x,
    dress,
    figure_of,
    look_patch,
    new_axes,
    set_title,
    theme_of,
)
from toyserve.viz.words import require_steps, say_empty, short

MAX_NAMED_COLUMNS = 24
PANEL = (8.8, 3.2)  # inches of a large pool's own figure


@dataclass(frozen=True)
class BlockMap:
    """The pool while one step runs: its own allocations done, the finished still there."""

    step: int  # counted from 1
    block_size: int
    holders: list[list[tuple[str, int]]]  # per block: (request, which page of it this is)
    num_written: list[int]  # per block, 0 .. block_size
    cached: set[int]  # blocks whose content is kept for whoever begins the same

    @property
    def num_blocks(self) -> int:
        return len(self.holders)

    @property
    def num_held(self) -> int:
        return sum(1 for holder in self.holders if holder)


def block_map_at(recording: Recording, step: int | None = None) -> BlockMap:
    """Who holds what in step ``step``, counted from 1; in the fullest step without one."""
    num_steps, size = len(recording.steps), int(recording.meta["block_size"])
    if step is None:
        step = int(kv_use(recording).held_blocks.argmax()) + 1 if num_steps else 1
    if not 1 <= step <= num_steps:
        raise ValueError(f"step is {step}: this run has steps 1 to {num_steps}")
    tables: dict[str, list[int]] = {}
    computed: dict[str, int] = {}
    cached: set[int] = set()
    for number, (record, work) in enumerate(replay_work(recording), 1):
        _move(tables, cached, record.block_events)
        computed.update((item.request_id, item.context_len) for item in work)
        if number == step:
            break
        _move(tables, cached, record.block_events_after)
    holders: list[list[tuple[str, int]]] = [[] for _ in range(int(recording.meta["num_blocks"]))]
    written = [size if block in cached else 0 for block in range(len(holders))]
    for name, table in tables.items():
        for page, block in enumerate(table):
            holders[block].append((name, page))
            filled = computed.get(name, 0) - page * size
            written[block] = max(written[block], min(size, max(0, filled)))
    return BlockMap(step, size, holders, written, cached)


def block_map(
    recording: Recording,
    step: int | None = None,
    *,
    columns: int | None = None,
    ax: Axes | None = None,
    title: str | None = None,
    legend: bool = True,
    theme: str = "light",
) -> Figure:
    """Every physical block in one step (counted from 1; the fullest step without one).

    A block's colour and name say who holds it, and the number which page of that request it is; the
    filled part holds tokens, the hatched part is taken but empty. Of a pool of thousands a cell is
    several blocks, or only the part is shown that the run touches: the picture says so.
    columns: cells a line. Raises ValueError for a step that there is not.
    """
    require_steps(recording)
    look = theme_of(theme)
    grid = _grid(recording, columns, ax)
    single = grid.num_shown <= MAX_SINGLE_BLOCKS
    if ax is None:
        line = 0.6 if grid.columns <= MAX_NAMED_COLUMNS else 0.34
        panel = min(5.0, max(0.9, line * grid.num_lines)) if single else PANEL[1]
        ax = new_axes((10, 1.3 + panel), look)[0]
    else:
        dress(ax, look)
    claim_x(ax, "block")
    if not recording.steps:
        say_empty(ax, recording, look)
        return figure_of(ax)
    memory = block_map_at(recording, step)
    colors = {name: OWNERS[i % len(OWNERS)] for i, name in enumerate(recording.requests)}
    if single:
        for block in range(grid.num_shown):
            _paint_block(ax, colors, memory, block, grid.columns, look)
        ax.set_xlim(-0.05, grid.columns + 0.05)
        ax.set_ylim(grid.num_lines + 0.05, -0.05)
    else:
        _paint_image(ax, colors, memory, grid, look)
    _label_blocks(ax, grid, framed=not single)
    set_title(ax, title or _map_title(memory), look)
    if legend:
        add_legend(ax, _legend_handles(memory, look, hatched=single), look)
    return figure_of(ax)


def _grid(recording: Recording, columns: int | None, ax: Axes | None) -> BlockGrid:
    num_blocks, shape = int(recording.meta["num_blocks"]), PANEL
    touched = num_touched_blocks(recording) if num_blocks > MAX_SINGLE_BLOCKS else num_blocks
    if ax is not None:
        box, (width, height) = ax.get_position(), figure_of(ax).get_size_inches()
        shape = box.width * width, box.height * height
    return grid_of(num_blocks, num_shown_blocks(num_blocks, touched), shape, columns)


def _label_blocks(ax: Axes, grid: BlockGrid, *, framed: bool) -> None:
    lines = range(0, grid.num_lines, max(1, grid.num_lines // 10))
    first = [f"{n * grid.columns * grid.per_cell:,}" for n in lines]
    ax.set_yticks([n + 0.5 for n in lines], first)
    ax.set_xticks([])
    ax.tick_params(length=0)
    for spine in ax.spines.values():
        spine.set_visible(framed)
    ax.set_xlabel(grid.note)
    ax.set_ylabel("block")


def _legend_handles(memory: BlockMap, theme: Theme, *, hatched: bool) -> list[Patch | Rectangle]:
    own = Rectangle((0, 0), 1, 1, facecolor=OWNERS[0], label="a request's colour: holds tokens")
    names = ("empty", "cached", "free") if memory.cached else ("empty", "free")
    looks = [MEMORY[name] if hatched else replace(MEMORY[name], hatch="") for name in names]
    return [own, *(look_patch(look, theme) for look in looks)]


def _move(tables: dict[str, list[int]], cached: set[int], events: Iterable[BlockEvent]) -> None:
    for event in events:
        if event.kind == "take":
            tables.setdefault(event.request_id, []).append(event.block)
        elif event.kind == "drop":
            tables[event.request_id].remove(event.block)
        elif event.kind == "cache":
            cached.add(event.block)
        else:
            cached.discard(event.block)


def _paint_block(
    ax: Axes, colors: dict[str, str], memory: BlockMap, block: int, columns: int, theme: Theme
) -> None:
    left, top, width, height = block % columns + 0.05, block // columns + 0.08, 0.9, 0.84
    holders = memory.holders[block]
    look = MEMORY["empty" if holders else "cached" if block in memory.cached else "free"]
    ax.add_patch(
        Rectangle(
            (left, top), width, height, facecolor=look.fill(theme), edgecolor=look.edge(theme),
            hatch=look.hatch, linewidth=0.8, gid=f"block {block}",
        )
    )  # fmt: skip
    share = memory.num_written[block] / memory.block_size
    for number, (name, _) in enumerate(holders):  # a shared block is striped among its holders
        part = height / len(holders)
        ax.add_patch(
            Rectangle(
                (left, top + part * number), width * share, part, facecolor=colors[name],
                linewidth=0, gid=f"written {block}",
            )
        )  # fmt: skip
    if holders and columns <= MAX_NAMED_COLUMNS:
        few = len(holders) <= 2  # more names than that would run into the next block
        names = short("+".join(n for n, _ in holders), 8) if few else f"{len(holders)} share"
        pages = sorted({page for _, page in holders})
        ax.text(
            left + width / 2, top + height / 2, f"{names}\n{pages[0]}", ha="center", va="center",
            color="#1a1a1a", fontsize=8 if columns <= 16 else 6.5, linespacing=1.0,
            bbox={"boxstyle": "round,pad=0.1", "facecolor": "#ffffffb0", "linewidth": 0},
        )  # fmt: skip


def _paint_image(
    ax: Axes, colors: dict[str, str], memory: BlockMap, grid: BlockGrid, theme: Theme
) -> None:
    """A cell is the mean colour of its blocks, and a block is paler where it is emptier."""
    free, empty, cached = (
        np.array(to_rgb(MEMORY[name].fill(theme))) for name in ("free", "empty", "cached")
    )
    owners = {name: np.array(to_rgb(color)) for name, color in colors.items()}
    blocks = np.tile(free, (grid.num_shown, 1))
    for block, holders in enumerate(memory.holders[: grid.num_shown]):
        if holders:
            share = memory.num_written[block] / memory.block_size
            own = sum(owners[name] for name, _ in holders) / len(holders)
            blocks[block] = share * own + (1 - share) * empty
        elif block in memory.cached:
            blocks[block] = cached
    starts = np.arange(0, grid.num_shown, grid.per_cell)
    sizes = np.diff(np.append(starts, grid.num_shown))
    image = np.tile(np.array(to_rgb(theme.background)), (grid.num_lines * grid.columns, 1))
    image[: grid.num_cells] = np.add.reduceat(blocks, starts) / sizes[:, None]
    ax.imshow(
        image.reshape(grid.num_lines, grid.columns, 3), aspect="auto", interpolation="nearest",
        extent=(0, grid.columns, grid.num_lines, 0), gid="blocks",
    )  # fmt: skip


def _map_title(memory: BlockMap) -> str:
    count = len({name for holders in memory.holders for name, _ in holders})
    who = "1 request holds" if count == 1 else f"{count:,} requests hold"
    text = f"Step {memory.step:,}: {who} {memory.num_held:,} of {memory.num_blocks:,} blocks"
    slots = memory.num_held * memory.block_size
    if slots:
        empty = sum(
            memory.block_size - written
            for holders, written in zip(memory.holders, memory.num_written, strict=True)
            if holders
        )
        text += f"; {empty / slots:.1%} of what they hold is empty"
    num_shared = sum(len(holders) > 1 for holders in memory.holders)
    if num_shared:
        text += f"; {num_shared:,} shared"
    return text
