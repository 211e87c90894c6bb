"""Many spans into few pixels, honestly: each pixel is the average colour of what lies under it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.colors import to_rgb
from numpy.typing import NDArray

from toyserve.viz.style import STATES, State, Theme

MAX_PIXELS = (600, 1400)  # rows, columns


def coverage(
    extents: NDArray[np.float64],
    rows: NDArray[np.int64],
    window: tuple[float, float],
    num_rows: int,
    shape: tuple[int, int],
) -> NDArray[np.float64]:
    """[pixel rows, pixel columns]: the part of each pixel that the spans cover, 0 .. 1.

    extents: [num_spans, 2], start and end in the units of ``window``.
    """
    low, high = window
    height, width = shape
    edges = np.clip((extents - low) / (high - low) * width, 0, width)
    pixel_rows = rows * height // num_rows
    # The derivative of the coverage along a row; its running sum is the coverage.
    slope = np.zeros((height, width + 2))
    for column, sign in ((0, 1.0), (1, -1.0)):
        whole = edges[:, column].astype(np.int64)
        part = edges[:, column] - whole
        np.add.at(slope, (pixel_rows, whole), sign * (1 - part))
        np.add.at(slope, (pixel_rows, whole + 1), sign * part)
    covered = np.cumsum(slope, axis=1)[:, :width]
    rows_per_pixel = np.bincount(np.arange(num_rows) * height // num_rows, minlength=height)
    return covered / rows_per_pixel[:, None]


def blend(
    extents: NDArray[np.float64],
    rows: NDArray[np.int64],
    states: Sequence[State],
    window: tuple[float, float],
    num_rows: int,
    theme: Theme,
) -> NDArray[np.float64]:
    """An RGB image, background where nothing is."""
    shape = (min(num_rows, MAX_PIXELS[0]), MAX_PIXELS[1])
    background = np.array(to_rgb(theme.background))
    image = np.tile(background, (*shape, 1))
    kinds = np.array([list(STATES).index(state) for state in states], dtype=np.int64)
    for number, (_state, look) in enumerate(STATES.items()):
        chosen = kinds == number
        if chosen.any():
            part = coverage(extents[chosen], rows[chosen], window, num_rows, shape)
            image += part[:, :, None] * (np.array(to_rgb(look.fill(theme))) - background)
    return np.clip(image, 0.0, 1.0)
