"""Attention over paged KV in plain torch: gather the blocks a request owns, then attend.

What makes it fast on a CPU is that decodes are sorted by length and gathered a few at a time into
one small buffer, which then stays in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from toyserve.models.kv_pool import KVPool

# Decodes gathered together. Fewer means more operator calls, more means padding and cache misses;
# from 4 to 8 it hardly matters, at 12 both begin to tell.
DECODES_PER_GROUP = 6


class Chunk(NamedTuple):
    """A run of rows that belong to one sequence: (part of) a prompt, or padding."""

    first_row: int
    num_tokens: int
    context_len: int  # tokens in the cache after this step, these included
    blocks: list[int]  # physical blocks that hold them; unused when context_len == num_tokens


@dataclass(frozen=True)
class AttentionBatch:
    """Whose rows are whose in one step: first the decodes, one row each, then the chunks.

    Tensors lie on the host: each backend sends its device what it needs there, and no more.
    """

    decode_blocks: Tensor  # int64 [num_decodes, max_blocks], padded with any valid block
    decode_lens: Sequence[int]  # context length of each decode, its own token included, ascending
    chunks: Sequence[Chunk]
    slots: Tensor  # int64 [num_cached_rows]: where the first rows' keys and values go


class _Gathered(NamedTuple):
    """The gather buffer's beginning, as it is filled and as it is read."""

    rows: Tensor  # [num_blocks, block_size * 2 * n_embd]
    keys: Tensor  # [group, num_heads, max_len, head_dim], a view of ``rows``
    values: Tensor


class _DecodeGroup(NamedTuple):
    first: int
    last: int
    blocks: Tensor  # [num_blocks]
    into: _Gathered
    mask: Tensor | None  # [group, 1, 1, max_len]: 0 or -inf; None when all lengths are max_len


def to_device(array: np.ndarray, device: torch.device) -> Tensor:
    """The numbers on ``device``; on a CPU the same memory. Does not wait for a GPU's earlier work:
    from pageable memory CUDA takes a copy of its own before this returns."""
    return torch.from_numpy(array).to(device, non_blocking=device.type == "cuda")


class AttentionBackend(Protocol):
    """``begin_step`` once a step, then one call per layer; owns the KV pool."""

    pool: KVPool

    def begin_step(self, batch: AttentionBatch) -> None:
        """Everything that is the same in all layers."""
        ...

    def __call__(self, layer: int, qkv: Tensor) -> Tensor:
        """Write keys and values, attend: qkv [num_tokens, 3 * n_embd] -> [num_tokens, n_embd]."""
        ...


class TorchAttention:
    """Attention over a KV pool with torch's own operators; runs on any device."""

    def __init__(self, pool: KVPool) -> None:
        self.pool = pool
        self.num_heads, self.head_dim = pool.num_heads, pool.head_dim
        self.block_size, self.n_embd = pool.block_size, pool.num_heads * pool.head_dim
        self._buffer = pool.data.new_empty(0)
        self._views: dict[tuple[int, int], _Gathered] = {}  # of the buffer, by group size and width
        self._masks = pool.data.new_empty(0, 0)

    # -- once a step ----------------------------------------------------------------------------

    def begin_step(self, batch: AttentionBatch) -> None:
        """Everything that is the same in all layers: groups, masks, views."""
        self._slots = to_device(batch.slots.numpy(), self.pool.data.device)
        # Chunks are gathered one at a time at the buffer's start, as the groups are.
        longest = [-(-c.context_len // self.block_size) for c in batch.chunks]
        self._reserve(max([self._most_gathered(batch), *longest], default=0))
        self._groups = self._group_decodes(batch)
        self._chunk_plans = [self._plan_chunk(chunk) for chunk in batch.chunks]

    def _most_gathered(self, batch: AttentionBatch) -> int:
        if not batch.decode_lens:
            return 0
        longest = -(-batch.decode_lens[-1] // self.block_size)
        return longest * min(DECODES_PER_GROUP, len(batch.decode_lens))

    def _reserve(self, num_blocks: int) -> None:
        """Grow the gather buffer. Reused, because fresh temporaries cost more than the gather."""
        size = num_blocks * self.block_size * 2 * self.n_embd
        if self._buffer.numel() < size:
            self._buffer = self.pool.data.new_empty(2 * size)
            self._views.clear()

    def _gathered(self, num_seqs: int, width: int) -> _Gathered:
        """Room for ``width`` blocks of each of ``num_seqs`` sequences. The views are kept: making
        them again for every group of every step would take longer than the scheduler."""
        into = self._views.get((num_seqs, width))
        if into is None:
            num_blocks, row = num_seqs * width, self.block_size * 2 * self.n_embd
            rows = self._buffer[: num_blocks * row].view(num_blocks, row)
            kv = rows.view(num_seqs, width * self.block_size, 2, self.num_heads, self.head_dim)
            keys, values = kv.transpose(1, 3).unbind(2)
            into = self._views[num_seqs, width] = _Gathered(rows, keys, values)
        return into

    def _masks_for(self, lens: Sequence[int], num_slots: int) -> Tensor:
        """[len(lens), 1, 1, num_slots]: 0 for the first ``len`` slots of a row, -inf after them."""
        if self._masks.shape[0] <= num_slots:
            size = -(-num_slots // 256) * 256 + 1  # row n of the table hides all but n slots
            hidden = self.pool.data.new_full((size, size), float("-inf"))
            self._masks = hidden.triu_()[:, None, None, :]
        table = self._masks[..., :num_slots]
        return table.index_select(0, to_device(np.array(lens), table.device))

    def _group_decodes(self, batch: AttentionBatch) -> list[_DecodeGroup]:
        lens, size = batch.decode_lens, self.block_size
        groups: list[_DecodeGroup] = []
        if not lens:
            return groups
        firsts = range(0, len(lens), DECODES_PER_GROUP)
        lasts = [*firsts[1:], len(lens)]
        widths = [-(-lens[last - 1] // size) for last in lasts]  # in blocks
        # All groups' block ids and masks are made at once and then cut: a torch call costs more
        # than the numbers of a group.
        table = batch.decode_blocks.numpy()
        ids = [table[i:j, :w].ravel() for i, j, w in zip(firsts, lasts, widths, strict=True)]
        all_ids = to_device(np.concatenate(ids), self.pool.data.device)
        blocks = all_ids.split([len(part) for part in ids])
        masks = self._masks_for(lens, batch.decode_blocks.shape[1] * size).split(DECODES_PER_GROUP)
        parts = zip(firsts, lasts, widths, blocks, masks, strict=True)
        for first, last, width, own_blocks, own_masks in parts:
            max_len, into = width * size, self._gathered(last - first, width)
            mask = None if lens[first] == max_len else own_masks[..., :max_len]
            groups.append(_DecodeGroup(first, last, own_blocks, into, mask))
        return groups

    def _plan_chunk(self, chunk: Chunk) -> tuple[Chunk, Tensor | None, Tensor | None]:
        """The chunk, its block ids and its mask; no ids and no mask without earlier context."""
        n, context = chunk.num_tokens, chunk.context_len
        if n == context:
            return chunk, None, None
        device = self.pool.data.device
        blocks = torch.tensor(chunk.blocks[: -(-context // self.block_size)], device=device)
        visible = torch.ones(n, context, dtype=torch.bool, device=device).tril_(context - n)
        return chunk, blocks, visible

    # -- once a layer ---------------------------------------------------------------------------

    def __call__(self, layer: int, qkv: Tensor) -> Tensor:
        """qkv [num_tokens, 3 * n_embd] -> [num_tokens, n_embd]."""
        slots = self._slots
        # In a row of qkv, keys and values lie side by side as they do in a slot.
        self.pool.by_slot[layer].index_copy_(0, slots, qkv[: slots.shape[0], self.n_embd :])
        parts = [self._attend_decodes(layer, qkv, group) for group in self._groups]
        parts += [self._attend_chunk(layer, qkv, *plan) for plan in self._chunk_plans]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _attend_decodes(self, layer: int, qkv: Tensor, group: _DecodeGroup) -> Tensor:
        rows, keys, values = group.into
        torch.index_select(self.pool.by_block[layer], 0, group.blocks, out=rows)
        q = qkv[group.first : group.last, : self.n_embd]
        q = q.view(-1, self.num_heads, 1, self.head_dim)
        out = F.scaled_dot_product_attention(q, keys, values, attn_mask=group.mask)
        return out.reshape(-1, self.n_embd)

    def _attend_chunk(
        self, layer: int, qkv: Tensor, chunk: Chunk, blocks: Tensor | None, visible: Tensor | None
    ) -> Tensor:
        rows = qkv[chunk.first_row : chunk.first_row + chunk.num_tokens]
        q, k, v = rows.view(-1, 3, self.num_heads, self.head_dim).permute(1, 2, 0, 3).unsqueeze(1)
        if blocks is not None:  # earlier tokens are in the cache, this chunk's were just written
            rows, keys, values = self._gathered(1, blocks.shape[0])
            torch.index_select(self.pool.by_block[layer], 0, blocks, out=rows)
            k, v = keys[:, :, : chunk.context_len], values[:, :, : chunk.context_len]
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=visible, is_causal=visible is None and chunk.num_tokens > 1
        )
        return out[0].transpose(0, 1).reshape(-1, self.n_embd)
