"""The timeline of an engine that is still running, drawn seldom enough to cost it little."""

from __future__ import annotations

import signal
import threading
from typing import Any

import traitlets

from toyserve.clock import WallClock
from toyserve.engine import Engine
from toyserve.recording import StepRecord
from toyserve.viz.growing import GrowingPack
from toyserve.viz.still import still_picture, tail_of
from toyserve.viz.widget import Timeline
from toyserve.viz.widget_data import refreshed

REFRESH_TIME = 0.4  # seconds between two pictures at least
# A picture that took one second to make is followed by none for so many: 1 part in 21 of the time.
REST_FACTOR = 20.0


class Live(Timeline):
    """A Timeline that grows while its engine runs, with a button that aborts what is unfinished.

    The last expression of a cell, it stands above the cells that run the engine afterwards; as
    ``with live(llm): llm.generate(…)`` it shows itself and lets go of the engine at the end. It
    follows the newest step unless somebody looks at another.

    While a cell runs the engine, the kernel answers no message, and only an interrupt comes
    through: the button sends one. It (and Jupyter's own button, and Ctrl-C) ends the run after the
    step under way; a second one is an ordinary KeyboardInterrupt.
    update_time: seconds spent on pictures so far.
    """

    can_stop = traitlets.Bool(False).tag(sync=True)
    running = traitlets.Bool(False).tag(sync=True)
    by_interrupt = traitlets.Bool(False).tag(sync=True)  # how the button asks the run to stop
    follow = traitlets.Bool(True).tag(sync=True)  # the page keeps to the newest step

    def __init__(self, engine: Engine, *, by: str = "slot", theme: str = "auto") -> None:
        super().__init__(engine.recording, by=by, theme=theme)
        self.engine = engine
        self.can_stop = True
        self.num_updates = 0
        self.update_time = 0.0
        self._pack = GrowingPack(engine.recording)
        self._clock = WallClock()
        self._next_time = 0.0
        self._stopping = False
        self._interrupt = _GracefulInterrupt(self.stop)
        self.on_msg(self._on_message)
        engine.on_step.append(self._on_step)

    def stop(self) -> None:
        """Abort what is unfinished, at the end of the step that runs now."""
        self._stopping = bool(self.engine.requests)

    def detach(self) -> None:
        """Let go of the engine; the picture stays, of everything that has run."""
        if self._on_step in self.engine.on_step:
            self.engine.on_step.remove(self._on_step)
        self._interrupt.release()
        self.can_stop = False
        self.update()

    def update(self) -> None:
        """Draw what has run so far. What it costs does not grow with what was drawn before."""
        began = self._clock.now()
        if self._pack.is_outdated or self._pack.recording is not self.engine.recording:
            self.recording = self.engine.recording
            self._pack = GrowingPack(self.recording)
            self.step, self.zoom = 1, []
        header, grid = refreshed(self._pack)
        with self.hold_sync():
            self.running = bool(self.engine.requests)
            self.by_interrupt = self._interrupt.is_set
            self.header, self.grid = header, grid
        now = self._clock.now()
        self.num_updates += 1
        self.update_time += now - began
        self._next_time = now + max(REFRESH_TIME, REST_FACTOR * (now - began))

    def __enter__(self) -> Live:
        from IPython.display import display

        display(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()
        if self.still:  # the still picture was made before anything had run
            picture = still_picture(self.recording, self.by)
            self.still = tail_of(picture)
            still = {"image/png": picture, "text/plain": repr(self)}
            self.still_display.update(still, raw=True)

    def _on_step(self, _: StepRecord) -> None:
        if self.engine.served_by is not None:  # a server's page shows it, from its own thread
            self.detach()
            return
        self._interrupt.set()
        if self._stopping:
            self._stopping = False
            for request_id in list(self.engine.requests):
                self.engine.abort(request_id)
        if not self.engine.requests:
            self._interrupt.release()
            self.update()
        elif self._clock.now() >= self._next_time:
            self.update()

    def _on_message(self, _: Any, content: dict[str, Any], __: Any) -> None:
        if content.get("do") == "stop":
            self.stop()


class _GracefulInterrupt:
    """The first interrupt calls ``stop``; every further one does what it would have done."""

    def __init__(self, stop: Any) -> None:
        self._stop = stop
        self._before: Any = None
        self._handler = self._handle  # one object, to be known again

    @property
    def is_set(self) -> bool:
        return signal.getsignal(signal.SIGINT) is self._handler

    def set(self) -> None:
        """Whenever a cell begins, the kernel sets its own: so this is called in every step."""
        if threading.current_thread() is threading.main_thread() and not self.is_set:
            self._before = signal.signal(signal.SIGINT, self._handler)

    def release(self) -> None:
        if threading.current_thread() is threading.main_thread() and self.is_set:
            signal.signal(signal.SIGINT, self._before)

    def _handle(self, *_: Any) -> None:
        self.release()
        self._stop()


def live(engine_or_llm: Any, *, by: str = "slot", theme: str = "auto") -> Live:
    """The timeline of an Engine, or of an LLM's, drawn while it runs; see ``Live``.

    A second ``live`` of the same engine takes the place of the first. Raises ValueError for an
    engine that works for a server, whose own page shows it, or that records no steps.
    """
    engine = getattr(engine_or_llm, "engine", engine_or_llm)
    if not isinstance(engine, Engine):
        raise ValueError(f"live takes an Engine or an LLM, not {type(engine_or_llm).__name__}")
    if engine.served_by is not None:
        raise ValueError(
            f"this engine works for the server at {engine.served_by}: that page shows it live"
        )
    if not engine.recording.keep_steps:
        raise ValueError(
            "this engine's recording keeps no steps (keep_steps=False): nothing to draw"
        )
    for callback in list(engine.on_step):
        owner = getattr(callback, "__self__", None)
        if isinstance(owner, Live):
            owner.detach()
    return Live(engine, by=by, theme=theme)
