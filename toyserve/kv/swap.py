"""Swap space: blocks in the host's memory where a preempted request's KV waits for its return.

The old operating-system trade: two copies over a slow bus against computing everything again (Kwon
et al., SOSP 2023, section 4.5). It knows only block tables, so it goes with any KV manager.
"""

from __future__ import annotations

from collections.abc import Sequence

from toyserve.kv.manager import KVIntegrityError, blocks_for, whole_number
from toyserve.request import Request

Copies = list[tuple[int, int]]  # (device block, host block), in the order of the sequence


class SwapSpace:
    """``num_host_blocks`` blocks of the device's size. Whole requests move, never half of one."""

    def __init__(self, num_host_blocks: int, block_size: int) -> None:
        self.num_host_blocks = whole_number("num_host_blocks", num_host_blocks, at_least=0)
        self.block_size = block_size
        self.free_blocks = list(range(num_host_blocks - 1, -1, -1))
        self.tables: dict[Request, list[int]] = {}  # who is out, longest out first

    def swap_out(self, request: Request) -> Copies | None:
        """Host blocks for what the request has computed; None if they are not to be had.

        Call before its device blocks are freed. The copies must run before anything of this step
        writes to the device.
        """
        num_blocks = blocks_for(request.num_computed_tokens, self.block_size)
        if not 0 < num_blocks <= len(self.free_blocks):
            return None
        table = self.tables[request] = [self.free_blocks.pop() for _ in range(num_blocks)]
        return list(zip(request.block_table, table, strict=False))

    def swap_in(self, request: Request) -> Copies:
        """The way back, to the device blocks that the request has just been given.

        The host blocks count as free at once, so a step that swaps in must not swap out after it.
        """
        table = self.tables[request]
        self.free(request)
        return list(zip(request.block_table, table, strict=False))

    def free(self, request: Request) -> None:
        """Give up what is kept of the request, if anything is."""
        self.free_blocks.extend(reversed(self.tables.pop(request, ())))

    def check_integrity(self, swapped: Sequence[Request]) -> None:
        """Raise KVIntegrityError unless each host block is free or kept for one of ``swapped``."""
        if set(self.tables) != set(swapped):
            raise KVIntegrityError(f"host blocks are kept for {list(self.tables)}, not {swapped}")
        seen = sorted([*self.free_blocks, *(b for table in self.tables.values() for b in table)])
        if seen != list(range(self.num_host_blocks)):
            raise KVIntegrityError(f"host blocks lost or doubled: {seen}")
        for request, table in self.tables.items():
            if len(table) != blocks_for(request.num_computed_tokens, self.block_size):
                raise KVIntegrityError(f"{request!r} has {len(table)} host blocks")


def check_host_memory(num_host_blocks: int, block_bytes: int, host_bytes: int) -> None:
    """Raise ValueError if a swap space of ``num_host_blocks`` would not fit ``host_bytes``."""
    if num_host_blocks * block_bytes > host_bytes:
        raise ValueError(
            f"num_host_blocks is {num_host_blocks}: at {block_bytes} bytes a block that is "
            f"{num_host_blocks * block_bytes} bytes of swap space, and the host has {host_bytes}"
        )
