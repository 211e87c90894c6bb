"""Contiguous KV: each request is one slab of neighbouring blocks, put in the first hole that fits.

Memory before paging: segments of an address space. Room that lies in pieces between the slabs is
free and useless (external fragmentation); nothing is ever moved.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from toyserve.kv.manager import (
    BlockEvent,
    KVIntegrityError,
    blocks_for,
    check_table,
    pool_refusal,
    pool_size,
)
from toyserve.request import Request


class ContiguousKV:
    """First fit. A slab grows in place if the blocks after it are free, and else not at all.

    ``owners`` is the address space: whose each block is, or None.
    """

    def __init__(self, num_blocks: int, block_size: int = 16) -> None:
        self.num_blocks, self.block_size = pool_size(num_blocks, block_size)
        self.owners: list[Request | None] = [None] * self.num_blocks
        self.num_free_blocks = self.num_blocks
        self.events: list[BlockEvent] = []

    # -- what fragmentation is ------------------------------------------------------------------

    def holes(self) -> list[tuple[int, int]]:
        """(first block, number of blocks) of every gap, in order of address."""
        return holes_of(self.owners)

    @property
    def largest_hole(self) -> int:
        """The largest request that could come in now, in blocks."""
        return max((length for _, length in self.holes()), default=0)

    @property
    def external_fragmentation(self) -> float:
        """The share of the free blocks that lies outside the largest hole; 0 when all is one."""
        return 1 - self.largest_hole / self.num_free_blocks if self.num_free_blocks else 0.0

    @property
    def internal_fragmentation(self) -> float:
        """The share of the owned slots that holds no token yet."""
        owners = {owner for owner in self.owners if owner is not None}
        owned = sum(owner.num_slots for owner in owners)
        return 1 - sum(o.num_computed_tokens for o in owners) / owned if owned else 0.0

    # -- KVManager ------------------------------------------------------------------------------

    def refusal(self, request: Request) -> str | None:
        return pool_refusal(request, self.num_blocks, self.block_size)

    def match_prefix(self, request: Request) -> int:
        return 0

    def allocate(self, request: Request, num_tokens: int, keep_free: int = 0) -> bool:
        need = blocks_for(request.num_computed_tokens + num_tokens, self.block_size)
        new = need - len(request.block_table)
        if new <= 0:
            return True
        if new > self.num_free_blocks - keep_free:
            return False
        start = self._end(request) if request.block_table else self.first_fit(new)
        if start is None or start + new > self.num_blocks:
            return False
        if any(owner is not None for owner in self.owners[start : start + new]):
            return False
        for block in range(start, start + new):
            self.owners[block] = request
            request.block_table.append(block)
            self.events.append(BlockEvent("take", block, request.request_id))
        request.num_slots = len(request.block_table) * self.block_size
        self.num_free_blocks -= new
        return True

    def first_fit(self, num_blocks: int) -> int | None:
        """Where a new slab begins: the first hole that is large enough; None if there is none."""
        return next((start for start, length in self.holes() if length >= num_blocks), None)

    def _end(self, request: Request) -> int:
        return request.block_table[-1] + 1

    def in_the_way(self, request: Request) -> list[Request]:
        """Who could make a slab's growth possible by leaving: its neighbour, or itself.

        At the end of memory there is no neighbour: the request itself must go and come back
        elsewhere.
        """
        end = self._end(request)
        neighbour = next((owner for owner in self.owners[end:] if owner is not None), None)
        return [request] if neighbour is None else [request, neighbour]

    def free(self, request: Request) -> None:
        for block in request.block_table:
            self.owners[block] = None
            self.events.append(BlockEvent("drop", block, request.request_id))
        self.num_free_blocks += len(request.block_table)
        request.block_table.clear()
        request.num_slots = 0

    def drain_events(self) -> list[BlockEvent]:
        events, self.events = self.events, []
        return events

    def check_integrity(self, requests: Iterable[Request]) -> None:
        owners: list[Request | None] = [None] * self.num_blocks
        for request in requests:
            check_table(request, self.block_size)
            table = request.block_table
            if table and table != list(range(table[0], table[0] + len(table))):
                raise KVIntegrityError(f"{request!r} is not one slab: {table}")
            for block in table:
                owners[block] = request
        if owners != self.owners or self.num_free_blocks != owners.count(None):
            raise KVIntegrityError(f"the address space says {self.owners}, the tables {owners}")


def holes_of(owners: Sequence[object | None]) -> list[tuple[int, int]]:
    """(first block, number of blocks) of every gap between the owned, None being nobody."""
    result, address = [], 0
    for free, run in groupby(owners, key=lambda owner: owner is None):
        length = len(list(run))
        if free:
            result.append((address, length))
        address += length
    return result
