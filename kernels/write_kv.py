"""Write this step's keys and values into their slots of the paged KV cache.

    key, value         [num_tokens, num_kv_heads, head_dim]   what the model has just computed
    slot_mapping       [num_tokens] int64                     where token t goes; < 0: padding, skip
    k_cache, v_cache   [num_blocks, block_size, num_kv_heads, head_dim]

A slot is a block and a place in it: `slot = block * block_size + offset`. The scheduler works
slots out from the block tables once a step; every layer then uses the same `slot_mapping`.

One program moves one token: it reads `2 * num_kv_heads * head_dim` numbers and writes as many.
There is nothing to compute, so the time is the bytes divided by the memory bandwidth. No two
tokens share a slot, so the programs need no order.

Both caches are usually views of one pool, `pool[:, :, 0]` and `pool[:, :, 1]` of
`[num_blocks, block_size, 2, num_kv_heads, head_dim]`, so the block, slot and head strides are
passed in; only the numbers of one head must lie side by side.
"""

import torch

from . import backend
from ._triton import tl, triton
from .validate import check_write_inputs, next_power_of_2, on_device


def write_kv_reference(
    key: torch.Tensor,
    value: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """The same in plain torch: what `write_kv` must leave in the caches, which it mutates."""
    block_size = k_cache.shape[1]
    kept = slot_mapping >= 0
    slots = slot_mapping[kept]
    k_cache[slots // block_size, slots % block_size] = key[kept]
    v_cache[slots // block_size, slots % block_size] = value[kept]


@triton.jit
def write_kv_kernel(
    key,
    value,
    k_cache,
    v_cache,
    slot_mapping,
    stride_key_token,
    stride_key_head,
    stride_value_token,
    stride_value_head,
    stride_block,
    stride_slot,
    stride_head,
    NUM_KV_HEADS: tl.constexpr,
    HEADS_PAD: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    """One program per token; tiles are powers of two, so heads and dims are padded and masked."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping + token).to(tl.int64)  # a pool can pass 2**31 elements: 64 bits
    if slot < 0:
        return
    head = tl.arange(0, HEADS_PAD)[:, None].to(tl.int64)
    dim = tl.arange(0, DIM_PAD)[None, :]
    mask = (head < NUM_KV_HEADS) & (dim < HEAD_DIM)

    k = tl.load(key + token * stride_key_token + head * stride_key_head + dim, mask=mask)
    v = tl.load(value + token * stride_value_token + head * stride_value_head + dim, mask=mask)
    to = (slot // BLOCK_SIZE) * stride_block + (slot % BLOCK_SIZE) * stride_slot
    tl.store(k_cache + to + head * stride_head + dim, k, mask=mask)
    tl.store(v_cache + to + head * stride_head + dim, v, mask=mask)


def write_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Write `key` and `value` to their slots; mutates the two caches and nothing else.

    Shapes as in the module's docstring; token and head strides are free. Slots must be below
    `num_blocks * block_size`, which is checked on a CPU only (a check would make a GPU wait).
    Never waits for the GPU, so it can be captured in a CUDA graph.

    Raises:
        ValueError: a shape, dtype or stride that does not fit, named with what was expected.
        RuntimeError: the kernels cannot run on this device, with the reason.
    """
    check_write_inputs(key, value, k_cache, v_cache, slot_mapping)
    backend.require(key.device, key.dtype)
    num_tokens, num_kv_heads, head_dim = key.shape
    if num_tokens == 0:
        return
    with on_device(key):
        write_kv_kernel[(num_tokens,)](
            key,
            value,
            k_cache,
            v_cache,
            slot_mapping,
            *key.stride()[:2],
            *value.stride()[:2],
            *k_cache.stride()[:3],
            NUM_KV_HEADS=num_kv_heads,
            HEADS_PAD=next_power_of_2(num_kv_heads),
            HEAD_DIM=head_dim,
            DIM_PAD=next_power_of_2(head_dim),
            BLOCK_SIZE=k_cache.shape[1],
            num_warps=4,
        )
