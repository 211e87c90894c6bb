"""Offsets beyond 2^31 elements, without the memory: the strides are made up, nothing is touched.

The interpreter's integers wrap as a GPU's do, so an offset that was computed in 32 bits shows.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product

import numpy as np
import torch
import triton.language as tl
from toyserve_kernels.decode_attention import decode_attention_kernel
from toyserve_kernels.ragged_attention import ragged_attention_kernel
from toyserve_kernels.write_kv import write_kv_kernel
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

# Of a block, a slot and a KV head: each fits in 32 bits, twice each does not
STRIDES = (2**30 + 64, 2**30 + 32, 2**30 + 16)
NUM_HEADS, HEAD_DIM, BLOCK_SIZE, BLOCK = 3, 16, 4, 2**20
EXPECTED = {  # every number of every head in every slot of the block
    BLOCK * STRIDES[0] + slot * STRIDES[1] + head * STRIDES[2] + dim
    for slot, head, dim in product(range(BLOCK_SIZE), range(NUM_HEADS), range(HEAD_DIM))
}
CACHE = torch.zeros(1)  # stands for K and for V
SHAPE = {"HEAD_DIM": HEAD_DIM, "DIM_PAD": HEAD_DIM, "BLOCK_SIZE": BLOCK_SIZE}


@contextmanager
def nothing_touched_but(*tensors: torch.Tensor) -> Iterator[set[int]]:
    """Yields the element offsets from `CACHE` of every other float access, which is left out."""
    seen: set[int] = set()
    spans = [(t.data_ptr(), t.data_ptr() + t.nbytes) for t in tensors]
    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store

    def allowed(ptrs: TensorHandle, mask: TensorHandle) -> TensorHandle:
        at = ptrs.data[np.broadcast_to(mask.data, np.shape(ptrs.data)).astype(bool)]
        known = any(at.size and begin <= at.min() <= at.max() < end for begin, end in spans)
        if ptrs.get_element_ty() != tl.float32 or known:
            return mask
        seen.update(((at.astype(np.int64) - CACHE.data_ptr()) // 4).tolist())
        return TensorHandle(np.zeros_like(mask.data), tl.int1)

    InterpreterBuilder.create_masked_load = lambda self, ptrs, mask, *rest: load(
        self, ptrs, allowed(ptrs, mask), *rest
    )
    InterpreterBuilder.create_masked_store = lambda self, ptrs, value, mask, *rest: store(
        self, ptrs, value, allowed(ptrs, mask), *rest
    )
    try:
        yield seen
    finally:
        InterpreterBuilder.create_masked_load = load
        InterpreterBuilder.create_masked_store = store


def inputs() -> tuple[torch.Tensor, ...]:
    q = torch.randn(1, NUM_HEADS, HEAD_DIM)
    table = torch.tensor([[BLOCK]], dtype=torch.int32)
    return q, torch.empty_like(q), table, torch.tensor([BLOCK_SIZE], dtype=torch.int32)


def test_ragged_attention_reads_the_right_far_addresses() -> None:
    q, out, table, lens = inputs()
    starts = torch.tensor([0, 1], dtype=torch.int32)
    with nothing_touched_but(q, out) as seen:
        ragged_attention_kernel[(1, NUM_HEADS)](
            q, CACHE, CACHE, out, table, lens, starts, 1, 1.0, *q.stride()[:2],
            *out.stride()[:2], 1, *STRIDES, GROUP=1, BLOCK_M=16, TILE=16, PRECISION="ieee",
            **SHAPE,
        )  # fmt: skip
    assert seen == EXPECTED


def test_decode_attention_reads_the_right_far_addresses() -> None:
    q, out, table, lens = inputs()
    with nothing_touched_but(q, out) as seen:
        decode_attention_kernel[(1, NUM_HEADS, 1)](
            q, CACHE, CACHE, out, table, lens, out, out, out, 1.0, *q.stride()[:2],
            *out.stride()[:2], 1, *STRIDES, GROUP=1, GROUP_PAD=16, TILE=16, NUM_SPLITS=1,
            USE_DOT=True, PRECISION="ieee", **SHAPE,
        )  # fmt: skip
    assert seen == EXPECTED


def test_write_kv_writes_to_the_right_far_addresses() -> None:
    key = torch.randn(BLOCK_SIZE, NUM_HEADS, HEAD_DIM)
    slots = BLOCK * BLOCK_SIZE + torch.arange(BLOCK_SIZE)
    with nothing_touched_but(key) as seen:
        write_kv_kernel[(BLOCK_SIZE,)](
            key, key, CACHE, CACHE, slots, *key.stride()[:2], *key.stride()[:2], *STRIDES,
            NUM_KV_HEADS=NUM_HEADS, HEADS_PAD=4, **SHAPE,
        )  # fmt: skip
    assert seen == EXPECTED
