"""Paged KV: a request takes one more block only when its last one is full.

Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention",
SOSP 2023. Nothing has to be contiguous, so nothing fragments outside a block; inside, at most
``block_size - 1`` slots per request wait for tokens.
"""

from __future__ import annotations

from collections.abc import Iterable

from toyserve.kv.manager import BlockEvent, BlockPool, blocks_for
from toyserve.request import Request


class PagedKV:
    """Blocks on demand, from one free list."""

    def __init__(self, num_blocks: int, block_size: int = 16) -> None:
        self.pool = BlockPool(num_blocks, block_size)
        self.num_blocks = num_blocks
        self.block_size = block_size

    @property
    def num_free_blocks(self) -> int:
        return len(self.pool.free_blocks)

    def refusal(self, request: Request) -> str | None:
        # The last token is never run, so it needs no slot.
        need = request.max_num_tokens - 1
        capacity = self.num_blocks * self.block_size
        if need <= capacity:
            return None
        return (
            f"a prompt of {request.num_prompt_tokens} tokens with an answer of up to "
            f"{request.max_num_tokens - request.num_prompt_tokens} needs {need} KV slots and the "
            f"whole pool has {capacity} ({self.num_blocks} blocks of {self.block_size}): "
            f"lower max_tokens, shorten the prompt or raise num_blocks"
        )

    def match_prefix(self, request: Request) -> int:
        return 0

    def allocate(self, request: Request, num_tokens: int, keep_free: int = 0) -> bool:
        need = blocks_for(request.num_computed_tokens + num_tokens, self.block_size)
        new = need - len(request.block_table)
        if new > len(self.pool.free_blocks) - keep_free:
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
