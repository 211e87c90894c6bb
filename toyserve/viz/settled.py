"""Of many quick moves of a slider only the last one counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

QUIET_TIME = 0.01  # seconds without a further move


class Settled:
    """Calls ``action`` when it was asked for and then not again for a moment.

    Where no event loop runs (no notebook), it is called at once.
    """

    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action
        self._timer: asyncio.TimerHandle | None = None

    def ask(self) -> None:
        loop = running_loop()
        if loop is None:
            self._action()
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_later(QUIET_TIME, self._action)


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The notebook's event loop; None in a plain program."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
