"""The colleague: every planted fault that a learner finds from its picture. All of it runs.

Nothing here is an example to follow. Each does what its first line says, nearly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from toyserve.costs import ModelSpec
from toyserve.hardware import dtype_bytes
from toyserve.kv import ContiguousKV
from toyserve.kv.prefix import SharingPool
from toyserve.policies import FCFS
from toyserve.recording import Recording
from toyserve.schedulers import Scheduler, SchedulerOutput


class Impatient(Scheduler):
    """04.3: why should anybody wait because somebody else does not fit?"""

    def schedule(self) -> SchedulerOutput:
        plan = SchedulerOutput()
        for request in list(self.running):
            self.run(plan, request, request.num_uncomputed_tokens)
        for request in list(self.waiting):
            if len(self.running) < self.max_running:
                self.admit(plan, request)
        return plan


class WholeChunks(Scheduler):
    """The colleague's scheduler: a prompt is read in chunks of 64, decodes go first."""

    chunk = 64

    def __init__(self, max_running: int = 8, token_budget: int = 256) -> None:
        super().__init__(max_running)
        self.token_budget = token_budget

    def in_prompt(self, request: Any) -> bool:
        """Is there a chunk of its prompt still to be read? If not, it decodes."""
        chunks_read = request.num_computed_tokens // self.chunk
        return bool(chunks_read < request.num_prompt_tokens // self.chunk)

    def schedule(self) -> SchedulerOutput:
        plan = SchedulerOutput()
        reading = {r for r in self.running if self.in_prompt(r)}
        for r in sorted(self.running, key=lambda r: r in reading):  # whoever decodes comes first
            most = self.chunk if r in reading else 1
            n = min(most, r.num_uncomputed_tokens, self.room(plan))
            if n > 0:
                self.run(plan, r, n)
        while self.room(plan) > 0 and self.waiting and len(self.running) < self.max_running:
            if not self.admit(plan, self.next_waiting(), min(self.chunk, self.room(plan))):
                break
        return plan

    def room(self, plan: SchedulerOutput) -> int:
        return self.token_budget - plan.total_tokens


class Ledger(ContiguousKV):
    """The colleague's books: a list of gaps, and of each request the slab that it holds."""

    def __init__(self, num_blocks: int, block_size: int = 16) -> None:
        super().__init__(num_blocks, block_size)
        self.gaps: list[tuple[int, int]] = [(0, num_blocks)]
        self.slabs: dict[Any, tuple[int, int]] = {}

    def holes(self) -> list[tuple[int, int]]:
        return sorted(self.gaps)  # first fit looks here

    def allocate(self, request: Any, num_tokens: int, keep_free: int = 0) -> bool:
        known = len(request.block_table)
        granted = super().allocate(request, num_tokens, keep_free)
        if new := request.block_table[known:]:
            self.cut(new[0], len(new))
            self.slabs.setdefault(request, (new[0], len(new)))
        return granted

    def free(self, request: Any) -> None:
        if request in self.slabs:
            self.put_back(*self.slabs.pop(request))
        super().free(request)

    def cut(self, start: int, length: int) -> None:
        """Take these blocks out of the gap in which they lie."""
        first, size = next(gap for gap in self.gaps if gap[0] <= start < sum(gap))
        self.gaps.remove((first, size))
        rest = ((first, start - first), (start + length, first + size - start - length))
        self.gaps += [gap for gap in rest if gap[1]]

    def put_back(self, start: int, length: int) -> None:
        """A new gap, joined with those that it touches."""
        for first, size in list(self.gaps):
            if first + size == start or start + length == first:
                self.gaps.remove((first, size))
                start, length = min(first, start), length + size
        self.gaps.append((start, length))


def slots_read(block_table: Sequence[int], context_len: int, block_size: int) -> list[int]:
    """The slots that attention reads for a request of ``context_len`` tokens."""
    num_pages = -(-context_len // block_size)
    slots: list[int] = []
    for page in range(num_pages):
        last = page == num_pages - 1
        filled = context_len % block_size if last else block_size
        first = block_table[page] * block_size
        slots += range(first, first + filled)
    return slots


class Bully(FCFS):
    """The colleague's rule: whoever has had fewer tokens goes first, and may push others out."""

    def next(self, waiting: Any, now: float) -> Any:
        return min(waiting, key=lambda r: r.num_output_tokens)

    def displaces(self, candidate: Any, victim: Any, now: float) -> bool:
        return candidate.num_output_tokens < victim.num_output_tokens

    def victim(self, running: Any, now: float) -> Any:
        return max(running, key=lambda r: r.num_output_tokens)


class ByPromise(FCFS):
    """The colleague's counter: it charges what a user *declares*, once, when a request comes in."""

    def __init__(self) -> None:
        self.counters: dict[str, float] = {}

    def charge(self, user: str, points: float) -> None:
        self.counters[user] = self.counters.get(user, 0) + points

    def next(self, waiting: Any, now: float) -> Any:
        return sorted(waiting, key=lambda r: self.counters.get(r.user, 0))[0]

    def on_admit(self, request: Any, now: float) -> None:
        self.charge(request.user, request.num_prompt_tokens + 2 * request.params.max_tokens)


class ForgetsBeginnings(SharingPool):
    """A pool in which something was changed: give_back."""

    def give_back(self, request: Any) -> None:
        for block in request.block_table:
            self.ref_counts[block] -= 1
            if not self.ref_counts[block]:
                if block in self.by_block:
                    self.unused[block] = None
                else:
                    self.free_blocks.append(block)
        request.block_table.clear()
        request.num_slots = 0
        self.pending.pop(request, None)
        self.chains.pop(request, None)


def planned_slots(m: ModelSpec, memory_bytes: float, length: int) -> int:
    """The colleague's plan: how many requests of ``length`` tokens fit beside the weights."""
    size = dtype_bytes(m.weight_dtype)
    room = 0.9 * memory_bytes - size * m.total_params
    token = size * 2 * m.num_layers * m.num_kv_heads * m.head_dim
    return max(0, int(room // (token * length)))


def dashboard(run: Recording) -> list[int]:
    """What the colleague's dashboard counts as "served", step by step."""
    return [
        sum(step.num_scheduled_tokens.values()) + sum(step.num_padded_tokens.values())
        for step in run.steps
    ]


class Lazy:
    """14.5: a front end that notices by a failed write that a reader has gone."""

    def __init__(self, abort: Callable[[str], Any]) -> None:
        self.abort, self.closed = abort, set[str]()

    def gone(self, name: str) -> None:
        """Its connection has closed."""
        self.closed.add(name)

    def write(self, name: str) -> None:
        """A token is there to be sent to it."""
        if name in self.closed:
            self.abort(name)
