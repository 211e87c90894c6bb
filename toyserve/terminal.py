"""What toyserve shows in a terminal: live where there is one, plain lines where there is not."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, NoReturn, Self

from toyserve.recording import StepRecord

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.progress import Progress as Bar
    from rich.table import Table

MIN_SECONDS_BETWEEN_FRAMES = 0.08
_PLAIN_WIDTH = 100


def make_console(stream: IO[str]) -> Console:
    """A console that prints text as it is: brackets and colons are not markup."""
    from rich.console import Console

    class PipeAware(Console):
        def on_broken_pipe(self) -> NoReturn:
            """The command line decides what a closed pipe means, not rich."""
            raise BrokenPipeError

    width = None if stream.isatty() else _PLAIN_WIDTH
    return PipeAware(file=stream, markup=False, emoji=False, highlight=False, width=width)


def print_rows(console: Console, title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Names and values under a title."""
    from rich.table import Table

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column()
    for name, value in rows:
        table.add_row(name, value)
    console.print(title, soft_wrap=not console.is_terminal)
    console.print(table)


class Progress:
    """A progress bar over requests on a terminal; elsewhere nothing, so that logs stay short."""

    def __init__(self, num_requests: int, stream: IO[str]) -> None:
        self.num_requests = num_requests
        self.stream = stream
        self.num_finished = 0
        self._bar: Bar | None = None

    def __enter__(self) -> Self:
        if self.stream.isatty():
            from rich import progress

            self._bar = progress.Progress(
                progress.TextColumn("{task.description}"),
                progress.BarColumn(),
                progress.MofNCompleteColumn(),
                progress.TextColumn("requests, {task.fields[running]} running"),
                progress.TimeElapsedColumn(),
                console=make_console(self.stream),
                transient=True,
            )
            self._task = self._bar.add_task("serving", total=self.num_requests, running=0)
            self._bar.start()
        return self

    def step(self, record: StepRecord) -> None:
        """A callback for ``engine.on_step``."""
        self.num_finished += len(record.finished)
        if self._bar is not None:
            running = len(record.num_scheduled_tokens)
            self._bar.update(self._task, completed=self.num_finished, running=running)

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()


# -- the live batch table -----------------------------------------------------------------------

_STYLES = {"waiting": "yellow", "prefill": "bold cyan", "decode": "green", "preempted": "magenta"}
_OUT_OF_WORK = ("stop", "length", "abort", "refused")


@dataclass
class RequestRow:
    """One line of the batch table. phase: waiting, prefill, decode, preempted, or why it ended."""

    name: str
    phase: str = "waiting"
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    num_blocks: int = 0
    text: str = ""

    @property
    def ended(self) -> bool:
        return self.phase in _OUT_OF_WORK


@dataclass
class BatchState:
    """What stands above the table."""

    step: int = 0
    seconds: float = 0.0
    num_tokens: int = 0
    num_used_blocks: int = 0
    num_blocks: int = 1


class LiveBatch:
    """The batch, redrawn in place after each step.

    On anything but a terminal: one line whenever a request starts, is preempted or ends.
    """

    def __init__(self, console: Console, rows: Sequence[RequestRow]) -> None:
        self.console, self.rows = console, rows
        self._live: Live | None = None
        self._last_frame = 0.0
        self._phases = ["waiting"] * len(rows)

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            from rich.live import Live

            self._live = Live(console=self.console, auto_refresh=False)
            self._live.start()
        return self

    def update(self, state: BatchState, *, last: bool = False) -> None:
        """The rows have changed. Frames that come too fast are left out, except the last."""
        if self._live is None:
            self._print_changes(state)
            return
        now = time.monotonic()
        if last or now - self._last_frame >= MIN_SECONDS_BETWEEN_FRAMES:
            self._last_frame = now
            self._live.update(batch_table(self.rows, state, self.console.width), refresh=True)

    def _print_changes(self, state: BatchState) -> None:
        for index, row in enumerate(self.rows):
            before, self._phases[index] = self._phases[index], row.phase
            if before == row.phase or (before == "prefill" and row.phase == "decode"):
                continue
            waiting = sum(r.phase == "waiting" for r in self.rows)
            where = f"step {state.step:3}  {state.seconds:5.2f} s  {row.name:<14}"
            if row.ended:
                what = f"ends ({row.phase}), {row.num_output_tokens} tokens: "
                self.console.print(where + what + one_line(row.text, 48), soft_wrap=True)
            elif row.phase == "preempted":
                self.console.print(f"{where}is preempted: no KV block was free", soft_wrap=True)
            else:
                what = f"starts: {row.num_prompt_tokens} prompt tokens, {waiting} still wait"
                self.console.print(where + what, soft_wrap=True)

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()


def batch_table(rows: Sequence[RequestRow], state: BatchState, width: int) -> Table:
    """Who runs, in which phase, with how many tokens and blocks, and the end of each text."""
    from rich.table import Table
    from rich.text import Text

    running = sum(row.phase in ("prefill", "decode") for row in rows)
    waiting = sum(row.phase in ("waiting", "preempted") for row in rows)
    rate = state.num_tokens / state.seconds if state.seconds else 0.0
    title = (
        f"step {state.step}   {state.seconds:.1f} s   {running} running, {waiting} in the queue, "
        f"{len(rows) - running - waiting} done   {rate:,.0f} tokens/s   "
        f"KV blocks {state.num_used_blocks} of {state.num_blocks}"
    )
    table = Table(title=title, title_justify="left", title_style="bold", expand=True)
    table.add_column("request", no_wrap=True, min_width=10)
    table.add_column("phase", no_wrap=True, min_width=9)
    table.add_column("tokens", justify="right", no_wrap=True, min_width=9)
    table.add_column("KV blocks", justify="left", no_wrap=True, min_width=10)
    table.add_column("text so far", no_wrap=True, ratio=1)
    for row in rows:
        style = _STYLES.get(row.phase, "dim")
        table.add_row(
            row.name,
            Text(row.phase, style=style),
            f"{row.num_prompt_tokens} + {row.num_output_tokens}",
            Text("#" * min(row.num_blocks, 10), style=style),
            Text(
                one_line(row.text, max(8, width - 56), keep_end=not row.ended),
                style="dim" * row.ended,
            ),
        )
    return table


def one_line(text: str, width: int, *, keep_end: bool = False) -> str:
    """The beginning (or the end) of a text in one line of at most ``width`` characters."""
    line = " / ".join(part.strip() for part in text.split("\n") if part.strip())
    if len(line) <= width:
        return line
    return "..." + line[3 - width :] if keep_end else line[: width - 3] + "..."
