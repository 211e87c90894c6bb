"""Tile sizes by GPU generation: a table to read, not a search at run time.

Larger tiles reuse what they load more often but need more registers and shared memory; more
stages keep more loads in flight. A key is found through the block table, so a tile in flight
takes two stages, one for the table entry and one for the keys: with 5 stages two tiles are on
their way, with 3 the loop waits for each. The rows below compile without spilling on every
generation (the tests prove it); `python -m toyserve_kernels.gpu_check --sweep` measures others.
"""

from dataclasses import dataclass

import torch

from . import backend
from .validate import next_power_of_2

MAX_SPLITS = 32


@dataclass(frozen=True)
class Tile:
    """How one program is cut: `block_m` query rows against `tile` keys at a time."""

    block_m: int
    tile: int
    num_warps: int = 4
    num_stages: int = 2
    use_dot: bool = True  # tl.dot (tensor cores, pipelined loads) or multiply and add

    def check(self, group: int) -> None:
        """Raise ValueError unless the query heads of one KV head fit into the rows."""
        if self.block_m < group:
            raise ValueError(f"block_m is {self.block_m}, a KV head serves {group} query heads")


def ragged_tile(
    device: torch.device, dtype: torch.dtype, head_dim: int, group: int, max_query_len: int
) -> Tile:
    """The tile for a launch whose longest query is `max_query_len` tokens."""
    arch = backend.architecture(device)
    fewest = max(16, next_power_of_2(group))  # a program holds at least one token's heads
    many_rows = max_query_len * group > 16
    if arch == backend.INTERPRETER:  # each operation costs the same: few programs, large tiles
        return Tile(max(64, fewest) if many_rows else fewest, tile=128)
    if arch < 80 or dtype == torch.float32:  # no tensor cores used: small, or registers spill
        return Tile(fewest, tile=16 if arch < 80 or head_dim > 64 else 32)
    if not many_rows:
        return Tile(fewest, tile=32, num_stages=_stages(device))
    tile = 64 if head_dim <= 64 else 32
    return Tile(max(64, fewest), tile=tile, num_stages=_stages(device))


def decode_tile(device: torch.device, dtype: torch.dtype, head_dim: int, group: int) -> Tile:
    """The tile for one query token per sequence; its rows are the heads of one KV head."""
    arch = backend.architecture(device)
    rows = next_power_of_2(group)
    if arch == backend.INTERPRETER:
        return Tile(max(16, rows), tile=128)
    if arch < 80 or dtype == torch.float32:
        if rows == 1:
            return Tile(1, tile=32, use_dot=False)
        return Tile(max(16, rows), tile=16)
    # 16 rows even for one head: only loads that feed a dot are fetched ahead of time
    return Tile(max(16, rows), tile=32, num_stages=_stages(device))


def _stages(device: torch.device) -> int:
    return 2 if backend.architecture(device) >= backend.AMD else 5


def choose_num_splits(
    device: torch.device, num_seqs: int, num_kv_heads: int, max_seq_len: int, tile: int
) -> int:
    """Enough splits to fill the GPU twice over, none smaller than two tiles, at most 32.

    A power of two, since each number of splits is compiled for itself, on its first use.
    """
    wanted = 2 * backend.num_multiprocessors(device) // max(1, num_seqs * num_kv_heads)
    num_splits = max(1, min(MAX_SPLITS, wanted, max_seq_len // (2 * tile)))
    return 1 << num_splits.bit_length() - 1
