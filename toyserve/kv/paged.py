"""Paged KV: a request takes one more block only when its last one is full.

Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention",
SOSP 2023. Nothing has to be contiguous, so nothing fragments outside a block; inside, at most
``block_size - 1`` slots per request wait for tokens.
"""

from __future__ import annotations

from collections.abc import Iterable

from toyserve.kv.manager import BlockEvent, BlockPool, blocks_for, pool_refusal
from toyserve.kv.prefix import SharingPool
from toyserve.request import Request


class PagedKV:
    """Blocks on demand, from one free list.

    prefix_caching: keep full blocks after their requests have left, and share them with whoever
    begins with the same tokens (``prefix.py``).
    """

    def __init__(
        self, num_blocks: int, block_size: int = 16, *, prefix_caching: bool = False
    ) -> None:
        if not isinstance(prefix_caching, bool):
            raise ValueError(f"prefix_caching is {prefix_caching!r}: it must be True or False")
        self.prefix_caching = prefix_caching
        self.sharing = SharingPool(num_blocks, block_size) if prefix_caching else None
        self.pool = self.sharing or BlockPool(num_blocks, block_size)
        self.num_blocks, self.block_size = self.pool.num_blocks, self.pool.block_size

    @property
    def num_free_blocks(self) -> int:
        return self.pool.num_free

    def refusal(self, request: Request) -> str | None:
        return pool_refusal(request, self.num_blocks, self.block_size)

    def match_prefix(self, request: Request) -> int:
        return self.sharing.match_prefix(request) if self.sharing else 0

    def publish(self, requests: Iterable[Request]) -> None:
        if self.sharing:
            self.sharing.publish(requests)

    def announce_cached(self) -> None:
        """Repeat the events of what is cached now: a recording that begins here starts with it."""
        if self.sharing:
            cached = sorted(self.sharing.by_block)
            self.sharing.events += [BlockEvent("cache", block, "") for block in cached]

    def drain_copies(self) -> list[tuple[int, int]]:
        return self.sharing.drain_copies() if self.sharing else []

    def allocate(self, request: Request, num_tokens: int, keep_free: int = 0) -> bool:
        need = blocks_for(request.num_computed_tokens + num_tokens, self.block_size)
        new = need - len(request.block_table)
        if new > self.pool.num_free - keep_free:
            return False
        if new > 0:
            self.pool.take(request, new)
        return True

    def free(self, request: Request) -> None:
        self.pool.give_back(request)

    def drain_events(self) -> list[BlockEvent]:
        return self.pool.drain_events()

    def check_integrity(self, requests: Iterable[Request]) -> None:
        self.pool.check(requests)
