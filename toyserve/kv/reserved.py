"""Reserved KV: every request is given room for the longest sequence there may be, up front.

What servers did before paging (the "Orca (Max)" baseline of the PagedAttention paper). Simple,
never runs out in the middle, and most of what it holds is never written.
"""

from __future__ import annotations

from collections.abc import Iterable

from toyserve.kv.manager import BlockEvent, BlockPool, blocks_for
from toyserve.request import Request


class ReservedKV:
    """The pool cut into equal places of ``max_model_len`` tokens, one per running request."""

    def __init__(self, num_blocks: int, block_size: int = 16, *, max_model_len: int) -> None:
        self.pool = BlockPool(num_blocks, block_size)
        self.num_blocks, self.block_size = self.pool.num_blocks, self.pool.block_size
        self.max_model_len = max_model_len
        # The last token of a sequence is never run, so it needs no slot.
        self.blocks_per_request = blocks_for(max(1, max_model_len - 1), block_size)
        if self.blocks_per_request > num_blocks:
            raise ValueError(
                f"reserved KV sets aside max_model_len = {max_model_len} tokens "
                f"({self.blocks_per_request} blocks of {block_size}) for each request, but the "
                f"pool has {num_blocks} blocks: raise num_blocks or lower max_model_len"
            )

    @property
    def num_free_blocks(self) -> int:
        return len(self.pool.free_blocks)

    def refusal(self, request: Request) -> str | None:
        if request.max_num_tokens <= self.max_model_len:
            return None
        return (
            f"a prompt of {request.num_prompt_tokens} tokens with an answer of up to "
            f"{request.max_num_tokens - request.num_prompt_tokens} is longer than the "
            f"{self.max_model_len} tokens reserved for each request"
        )

    def match_prefix(self, request: Request) -> int:
        return 0

    def allocate(self, request: Request, num_tokens: int, keep_free: int = 0) -> bool:
        if request.block_table:
            return request.num_computed_tokens + num_tokens <= request.num_slots
        if self.blocks_per_request > len(self.pool.free_blocks) - keep_free:
            return False
        self.pool.take(request, self.blocks_per_request)
        return True

    def free(self, request: Request) -> None:
        self.pool.give_back(request)

    def drain_events(self) -> list[BlockEvent]:
        return self.pool.drain_events()

    def check_integrity(self, requests: Iterable[Request]) -> None:
        self.pool.check(requests)
