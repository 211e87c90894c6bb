"""Blocks of memory: who lies where, which holes there are, and what a manager's books say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from toyserve.course.checks.part import Case
from toyserve.course.checks.runs import serve
from toyserve.kv import ContiguousKV, ReservedKV
from toyserve.kv.contiguous import holes_of
from toyserve.schedulers import ContinuousScheduler

Hole = tuple[int, int]  # first block, number of blocks


def slots_of(table: Sequence[int], positions: range, size: int) -> list[int]:
    """Where these positions of a request lie, by its block table."""
    return [table[p // size] * size + p % size for p in positions]


def placed(run: Any) -> list[tuple[int, str, int]]:
    """(step, request, first block) of everybody who is let in, in that order."""
    result = []
    for number, step in enumerate(run.steps, 1):
        for name in step.admitted:
            taken = [e.block for e in step.block_events if e[0] == "take" and e.request_id == name]
            result.append((number, name, taken[0]))
    return result


def holes_before(run: Any, step: int, name: str) -> list[Hole]:
    """The holes in the moment when ``name`` is let in."""
    owners: list[str | None] = [None] * int(run.meta["num_blocks"])
    for number, record in enumerate(run.steps, 1):
        for event in record.block_events:
            if number == step and event.kind == "take" and event.request_id == name:
                return holes_of(owners)
            owners[event.block] = event.request_id if event.kind == "take" else None
        for event in record.block_events_after:
            owners[event.block] = event.request_id if event.kind == "take" else None
    return holes_of(owners)


def pool_at(case: Case) -> list[int | None]:
    """One entry per block while that step runs: None if it is free, else how many of its slots hold
    a token."""
    from toyserve.viz.blocks import block_map_at

    longest = case.get("max_model_len")
    kv: Any = (
        ReservedKV(case["blocks"], max_model_len=longest)
        if longest
        else ContiguousKV(case["blocks"])
    )
    memory = block_map_at(serve(case, ContinuousScheduler(64), kv=kv), case["step"])
    held = zip(memory.holders, memory.num_written, strict=True)
    return [written if holder else None for holder, written in held]


class _Watching(ContinuousScheduler):
    """Notes, in every step, whose each block is, and which gaps the books know."""

    def __init__(self, max_running: int = 64) -> None:
        super().__init__(max_running)
        self.books: list[dict[str, Any]] = []

    def schedule(self) -> Any:
        plan, kv = super().schedule(), self.kv
        assert isinstance(kv, ContiguousKV)
        owners = [owner.request_id if owner else None for owner in kv.owners]
        gaps = [[int(start), int(length)] for start, length in kv.holes()]
        self.books.append({"owners": owners, "gaps": gaps})
        return plan


def watch(case: Case, kv: Any) -> dict[str, Any]:
    """Serve the case. ``books``: per step, who owns which block, and the gaps that are known.
    ``run``: the recording, None if the engine had to stop; ``stopped`` then says why."""
    scheduler = _Watching()
    try:
        return {"run": serve(case, scheduler, kv=kv), "stopped": "", "books": scheduler.books}
    except RuntimeError as error:
        return {"run": None, "stopped": str(error), "books": scheduler.books}


def draw_books(books: Sequence[Any], title: str = "Who has which block, step by step") -> Any:
    """Step by step from left to right, the blocks of memory from top to bottom."""
    from matplotlib.colors import to_rgb

    from toyserve.viz.style import OWNERS, THEMES, figure_of, new_axes

    look, num_blocks = THEMES["light"], len(books[0]["owners"])
    names = sorted({name for book in books for name in book["owners"] if name})
    colors = {name: to_rgb(OWNERS[i % len(OWNERS)]) for i, name in enumerate(names)}
    image = np.ones((num_blocks, len(books), 3))
    (ax,) = new_axes((10, 1.4 + 0.22 * num_blocks), look)
    for x, book in enumerate(books):
        known = {b for start, length in book["gaps"] for b in range(start, start + length)}
        before = books[x - 1]["owners"] if x else [None] * num_blocks
        for block, owner in enumerate(book["owners"]):
            if owner:
                image[block, x] = colors[owner]
            elif block not in known:
                image[block, x] = to_rgb("#CC3311")
            if owner and owner != before[block]:
                ax.text(x, block, owner, ha="center", va="center", fontsize=8, color=look.ink)
    ax.imshow(image, aspect="auto", interpolation="nearest")
    ax.set(xlabel="step", ylabel="block", yticks=range(num_blocks))
    ax.set_xticks(range(0, len(books), 5), [str(x + 1) for x in range(0, len(books), 5)])
    ax.set_title(f"{title}; red: free, and the books do not know it", loc="left", fontsize=11)
    return figure_of(ax)


def draw_reads(case: Case, reads: Sequence[Sequence[int]], title: str = "Read") -> Any:
    """A row for each number of tokens: dark is read, red is there and not read."""
    from toyserve.viz.style import THEMES, figure_of, new_axes

    look, longest = THEMES["light"], case["longest"]
    image = np.ones((longest, longest, 3))
    for row, slots in enumerate(reads):
        for position, slot in enumerate(slots_of(case["table"], range(row + 1), case["size"])):
            image[row, position] = (0.2, 0.35, 0.55) if slot in slots else (0.8, 0.2, 0.1)
    (ax,) = new_axes((7, 5.5), look)
    edges = (0.5, longest + 0.5)
    ax.imshow(image, interpolation="nearest", extent=(-0.5, longest - 0.5, *reversed(edges)))
    ax.set(xlabel="position", ylabel="tokens in the request (its context length)")
    ax.set_title(f"{title}: dark is read, red is not", loc="left", fontsize=11)
    return figure_of(ax)


# -- who comes and goes ---------------------------------------------------------------------------


def slab(name: str, arrival: float, num_blocks: int, answer: int) -> list[Any]:
    """A request that needs so many blocks from its first token to its last: at most 15 answered."""
    return [name, arrival, 16 * num_blocks - 15, answer]


def visitors(seed: int, num: int, largest: int) -> list[list[Any]]:
    """Requests of 1 to ``largest`` blocks that come and go."""
    rng = np.random.default_rng([6, seed])
    return [
        slab(f"r{i}", round(0.009 * i, 3), int(rng.integers(1, largest + 1)),
             int(rng.integers(2, 16)))
        for i in range(num)
    ]  # fmt: skip


def comers(seed: int, num: int, answer: int = 45) -> list[list[Any]]:
    """Requests many of which outgrow the blocks that they came in with."""
    rng = np.random.default_rng([64, seed])
    return [
        [f"r{i}", round(0.02 * i, 3), int(rng.integers(1, 60)), int(rng.integers(3, answer))]
        for i in range(num)
    ]
