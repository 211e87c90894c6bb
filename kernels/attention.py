"""Pick the kernel for a step: split-KV decode if every sequence has one new token, else ragged."""

import torch

from .decode_attention import Partials, decode_attention
from .ragged_attention import ragged_attention


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
    *,
    max_query_len: int,
    max_seq_len: int | None = None,
    scale: float | None = None,
    out: torch.Tensor | None = None,
    partials: Partials | None = None,
) -> torch.Tensor:
    """Attention of a step's new tokens over their paged contexts; returns `out`.

    Arguments as in `ragged_attention` and `decode_attention`. With `max_query_len == 1` and as
    many tokens as sequences, each sequence must have exactly one new token (a padded row: one
    token and length 0); `query_start_loc` is then not read. `partials` is used for decodes only.

    Raises what the two launchers raise.
    """
    if max_query_len == 1 and q.shape[0] == seq_lens.shape[0]:
        return decode_attention(
            q,
            k_cache,
            v_cache,
            block_table,
            seq_lens,
            max_seq_len=max_seq_len,
            scale=scale,
            out=out,
            partials=partials,
        )
    return ragged_attention(
        q,
        k_cache,
        v_cache,
        block_table,
        seq_lens,
        query_start_loc,
        max_query_len=max_query_len,
        scale=scale,
        out=out,
    )
