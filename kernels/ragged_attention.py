"""Ragged paged attention: prompt chunks and decodes of many sequences in one launch.

    q, out             [num_tokens, num_heads, head_dim]   the new tokens of all sequences in a row
    query_start_loc    [num_seqs + 1] int32                sequence s owns tokens [s] .. [s + 1] - 1
    seq_lens           [num_seqs] int32                    its whole context, new tokens included
    block_table        [num_seqs, max_blocks] int32        its cache blocks, in order
    k_cache, v_cache   [num_blocks, block_size, num_kv_heads, head_dim]

A chunk of a prompt is a sequence with many new tokens, a decode one with a single new token: the
kernel sees no difference. The keys and values of the new tokens are in the cache already. Token
i of sequence s stands at position `seq_lens[s] - num_new + i` and may look at every position up
to its own (causal). `num_heads / num_kv_heads` neighbouring heads share one KV head (GQA).

A program takes some tokens of one sequence, for all the query heads of one KV head, and walks
over the context in tiles, keeping for each row the largest score so far `m`, the sum of
exponentials `l` and the weighted sum of values `acc`. For each tile of scores s and values v:

    m_new = max(m, max(s))
    p     = exp(s - m_new)
    fix   = exp(m - m_new)            # what was summed under the old maximum shrinks
    l, acc, m = l * fix + sum(p),  acc * fix + p @ v,  m_new
    ...and after the last tile:  out = acc / l

That is the online softmax (Milakov and Gimelshein 2018), as FlashAttention uses it (Dao et al.
2022), with the keys found through a block table (PagedAttention, Kwon et al. 2023). The scores
never leave the chip: a program reads its queries once and each visible key and value once, and
writes one row of `out` for each query. Powers of two are cheaper, so scores are kept in units of
log2 and `exp` is `exp2`.
"""

import math

import torch

from . import backend
from ._triton import tl, triton
from .tuning import Tile, ragged_tile
from .validate import check_attention_inputs, next_power_of_2, on_device

LOG2E = 1.4426950408889634


def ragged_attention_reference(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
    *,
    scale: float | None = None,
) -> torch.Tensor:
    """The same in plain torch, one sequence at a time: float64 on the CPU, the kernels' judge."""
    num_tokens, num_heads, head_dim = q.shape
    block_size, num_kv_heads = k_cache.shape[1:3]
    scale = 1 / math.sqrt(head_dim) if scale is None else scale
    out = torch.zeros(num_tokens, num_heads, head_dim, dtype=torch.float64)
    starts = query_start_loc.tolist()
    for s, length in enumerate(seq_lens.tolist()):
        first, end = starts[s], starts[s + 1]
        if length == 0:
            continue  # nothing to attend to: zeros
        blocks = block_table[s, : -(-length // block_size)].long()
        keys, values = (  # [length, num_kv_heads, head_dim]
            cache[blocks].cpu().double().flatten(0, 1)[:length] for cache in (k_cache, v_cache)
        )
        queries = q[first:end].cpu().double()  # [num_new, num_heads, head_dim]
        queries = queries.unflatten(1, (num_kv_heads, -1))  # the g heads of each KV head h
        scores = torch.einsum("qhgd,khd->hgqk", queries, keys) * scale
        position = torch.arange(length - (end - first), length)
        hidden = torch.arange(length) > position[:, None]  # [num_new, length]
        weights = scores.masked_fill(hidden, -math.inf).softmax(-1).nan_to_num(0.0)
        out[first:end] = torch.einsum("hgqk,khd->qhgd", weights, values).flatten(1, 2)
    return out


@triton.jit
def sequence_of(query_block, query_start_loc, num_seqs, BLOCK_Q: tl.constexpr):
    """Binary search: sequence s begins at block `query_start_loc[s] // BLOCK_Q + s`."""
    left = 0
    right = num_seqs
    while left < right:
        middle = (left + right) // 2
        if tl.load(query_start_loc + middle) // BLOCK_Q + middle <= query_block:
            left = middle + 1
        else:
            right = middle
    return left - 1


@triton.jit(do_not_specialize=["num_seqs", "stride_table"])
def ragged_attention_kernel(
    q,
    k_cache,
    v_cache,
    out,
    block_table,
    seq_lens,
    query_start_loc,
    num_seqs,
    scale_log2e,
    stride_q_token,
    stride_q_head,
    stride_out_token,
    stride_out_head,
    stride_table,
    stride_block,
    stride_slot,
    stride_kv_head,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    TILE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Program (b, h): the b-th block of BLOCK_Q query tokens, all heads of KV head h."""
    BLOCK_Q: tl.constexpr = BLOCK_M // GROUP
    query_block = tl.program_id(0)
    kv_head = tl.program_id(1)
    seq = sequence_of(query_block, query_start_loc, num_seqs, BLOCK_Q)
    start = tl.load(query_start_loc + seq)
    num_new = tl.load(query_start_loc + seq + 1) - start
    first = (query_block - (start // BLOCK_Q + seq)) * BLOCK_Q  # our first token, of num_new
    if first >= num_new:  # the grid is an upper bound: this program has nothing to do
        return
    seq_len = tl.load(seq_lens + seq)
    num_past = seq_len - num_new

    # Rows: BLOCK_Q tokens x GROUP heads. A head is padded to DIM_PAD numbers and masked.
    row = tl.arange(0, BLOCK_M)
    token = first + row // GROUP
    head = kv_head * GROUP + row % GROUP
    dim = tl.arange(0, DIM_PAD)
    real = (token < num_new) & (row < BLOCK_Q * GROUP)
    mask = real[:, None] & (dim < HEAD_DIM)[None, :]
    at = (start + token).to(tl.int64)[:, None]
    queries = tl.load(
        q + at * stride_q_token + head[:, None] * stride_q_head + dim[None, :], mask=mask, other=0.0
    )
    position = num_past + token

    # -1e38, not -inf: a row that sees nothing must not compute inf - inf
    m = tl.full([BLOCK_M], -1.0e38, tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)  # noqa: E741
    acc = tl.zeros([BLOCK_M, DIM_PAD], tl.float32)
    table = block_table + seq.to(tl.int64) * stride_table
    k_head = k_cache + kv_head.to(tl.int64) * stride_kv_head
    v_head = v_cache + kv_head.to(tl.int64) * stride_kv_head
    end = tl.minimum(num_past + first + BLOCK_Q, seq_len)  # no row here sees further

    for tile_start in range(0, end, TILE):
        n = tile_start + tl.arange(0, TILE)  # positions in the context
        inside = n < end
        block = tl.load(table + n // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)
        slot = block * stride_block + (n % BLOCK_SIZE).to(tl.int64) * stride_slot
        kv_mask = inside[:, None] & (dim < HEAD_DIM)[None, :]
        k = tl.load(k_head + slot[:, None] + dim[None, :], mask=kv_mask, other=0.0)
        v = tl.load(v_head + slot[:, None] + dim[None, :], mask=kv_mask, other=0.0)

        scores = tl.dot(queries, tl.trans(k), input_precision=PRECISION) * scale_log2e
        visible = inside[None, :] & (n[None, :] <= position[:, None])
        scores = tl.where(visible, scores, float("-inf"))
        m_new = tl.maximum(m, tl.max(scores, axis=1))
        p = tl.exp2(scores - m_new[:, None])
        fix = tl.exp2(m - m_new)
        l = l * fix + tl.sum(p, axis=1)  # noqa: E741
        acc = tl.dot(p.to(v.dtype), v, acc=acc * fix[:, None], input_precision=PRECISION)
        m = m_new

    acc = acc / tl.where(l > 0, l, 1.0)[:, None]  # an empty row: 0 / 1
    to = at * stride_out_token + head[:, None] * stride_out_head + dim[None, :]
    tl.store(out + to, acc.to(out.dtype.element_ty), mask=mask)


def ragged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
    *,
    max_query_len: int | None = None,
    scale: float | None = None,
    out: torch.Tensor | None = None,
    tile: Tile | None = None,
) -> torch.Tensor:
    """Attention of every new token over its sequence's paged context; returns `out`.

    Shapes as in the module's docstring; token, head, block and slot strides are free. `scale`
    defaults to 1/sqrt(head_dim). `max_query_len` only chooses tile sizes (default: the number of
    tokens), any value gives the same result. Rows of `out` that no sequence owns are left as they
    were; a token with nothing to attend to gets zeros. Block-table entries past a sequence's
    length are never read through. Never waits for the GPU: fit for CUDA-graph capture, where
    `num_tokens` and `num_seqs` are upper bounds and the tensors say what there is.

    Raises:
        ValueError: a shape, dtype or stride that does not fit, named with what was expected.
        RuntimeError: the kernels cannot run on this device or dtype, with the reason.
    """
    check_attention_inputs(q, k_cache, v_cache, block_table, seq_lens, query_start_loc, out)
    backend.require(q.device, q.dtype)
    num_tokens, num_heads, head_dim = q.shape
    num_seqs, num_kv_heads = seq_lens.shape[0], k_cache.shape[2]
    group = num_heads // num_kv_heads
    out = q.new_empty(q.shape) if out is None else out
    if num_tokens == 0 or num_seqs == 0:
        return out
    longest = num_tokens if max_query_len is None else max_query_len
    tile = tile or ragged_tile(q.device, q.dtype, head_dim, group, longest)
    tile.check(group)
    scale = 1 / math.sqrt(head_dim) if scale is None else scale
    # sequence s needs at most ceil(new / BLOCK_Q) blocks; this bounds their sum
    grid = (num_tokens // (tile.block_m // group) + num_seqs, num_kv_heads)
    with on_device(q):
        ragged_attention_kernel[grid](
            q,
            k_cache,
            v_cache,
            out,
            block_table,
            seq_lens,
            query_start_loc,
            num_seqs,
            scale * LOG2E,
            *q.stride()[:2],
            *out.stride()[:2],
            block_table.stride(0),
            *k_cache.stride()[:3],
            GROUP=group,
            HEAD_DIM=head_dim,
            DIM_PAD=next_power_of_2(head_dim),
            BLOCK_SIZE=k_cache.shape[1],
            BLOCK_M=tile.block_m,
            TILE=tile.tile,
            PRECISION="ieee",
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
        )
    return out
