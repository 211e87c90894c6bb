"""Which blocks of the KV cache each program of a kernel launch read, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from toyserve.viz.style import OWNERS, claim_x, dress, figure_of, new_axes, set_title, theme_of

MAX_PROGRAMS = 40


class ProgramReads(Protocol):
    """What the picture needs of a program; ``toyserve_kernels.playground`` records it."""

    @property
    def program(self) -> tuple[int, int, int]: ...
    @property
    def sequence(self) -> int | None: ...
    @property
    def kv_head(self) -> int | None: ...
    @property
    def new_tokens(self) -> list[int]: ...
    @property
    def blocks(self) -> list[int]: ...
    @property
    def num_keys(self) -> int: ...


def program_map(
    programs: Sequence[ProgramReads],
    num_blocks: int,
    *,
    names: Sequence[str] | None = None,
    ax: Axes | None = None,
    title: str | None = None,
    theme: str = "light",
) -> Figure:
    """A row per program, a column per physical block; the number says in which order it was read.

    names: of the sequences, by index; their colours are the block map's. Raises ValueError for
    more than 40 programs, which nobody could tell apart.
    """
    if not 1 <= len(programs) <= MAX_PROGRAMS:
        raise ValueError(f"{len(programs)} programs were given: a picture shows 1 to 40")
    look = theme_of(theme)
    if ax is None:
        ax = new_axes((10, 1.5 + 0.42 * len(programs)), look)[0]
    else:
        dress(ax, look)
    claim_x(ax, "block")
    for row, program in enumerate(programs):
        for block in range(num_blocks):
            ax.add_patch(Rectangle((block, row + 0.08), 1, 0.84, fill=False, ec=look.faint, lw=0.4))
        if program.sequence is None:
            continue
        color = OWNERS[program.sequence % len(OWNERS)]
        for order, block in enumerate(program.blocks, 1):
            cell = Rectangle((block, row + 0.08), 1, 0.84, fc=color, ec=look.ink, lw=0.8)
            cell.set_gid(f"read-{row}-{block}")
            ax.add_patch(cell)
            ax.text(
                block + 0.5, row + 0.5, str(order), ha="center", va="center", fontsize=9,
                color="#1a1a1a",
            )  # fmt: skip
    ax.set_xlim(0, num_blocks)
    ax.set_ylim(len(programs), 0)
    ax.set_yticks(
        [row + 0.5 for row in range(len(programs))],
        [_label(program, names) for program in programs],
    )
    every = max(1, round(num_blocks / 24))
    ax.set_xticks(
        [block + 0.5 for block in range(0, num_blocks, every)],
        [str(block) for block in range(0, num_blocks, every)],
    )
    ax.tick_params(length=0)
    ax.set_xlabel("physical block of the KV cache (the number in it: in which order it was read)")
    busy = sum(program.sequence is not None for program in programs)
    set_title(ax, title or f"{busy} of {len(programs)} programs have work", look)
    return figure_of(ax)


def _label(program: ProgramReads, names: Sequence[str] | None) -> str:
    place = ", ".join(map(str, program.program))
    if program.sequence is None:
        return f"({place}) no work"
    name = names[program.sequence] if names else f"sequence {program.sequence}"
    return f"({place}) {name}: {program.num_keys} keys"
