"""The timeline of an engine that is still running, drawn seldom enough to cost it little."""

from __future__ import annotations

from typing import Any

from toyserve.clock import WallClock
from toyserve.engine import Engine
from toyserve.recording import StepRecord
from toyserve.viz.widget import Timeline

REFRESH_TIME = 0.25  # seconds between two pictures at least
# A picture that took one second to make is followed by none for so many: 1 part in 21 of the time.
REST_FACTOR = 20.0


class Live(Timeline):
    """A Timeline that grows while its engine runs, with a button that aborts what is unfinished.

    The last expression of a cell, it stands above the cells that run the engine afterwards; as
    ``with live(llm): llm.generate(…)`` it shows itself and lets go of the engine at the end.
    update_time: seconds spent on pictures so far. The longer the run, the seldomer a new picture.
    """

    def __init__(self, engine: Engine, *, by: str = "slot", theme: str = "auto") -> None:
        super().__init__(engine.recording, by=by, theme=theme)
        self.engine = engine
        self.can_stop = True
        self.num_updates = 0
        self.update_time = 0.0
        self._clock = WallClock()
        self._next_time = 0.0
        self._stopping = False
        self.on_msg(self._on_message)
        engine.on_step.append(self._on_step)

    def stop(self) -> None:
        """Abort what is unfinished, at the end of the step that runs now."""
        self._stopping = True

    def detach(self) -> None:
        """Let go of the engine; the picture stays, of everything that has run."""
        if self._on_step in self.engine.on_step:
            self.engine.on_step.remove(self._on_step)
        self.can_stop = False
        self.update()

    def update(self) -> None:
        """Draw what has run so far. Follows the newest step unless somebody looks at another."""
        began = self._clock.now()
        following = self.step >= self.header["num_steps"]
        self.show(self.engine.recording)
        if following:
            self.step = max(1, self.header["num_steps"])
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

    def _on_step(self, _: StepRecord) -> None:
        if self._stopping:
            self._stopping = False
            for request_id in list(self.engine.requests):
                self.engine.abort(request_id)
        if not self.engine.requests or self._clock.now() >= self._next_time:
            self.update()

    def _on_message(self, _: Any, content: dict[str, Any], __: Any) -> None:
        if content.get("do") == "stop":
            self.stop()


def live(engine_or_llm: Any, *, by: str = "slot", theme: str = "auto") -> Live:
    """The timeline of an Engine, or of an LLM's, drawn while it runs.

    A second ``live`` of the same engine takes the place of the first.
    """
    engine = getattr(engine_or_llm, "engine", engine_or_llm)
    if not isinstance(engine, Engine):
        raise ValueError(f"live takes an Engine or an LLM, not {type(engine_or_llm).__name__}")
    for callback in list(engine.on_step):
        owner = getattr(callback, "__self__", None)
        if isinstance(owner, Live):
            owner.detach()
    return Live(engine, by=by, theme=theme)
