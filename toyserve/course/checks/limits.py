"""Stop code that does not end by itself, also where it catches every exception."""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_AGAIN = 0.2  # seconds between two attempts
_POLITE = 3  # so many times one exception; then one on every line
# Kept from the start: a cell may put something else in their place, and a timer that nobody can
# stop any more would end the cells after it.
_set_handler, _set_timer = signal.signal, getattr(signal, "setitimer", None)
_now = time.monotonic


class TimeIsUp(BaseException):
    """Not an Exception, so that ``except Exception`` in a learner's loop does not swallow it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeIsUp in the body when it has taken so long; again and again until it leaves.

    By a signal, which also ends a sleep; in another thread than the main one and on Windows by an
    asynchronous exception, which ends everything but a call into C.
    """
    main = threading.current_thread() is threading.main_thread()
    if main and _set_timer is not None:
        with _by_signal(seconds):
            yield
    else:
        with _by_exception(seconds):
            yield


@contextmanager
def _by_signal(seconds: float) -> Iterator[None]:
    attempts = 0
    tracer = sys.gettrace()

    def on_alarm(_: int, frame: FrameType | None) -> None:
        nonlocal attempts
        attempts += 1
        if attempts > _POLITE:  # it catches everything: then let no line of it run any more
            _raise_on_every_line(frame)
        raise TimeIsUp

    assert _set_timer is not None
    old = _set_handler(signal.SIGALRM, on_alarm)
    _set_timer(signal.ITIMER_REAL, max(seconds, 0.001), _AGAIN)
    try:
        yield
    finally:
        _set_timer(signal.ITIMER_REAL, 0)
        _set_handler(signal.SIGALRM, old)
        sys.settrace(tracer)


def _raise_on_every_line(frame: FrameType | None) -> None:
    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_globals.get("__name__") == __name__ or "contextlib" in frame.f_code.co_filename:
            return None  # the way out
        raise TimeIsUp

    sys.settrace(trace)
    while frame is not None and frame.f_globals.get("__name__") != __name__:
        if not frame.f_code.co_filename.startswith(_OURS):
            frame.f_trace = trace
        frame = frame.f_back


@contextmanager
def _by_exception(seconds: float) -> Iterator[None]:
    ident, done = threading.get_ident(), threading.Event()

    def watch() -> None:
        end = _now() + seconds
        while not done.wait(max(0.0, end - _now())):
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(ident), ctypes.py_object(TimeIsUp)
            )
            end = _now() + _AGAIN

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


_OURS = __file__.rpartition("checks")[0]  # toyserve/course/: whoever called, not the learner
