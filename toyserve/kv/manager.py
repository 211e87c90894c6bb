"""What a scheduler asks of a KV manager, and the books that every manager keeps.

The cache is ``num_blocks`` physical blocks of ``block_size`` token slots. Token position ``p`` of a
request lives in slot ``p % block_size`` of physical block ``request.block_table[p // block_size]``.
The invariant behind everything: when a step runs ``n`` tokens of a request, slots exist for all
positions below ``num_computed_tokens + n``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from numbers import Integral
from typing import Literal, NamedTuple, Protocol

from toyserve.request import Request

# The books are lists with an entry per block. Real pools have some ten thousand blocks.
MAX_BLOCKS = 10_000_000


def whole_number(name: str, value: object, *, at_least: int = 1) -> int:
    """``value`` (a numpy integer as Python's own), or ValueError unless it is a whole number and no
    less than ``at_least``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < at_least:
        raise ValueError(f"{name} is {value!r}: it must be a whole number, at least {at_least}")
    return int(value)


def pool_size(num_blocks: object, block_size: object) -> tuple[int, int]:
    """Both as whole numbers, or ValueError."""
    blocks = whole_number("num_blocks", num_blocks)
    if blocks > MAX_BLOCKS:
        raise ValueError(f"num_blocks is {blocks}: the books hold {MAX_BLOCKS} at most")
    return blocks, whole_number("block_size", block_size)


class BlockEvent(NamedTuple):
    """One change of a block's state, in order; a Recording replays them into memory maps."""

    # take, drop: a request begins or stops to refer to the block. cache, evict: what it holds is
    # from now on kept for others (until then whoever computed it may leave), or no longer.
    kind: Literal["take", "drop", "cache", "evict"]
    block: int
    request_id: str  # of an evict: ""


class KVIntegrityError(AssertionError):
    """The books do not balance: a bug in a KV manager or a scheduler, never a user's mistake."""


class KVManager(Protocol):
    """Grants, extends and takes back blocks. A manager changes only ``request.block_table`` and
    ``request.num_slots``; schedulers read them.

    A manager that shares blocks also has ``publish(requests)`` (this step of theirs is computed)
    and ``drain_copies()`` (blocks to copy before the step); one whose blocks have places also has
    ``in_the_way(request)`` (whose leaving could let the request grow).
    """

    num_blocks: int  # the pool: all the blocks there are
    block_size: int  # a block: so many neighbouring slots, the unit in which KV memory is given out

    @property
    def num_free_blocks(self) -> int:
        """Blocks that a request could be given now."""
        ...

    def refusal(self, request: Request) -> str | None:
        """One sentence if ``request`` could not fit even in an empty pool, else None."""
        ...

    def match_prefix(self, request: Request) -> int:
        """At admission: attach blocks whose KV is already computed; how many tokens that covers."""
        ...

    def allocate(self, request: Request, num_tokens: int, keep_free: int = 0) -> bool:
        """Make slots for the next ``num_tokens`` positions and leave ``keep_free`` blocks free.

        False, and nothing changed, when they are not to be had.
        """
        ...

    def free(self, request: Request) -> None:
        """Take everything back; ``block_table`` is empty afterwards. Twice is as good as once."""
        ...

    def drain_events(self) -> list[BlockEvent]:
        """The changes since the last call."""
        ...

    def check_integrity(self, requests: Iterable[Request]) -> None:
        """Raise KVIntegrityError unless every block is free or owned as ``requests`` say."""
        ...


class BlockPool:
    """The free list and the event log, shared by the managers (composed, not inherited)."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks, self.block_size = pool_size(num_blocks, block_size)
        # The free list: the blocks that nobody has. A stack, as the block freed last is warm in the
        # CPU's cache; lowest numbers come out first.
        self.free_blocks = list(range(self.num_blocks - 1, -1, -1))
        self.events: list[BlockEvent] = []

    @property
    def num_free(self) -> int:
        return len(self.free_blocks)

    def take(self, request: Request, num_blocks: int) -> None:
        """Move ``num_blocks`` from the free list to the end of the request's block table."""
        free, events, request_id = self.free_blocks, self.events, request.request_id
        for _ in range(num_blocks):
            block = free.pop()
            request.block_table.append(block)
            events.append(BlockEvent("take", block, request_id))
        request.num_slots = len(request.block_table) * self.block_size

    def give_back(self, request: Request) -> None:
        """Return a request's blocks, last first, so that the next taker gets them in order."""
        for block in reversed(request.block_table):
            self.free_blocks.append(block)
            self.events.append(BlockEvent("drop", block, request.request_id))
        request.block_table.clear()
        request.num_slots = 0

    def drain_events(self) -> list[BlockEvent]:
        events, self.events = self.events, []
        return events

    def check(self, requests: Iterable[Request]) -> None:
        """Every block is on the free list or in exactly one table, once; counters agree."""
        seen = Counter(self.free_blocks)
        for request in requests:
            seen.update(request.block_table)
            check_table(request, self.block_size)
        bad = {b: n for b, n in seen.items() if n != 1 or not 0 <= b < self.num_blocks}
        missing = self.num_blocks - len(seen)
        if bad or missing:
            raise KVIntegrityError(f"blocks counted other than once: {bad}; {missing} lost")


def check_table(request: Request, block_size: int) -> None:
    """Raise KVIntegrityError unless table, slots and computed tokens of a request agree."""
    slots = len(request.block_table) * block_size
    if request.num_slots != slots:
        raise KVIntegrityError(f"{request!r}: num_slots {request.num_slots}, table has {slots}")
    if request.num_computed_tokens > slots and request.block_table:
        raise KVIntegrityError(f"{request!r}: computed more tokens than its {slots} slots")


def pool_refusal(request: Request, num_blocks: int, block_size: int) -> str | None:
    """One sentence if even an empty pool is too small for the request at its longest."""
    # The last token is never run, so it needs no slot.
    need = request.max_num_tokens - 1
    capacity = num_blocks * block_size
    if need <= capacity:
        return None
    return (
        f"a prompt of {request.num_prompt_tokens} tokens with an answer of up to "
        f"{request.max_num_tokens - request.num_prompt_tokens} needs {need} KV slots and the "
        f"whole pool has {capacity} ({num_blocks} blocks of {block_size}): "
        f"lower max_tokens, shorten the prompt or raise num_blocks"
    )


def blocks_for(num_tokens: int, block_size: int) -> int:
    """How many blocks hold ``num_tokens`` positions."""
    return -(-num_tokens // block_size)
