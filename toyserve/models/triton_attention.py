"""The same attention by the Triton kernels: nothing is gathered, blocks are read where they lie."""

from __future__ import annotations

from typing import Literal
from warnings import warn

import numpy as np
from torch import Tensor
from toyserve_kernels.backend import support, triton_mode
from toyserve_kernels.decode_attention import decode_attention
from toyserve_kernels.ragged_attention import ragged_attention
from toyserve_kernels.write_kv import write_kv

from toyserve.models.attention import AttentionBackend, AttentionBatch, TorchAttention, to_device
from toyserve.models.kv_pool import KVPool

AttentionName = Literal["auto", "torch", "triton"]


class TritonAttention:
    """One launch writes this step's keys and values, one more attends for all sequences."""

    def __init__(self, pool: KVPool) -> None:
        self.pool = pool
        self.n_embd = pool.num_heads * pool.head_dim
        self._keys = [layer[:, :, 0] for layer in pool.data]  # [num_blocks, block_size, H, D]
        self._values = [layer[:, :, 1] for layer in pool.data]

    @property
    def compiled(self) -> bool:
        """Whether the kernels run on a GPU, not in Triton's interpreter."""
        return triton_mode() == "compiled"

    def begin_step(self, batch: AttentionBatch) -> None:
        """Lay the sequences in a row: decodes first, then chunks, as their tokens lie."""
        decodes, chunks = len(batch.decode_lens), batch.chunks
        # A padding chunk has no blocks: with a length of 0 it reads nothing and gets zeros.
        lens = [*batch.decode_lens, *(c.context_len if c.blocks else 0 for c in chunks)]
        width = max([batch.decode_blocks.shape[1], *(len(c.blocks) for c in chunks)])
        table = np.zeros((len(lens), max(1, width)), dtype=np.int32)
        if decodes:
            table[:decodes, : batch.decode_blocks.shape[1]] = batch.decode_blocks.numpy()
        for row, chunk in enumerate(chunks, decodes):
            table[row, : len(chunk.blocks)] = chunk.blocks
        starts = np.cumsum([0, *([1] * decodes), *(c.num_tokens for c in chunks)])
        device = self.pool.data.device
        self.set_step(
            slots=to_device(batch.slots.numpy(), device),
            block_table=to_device(table, device),
            seq_lens=to_device(np.array(lens, dtype=np.int32), device),
            max_seq_len=max(lens),
            query_start_loc=to_device(starts.astype(np.int32), device),
            max_query_len=max([1, *(c.num_tokens for c in chunks)]),
        )

    def set_step(
        self,
        *,
        slots: Tensor,  # int64 [num_cached_rows]; negative: nothing is written for this row
        block_table: Tensor,  # int32 [num_seqs, max_blocks]
        seq_lens: Tensor,  # int32 [num_seqs]; 0: nothing to attend to
        max_seq_len: int,
        query_start_loc: Tensor | None = None,  # int32 [num_seqs + 1]; None: one row each
        max_query_len: int = 1,
    ) -> None:
        """The step's tensors, already on the device; they may be a CUDA graph's fixed buffers."""
        self._slots, self._block_table, self._seq_lens = slots, block_table, seq_lens
        self._max_seq_len, self._starts = max_seq_len, query_start_loc
        self._max_query_len = max_query_len

    def __call__(self, layer: int, qkv: Tensor) -> Tensor:
        """qkv [num_tokens, 3 * n_embd] -> [num_tokens, n_embd]."""
        rows = qkv.view(-1, 3, self.pool.num_heads, self.pool.head_dim)
        q, k, v = rows.unbind(1)  # [num_tokens, num_heads, head_dim] each
        keys, values = self._keys[layer], self._values[layer]
        cached = self._slots.shape[0]
        write_kv(k[:cached], v[:cached], keys, values, self._slots)
        table, lens = self._block_table, self._seq_lens
        if self._max_query_len == 1:
            out = decode_attention(q, keys, values, table, lens, max_seq_len=self._max_seq_len)
        else:
            assert self._starts is not None
            out = ragged_attention(
                q, keys, values, table, lens, self._starts, max_query_len=self._max_query_len
            )
        return out.view(-1, self.n_embd)


def make_attention(name: AttentionName, pool: KVPool) -> AttentionBackend:
    """auto: Triton where it compiles for this device (CUDA from sm_75 up), torch elsewhere.

    Raises ValueError, saying why, if "triton" cannot run here.
    """
    if name not in ("auto", "torch", "triton"):
        raise ValueError(f"attention is {name!r}: it must be one of auto, torch, triton")
    if name == "torch":
        return TorchAttention(pool)
    why_not = _why_not(pool) or support(pool.data.device, pool.data.dtype).reason
    if name == "triton":
        if why_not:
            raise ValueError(f"attention is 'triton', but {why_not}")
        return TritonAttention(pool)
    if triton_mode() == "compiled" and not why_not:
        return TritonAttention(pool)
    if pool.data.is_cuda and why_not:
        warn(f"the GPU serves with torch's attention, since {why_not}", stacklevel=3)
    return TorchAttention(pool)


def _why_not(pool: KVPool) -> str | None:
    if not 16 <= pool.head_dim <= 128:
        return f"this model's heads have {pool.head_dim} numbers: the kernels take 16 to 128"
    return None
