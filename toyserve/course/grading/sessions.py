"""The grader's side of a session: start one, run cells in it, have parts observed, end it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toyserve.course.checks.part import Case
from toyserve.course.grading.messages import receive, send

# Variables that a submission may see: a teacher's environment may hold passwords and keys.
_HARMLESS = ("PATH", "HOME", "LANG", "LC_", "TZ", "VIRTUAL_ENV", "PYTHON", "LD_LIBRARY", "DYLD_",
             "MPL", "XDG_", "TMPDIR", "COVERAGE", "TOYSERVE_")  # fmt: skip
GRACE = 3.0  # seconds beyond a limit until a process that does not stop by itself is killed


@dataclass(frozen=True)
class Limits:
    """Of one submission. forbidden: folders that its code may not open."""

    cell_seconds: float = 10.0
    part_seconds: float = 8.0
    memory_bytes: int = 2_000_000_000
    forbidden: tuple[Path, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)  # modules that came with the notebook


class Died(Exception):
    """The session's process is gone, or was ended here; says why in words."""


class Sessions:
    """One loaded process that forks a session whenever asked. POSIX only.

    Use as a context manager; it ends everything that it started.
    """

    def __init__(self) -> None:
        if not hasattr(os, "fork") or not hasattr(socket, "send_fds"):
            raise ValueError(
                "a class is graded on Linux, macOS or WSL: this system cannot fork a process"
            )
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._folder: str | None = None  # each session gets one in it, to work in

    def __enter__(self) -> Sessions:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5)
            self._process.kill()
            self._process.wait()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._process = self._control = self._folder = None

    def _started(self) -> socket.socket:
        """The control socket of a worker that lives."""
        if self._process is not None and self._process.poll() is None and self._control:
            return self._control
        self.close()
        ours, theirs = socket.socketpair()
        environment = {k: v for k, v in os.environ.items() if k.startswith(_HARMLESS)}
        environment |= {"PYTHONUTF8": "1", "MPLBACKEND": "agg", "PYTHONHASHSEED": "0"}
        environment |= {"OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"}
        self._folder = tempfile.mkdtemp(prefix="graded-")
        module = "toyserve.course.grading.worker"
        command = [sys.executable, "-m", module, str(theirs.fileno()), self._folder]
        self._process = subprocess.Popen(
            command,
            pass_fds=[theirs.fileno()],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        theirs.close()
        ours.settimeout(120)
        self._control = ours
        receive(ours)  # ready
        return ours

    @contextmanager
    def session(self, exercise: str, limits: Limits) -> Iterator[Session]:
        """A fresh process, for this exercise; all that runs in it has ended after the block."""
        control = self._started()
        ours, theirs = socket.socketpair()
        start = {
            "exercise": exercise,
            "memory_bytes": limits.memory_bytes,
            "forbidden": [str(place) for place in limits.forbidden],
            "files": dict(limits.files),
        }
        try:
            socket.send_fds(control, [json.dumps({"start": start}).encode()], [theirs.fileno()])
            theirs.close()
            pid = receive(control)["pid"]
        except (OSError, EOFError, ValueError):
            self.close()
            raise Died("the grading process could not be started") from None
        session = Session(ours, limits)
        try:
            yield session
        finally:
            ours.close()
            try:
                control.sendall(json.dumps({"end": pid}).encode())
                receive(control)
            except (OSError, EOFError, ValueError):
                self.close()  # a submission ended the worker itself: the next one starts anew


class Session:
    """One submission's process. Every call raises Died when that process is gone or late."""

    def __init__(self, channel: socket.socket, limits: Limits) -> None:
        self._channel, self.limits = channel, limits

    def run(self, source: str, name: str) -> str | None:
        """Run a cell; None, or in words why it stopped."""
        limit = self.limits.cell_seconds
        answer = self._ask({"run": source, "name": name, "limit": limit}, limit)
        problem = answer.get("ran")
        return None if problem is None else str(problem)

    def observe(self, key: str, cases: Sequence[Case]) -> list[Any]:
        """What is to be seen of each case, up to the first that failed. Not to be trusted."""
        limit = self.limits.part_seconds
        message = {"observe": key, "cases": list(cases), "limit": limit}
        answer = self._ask(message, limit * max(1, min(3, len(cases))))
        seen = answer.get("seen")
        if not isinstance(seen, list):
            raise Died("what came back could not be read")
        return seen

    def _ask(self, message: dict[str, Any], seconds: float) -> dict[str, Any]:
        self._channel.settimeout(seconds + GRACE)
        try:
            send(self._channel, message)
            answer = receive(self._channel)
        except TimeoutError:
            raise Died(f"it had not ended after {seconds:.0f} seconds and was stopped") from None
        except (EOFError, OSError):
            raise Died(
                "it ended the whole process (an exit, a crash, or too much memory)"
            ) from None
        except (ValueError, RecursionError):
            raise Died("what came back could not be read") from None
        if not isinstance(answer, dict):
            raise Died("what came back could not be read")
        return answer
