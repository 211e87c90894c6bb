"""The block map: who holds which physical block of the KV cache in one step, and how full it is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from toyserve.kv.manager import BlockEvent
from toyserve.recording import Recording
from toyserve.replay import replay_work
from toyserve.viz.kvuse import kv_use
from toyserve.viz.style import (
    MEMORY,
    OWNERS,
    Theme,
    add_legend,
    dress,
    figure_of,
    look_patch,
    new_axes,
    set_title,
    theme_of,
)
from toyserve.viz.words import require_steps, say_empty, short

MAX_DRAWN_BLOCKS = 512
MAX_NAMED_COLUMNS = 24


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
    filled part holds tokens, the hatched part is taken but empty.
    """
    require_steps(recording)
    look = theme_of(theme)
    columns = columns or _columns(int(recording.meta["num_blocks"]))
    num_lines = -(-int(recording.meta["num_blocks"]) // columns)
    if ax is None:
        line = 0.6 if columns <= MAX_NAMED_COLUMNS else 0.34
        ax = new_axes((10, 1.3 + min(5.0, max(0.9, line * num_lines))), look)[0]
    else:
        dress(ax, look)
    if not recording.steps:
        say_empty(ax, recording, look)
        return figure_of(ax)
    memory = block_map_at(recording, step)
    colors = {name: OWNERS[i % len(OWNERS)] for i, name in enumerate(recording.requests)}
    if memory.num_blocks > MAX_DRAWN_BLOCKS:
        _paint_block_image(ax, colors, memory, columns, look)
    else:
        for block in range(memory.num_blocks):
            _paint_block(ax, colors, memory, block, columns, look)
        ax.set_xlim(-0.05, columns + 0.05)
        ax.set_ylim(num_lines + 0.05, -0.05)
    numbers = range(0, num_lines, max(1, num_lines // 10))
    ax.set_yticks([n + 0.5 for n in numbers], [f"{n * columns:,}" for n in numbers])
    ax.set_xticks([])
    ax.tick_params(length=0)
    for spine in ax.spines.values():
        spine.set_visible(memory.num_blocks > MAX_DRAWN_BLOCKS)
    ax.set_ylabel("block")
    set_title(ax, title or _map_title(memory), look)
    if legend:
        own = Rectangle((0, 0), 1, 1, facecolor=OWNERS[0], label="a request's colour: holds tokens")
        names = ("empty", "cached", "free") if memory.cached else ("empty", "free")
        handles = [own, *(look_patch(MEMORY[name], look) for name in names)]
        add_legend(ax, handles, look)
    return figure_of(ax)


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


def _columns(num_blocks: int) -> int:
    if num_blocks <= 16:
        return num_blocks
    wide = max(16, round((num_blocks * 3) ** 0.5))
    return min(wide, 160)


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


def _paint_block_image(
    ax: Axes, colors: dict[str, str], memory: BlockMap, columns: int, theme: Theme
) -> None:
    """A pixel per block, paler where it is emptier."""
    lines = -(-memory.num_blocks // columns)
    image = np.tile(np.array(to_rgb(theme.background)), (lines * columns, 1))
    empty, cached = (np.array(to_rgb(MEMORY[k].fill(theme))) for k in ("empty", "cached"))
    for block, holders in enumerate(memory.holders):
        if holders:
            share = memory.num_written[block] / memory.block_size
            color = np.array(to_rgb(colors[holders[0][0]]))
            image[block] = share * color + (1 - share) * empty
        elif block in memory.cached:
            image[block] = cached
    ax.imshow(
        image.reshape(lines, columns, 3), aspect="auto", interpolation="nearest",
        extent=(0, columns, lines, 0), gid="blocks",
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
