"""A still picture above a widget, for whoever opens the notebook without a kernel or on a web page.

JupyterLab shows nothing of a widget whose state it does not have, not even a picture in the same
output. So the picture is an output of its own, and the widget hides it as soon as it is drawn.
"""

from __future__ import annotations

import base64
import io
from typing import Any

from toyserve.recording import Recording
from toyserve.viz.timeline import timeline

MAX_STEPS = 400  # of a longer run, the picture shows so many
_VIEW = "application/vnd.jupyter.widget-view+json"


def still_picture(recording: Recording, by: str) -> str:
    """The timeline as a PNG in base64."""
    num_steps = len(recording.steps)
    steps = (1, MAX_STEPS) if num_steps > MAX_STEPS else None
    figure = timeline(recording, by="request" if by == "request" else "slot", steps=steps)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=80, facecolor=figure.get_facecolor())
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def tail_of(picture: str) -> str:
    """What the page tells the picture by: its checksum lies at its end."""
    return picture[-40:]


def show_with_still(picture: str, model_id: str, words: str) -> Any:
    """Display the picture, and the widget below it; returns the picture's display handle."""
    from IPython.display import display

    still = {"image/png": picture, "text/plain": words}
    handle = display(still, raw=True, display_id=True)
    view = {"version_major": 2, "version_minor": 0, "model_id": model_id}
    display({_VIEW: view, "text/plain": words}, raw=True)
    return handle
