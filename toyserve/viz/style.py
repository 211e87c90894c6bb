"""The colour language of every picture: one colour and one hatch per state, and marks for moments.

Colours are from Okabe and Ito's colour-blind safe set, chosen so that their greys differ too; the
hatch is a second channel for print. ``STATES`` is the only place where a look is decided.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch


class State(StrEnum):
    """What a request is doing, as far as a picture is concerned."""

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    PADDING = "padding"
    STALLED = "stalled"
    PREEMPTED = "preempted"
    SWAPPED = "swapped"
    IDLE = "idle"


@dataclass(frozen=True)
class Look:
    """How a state is painted: fill, hatch and hatch colour, and the colour of text on it."""

    light: str
    dark: str
    hatch: str
    hatch_light: str
    hatch_dark: str
    text_light: str
    text_dark: str
    meaning: str

    def fill(self, theme: Theme) -> str:
        return self.dark if theme.is_dark else self.light

    def edge(self, theme: Theme) -> str:
        return self.hatch_dark if theme.is_dark else self.hatch_light

    def text(self, theme: Theme) -> str:
        return self.text_dark if theme.is_dark else self.text_light


@dataclass(frozen=True)
class Theme:
    """The colours that are not states."""

    name: str
    background: str
    ink: str
    faint: str
    series: tuple[str, ...]

    @property
    def is_dark(self) -> bool:
        return self.name == "dark"


THEMES = {
    "light": Theme(
        "light", "#ffffff", "#1a1a1a", "#8a8a8a", ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
    ),
    "dark": Theme(
        "dark", "#15171c", "#e8e8e8", "#8b909a", ("#56B4E9", "#F0843C", "#3CC29A", "#DD9AC4")
    ),
}

STATES: dict[State, Look] = {
    State.WAITING: Look(
        "#DCDCDC", "#474B55", "", "#b0b0b0", "#6b707b", "#333333", "#e8e8e8", "waiting in the queue"
    ),
    State.PREFILL: Look(
        "#E69F00", "#E9AE2E", "", "#7a5400", "#5c4100", "#1a1a1a", "#1a1a1a", "prefill (tokens)"
    ),
    State.DECODE: Look(
        "#0072B2", "#3B93CC", "", "#004a75", "#0b3a57", "#ffffff", "#0d1b26", "decode"
    ),
    State.PADDING: Look(
        "#F7F7F7", "#22252C", "xxxx", "#9a9a9a", "#767b86", "#333333", "#e8e8e8",
        "padding (computed for nothing)",
    ),
    State.STALLED: Look(
        "#B9DDF2", "#23506B", "---", "#5a9cc4", "#5f9fc4", "#1a1a1a", "#e8e8e8",
        "in the batch, not run",
    ),
    State.PREEMPTED: Look(
        "#E8855A", "#D9662B", "////", "#8a2f00", "#5a1f00", "#1a1a1a", "#1a1a1a",
        "preempted (KV dropped)",
    ),
    State.SWAPPED: Look(
        "#DDA3C3", "#B9709B", "\\\\\\\\", "#8a3d69", "#4d1f3a", "#1a1a1a", "#1a1a1a",
        "preempted (KV swapped out)",
    ),
    State.IDLE: Look(
        "#ffffff", "#15171c", "..", "#cfcfcf", "#3a3e47", "#333333", "#e8e8e8", "idle"
    ),
}  # fmt: skip

# KV memory has its own three looks: what a slot holds, not who is doing what.
MEMORY: dict[str, Look] = {
    "written": Look(
        "#44AA99", "#44AA99", "", "#22635a", "#0f3d37", "#1a1a1a", "#0d1b26", "holds tokens"
    ),
    "empty": Look(
        "#FBE3D6", "#5b3a2a", "////", "#D55E00", "#F0843C", "#1a1a1a", "#e8e8e8",
        "taken but empty (internal fragmentation)",
    ),
    "cached": Look(
        "#DDEFC2", "#3d5226", "--", "#6f9a2f", "#a3cf5f", "#1a1a1a", "#e8e8e8",
        "cached for re-use",
    ),
    "free": Look(
        "#ffffff", "#15171c", "..", "#cfcfcf", "#3a3e47", "#333333", "#8b909a", "free"
    ),
}  # fmt: skip

# Fills that tell requests apart in a block map (Paul Tol's light set); dark text reads on all.
OWNERS = (
    "#77AADD", "#EE8866", "#EEDD88", "#FFAABB", "#99DDFF", "#44BB99", "#BBCC33", "#D1BBD7",
)  # fmt: skip

# name -> (marker, filled, meaning)
MARKS: dict[str, tuple[str, bool, str]] = {
    "admitted": (">", True, "admitted"),
    "first token": ("o", False, "first token"),
    "finished": ("s", True, "finished"),
    "refused": ("x", True, "refused or aborted"),
}


class Picture(Figure):
    """A figure that shows itself in a notebook without pyplot: no global state, never drawn twice.

    Make it the last expression of a cell, or ``display`` it; ``savefig`` works as on any Figure.
    """

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        buffer = io.BytesIO()
        scale = 1.5
        self.savefig(buffer, format="png", dpi=96 * scale, facecolor=self.get_facecolor())
        width, height = (round(96 * inches) for inches in self.get_size_inches())
        return buffer.getvalue(), {"width": width, "height": height}


def theme_of(name: str | Theme) -> Theme:
    """Raises ValueError for an unknown name."""
    if isinstance(name, Theme):
        return name
    if name not in THEMES:
        raise ValueError(f"theme is {name!r}: it must be one of {', '.join(THEMES)}")
    return THEMES[name]


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"{name} is {value!r}: it must be one of {', '.join(choices)}")


def new_axes(
    size: tuple[float, float],
    theme: Theme,
    num_rows: int = 1,
    height_ratios: Sequence[float] | None = None,
    *,
    sharex: bool = True,
    num_columns: int = 1,
) -> list[Axes]:
    """Axes of a fresh ``Picture``, row by row, dressed in the theme."""
    figure = Picture(figsize=size, layout="constrained")
    figure.set_facecolor(theme.background)
    grid = figure.subplots(
        num_rows, num_columns, sharex=sharex, squeeze=False, height_ratios=height_ratios
    )
    axes = [ax for row in grid for ax in row]
    for ax in axes:
        dress(ax, theme)
    return axes


def dress(ax: Axes, theme: Theme) -> None:
    """Quiet frame, readable ticks."""
    ax.set_facecolor(theme.background)
    for side, spine in ax.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(theme.faint)
    ax.tick_params(colors=theme.ink, labelcolor=theme.ink, labelsize=9)
    for label in (ax.xaxis.label, ax.yaxis.label):
        label.set_color(theme.ink)
        label.set_fontsize(10)


def claim_x(ax: Axes, unit: str) -> None:
    """This picture's x axis counts ``unit``; to be said before anything is painted.

    Raises ValueError if a picture on an axis that is shared with this one counts something else:
    the later of the two would silently number the other one wrongly.
    """
    for other in ax.get_shared_x_axes().get_siblings(ax):
        theirs = other.xaxis.get_gid()
        if other is not ax and other.has_data() and theirs not in (None, unit):
            raise ValueError(
                f"ax shares its x axis with a picture by {theirs}, and this one is by {unit}: "
                f"draw both by the same, or into axes made with sharex=False"
            )
    ax.xaxis.set_gid(unit)


def figure_of(ax: Axes) -> Figure:
    """The whole figure an axes belongs to, also when it sits in a sub-figure."""
    figure = ax.get_figure(root=True)
    assert isinstance(figure, Figure), "an axes without a figure"
    return figure


def set_title(ax: Axes, title: str, theme: Theme) -> None:
    ax.set_title(title, loc="left", fontsize=11, color=theme.ink, wrap=True)


def state_patch(state: State, theme: Theme, meaning: str | None = None) -> Patch:
    """A legend entry that looks like the state."""
    return look_patch(STATES[state], theme, meaning)


def look_patch(look: Look, theme: Theme, meaning: str | None = None) -> Patch:
    return Patch(
        facecolor=look.fill(theme),
        edgecolor=look.edge(theme),
        hatch=look.hatch or None,
        linewidth=0.8,
        label=meaning or look.meaning,
    )


def mark_line(mark: str, theme: Theme) -> Line2D:
    marker, filled, meaning = MARKS[mark]
    return Line2D(
        [], [], linestyle="", marker=marker, markersize=6, label=meaning,
        color=theme.ink, markerfacecolor=theme.ink if filled else theme.background,
    )  # fmt: skip


def add_legend(ax: Axes, handles: Iterable[Any], theme: Theme) -> None:
    """Below the axes, never over the data; outside the layout grid in a figure of ours."""
    handles = list(handles)
    if not handles:
        return
    # About 0.075 inches a letter: one line if it fits, else two.
    inches = sum(0.075 * len(str(handle.get_label())) + 0.55 for handle in handles)
    lines = 1 if inches <= figure_of(ax).get_size_inches()[0] else 2
    look: dict[str, Any] = {
        "handles": handles, "ncols": -(-len(handles) // lines), "fontsize": 8.5, "frameon": False,
        "labelcolor": theme.ink, "handlelength": 1.8, "handleheight": 1.1,
    }  # fmt: skip
    figure = figure_of(ax)
    if isinstance(figure, Picture):
        for old in list(figure.legends):
            old.remove()
        figure.legend(loc="outside lower center", **look)
    else:
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), **look)
