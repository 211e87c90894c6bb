"""Split-KV decode attention: one new token per sequence, each context cut into parts.

    q, out             [num_seqs, num_heads, head_dim]     the one new token of each sequence
    seq_lens           [num_seqs] int32                    its context, the new token included
    block_table        [num_seqs, max_blocks] int32        its cache blocks, in order
    k_cache, v_cache   [num_blocks, block_size, num_kv_heads, head_dim]

Decoding reads the whole context to make one row, so its time is the bytes of K and V divided by
the memory bandwidth, if enough programs run to keep the memory busy. With few sequences there
are not enough (sequences x KV heads), so each context is cut into `num_splits` runs of tiles
(Flash-Decoding, Dao et al. 2023). A split does the online softmax of `ragged_attention` over its
own keys and leaves its unfinished `(m, l, acc)`; a second, small kernel merges the splits:

    m   = max over splits of m_i
    w_i = exp(m_i - m)
    out = sum(w_i * acc_i) / sum(w_i * l_i)

which is exact: the order in which a softmax is summed does not matter. A split without keys has
`l = 0` and so no say. With one split the first kernel finishes by itself.

Reads: q once per split, each K and V of the context once. Writes: out, and with splits
`num_seqs * num_heads * num_splits * (head_dim + 2)` float32 of partial results.
"""

import math
from dataclasses import dataclass

import torch

from . import backend
from ._triton import tl, triton
from .ragged_attention import LOG2E, ragged_attention_reference
from .tuning import Tile, choose_num_splits, decode_tile
from .validate import check_attention_inputs, next_power_of_2, on_device


def decode_attention_reference(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    scale: float | None = None,
) -> torch.Tensor:
    """The same in plain torch, float64 on the CPU: a ragged batch of one token per sequence."""
    one_each = torch.arange(q.shape[0] + 1, dtype=torch.int32)
    return ragged_attention_reference(
        q, k_cache, v_cache, block_table, seq_lens, one_each, scale=scale
    )


@triton.jit(do_not_specialize=["stride_table"])
def decode_attention_kernel(
    q,
    k_cache,
    v_cache,
    out,
    block_table,
    seq_lens,
    part_acc,
    part_m,
    part_l,
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
    GROUP_PAD: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    USE_DOT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Program (s, h, i): split i of sequence s, all query heads of KV head h."""
    seq = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    seq_len = tl.load(seq_lens + seq)
    tiles_per_split = tl.cdiv(tl.cdiv(seq_len, TILE), NUM_SPLITS)
    begin = split * tiles_per_split * TILE
    end = tl.minimum(begin + tiles_per_split * TILE, seq_len)

    row = tl.arange(0, GROUP_PAD)  # one row per query head
    dim = tl.arange(0, DIM_PAD)
    head = kv_head * GROUP + row
    real = row < GROUP
    mask = real[:, None] & (dim < HEAD_DIM)[None, :]
    at = seq.to(tl.int64)
    queries = tl.load(
        q + at * stride_q_token + head[:, None] * stride_q_head + dim[None, :], mask=mask, other=0.0
    )

    m = tl.full([GROUP_PAD], -1.0e38, tl.float32)
    l = tl.zeros([GROUP_PAD], tl.float32)  # noqa: E741
    acc = tl.zeros([GROUP_PAD, DIM_PAD], tl.float32)
    table = block_table + at * stride_table
    k_head = k_cache + kv_head.to(tl.int64) * stride_kv_head
    v_head = v_cache + kv_head.to(tl.int64) * stride_kv_head

    for tile_start in range(begin, end, TILE):
        n = tile_start + tl.arange(0, TILE)  # positions in the context
        inside = n < end
        block = tl.load(table + n // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)
        slot = block * stride_block + (n % BLOCK_SIZE).to(tl.int64) * stride_slot
        kv_mask = inside[:, None] & (dim < HEAD_DIM)[None, :]
        k = tl.load(k_head + slot[:, None] + dim[None, :], mask=kv_mask, other=0.0)
        v = tl.load(v_head + slot[:, None] + dim[None, :], mask=kv_mask, other=0.0)

        if USE_DOT:
            scores = tl.dot(queries, tl.trans(k), input_precision=PRECISION)
        else:
            scores = tl.sum(queries.to(tl.float32)[:, None, :] * k.to(tl.float32)[None, :, :], 2)
        scores = tl.where(inside[None, :], scores * scale_log2e, float("-inf"))
        m_new = tl.maximum(m, tl.max(scores, axis=1))
        p = tl.exp2(scores - m_new[:, None])
        fix = tl.exp2(m - m_new)
        l = l * fix + tl.sum(p, axis=1)  # noqa: E741
        if USE_DOT:
            acc = tl.dot(p.to(v.dtype), v, acc=acc * fix[:, None], input_precision=PRECISION)
        else:
            acc = acc * fix[:, None] + tl.sum(p[:, :, None] * v.to(tl.float32)[None, :, :], 1)
        m = m_new

    if NUM_SPLITS == 1:
        acc = acc / tl.where(l > 0, l, 1.0)[:, None]  # an empty row: 0 / 1
        to = at * stride_out_token + head[:, None] * stride_out_head + dim[None, :]
        tl.store(out + to, acc.to(out.dtype.element_ty), mask=mask)
    else:
        part = (at * tl.num_programs(1) * GROUP + head) * NUM_SPLITS + split
        tl.store(part_acc + part[:, None] * HEAD_DIM + dim[None, :], acc, mask=mask)
        tl.store(part_m + part, m, mask=real)
        tl.store(part_l + part, l, mask=real)


@triton.jit
def merge_splits_kernel(
    part_acc,
    part_m,
    part_l,
    out,
    stride_out_token,
    stride_out_head,
    HEAD_DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    SPLITS_PAD: tl.constexpr,
):
    """Program (s, h): merge the splits of one sequence and query head."""
    seq = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    split = tl.arange(0, SPLITS_PAD)
    dim = tl.arange(0, DIM_PAD)
    part = (seq * tl.num_programs(1) + head) * NUM_SPLITS + split
    real = split < NUM_SPLITS
    dims = dim < HEAD_DIM
    m = tl.load(part_m + part, mask=real, other=-1.0e38)
    l = tl.load(part_l + part, mask=real, other=0.0)  # noqa: E741
    acc = tl.load(
        part_acc + part[:, None] * HEAD_DIM + dim[None, :],
        mask=real[:, None] & dims[None, :],
        other=0.0,
    )
    weight = tl.exp2(m - tl.max(m, axis=0))
    total = tl.sum(l * weight, axis=0)
    merged = tl.sum(acc * weight[:, None], axis=0) / tl.where(total > 0, total, 1.0)
    to = seq * stride_out_token + head * stride_out_head + dim
    tl.store(out + to, merged.to(out.dtype.element_ty), mask=dims)


@dataclass(frozen=True)
class Partials:
    """Room for the splits' unfinished results, float32 and contiguous; contents are scratch."""

    acc: torch.Tensor  # [max_num_seqs, num_heads, num_splits, head_dim]
    m: torch.Tensor  # [max_num_seqs, num_heads, num_splits]
    l: torch.Tensor  # [max_num_seqs, num_heads, num_splits]  # noqa: E741

    @property
    def num_splits(self) -> int:
        return self.m.shape[2]


def make_partials(
    max_num_seqs: int,
    num_heads: int,
    head_dim: int,
    num_splits: int,
    device: torch.device | str = "cpu",
) -> Partials:
    """Allocate scratch once, to hand to every `decode_attention` launch of one stream."""
    shape = (max_num_seqs, num_heads, num_splits)
    acc = torch.empty(*shape, head_dim, dtype=torch.float32, device=device)
    return Partials(acc, acc.new_empty(shape), acc.new_empty(shape))


def decode_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    max_seq_len: int | None = None,
    num_splits: int | None = None,
    scale: float | None = None,
    out: torch.Tensor | None = None,
    partials: Partials | None = None,
    tile: Tile | None = None,
) -> torch.Tensor:
    """Attention of one new token per sequence over its paged context; returns `out`.

    Shapes as in the module's docstring; token, head, block and slot strides are free. `scale`
    defaults to 1/sqrt(head_dim). `max_seq_len` (default: what the block table can hold) only
    chooses the number of splits, unless `num_splits` or `partials` fixes it; any choice gives
    the same result to rounding. Sequences of length 0 get zeros. Never waits for the GPU: fit
    for CUDA-graph capture, with `partials` and `out` allocated before.

    Raises:
        ValueError: a shape, dtype or stride that does not fit, named with what was expected.
        RuntimeError: the kernels cannot run on this device or dtype, with the reason.
    """
    check_attention_inputs(q, k_cache, v_cache, block_table, seq_lens, None, out)
    backend.require(q.device, q.dtype)
    num_seqs, num_heads, head_dim = q.shape
    block_size, num_kv_heads = k_cache.shape[1:3]
    group = num_heads // num_kv_heads
    out = q.new_empty(q.shape) if out is None else out
    if num_seqs == 0:
        return out
    tile = tile or decode_tile(q.device, q.dtype, head_dim, group)
    tile.check(group)
    if partials is not None:
        num_splits = _checked_splits(partials, num_splits, q)
    elif num_splits is None:
        longest = block_table.shape[1] * block_size if max_seq_len is None else max_seq_len
        num_splits = choose_num_splits(q.device, num_seqs, num_kv_heads, longest, tile.tile)
    if num_splits > 1 and partials is None:
        partials = make_partials(num_seqs, num_heads, head_dim, num_splits, q.device)
    _launch(q, k_cache, v_cache, block_table, seq_lens, scale, out, partials, num_splits, tile)
    return out


def _checked_splits(partials: Partials, num_splits: int | None, q: torch.Tensor) -> int:
    shape = partials.acc.shape
    if shape[0] < q.shape[0] or (shape[1], shape[3]) != q.shape[1:]:
        raise ValueError(f"partials for {list(shape)} do not hold the splits of q {list(q.shape)}")
    if num_splits not in (None, partials.num_splits):
        raise ValueError(f"num_splits is {num_splits}, the partials have {partials.num_splits}")
    return partials.num_splits


def _launch(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float | None,
    out: torch.Tensor,
    partials: Partials | None,
    num_splits: int,
    tile: Tile,
) -> None:
    num_seqs, num_heads, head_dim = q.shape
    block_size, num_kv_heads = k_cache.shape[1:3]
    parts = (out, out, out) if num_splits == 1 else (partials.acc, partials.m, partials.l)
    dims = {"HEAD_DIM": head_dim, "DIM_PAD": next_power_of_2(head_dim)}
    scale = 1 / math.sqrt(head_dim) if scale is None else scale
    with on_device(q):
        decode_attention_kernel[(num_seqs, num_kv_heads, num_splits)](
            q,
            k_cache,
            v_cache,
            out,
            block_table,
            seq_lens,
            *parts,
            scale * LOG2E,
            *q.stride()[:2],
            *out.stride()[:2],
            block_table.stride(0),
            *k_cache.stride()[:3],
            **dims,
            GROUP=num_heads // num_kv_heads,
            GROUP_PAD=tile.block_m,
            BLOCK_SIZE=block_size,
            TILE=tile.tile,
            NUM_SPLITS=num_splits,
            USE_DOT=tile.use_dot,
            PRECISION="ieee",
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
        )
        if num_splits > 1:
            merge_splits_kernel[(num_seqs, num_heads)](
                *parts,
                out,
                *out.stride()[:2],
                **dims,
                NUM_SPLITS=num_splits,
                SPLITS_PAD=next_power_of_2(num_splits),
                num_warps=4,
            )
