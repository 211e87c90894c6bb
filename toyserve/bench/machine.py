"""This machine in a few words, who else uses it, and what starting toyserve costs."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

_PACKAGES = ("torch", "transformers", "numpy", "tokenizers", "safetensors")


def describe_machine() -> dict[str, Any]:
    """Processor, memory, versions and date. Loads nothing."""
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": _processor(),
        "num_cores": os.cpu_count(),
        "memory_gb": _memory_bytes() / 1e9,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: v for name in ("toyserve", *_PACKAGES) if (v := _version(name))},
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 0


def peak_memory() -> int:
    """Most bytes of memory that this process has held so far."""
    try:  # getrusage also counts what the parent held before it started this process
        with open("/proc/self/status", encoding="utf-8") as file:
            for line in file:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


class OtherLoad:
    """The share of this machine's cores that other processes use between two points in time."""

    def __init__(self) -> None:
        self._start = self._read()

    def share(self) -> float | None:
        """None where the system does not tell."""
        now = self._read()
        if now is None or self._start is None:
            return None
        busy, own, wall = (b - a for a, b in zip(self._start, now, strict=True))
        return max(0.0, busy - own) / (max(wall, 1e-3) * (os.cpu_count() or 1))

    def _read(self) -> tuple[float, float, float] | None:
        """Seconds: of all processes together, of this one, on the wall."""
        try:
            with open("/proc/stat", encoding="utf-8") as file:
                ticks = [int(n) for n in file.readline().split()[1:9]]
        except OSError:
            return None
        user, nice, system, _idle, _iowait, irq, softirq, steal = ticks
        busy = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
        return busy, time.process_time(), time.perf_counter()


# -- cold start -----------------------------------------------------------------------------------


def cold_start(arguments: Sequence[str], repeats: int = 3) -> dict[str, Any]:
    """CPU seconds of ``python ARGUMENTS`` in a fresh process, the best of a few."""
    best = float("inf")
    for _ in range(repeats):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True, timeout=120)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        best = min(best, cpu)
    return {"command": f"python {' '.join(arguments)}", "cpu_seconds": best}


def starts() -> dict[str, Any]:
    """What it costs to import toyserve and to ask it for help, and whether torch came along."""
    probe = "import sys, toyserve.cli; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", probe], check=True, capture_output=True, text=True)
    return {
        "import": cold_start(["-c", "import toyserve"]),
        "help": cold_start(["-m", "toyserve", "--help"]),
        "torch_loaded": done.stdout.strip() == "True",
    }
