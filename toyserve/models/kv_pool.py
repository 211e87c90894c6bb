"""The KV pool on the device, its swap space on the host, and the copies between blocks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class KVPool:
    """The KV cache: the keys and values of all tokens so far, so that none is computed twice.

    ``data`` is [num_layers, num_blocks, block_size, 2, num_heads, head_dim]; index 0 of the 2
    holds keys, 1 values, so that one gather of a whole block brings both.
    """

    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        head_dim: int,
        num_blocks: int,
        block_size: int,
        device: torch.device,
        dtype: torch.dtype,
        num_host_blocks: int = 0,
    ) -> None:
        self.num_heads, self.head_dim, self.block_size = num_heads, head_dim, block_size
        shape = (num_layers, num_blocks, block_size, 2, num_heads, head_dim)
        # Zeros, not empty: an unwritten slot is masked out, but 0 * NaN would still be NaN.
        self.data = torch.zeros(shape, device=device, dtype=dtype)
        self.by_block = self.data.view(num_layers, num_blocks, -1)
        self.by_slot = self.data.view(num_layers, num_blocks * block_size, -1)
        # One piece per block, all its layers, so that a swap is one copy; pinned, because only
        # then does the GPU copy by itself, in the order of its other work, while Python goes on.
        host_shape = (num_host_blocks, num_layers, self.by_block.shape[2])
        pinned = device.type == "cuda" and num_host_blocks > 0
        self._host = torch.zeros(host_shape, dtype=dtype, pin_memory=pinned)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """(from, to) on the device, in all layers; as if all were read before any is written."""
        if pairs:
            source, target = self._block_ids(pairs)
            self.by_block[:, target] = self.by_block[:, source]

    def swap_out(self, pairs: Sequence[tuple[int, int]]) -> None:
        """(device block, host block): to the host, in all layers."""
        if pairs:
            leaving = self.by_block[:, self._block_ids(pairs)[0]].transpose(0, 1).contiguous()
            for block, (_, host_block) in zip(leaving, pairs, strict=True):
                self._host[host_block].copy_(block, non_blocking=True)

    def swap_in(self, pairs: Sequence[tuple[int, int]]) -> None:
        """(device block, host block): back to the device, in all layers."""
        if pairs:
            coming = self.data.new_empty(len(pairs), *self._host.shape[1:])
            for block, (_, host_block) in zip(coming, pairs, strict=True):
                block.copy_(self._host[host_block], non_blocking=True)
            self.by_block[:, self._block_ids(pairs)[0]] = coming.transpose(0, 1)

    def _block_ids(self, pairs: Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor]:
        first, second = torch.tensor(pairs, device=self.data.device).unbind(1)
        return first, second
