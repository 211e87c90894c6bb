"""The batches that the GPU check measures, and random problems of their size."""

from dataclasses import dataclass

import torch

from .bench import Bench
from .problems import PagedProblem

BLOCK_SIZE = 16


@dataclass(frozen=True)
class Shape:
    """A model's heads and a batch of equally long sequences."""

    name: str
    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_seqs: int
    context_len: int
    query_len: int = 1

    def __str__(self) -> str:
        new = f" new {self.query_len}" if self.query_len > 1 else ""
        heads = f"{self.num_heads}/{self.num_kv_heads}x{self.head_dim}"
        return f"{self.name} {heads} {self.num_seqs}x{self.context_len}{new}"

    def kv_bytes(self, dtype: torch.dtype) -> int:
        per_token = 2 * self.num_kv_heads * self.head_dim * dtype.itemsize
        return self.num_seqs * self.context_len * per_token

    @property
    def flops(self) -> float:
        """Two products of 2 FLOPs per visible (query, key) pair, head and number."""
        past = self.context_len - self.query_len
        pairs = self.query_len * past + self.query_len * (self.query_len + 1) / 2
        return 4 * self.num_seqs * self.num_heads * self.head_dim * pairs


# The first fits into the cache and shows what a launch costs; the others are above every L2.
DECODE_SHAPES = (
    Shape("gpt2", 12, 12, 64, 8, 1024),
    Shape("gpt2", 12, 12, 64, 128, 1024),
    Shape("gqa", 32, 8, 128, 64, 2048),
    Shape("gqa", 32, 8, 128, 4, 32768),
    Shape("gqa", 32, 8, 128, 1, 131072),
)
PREFILL_SHAPES = (
    Shape("gpt2", 12, 12, 64, 16, 1024, 1024),
    Shape("gqa", 32, 8, 128, 4, 4096, 4096),
    Shape("gqa", 32, 8, 128, 4, 4096, 512),
)
SMOKE_DECODE = (Shape("smoke", 4, 2, 16, 2, 40),)
SMOKE_PREFILL = (Shape("smoke", 4, 2, 16, 2, 20, 20), Shape("smoke", 4, 2, 16, 2, 20, 5))


def random_problem(shape: Shape, bench: Bench) -> PagedProblem:
    """Full of finite numbers, made on the device: `make_problem` is too slow at these sizes."""
    blocks_each = -(-shape.context_len // BLOCK_SIZE)
    num_blocks = shape.num_seqs * blocks_each
    options = {"device": bench.device, "dtype": bench.dtype}
    pool = torch.empty(num_blocks, BLOCK_SIZE, 2, shape.num_kv_heads, shape.head_dim, **options)
    pool.normal_()
    tokens = shape.num_seqs * shape.query_len
    heads = shape.num_heads + 2 * shape.num_kv_heads
    q = torch.randn(tokens, heads, shape.head_dim, **options)[:, : shape.num_heads]
    table = torch.randperm(num_blocks, device=bench.device, dtype=torch.int32)
    starts = torch.arange(shape.num_seqs + 1, device=bench.device, dtype=torch.int32)
    lens = torch.full_like(starts[1:], shape.context_len)
    table = table.view(shape.num_seqs, blocks_each)
    return PagedProblem(q, pool[:, :, 0], pool[:, :, 1], table, lens, starts * shape.query_len)
