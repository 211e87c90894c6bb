"""Linux's own wall around a submission's process: what it may read, write, run, reach and signal.

Landlock (Linux 5.13 and later; network from 6.7, signals from 6.12) needs no rights and no
container, and holds for code that goes around Python, too. Elsewhere ``confine`` does nothing and
says so, and the audit hook of ``guard`` is all there is.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446  # the same system calls on every architecture
_PATH_BENEATH, _GIVE_VERSION, _NO_NEW_PRIVILEGES = 1, 1, 38
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_OF_A_FILE = _EXECUTE | _WRITE_FILE | _READ_FILE | 1 << 14  # and truncate


@dataclass(frozen=True)
class Walls:
    """What this kernel can enforce; bit masks of its own."""

    files: int
    network: int
    scopes: int


def walls() -> Walls | None:
    """None where there is no Landlock."""
    if platform.system() != "Linux":
        return None
    version = _call(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_GIVE_VERSION))
    if version < 1:
        return None
    rights = 13 + (version >= 2) + (version >= 3)  # each of these versions knows one more
    return Walls((1 << rights) - 1, 3 if version >= 4 else 0, 3 if version >= 6 else 0)


def confine(readable: Iterable[Path], writable: Iterable[Path]) -> bool:
    """From here on this thread, and all that it starts, may read below ``readable``, change things
    below ``writable``, and do nothing else with files: run no program, open no connection and
    signal nobody outside. It cannot be undone. False where this system has no such wall."""
    kernel = walls()
    if kernel is None:
        return False
    attributes = (ctypes.c_uint64 * 3)(kernel.files, kernel.network, kernel.scopes)
    size = 8 * (3 if kernel.scopes else 2 if kernel.network else 1)
    rules = _call(_CREATE, ctypes.byref(attributes), ctypes.c_size_t(size), ctypes.c_uint32(0))
    if rules < 0:
        return False
    for place in readable:
        _allow(rules, place, kernel.files & (_READ_FILE | _READ_DIR))
    for place in writable:
        _allow(rules, place, kernel.files & ~_EXECUTE)
    libc = ctypes.CDLL(None, use_errno=True)
    done = libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0
    done = done and _call(_RESTRICT, ctypes.c_int(rules), ctypes.c_uint32(0)) == 0
    os.close(rules)
    return done


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def _allow(rules: int, place: Path, rights: int) -> None:
    """Nothing happens for a place that is not there."""
    try:
        fd = os.open(place, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    if not place.is_dir():
        rights &= _OF_A_FILE
    rule = _PathBeneath(rights, fd)
    _call(_ADD_RULE, ctypes.c_int(rules), ctypes.c_int(_PATH_BENEATH), ctypes.byref(rule),
          ctypes.c_uint32(0))  # fmt: skip
    os.close(fd)


def _call(number: int, *arguments: object) -> int:
    """A system call; below 0 when it fails."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return int(libc.syscall(ctypes.c_long(number), *arguments))
