"""Two clocks with one face. Nothing else in the engine reads the time or sleeps."""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """Seconds since the clock was made."""

    def now(self) -> float: ...

    def wait_until(self, when: float) -> None:
        """Return at ``when`` or, if that has passed, at once."""
        ...

    def restart(self) -> None:
        """Now is 0 again."""
        ...


class WallClock:
    """The time that passes on this machine. Another thread may end a wait early with ``wake``."""

    def __init__(self) -> None:
        self._woken = threading.Event()
        self.waits_until: float | None = None  # what the thread that waits now is waiting for
        self.restart()

    def restart(self) -> None:
        self._start = time.perf_counter()

    def now(self) -> float:
        return time.perf_counter() - self._start

    def wait_until(self, when: float) -> None:
        delay = when - self.now()
        if delay > 0:
            self.waits_until = when
            self._woken.wait(delay)
            self.waits_until = None
        self._woken.clear()

    def wake(self) -> None:
        self._woken.set()


class VirtualClock:
    """Moves only when told to: a step lasts as long as a cost model says it would."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        assert seconds >= 0, f"time cannot go back by {-seconds} s"
        self._now += seconds

    def wait_until(self, when: float) -> None:
        self._now = max(self._now, when)


class StepClock:
    """Another clock, looked at only when told to: while a scheduler decides, time stands still.

    So everything that happens at one end of a step bears the same time, which is also the one that
    a recording keeps.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.tick()

    def tick(self) -> float:
        self._now = self.clock.now()
        return self._now

    def now(self) -> float:
        return self._now

    def wait_until(self, when: float) -> None:
        self.clock.wait_until(when)
        self.tick()

    def restart(self) -> None:
        self.clock.restart()
        self.tick()
