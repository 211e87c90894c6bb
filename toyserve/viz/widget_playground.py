"""The playground: sliders over a simulated engine, and the run they make, to play and scrub."""

from __future__ import annotations

import html
from typing import Any

import anywidget
import ipywidgets as w
import traitlets

from toyserve.clock import WallClock
from toyserve.hardware import HARDWARE
from toyserve.metrics import end_time, summarize_requests
from toyserve.modelspecs import MODELS
from toyserve.parts import SCHEDULERS
from toyserve.policies import POLICIES
from toyserve.recording import Recording
from toyserve.viz.assets import read
from toyserve.viz.growing import GrowingPack
from toyserve.viz.playground_run import (
    Settings,
    as_code,
    engine_of,
    memory_note,
    run_settings,
)
from toyserve.viz.settled import QUIET_TIME, Settled, running_loop
from toyserve.viz.still import show_with_still, still_picture, tail_of
from toyserve.viz.widget import Timeline
from toyserve.viz.widget_data import refreshed
from toyserve.viz.words import format_seconds

SLICE_TIME = 0.08  # seconds from the move on before what has run so far is drawn


class CopyButton(anywidget.AnyWidget):
    """Puts ``text`` on the clipboard of the browser."""

    _esm = read("copy.js")
    label = traitlets.Unicode("Copy as code").tag(sync=True)
    text = traitlets.Unicode("").tag(sync=True)


class Playground(w.VBox):
    """settings: what the sliders say. recording: the run of it. view: its Timeline.

    In a notebook a run that takes long is shown so far at once, and whole when it is over.
    """

    def __init__(self, settings: Settings) -> None:
        self.start = self.settings = settings
        self.num_runs = 0
        self._moved = Settled(self.update)
        self._quiet = False
        self._run: _Run | None = None
        self.controls: dict[str, Any] = _controls(settings)
        for control in self.controls.values():
            control.observe(self._on_move, names="value")
        self.recording: Recording = run_settings(settings)
        self.view = Timeline(self.recording)
        self.note = w.HTML()
        self.note.add_class("toyserve-playground-note")
        reset = w.Button(description="Reset", tooltip="all sliders back to where they began")
        reset.on_click(lambda _: self.reset())
        self.copy = CopyButton()
        self.code = w.HTML()
        code = w.Accordion([self.code], titles=["This run as code"], selected_index=None)
        grid = w.GridBox(
            list(self.controls.values()),
            layout=w.Layout(grid_template_columns="repeat(auto-fit, minmax(330px, 1fr))"),
        )
        self._tell()
        super().__init__([grid, self.note, self.view, w.HBox([reset, self.copy]), code])

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        picture = still_picture(self.recording, self.view.by)
        return {**super()._repr_mimebundle_(**kwargs), "image/png": picture}

    def _ipython_display_(self) -> None:
        picture = still_picture(self.recording, self.view.by)
        self.view.still = tail_of(picture)
        show_with_still(picture, self.model_id, repr(self))

    def __repr__(self) -> str:
        return f"Playground: {self.settings}"

    def reset(self) -> None:
        """All sliders back; one run."""
        self._quiet = True
        try:
            for name, control in self.controls.items():
                control.value = _shown(getattr(self.start, name))
        finally:
            self._quiet = False
        self._on_move(None)

    def update(self) -> None:
        """Make the run that the sliders say now. What cannot be is said in the note."""
        values = {name: _meant(control.value) for name, control in self.controls.items()}
        settings = self.start.replaced(**values)
        if settings == self.settings:  # back where it was, from what cannot be
            self._tell(self._run is None or self._run.is_over)
            return
        try:
            run = _Run(settings)
        except ValueError as error:
            self.note.value = f"<b>Not possible:</b> {html.escape(str(error))}"
            return
        self.settings, self.recording, self._run = settings, run.engine.recording, run
        self.num_runs += 1
        self._go_on(run, first=True)

    def _go_on(self, run: _Run, *, first: bool = False) -> None:
        """A long run is shown as far as it came in a moment, and at its end once more; in between
        the sliders are listened to, and a further move takes its place."""
        if run is not self._run:
            return
        loop = running_loop()
        if loop is None:
            run.advance(None)
        elif first:  # on a slow machine the building takes most of it, but there must be steps
            run.advance(max(SLICE_TIME, run.clock.now() + SLICE_TIME / 2))
        else:
            run.advance(run.clock.now() + SLICE_TIME)
        if first or run.is_over:
            self.view.show_packed(self.recording, *refreshed(run.growing))
            self._tell(run.is_over)
        if not run.is_over and loop:
            loop.call_later(QUIET_TIME, self._go_on, run)

    def _on_move(self, _: object) -> None:
        if not self._quiet:
            self._moved.ask()

    def _tell(self, is_over: bool = True) -> None:
        chunked = self.settings.scheduler == "chunked"
        for name in ("token_budget", "max_chunk"):
            self.controls[name].disabled = not chunked
        self.controls["max_running"].disabled = self.settings.scheduler == "sequential"
        so_far = f"<i>The first {self.recording.num_steps:,} steps, going on:</i> "
        self.note.value = ("" if is_over else so_far) + _note(self.settings, self.recording)
        self.copy.text = as_code(self.settings)
        self.code.value = f"<pre>{html.escape(self.copy.text)}</pre>"


class _Run:
    """A simulation in slices. Its clock begins at 0 with the building of the engine."""

    def __init__(self, settings: Settings) -> None:
        self.clock = WallClock()
        self.engine = engine_of(settings)
        self.growing = GrowingPack(self.engine.recording)

    @property
    def is_over(self) -> bool:
        return not self.engine.has_unfinished

    def advance(self, until: float | None) -> None:
        """Run until that time on the clock, or (None) to the end."""
        while self.engine.has_unfinished and (until is None or self.clock.now() < until):
            self.engine.step()


def playground(**start: Any) -> Playground:
    """Sliders over a simulated engine; ``start`` sets where they begin (see ``Settings``).

    Raises ValueError for a setting that there is not or that cannot be.
    """
    return Playground(Settings().replaced(**start))


# What the widgets' selections cannot hold: no value at all.
_NO_LIMIT = "no limit"


def _shown(value: Any) -> Any:
    return _NO_LIMIT if value is None else value


def _meant(value: Any) -> Any:
    return None if value == _NO_LIMIT else value


# setting -> (label, choices); words become a list to choose from, numbers a slider.
_CHOICES: dict[str, tuple[str, tuple[Any, ...]]] = {
    "rate": ("arrivals per s", (1, 2, 5, 10, 15, 20, 30, 40, 60, 80, 100, 150, 200)),
    "num_requests": ("requests", (1, 5, 10, 20, 40, 60, 100, 150, 200)),
    "scheduler": ("scheduler", SCHEDULERS),
    "policy": ("policy", tuple(POLICIES)),
    "max_running": ("batch (slots)", (1, 2, 4, 8, 16, 32, 64, 128)),
    "token_budget": ("token budget", (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)),
    "max_chunk": ("largest chunk", (8, 16, 32, 64, 128, 256, 512, _NO_LIMIT)),
    "num_blocks": ("pool (blocks)", (50, 100, 200, 400, 800, 1600, 3200)),
    "block_size": ("block size", (1, 2, 4, 8, 16, 32, 64)),
    "gpu": ("GPU", tuple(HARDWARE)),
    "model": ("model", tuple(MODELS)),
}


def _controls(settings: Settings) -> dict[str, Any]:
    return {
        name: _control(label, choices, _shown(getattr(settings, name)))
        for name, (label, choices) in _CHOICES.items()
    }


def _control(label: str, choices: tuple[Any, ...], value: Any) -> Any:
    values = list(choices) if value in choices else [*choices, value]
    look: dict[str, Any] = {
        "description": label,
        "style": {"description_width": "100px"},
        "layout": w.Layout(width="320px"),
    }
    if isinstance(choices[0], str):
        return w.Dropdown(options=values, value=value, **look)
    values.sort(key=lambda entry: (entry == _NO_LIMIT, 0 if entry == _NO_LIMIT else entry))
    options = [(f"{entry:g}" if entry != _NO_LIMIT else entry, entry) for entry in values]
    # Only where the slider is let go: what lies between is nobody's question.
    return w.SelectionSlider(options=options, value=value, continuous_update=False, **look)


def _note(settings: Settings, recording: Recording) -> str:
    records = list(recording.requests.values())
    start = min(record.arrival_time for record in records)
    # Of the requests alone: what the summary says of steps takes as long as the run itself.
    summary = summarize_requests(records, start=start, end=max(start, end_time(records)))
    first, gap = summary["ttft_ms"], summary["itl_ms"]
    parts = [f"<b>{summary['output_tokens_per_s']:,.0f}</b> tokens per second"]
    for label, times in (("first token after", first), ("gap between tokens", gap)):
        if times and times.get("p50") is not None:
            median, worst = (format_seconds(times[key] / 1e3) for key in ("p50", "p99"))
            parts.append(f"{label} <b>{median}</b> (median), <b>{worst}</b> (p99)")
    for count, what in (("num_preemptions", "preemptions"), ("num_refused", "requests refused")):
        if summary[count]:
            parts.append(f"<b>{summary[count]:,}</b> {what}")
    extra = memory_note(settings)
    return "; ".join(parts) + (f"<br>{html.escape(extra)}" if extra else "")
