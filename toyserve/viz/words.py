"""What pictures say: names of runs, step numbers, and a sentence where there is nothing to see."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from toyserve.recording import Recording
from toyserve.viz.style import Theme


def run_name(recording: Recording) -> str:
    """``label`` in the recording's meta if there is one, else its scheduler."""
    meta = recording.meta
    if meta.get("label"):
        return str(meta["label"])
    return str(meta.get("scheduler", "A run")).removesuffix("Scheduler")


def require_steps(recording: Recording) -> None:
    """Raises ValueError if the recording threw its steps away."""
    if recording.num_steps and not recording.steps:
        raise ValueError(
            f"this recording kept none of its {recording.num_steps} steps (keep_steps=False): "
            f"there is nothing to draw step by step"
        )


def listing(names: Sequence[str], limit: int = 6) -> str:
    """Like: "A"; "A and B", "A, B and C", "A, B and 7 more"."""
    shown = [short(name) for name in names[:limit]]
    if len(names) > limit:
        return ", ".join(shown[: limit - 1]) + f" and {len(names) - limit + 1:,} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def step_axis(ax: Axes, low: float, high: float) -> None:
    """Number the steps ``low .. high`` (boundaries, counted from 0) as people do, from 1."""
    ax.set_xlabel("step")
    numbers = step_ticks(low, high)
    ax.set_xticks([n - 0.5 for n in numbers], [f"{n:,}" for n in numbers])


def step_ticks(low: float, high: float) -> list[int]:
    """Step numbers, counted from 1, to write under cells ``low .. high``; the first is there."""
    if high - low <= 24:
        return list(range(int(low) + 1, int(high) + 1))
    ticks = MaxNLocator(10, integer=True).tick_values(low + 1, high)
    inside = [int(t) for t in ticks if low + 1 < t <= high]
    gap = inside[1] - inside[0] if len(inside) > 1 else 1
    return [int(low) + 1] + [t for t in inside if t - low - 1 > gap / 3]


def short(text: str, limit: int = 16) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def say_empty(ax: Axes, recording: Recording, theme: Theme) -> None:
    """Instead of an empty picture: that nothing ran, and why not."""
    reasons = [f"{r.request_id}: {r.error}" for r in recording.requests.values() if r.error]
    text = "\n".join(["No step was run.", *reasons[:3]])
    ax.text(
        0.5, 0.5, text, transform=ax.transAxes, ha="center", va="center", color=theme.ink,
        fontsize=9, wrap=True,
    )  # fmt: skip


def format_seconds(seconds: float) -> str:
    """Short, with a unit that people read: 820 µs, 12 ms, 1.3 s."""
    if seconds == 0:
        return "0 s"
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 1000 else f"{seconds:,.0f} s"
