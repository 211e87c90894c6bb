"""The bundled GPT-2 serves a burst of requests, live: who runs, who waits, who holds which memory.

Ends with what the users felt, and with a picture of every decision that the scheduler took.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from toyserve.clock import WallClock
from toyserve.recording import StepRecord
from toyserve.request import Request, RequestStatus, SamplingParams

if TYPE_CHECKING:
    from rich.console import Console

    from toyserve.llm import LLM, StreamDelta
    from toyserve.terminal import BatchState, LiveBatch, RequestRow

NAME = "demo"
HELP = "watch the bundled GPT-2 serve a burst of requests"
EXAMPLES = (
    "toyserve demo",
    "toyserve demo --scheduler sequential     # the same, one request at a time",
    "toyserve demo --max-running 12 --out my-demo",
)

# Fourteen users at once. The model ends a speech by itself, after a length nobody knows before.
SPEECHES = (
    "ROMEO:\nBut, soft! what light through yonder window breaks?\n",
    "JULIET:\n",
    "HAMLET:\nTo be, or not to be, that is the question:\n",
    "OPHELIA:\n",
    "MACBETH:\nIs this a dagger which I see before me,\n",
    "LADY MACBETH:\n",
    "OTHELLO:\n",
    "IAGO:\nI hate the Moor, and\n",
    "PORTIA:\nThe quality of mercy is not strained.\n",
    "SHYLOCK:\n",
    "PROSPERO:\n",
    "KING LEAR:\nBlow, winds, and crack your cheeks! Rage, blow!\n",
    "FALSTAFF:\n",
    "ROSALIND:\n",
)
MIN_TOKENS = 16  # so that nobody falls silent before there is something to see
PACE = 0.06  # seconds to look at each step, on a terminal
_SHOWN = (
    "num_requests",
    "output_tokens",
    "output_tokens_per_s",
    "makespan_s",
    "ttft_ms",
    "tpot_ms",
    "itl_ms",
    "e2e_ms",
    "mean_running",
    "kv_used_max",
    "num_preemptions",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--scheduler", default="continuous", help="default: continuous")
    parser.add_argument("--max-running", type=int, default=6, help="places in the batch (6)")
    parser.add_argument("--max-tokens", type=int, default=120, help="longest answer (120)")
    parser.add_argument("--temperature", type=float, default=0.8, help="default: 0.8")
    parser.add_argument("--seed", type=int, default=7, help="another seed, other speeches (7)")
    parser.add_argument(
        "--pace",
        type=float,
        metavar="SECONDS",
        help=f"pause after each step, not counted in any time ({PACE} on a terminal, else 0)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("toyserve-run"),
        metavar="DIR",
        help="where run.jsonl and timeline.png go (toyserve-run)",
    )


def execute(options: argparse.Namespace) -> int:
    from toyserve.parts import make_scheduler
    from toyserve.terminal import LiveBatch, make_console

    console = make_console(sys.stdout)
    make_scheduler(options.scheduler)  # a wrong name is answered before torch loads
    pace = (PACE if console.is_terminal else 0.0) if options.pace is None else options.pace
    if not 0 <= pace <= 10:
        raise ValueError(f"pace is {pace!r}: it must lie between 0 and 10 seconds per step")
    params = _params(options)
    options.out.mkdir(parents=True, exist_ok=True)
    console.print(
        f"{len(SPEECHES)} users ask a small GPT-2 for a speech, all at once; the batch has "
        f"{options.max_running} places.\nLoading the model ...",
        soft_wrap=True,
    )
    clock = SlowMotionClock()
    llm = _load(options, clock)
    view = _View(llm, clock, pace, [speech.partition(":")[0] for speech in SPEECHES])
    with LiveBatch(console, view.rows) as live:
        view.show_on(live)
        for delta in llm.stream(SPEECHES, params):
            view.take(delta)
        view.draw(last=True)
    _say_what_happened(console, view, options.out, pace)
    return 0


def _params(options: argparse.Namespace) -> list[SamplingParams]:
    return [
        SamplingParams(
            options.temperature,
            top_p=0.95,
            seed=options.seed + i,
            max_tokens=options.max_tokens,
            min_tokens=min(MIN_TOKENS, options.max_tokens),
        )
        for i in range(len(SPEECHES))
    ]


def _load(options: argparse.Namespace, clock: WallClock) -> LLM:
    from toyserve.llm import LLM

    llm = LLM(
        "toy",
        scheduler=options.scheduler,
        max_running=options.max_running,
        num_blocks=64,
        clock=clock,
        seed=options.seed,
    )
    # The first step of a process sets up buffers and threads; nobody's latency should hold that.
    llm.generate(["ROMEO:\n"], SamplingParams(max_tokens=2, ignore_eos=True))
    return llm


class SlowMotionClock(WallClock):
    """This machine's time, without the moments that were spent on showing things."""

    def restart(self) -> None:
        super().restart()
        self._off = 0.0

    def now(self) -> float:
        return super().now() - self._off

    @contextmanager
    def stopped(self) -> Iterator[None]:
        start = super().now()
        try:
            yield
        finally:
            self._off += super().now() - start

    def __str__(self) -> str:
        return "wall"


class _View:
    """Keeps the table's rows in step with the engine."""

    def __init__(self, llm: LLM, clock: SlowMotionClock, pace: float, names: list[str]) -> None:
        from toyserve.terminal import BatchState, RequestRow

        self.llm, self.clock, self.pace = llm, clock, pace
        self.rows: list[RequestRow] = [RequestRow(name) for name in names]
        self.state: BatchState = BatchState(num_blocks=llm.kv.num_blocks)
        self.index: dict[str, int] = {}
        self.live: LiveBatch | None = None

    def show_on(self, live: LiveBatch) -> None:
        self.live = live
        self.llm.engine.on_step.append(self.step)

    def step(self, record: StepRecord) -> None:
        """The engine has made a step: show phases, tokens and blocks, and let the eye follow."""
        with self.clock.stopped():
            self._update(record)
            self.draw()
            time.sleep(self.pace)

    def _update(self, record: StepRecord) -> None:
        if not self.index:
            requests = self.llm.recording.requests
            self.index = {request_id: i for i, request_id in enumerate(requests)}
            for request_id, i in self.index.items():
                self.rows[i].num_prompt_tokens = requests[request_id].num_prompt_tokens
        state = self.state
        state.step, state.seconds = record.index + 1, record.end_time
        state.num_used_blocks = state.num_blocks - record.num_free_blocks
        for request_id, request in self.llm.engine.requests.items():
            row = self.rows[self.index[request_id]]
            row.phase = _phase(request, record)
            row.num_blocks = len(request.block_table)

    def take(self, delta: StreamDelta) -> None:
        """A piece of text has come out."""
        row = self.rows[delta.index]
        row.text += delta.text
        row.num_output_tokens += len(delta.token_ids)
        self.state.num_tokens += len(delta.token_ids)
        if delta.finish_reason is not None:
            row.phase, row.num_blocks = delta.finish_reason.value, 0

    def draw(self, *, last: bool = False) -> None:
        if self.live is not None:
            self.live.update(self.state, last=last)


def _phase(request: Request, record: StepRecord) -> str:
    if request.status is RequestStatus.RUNNING:
        return "prefill" if request.request_id in record.admitted else "decode"
    return request.status.value


def _say_what_happened(console: Console, view: _View, folder: Path, pace: float) -> None:
    from toyserve.cli.run import save_timeline
    from toyserve.metrics import format_table
    from toyserve.terminal import print_rows

    recording = view.llm.recording
    recording.save(folder / "run.jsonl")
    save_timeline(recording, folder / "timeline.png")
    summary = recording.summary()
    console.print(f"\n{SPEECHES[0]}{view.rows[0].text.strip()}\n", soft_wrap=True)
    title = "What the users felt; times count from arrival"
    title += ", without the slow motion:" if pace else ":"
    print_rows(console, title, format_table({name: summary[name] for name in _SHOWN}))
    first_word = {r.request_id: r.token_times[0] for r in recording.requests.values()}
    last = max(first_word, key=first_word.__getitem__)
    console.print(
        f"\n{view.rows[view.index[last]].name} waited longest for a first word: "
        f"{first_word[last]:.2f} s, nearly all of it in the queue.\n"
        f"Every decision as a picture: {folder / 'timeline.png'}\n\n"
        f"Next:  toyserve demo --scheduler sequential   the same requests, one at a time\n"
        f"       toyserve lab                           the course, in JupyterLab",
        soft_wrap=True,
    )
