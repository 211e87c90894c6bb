"""Paged attention problems made to catch mistakes, for checks, benchmarks and pictures.

What a kernel must never use is poison: every slot that no token was written to holds NaN, and
the block table's entries past a sequence's length name a block of NaN or, with `wild`, a block
that does not exist (reading through it crashes or is a fault, by design).
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch

WILD_BLOCK = 2**31 - 1


@dataclass(frozen=True)
class PagedProblem:
    """The inputs of one attention launch; shapes as in `ragged_attention`."""

    q: torch.Tensor  # [num_tokens, num_heads, head_dim], a slice of a fused qkv projection
    k_cache: torch.Tensor  # [num_blocks, block_size, num_kv_heads, head_dim], a view of one pool
    v_cache: torch.Tensor
    block_table: torch.Tensor  # [num_seqs, max_blocks] int32
    seq_lens: torch.Tensor  # [num_seqs] int32
    query_start_loc: torch.Tensor  # [num_seqs + 1] int32

    @property
    def ragged_args(self) -> tuple[torch.Tensor, ...]:
        return tuple(getattr(self, field.name) for field in fields(self))

    @property
    def decode_args(self) -> tuple[torch.Tensor, ...]:
        return self.ragged_args[:5]

    @property
    def query_lens(self) -> list[int]:
        return self.query_start_loc.diff().tolist()

    def tail(self, num_seqs: int) -> "PagedProblem":
        """The last `num_seqs` sequences alone, on the same caches."""
        first = int(self.query_start_loc[-num_seqs - 1])
        return replace(
            self,
            q=self.q[first:],
            block_table=self.block_table[-num_seqs:],
            seq_lens=self.seq_lens[-num_seqs:].contiguous(),
            query_start_loc=self.query_start_loc[-num_seqs - 1 :] - first,
        )


def make_problem(
    context_lens: Sequence[int],
    query_lens: Sequence[int],
    *,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    block_size: int,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    seed: int = 0,
    wild: bool = False,
    loud: float = 0.0,
) -> PagedProblem:
    """A seeded random problem: shuffled blocks, poison wherever no token was written.

    `context_lens[s]` counts all tokens of sequence s, its `query_lens[s]` new ones included.
    `loud` moves all scores of a row by that much, up or down, which no softmax should notice.
    """
    rng = torch.Generator().manual_seed(seed)
    needed = [-(-length // block_size) for length in context_lens]
    num_blocks = sum(needed) + 2
    shuffled = torch.randperm(num_blocks, generator=rng, dtype=torch.int32)
    unowned = int(shuffled[-1])  # stays all NaN
    table = torch.full((len(needed), max([1, *needed]) + 1), WILD_BLOCK if wild else unowned)
    table = table.to(torch.int32)
    pool = torch.full((num_blocks * block_size, 2, num_kv_heads, head_dim), torch.nan)
    given = 0
    for s, length in enumerate(context_lens):
        table[s, : needed[s]] = shuffled[given : given + needed[s]]
        given += needed[s]
        place = torch.arange(length)
        slots = table[s, place // block_size].long() * block_size + place % block_size
        pool[slots] = torch.randn(length, 2, num_kv_heads, head_dim, generator=rng)
        if loud:
            pool[slots, 0, :, -1] = 1.0  # the last number of each key
    pool = pool.view(num_blocks, block_size, 2, num_kv_heads, head_dim).to(device, dtype)
    qkv = torch.randn(
        sum(query_lens), num_heads + 2 * num_kv_heads, head_dim, generator=rng
    )  # [num_tokens, q heads then k and v heads, head_dim]
    if loud:
        odd = (torch.arange(len(qkv))[:, None] + torch.arange(qkv.shape[1])) % 2
        qkv[..., -1] = (1 - 2 * odd) * loud * head_dim**0.5
    starts = torch.tensor([0, *query_lens]).cumsum(0).to(torch.int32)
    return PagedProblem(
        q=qkv.to(device, dtype)[:, :num_heads],
        k_cache=pool[:, :, 0],
        v_cache=pool[:, :, 1],
        block_table=table.to(device),
        seq_lens=torch.tensor(context_lens, dtype=torch.int32, device=device),
        query_start_loc=starts.to(device),
    )
