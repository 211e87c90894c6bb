"""What the launchers refuse, each in one sentence that names the value and the limit.

Shapes, dtypes, strides and devices are compared on the host and cost microseconds. What the
tensors *contain* (slots, block ids, lengths) is checked on a CPU only, where a wrong id would
crash the interpreter; on a GPU a look at it would stop the stream.
"""

from contextlib import AbstractContextManager, nullcontext

import torch

from . import backend

MIN_HEAD_DIM, MAX_HEAD_DIM = 16, 128


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is at least `n` (1 for 0)."""
    return 1 << max(0, n - 1).bit_length()


def on_device(tensor: torch.Tensor) -> AbstractContextManager:
    """Make the tensor's GPU the current one during a launch; nothing on a CPU."""
    return torch.cuda.device_of(tensor) if tensor.is_cuda else nullcontext()


def check_attention_inputs(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    query_start_loc: torch.Tensor | None,
    out: torch.Tensor | None,
) -> None:
    """Raise ValueError unless the tensors fit together as `ragged_attention` describes."""
    _check_cache(k_cache, v_cache)
    _check_rows("q", q)
    num_heads, num_kv_heads = q.shape[1], k_cache.shape[2]
    if num_heads % num_kv_heads:
        raise ValueError(f"{num_heads} query heads cannot share {num_kv_heads} KV heads evenly")
    if q.shape[2] != k_cache.shape[3]:
        raise ValueError(f"q has head size {q.shape[2]}, the cache has {k_cache.shape[3]}")
    if out is not None and (out.shape != q.shape or out.stride(2) != 1):
        raise ValueError(f"out must be {list(q.shape)} with adjacent head dims, as q is")
    num_seqs = seq_lens.shape[0] if seq_lens.dim() == 1 else -1
    _check_ints("seq_lens", seq_lens, (num_seqs,), torch.int32)
    if block_table.dim() != 2 or block_table.shape[0] != num_seqs or block_table.stride(1) != 1:
        raise ValueError(
            f"block_table must be [{num_seqs}, max_blocks] with adjacent entries, "
            f"not {list(block_table.shape)}"
        )
    _check_same(q, k_cache=k_cache, v_cache=v_cache, **({} if out is None else {"out": out}))
    if block_table.dtype != torch.int32:
        raise ValueError(f"block_table must be torch.int32, not {block_table.dtype}")
    if query_start_loc is not None:
        _check_ints("query_start_loc", query_start_loc, (num_seqs + 1,), torch.int32)
    elif q.shape[0] != num_seqs:
        raise ValueError(f"decode takes one query per sequence: {q.shape[0]} for {num_seqs}")
    if q.device.type == "cpu" and backend.COMPILING_FOR.get() is None:
        _check_attention_values(q, k_cache, block_table, seq_lens, query_start_loc)


def check_write_inputs(
    key: torch.Tensor,
    value: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Raise ValueError unless the tensors fit together as `write_kv` describes."""
    _check_cache(k_cache, v_cache)
    _check_rows("key", key)
    _check_rows("value", value)
    if key.shape != value.shape or key.shape[1:] != k_cache.shape[2:]:
        raise ValueError(
            f"key {list(key.shape)} and value {list(value.shape)} must both be "
            f"[num_tokens, {k_cache.shape[2]}, {k_cache.shape[3]}]"
        )
    _check_same(key, value=value, k_cache=k_cache, v_cache=v_cache)
    _check_ints("slot_mapping", slot_mapping, (key.shape[0],), torch.int64)
    if key.device.type == "cpu" and backend.COMPILING_FOR.get() is None and len(slot_mapping):
        limit = k_cache.shape[0] * k_cache.shape[1]
        if int(slot_mapping.max()) >= limit:
            raise ValueError(f"slot {int(slot_mapping.max())} is past the cache's {limit} slots")


def _check_cache(k_cache: torch.Tensor, v_cache: torch.Tensor) -> None:
    if k_cache.dim() != 4 or k_cache.shape != v_cache.shape:
        raise ValueError(
            "k_cache and v_cache must both be [num_blocks, block_size, num_kv_heads, head_dim], "
            f"not {list(k_cache.shape)} and {list(v_cache.shape)}"
        )
    if k_cache.stride() != v_cache.stride() or k_cache.stride(3) != 1:
        raise ValueError(
            "k_cache and v_cache must have the same strides and adjacent head dims, "
            f"not {k_cache.stride()} and {v_cache.stride()}"
        )
    if not MIN_HEAD_DIM <= k_cache.shape[3] <= MAX_HEAD_DIM:
        raise ValueError(
            f"the head size must be {MIN_HEAD_DIM} to {MAX_HEAD_DIM}, not {k_cache.shape[3]}"
        )


def _check_rows(name: str, rows: torch.Tensor) -> None:
    if rows.dim() != 3 or rows.stride(2) != 1:
        raise ValueError(
            f"{name} must be [num_tokens, num_heads, head_dim] with adjacent head dims, "
            f"not {list(rows.shape)} with strides {rows.stride()}"
        )


def _check_ints(
    name: str, tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    if tensor.shape != shape or tensor.dtype != dtype or not tensor.is_contiguous():
        raise ValueError(
            f"{name} must be contiguous {dtype} of shape {list(shape)}, "
            f"not {tensor.dtype} of {list(tensor.shape)}"
        )


def _check_same(first: torch.Tensor, **others: torch.Tensor) -> None:
    for name, tensor in others.items():
        if tensor.dtype != first.dtype or tensor.device != first.device:
            raise ValueError(
                f"{name} is {tensor.dtype} on {tensor.device}, "
                f"the others are {first.dtype} on {first.device}"
            )


def _check_attention_values(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    query_start_loc: torch.Tensor | None,
) -> None:
    num_blocks, block_size = k_cache.shape[:2]
    capacity = block_table.shape[1] * block_size
    if len(seq_lens) and not 0 <= int(seq_lens.min()) <= int(seq_lens.max()) <= capacity:
        raise ValueError(f"seq_lens {seq_lens.tolist()} must lie in 0..{capacity}")
    used = torch.arange(block_table.shape[1]) * block_size < seq_lens[:, None]
    blocks = block_table[used]
    if len(blocks) and not 0 <= int(blocks.min()) <= int(blocks.max()) < num_blocks:
        raise ValueError(f"a block table names a block outside 0..{num_blocks - 1}")
    if query_start_loc is None:
        return
    steps = query_start_loc.diff()
    if int(query_start_loc[0]) != 0 or (len(steps) and int(steps.min()) < 0):
        raise ValueError(f"query_start_loc {query_start_loc.tolist()} must rise from 0")
    if int(query_start_loc[-1]) > q.shape[0]:
        raise ValueError(
            f"query_start_loc ends at {int(query_start_loc[-1])}, q has {q.shape[0]} tokens"
        )
