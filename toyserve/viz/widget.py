"""The interactive timeline in a notebook: one canvas that plays, linked to the block map and queue.

State lives in synced traits, so a saved notebook still plays without a kernel; where no widget can
be shown at all, the picture of the run is there instead.
"""

from __future__ import annotations

from typing import Any

import anywidget
import traitlets

from toyserve.recording import Recording
from toyserve.viz.assets import module_source, style_source
from toyserve.viz.settled import Settled
from toyserve.viz.spans import Spans, spans_of
from toyserve.viz.still import show_with_still, still_picture, tail_of
from toyserve.viz.style import check_choice
from toyserve.viz.why import decide
from toyserve.viz.widget_data import pack
from toyserve.viz.words import run_name
from toyserve.words import counted


class Timeline(anywidget.AnyWidget):
    """A run that plays: space plays and pauses, arrows step, a click on the picture goes there.

    step: counted from 1; set it, or observe it. playing: bool. zoom: [first, last] step shown, []
    for all of them. by: "slot" or "request". theme: "auto", "light" or "dark".
    explain: with every step's decision in words, if the run is short enough for that.

    A notebook that was saved with its widgets' state (``toyserve lab`` does) plays without a
    kernel; without state a still picture stands there instead.
    """

    _esm = module_source()
    _css = style_source()
    header = traitlets.Dict().tag(sync=True)
    grid = traitlets.Bytes(b"").tag(sync=True)
    step = traitlets.Int(1).tag(sync=True)
    playing = traitlets.Bool(False).tag(sync=True)
    zoom = traitlets.List(traitlets.Int()).tag(sync=True)
    by = traitlets.Unicode("slot").tag(sync=True)
    theme = traitlets.Unicode("auto").tag(sync=True)
    sentence = traitlets.Dict().tag(sync=True)  # a step's decision in words, once Python made it
    still = traitlets.Unicode("").tag(sync=True)  # the end of the picture that the widget replaces

    def __init__(
        self,
        recording: Recording,
        *,
        by: str = "slot",
        step: int = 1,
        theme: str = "auto",
        explain: bool = False,
    ) -> None:
        check_choice("by", by, ("slot", "request"))
        check_choice("theme", theme, ("auto", "light", "dark"))
        header, grid = pack(recording, explain=explain)
        self.recording = recording
        super().__init__(header=header, grid=grid, by=by, theme=theme, step=step)

    def show(self, recording: Recording, *, explain: bool = False) -> None:
        """Another run, or the same one further on, in the same picture."""
        self.show_packed(recording, *pack(recording, explain=explain))

    def show_packed(self, recording: Recording, header: dict[str, Any], grid: bytes) -> None:
        """``show`` of what ``widget_data.pack`` or ``refreshed`` gave."""
        self.recording = recording
        with self.hold_sync():
            self.header, self.zoom, self.sentence = header, [], {}
            self.step = min(self.step, max(1, header["num_steps"]))
            self.grid = grid  # the last one: the picture is drawn anew when it comes

    @traitlets.validate("step")
    def _check_step(self, proposal: dict[str, Any]) -> int:
        num_steps = self.header.get("num_steps", 0)
        if num_steps and not 1 <= proposal["value"] <= num_steps:
            raise ValueError(f"step is {proposal['value']}: this run has steps 1 to {num_steps}")
        return int(proposal["value"])

    @traitlets.validate("by")
    def _check_by(self, proposal: dict[str, Any]) -> str:
        check_choice("by", proposal["value"], ("slot", "request"))
        return str(proposal["value"])

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
        bundle = super()._repr_mimebundle_(**kwargs)
        if bundle is None:
            return None
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        picture = still_picture(self.recording, self.by)
        return {**data, "image/png": picture, "text/plain": repr(self)}, metadata

    def _ipython_display_(self) -> None:
        picture = still_picture(self.recording, self.by)
        self.still = tail_of(picture)
        self.still_display = show_with_still(picture, self.model_id, repr(self))

    def __repr__(self) -> str:
        requests = counted(len(self.recording.records), "request")
        steps = counted(self.recording.num_steps, "step")
        return f"{type(self).__name__} of {run_name(self.recording)}: {requests}, {steps}"


def explore(recording: Recording, *, by: str = "slot", step: int = 1) -> Timeline:
    """Timeline, block map, queue, clock and the decision of the step in words, linked.

    Short runs carry every step's words with them; of longer ones Python makes those of the step
    that is looked at, and without a kernel the shorter sentence of the picture stands there.
    """
    view = Timeline(recording, by=by, step=step, explain=True)
    if "why" not in view.header:
        words = Settled(_Words(view).show)
        view.observe(lambda _: words.ask(), names="step")
        words.ask()
    return view


class _Words:
    """The words of a long run's step, made when it is looked at."""

    def __init__(self, view: Timeline) -> None:
        self.view = view
        self._told: Recording | None = None
        self._story: Spans | None = None  # of that recording: read once, for all steps

    def show(self) -> None:
        view, recording = self.view, self.view.recording
        if view.playing or not recording.steps:
            return  # at full speed nobody reads, and a long run takes its time to look through
        if self._story is None or self._told is not recording:
            self._told, self._story = recording, spans_of(recording)
        step = view.step
        lines = decide(recording, step, self._story).lines
        view.sentence = {"step": step, "lines": [list(line) for line in lines]}
