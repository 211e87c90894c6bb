"""What a submission's process may not do, refused in a sentence by an audit hook of Python's.

It covers what a learner's code does by chance or by an easy trick, on every system. The wall that
also holds for tricks against Python itself is the kernel's: see ``landlock``.
"""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import toyserve

_NO_PROGRAMS = {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "pty.spawn"}
_NO_NETWORK = {"socket.connect", "socket.bind", "socket.sendto"}
_LOOKS = {"open", "os.listdir", "os.scandir", "os.chdir"}
# Event → which of its arguments are places that it changes.
_CHANGES = {
    "os.remove": (0,), "os.rename": (0, 1), "os.link": (0, 1), "os.symlink": (0, 1),
    "os.mkdir": (0,), "os.rmdir": (0,), "os.chmod": (0,), "os.chown": (0,), "os.truncate": (0,),
    "os.utime": (0,), "os.setxattr": (0,),
}  # fmt: skip
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_PLACE = str | bytes | os.PathLike
_MAX_FORKS = 16

# What Python, its packages and the pictures are read from. The course's own folder is not among
# them as a whole: beside ``toyserve/`` lie the solutions.
_SYSTEM = ("/usr", "/lib", "/lib64", "/etc", "/sys", "/System", "/Library", "/dev/null",
           "/dev/urandom", "/dev/random", "/dev/zero", "/proc/cpuinfo", "/proc/meminfo",
           "/proc/stat", "/proc/self")  # fmt: skip
SCRATCH = (Path("/dev/null"), Path("/dev/shm"))


def readable_places() -> list[Path]:
    """Folders and files that any submission's code may read; none of them holds an answer."""
    import matplotlib

    package = Path(toyserve.__file__).resolve().parent
    root, home = package.parent, Path.home()
    places = [sys.prefix, sys.base_prefix, *site.getsitepackages(), site.getusersitepackages()]
    places += [entry for entry in sys.path if entry and Path(entry).resolve() != root]
    places += [matplotlib.get_configdir(), matplotlib.get_cachedir()]
    fonts = [home / ".fonts", home / ".local/share/fonts"]
    ours = [package, *(root / name for name in ("kernels", "lessons"))]
    return [Path(place).resolve() for place in (*_SYSTEM, *places)] + fonts + ours


def make_guard(
    own: Path, readable: Sequence[Path], secret: Sequence[str]
) -> Callable[[str, tuple[Any, ...]], None]:
    """An audit hook for ``sys.addaudithook``, which raises PermissionError.

    own: the session's folder, the only one in which anything may be changed. secret: folders that
    may not be read even where they lie below a readable one.
    """
    real, fsdecode, join = os.path.realpath, os.fsdecode, os.path.join
    getpid, pid, forks = os.getpid, os.getpid(), 0

    def inside(place: Any) -> str:
        """With a slash behind it, so that another name's beginning is no match."""
        return join(real(fsdecode(place)), "")

    mine = tuple(map(inside, (own, *SCRATCH)))
    open_places, closed = (*mine, *map(inside, readable)), tuple(map(inside, secret))

    def guard(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal forks
        if event in _NO_PROGRAMS or event in _NO_NETWORK:
            raise PermissionError(f"{event} is not allowed while a submission is graded")
        if event in _CHANGES:
            places = [arguments[i] for i in _CHANGES[event]]
            if not all(inside(p).startswith(mine) for p in places if isinstance(p, _PLACE)):
                raise PermissionError("only files of its own may be changed in here")
        elif event in _LOOKS and arguments and isinstance(arguments[0], _PLACE):
            place = inside(arguments[0])
            if place.startswith(mine):
                return
            if event == "open" and _is_writing(*arguments[1:3]):
                raise PermissionError("only files of its own may be written in here")
            if not place.startswith(open_places) or place.startswith(closed):
                raise PermissionError(
                    "only Python and the course are readable in here, and not the teacher's files"
                )
        elif event in ("os.kill", "os.killpg") and arguments[0] != pid:
            raise PermissionError("other processes may not be ended from in here")
        elif event == "os.fork":
            forks += 1
            if forks > _MAX_FORKS or getpid() != pid:
                raise PermissionError("so many processes are not allowed in here")

    return guard


def _is_writing(mode: Any = None, flags: Any = 0) -> bool:
    """By the arguments of the event ``open``: the mode of open(), or the flags of os.open()."""
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax+")
    return isinstance(flags, int) and bool(flags & _WRITES)
