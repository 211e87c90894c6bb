"""What the GPU check measures with and writes down: a stopwatch and a report."""

import json
import platform
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class Row:
    """One line of the report; a time is in seconds, `share` is of the ceiling that `unit` has."""

    section: str
    shape: str
    what: str
    seconds: float | None = None
    rate: float | None = None  # in `unit`
    unit: str = ""
    share: float | None = None  # of the measured ceiling
    note: str = ""


@dataclass
class Report:
    """Rows as they come, problems (these fail the check) and what was skipped, with reasons."""

    rows: list[Row] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    about: dict[str, Any] = field(default_factory=dict)
    ceilings: dict[str, float] = field(default_factory=dict)  # measured: "GB/s" and "TFLOP/s"

    def add(self, row: Row) -> None:
        """Keep a row and print it at once: a check that is killed has still said something."""
        self.rows.append(row)
        time_us = "-" if row.seconds is None else f"{row.seconds * 1e6:,.1f} us"
        rate = "" if row.rate is None else f"{row.rate:,.1f} {row.unit}"
        share = "" if row.share is None else f"{100 * row.share:.0f} %"
        print(
            f"{row.section:8} {row.shape:34} {row.what:32} {time_us:>14} {rate:>18} {share:>6}"
            + (f"  {row.note}" if row.note else ""),
            flush=True,
        )

    def add_rate(
        self,
        section: str,
        shape: str,
        what: str,
        seconds: float | None,
        work: float,
        unit: str,
        note: str = "",
    ) -> None:
        """A row for `work` bytes or FLOPs done in `seconds`, as a share of the ceiling."""
        scale = {"GB/s": 1e9, "TFLOP/s": 1e12}[unit]
        rate = None if seconds is None else work / seconds / scale
        ceiling = self.ceilings.get(unit)
        share = None if rate is None or ceiling is None else rate / ceiling
        self.add(Row(section, shape, what, seconds, rate, unit, share, note))

    def problem(self, text: str) -> None:
        self.problems.append(text)
        print(f"PROBLEM  {text}", flush=True)

    def skip(self, text: str) -> None:
        self.skipped.append(text)
        print(f"skipped  {text}", flush=True)

    def save(self, path: Path) -> None:
        """Write everything as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")


@dataclass(frozen=True)
class Bench:
    """Where and how to measure; on a CPU (`smoke`) everything runs once and nothing is timed."""

    device: torch.device
    dtype: torch.dtype
    smoke: bool
    deadline: float  # on time.monotonic()'s clock

    @property
    def seconds_left(self) -> float:
        return self.deadline - time.monotonic()

    def seconds(self, run: Callable[[], Any], *, capture: bool = True) -> float | None:
        """Median seconds of one run, with the L2 cache flushed between runs.

        `capture`: replay it from a CUDA graph, so that the time of launching does not count. Only
        for what surely can be captured: after a failed capture, torch before 2.12 cannot free
        memory any more, and every later capture fails too.
        """
        if self.smoke:
            run()
            return None
        from triton.testing import do_bench

        for _ in range(3):
            run()
        torch.cuda.synchronize()
        timed = run
        if capture:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                run()
            timed = graph.replay
        return do_bench(timed, warmup=10, rep=60, return_mode="median") * 1e-3

    def fits(self, num_bytes: int) -> bool:
        """Whether that much memory is free."""
        if self.smoke:
            return True
        torch.cuda.empty_cache()  # what torch keeps for itself is not free to the driver
        return num_bytes < torch.cuda.mem_get_info(self.device)[0]

    def free(self) -> None:
        """Give unused memory back between sections."""
        if not self.smoke:
            torch.cuda.empty_cache()


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise TimeoutError inside when the time is over: a library may compile for minutes.

    Needs Unix and the main thread, and does nothing elsewhere.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() != threading.main_thread():
        yield
        return

    def stop(*_: Any) -> None:
        raise TimeoutError(f"not done after {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def describe_machine(device: torch.device) -> dict[str, Any]:
    """The card, the versions and the date, for the JSON."""
    import triton

    about = {
        "date": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "card": "none: interpreted on a CPU",
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        about |= {
            "card": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": properties.multi_processor_count,
            "memory_gb": round(properties.total_memory / 1e9, 1),
            "l2_mb": round(getattr(properties, "L2_cache_size", 0) / 1e6, 1),
            "cuda": torch.version.cuda or torch.version.hip,
        }
    return about
