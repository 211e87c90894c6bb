"""Attention kernels with a fault each, in numpy: to recognise one, and to draw its errors."""

from __future__ import annotations

from typing import Any

import numpy as np

from toyserve.course.checks.part import Case, Picture

NEAR = 2e-4  # an answer in float32 is as good


def is_near(got: Any, wanted: Any) -> bool:
    """Equal, but for what float32 makes of it."""
    return bool(np.allclose(got, wanted, rtol=NEAR, atol=NEAR))


def problem(case: Case) -> dict[str, Any]:
    """Queries, pools and tables of a case. Unowned slots hold what some earlier request left."""
    rng, size = np.random.default_rng(case["seed"]), case["block_size"]
    pages = [-(-n // size) for n in case["seq_lens"]]
    ends, blocks = np.cumsum(pages), rng.permutation(sum(pages) + 3).tolist()
    pool = (len(blocks), size, case["kv_heads"], case["dim"])
    return {
        "q": rng.normal(0, 1.5, (sum(case["new"]), case["heads"], case["dim"])),
        "k": rng.normal(0, 1.5, pool),
        "v": rng.normal(0, 1.5, pool),
        "table": [blocks[end - n : end] for n, end in zip(pages, ends.tolist(), strict=True)],
        "query_start": [0, *np.cumsum(case["new"]).tolist()],
        "seq_lens": list(case["seq_lens"]),
    }


def pretend(
    case: Case, *, sees: Any = None, row: Any = None, head: Any = None, scale: float | None = None
) -> Any:
    """A wrong kernel's answer. sees(length, index of the new token): the positions it looks at;
    row(sequence): whose block table; head(query head): which KV head."""
    p, size, share = problem(case), case["block_size"], case["heads"] // case["kv_heads"]
    out = np.full(p["q"].shape, np.nan)
    for s, length in enumerate(p["seq_lens"]):
        blocks = np.array(p["table"][row(s) if row else s])
        for i in range(case["new"][s]):
            at = np.array(sees(length, i) if sees else range(length), dtype=int)
            query = p["q"][p["query_start"][s] + i]
            keys, values = (p[x][blocks[at // size % len(blocks)], at % size] for x in ("k", "v"))
            for h in range(case["heads"] if len(at) else 0):
                kv = head(h) if head else h // share
                scores = keys[:, kv] @ query[h] * (scale or case["dim"] ** -0.5)
                weights = np.exp(scores - scores.max())
                out[p["query_start"][s] + i, h] = weights @ values[:, kv] / weights.sum()
    return out


FAULTS: dict[str, Any] = {
    "no mask": lambda size, kv: {"sees": lambda length, i: range(-(-length // size) * size)},
    "no scale": lambda size, kv: {"scale": 1.0},
    "last page": lambda size, kv: {"sees": lambda length, i: range(length // size * size)},
    "first table": lambda size, kv: {"row": lambda s: 0},
    "wrong KV head": lambda size, kv: {"head": lambda h: h % kv},
}
SIGNS = {
    "no scale": "that is attention without the division by √dim",
    "no mask": "slots behind the last token are read: they hold what an earlier request left there",
    "last page": "the last page, which is only partly full, is skipped",
    "first table": "every sequence walks along the block table of the first one",
    "wrong KV head": "query head h takes KV head h modulo their number; neighbours share a KV head",
}


def broken(case: Case, fault: str) -> Any:
    """The answer of the kernel with this fault, ``[new tokens, heads, dim]``."""
    return pretend(case, **FAULTS[fault](case["block_size"], case["kv_heads"]))


def _error(out: Any, wanted: Any) -> Any:
    """How far off, as a share of the right answer, per row of q and head; 9 for no answer."""
    error = np.linalg.norm(out - wanted, axis=2) / np.linalg.norm(wanted, axis=2)
    return np.nan_to_num(error, nan=9)


def error_map(out: Any, wanted: Any) -> Picture:
    """Where an answer is wrong: a row for each new token, a column for each query head."""

    def draw() -> Any:
        from toyserve.viz.style import THEMES, new_axes

        (ax,) = new_axes((5, 1.2 + 0.22 * len(out)), THEMES["light"])
        _heat(ax, _error(out, wanted), "Error: dark is right, bright is wrong")
        ax.set(ylabel="new token (row of q)", xlabel="query head")
        return ax.figure

    return draw


def _heat(ax: Any, error: Any, title: str) -> None:
    ax.imshow(error, vmin=0, vmax=1.2, cmap="magma", aspect="auto")
    ax.set_title(title, loc="left", fontsize=10)
    ax.set_xticks(range(error.shape[1]))


# -- five of them, each with its picture --------------------------------------------------------

LAUNCH: dict[str, Any] = {
    "seq_lens": list(range(32, 0, -1)), "new": [1] * 32, "heads": 8, "kv_heads": 2, "dim": 16,
    "block_size": 8, "seed": 8,
}  # fmt: skip


def drawn(seed: int) -> dict[str, str]:
    """Which kernel is drawn in which picture."""
    order = np.random.default_rng(800 + seed).permutation(sorted(FAULTS))
    return dict(zip("PQRST", order.tolist(), strict=True))


def error_maps(seed: int) -> dict[str, Any]:
    """The pictures' numbers, [32 sequences, 8 heads] for each letter; 0 is right, 9 no answer."""
    right = pretend(LAUNCH)
    return {name: _error(broken(LAUNCH, fault), right) for name, fault in drawn(seed).items()}


def error_pictures(seed: int) -> Any:
    """Five kernels, the same launch: 32 decodes of 32, 31, … 1 tokens in blocks of 8."""
    from toyserve.viz.style import THEMES, new_axes

    axes = new_axes((10, 5), THEMES["light"], num_columns=5)
    for ax, (letter, error) in zip(axes, error_maps(seed).items(), strict=True):
        _heat(ax, error, letter)
        ax.set_xlabel("query head")
        ax.set_yticks(range(0, 32, 4), [str(32 - row) for row in range(0, 32, 4)])
    axes[0].set_ylabel("tokens of the sequence (the first has 32)")
    return axes[0].figure
