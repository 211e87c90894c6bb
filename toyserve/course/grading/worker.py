"""The process in which submissions run: loaded once, then one fork of it for each session.

    python -m toyserve.course.grading.worker FD FOLDER      (started by ``sessions``, not by hand)

The parent process here never runs a learner's code. For each session the grader hands over a fresh
socket; the fork that serves it keeps that socket and nothing else, so that whatever a submission
leaves running has no line to anybody else's session. Whoever runs the code only observes: what is
right is never told in here.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import shutil
import signal
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

from toyserve.course.checks.examine import observe
from toyserve.course.checks.part import Exercise, load_exercise
from toyserve.course.exercise_session import new_namespace, run_cell
from toyserve.course.grading.guard import SCRATCH, make_guard, readable_places
from toyserve.course.grading.landlock import confine
from toyserve.course.grading.messages import receive, send

# -- the parent: forks, and nothing else --------------------------------------------------------


def main(control: socket.socket, base: str) -> None:
    """Serve ``{"start": limits}`` (a session's socket comes along) and ``{"end": pid}``."""
    _load()
    _adopt_orphans()
    send(control, {"ready": os.getpid()})
    folder, pid = "", 0
    while True:
        try:
            message, fds = _receive_with_socket(control)
        except (EOFError, OSError):  # the grader is gone
            if pid:
                _end(pid)
                shutil.rmtree(folder, ignore_errors=True)
            return
        if "start" in message:
            channel = socket.socket(fileno=fds[0])
            folder = tempfile.mkdtemp(dir=base)
            pid = os.fork()
            if pid == 0:
                control.close()
                _child(channel, Path(folder), message["start"])
            channel.close()
            send(control, {"pid": pid})
        else:
            _end(pid)
            shutil.rmtree(folder, ignore_errors=True)
            send(control, {"ended": pid})
            pid = 0


def _receive_with_socket(control: socket.socket) -> tuple[Any, list[int]]:
    data, fds, _, _ = socket.recv_fds(control, 65536, 1)
    if not data:
        raise EOFError
    return json.loads(data), fds


def _end(pid: int) -> None:
    """Kill the session with all that it started, also what left its group or its parent."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)  # it has not been waited for before, so the id was its
    for _ in range(_GENERATIONS):
        left = _children()
        for child in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, 0)
        if not left:
            return


_GENERATIONS = 50
_ADOPT = 36  # PR_SET_CHILD_SUBREAPER: orphans of a session become children of this process


def _adopt_orphans() -> None:
    with contextlib.suppress(OSError, AttributeError):  # macOS: they are looked for nowhere else
        ctypes.CDLL(None).prctl(_ADOPT, 1, 0, 0, 0)


def _children() -> list[int]:
    """Of this process, by /proc; none where there is no /proc."""
    found, me = [], os.getpid()
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            fields = entry.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            if int(fields[1]) == me:
                found.append(int(entry.parent.name))
    return found


def _load() -> None:
    """What most exercises import, so that a session starts in milliseconds."""
    import matplotlib

    matplotlib.use("agg")
    import toyserve.course.checks.runs
    import toyserve.metrics
    import toyserve.viz
    import toyserve.viz.compare  # noqa: F401


# -- the child: one session ---------------------------------------------------------------------


def _child(channel: socket.socket, folder: Path, limits: dict[str, Any]) -> None:
    """Never returns."""
    try:
        exercise = load_exercise(limits["exercise"])
        _confine(folder, limits)
        _serve(channel, exercise)
    finally:
        os._exit(0)


def _confine(folder: Path, limits: dict[str, Any]) -> None:
    os.setsid()  # so that all it starts can be ended together
    for name, data in limits.get("files", {}).items():
        (folder / name).write_text(data, encoding="utf-8")
    os.chdir(folder)
    sys.path.append(str(folder))  # last: a module of theirs never stands before a real one
    nowhere = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nowhere, fd)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000_000, 50_000_000))
    memory = limits["memory_bytes"] + _address_space()
    with contextlib.suppress(ValueError, OSError):  # macOS has no such limit
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    tempfile.tempdir = str(folder)
    readable = readable_places()
    guard = make_guard(folder, readable, limits.get("forbidden", []))
    confine(readable, [folder, *SCRATCH])
    sys.addaudithook(guard)


def _address_space() -> int:
    """Bytes that this process has mapped already."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        return pages * resource.getpagesize()
    except (OSError, ValueError):
        return 2_000_000_000


def _serve(channel: socket.socket, exercise: Exercise) -> None:
    namespace = new_namespace()
    getpid, leave, me = os.getpid, os._exit, os.getpid()
    while True:
        message = receive(channel)
        if "run" in message:
            problem = run_cell(message["run"], namespace, message["name"], message["limit"])
            if getpid() != me:
                leave(0)  # a process that the cell has forked: it has no say here
            send(channel, {"ran": problem})
            continue
        part, seen = exercise.part(message["observe"]), []
        for case in message["cases"]:
            seen.append(observe(part, namespace, case, message["limit"]))
            if getpid() != me:
                leave(0)
            if "failed" in seen[-1]:
                break
        send(channel, {"seen": seen})


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), sys.argv[2])
