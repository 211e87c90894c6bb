"""Other attention implementations, where they can be imported, on the problem our kernels get.

Each function prepares what its library wants outside the timed run, and returns the run. What a
library cannot do it raises for, and the caller says so. Contiguous KV is what no paged engine
has: it is the ceiling; "gather + SDPA" is the naive paged engine.

The runs of `DECODE` and `PREFILL` only launch torch's kernels and can be captured in a CUDA graph.
Those of `LIBRARIES` compile something, or do who knows what: they are launched as they are, last.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from .problems import PagedProblem

Run = Callable[[], torch.Tensor]


def length_of(problem: PagedProblem) -> int:
    """The length that all sequences have here. Waits for the GPU: not for a timed run."""
    return int(problem.seq_lens[0])


def gather(problem: PagedProblem, cache: torch.Tensor, length: int) -> torch.Tensor:
    """[num_seqs, num_kv_heads, length, head_dim], a view of a copy."""
    blocks = problem.block_table.flatten()
    rows = cache.index_select(0, blocks).view(len(problem.seq_lens), -1, *cache.shape[2:])
    return rows[:, :length].transpose(1, 2)


def contiguous_kv(problem: PagedProblem) -> tuple[torch.Tensor, torch.Tensor]:
    """The keys and values with the paging undone."""
    length = length_of(problem)
    return (
        gather(problem, problem.k_cache, length).contiguous(),
        gather(problem, problem.v_cache, length).contiguous(),
    )


def sdpa_decode(problem: PagedProblem) -> Run:
    """torch's attention with the paging already undone."""
    k, v = contiguous_kv(problem)
    q = problem.q[:, :, None].contiguous()
    return lambda: F.scaled_dot_product_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1])


def gather_sdpa_decode(problem: PagedProblem) -> Run:
    """Undo the paging, then torch's attention: both are timed."""
    q = problem.q[:, :, None].contiguous()
    gqa = q.shape[1] != problem.k_cache.shape[2]
    length = length_of(problem)

    def run() -> torch.Tensor:
        k, v = (gather(problem, c, length) for c in (problem.k_cache, problem.v_cache))
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=gqa)

    return run


def flex_decode(problem: PagedProblem) -> Run:
    """FlexAttention, compiled, on contiguous KV."""
    from torch.nn.attention.flex_attention import flex_attention

    k, v = contiguous_kv(problem)
    q = problem.q[:, :, None].contiguous()
    compiled = torch.compile(flex_attention, dynamic=False)
    return lambda: compiled(q, k, v, enable_gqa=q.shape[1] != k.shape[1])


def flashinfer_decode(problem: PagedProblem) -> Run:
    """FlashInfer's batch decode on pages of the same size."""
    import flashinfer

    _, num_heads, head_dim = problem.q.shape
    _, block_size, num_kv_heads, _ = problem.k_cache.shape
    pages = -(-problem.seq_lens // block_size)
    workspace = torch.empty(128 << 20, dtype=torch.uint8, device=problem.q.device)
    shares = num_heads // num_kv_heads >= 4  # what its documentation advises
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        workspace, "NHD", use_tensor_cores=shares
    )
    table = [problem.block_table[s, :n] for s, n in enumerate(pages.tolist())]
    wrapper.plan(
        F.pad(pages.cumsum(0), (1, 0)).int(),
        torch.cat(table),
        ((problem.seq_lens - 1) % block_size + 1).int(),
        num_heads,
        num_kv_heads,
        head_dim,
        block_size,
        q_data_type=problem.q.dtype,
        kv_data_type=problem.q.dtype,
    )
    caches = (problem.k_cache.contiguous(), problem.v_cache.contiguous())
    q = problem.q.contiguous()
    return lambda: wrapper.run(q, caches)


def flash_attention_decode(problem: PagedProblem) -> Run:
    """FlashAttention with a KV cache; on contiguous KV, since its pages hold 256 tokens."""
    from flash_attn import flash_attn_with_kvcache

    k, v = (kv.transpose(1, 2).contiguous() for kv in contiguous_kv(problem))
    q = problem.q[:, None].contiguous()
    return lambda: flash_attn_with_kvcache(q, k, v, cache_seqlens=problem.seq_lens)


def sdpa_prefill(problem: PagedProblem) -> Run:
    """torch's causal attention on contiguous queries and KV, whole prompts of one length."""
    k, v = contiguous_kv(problem)
    num_seqs, length = len(problem.seq_lens), length_of(problem)
    q = problem.q.reshape(num_seqs, length, *problem.q.shape[1:]).transpose(1, 2).contiguous()
    gqa = q.shape[1] != k.shape[1]
    return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=gqa)


DECODE: dict[str, Callable[[PagedProblem], Run]] = {
    "SDPA, contiguous KV": sdpa_decode,
    "gather + SDPA": gather_sdpa_decode,
}
FLEX = "FlexAttention, contiguous KV"
LIBRARIES: dict[str, Callable[[PagedProblem], Run]] = {
    "FlashInfer, paged": flashinfer_decode,
    "FlashAttention, contiguous KV": flash_attention_decode,
    FLEX: flex_decode,
}
PREFILL: dict[str, Callable[[PagedProblem], Run]] = {"SDPA, contiguous KV": sdpa_prefill}


def rows_of(out: Any, num_tokens: int) -> torch.Tensor:
    """A rival's output in any of their layouts as [num_tokens, num_heads, head_dim]."""
    if out.dim() == 4 and out.shape[2] == 1:  # [num_seqs, num_heads, 1, head_dim]
        out = out[:, :, 0]
    elif out.dim() == 4 and out.shape[1] == 1:  # [num_seqs, 1, num_heads, head_dim]
        out = out[:, 0]
    elif out.dim() == 4:  # [num_seqs, num_heads, length, head_dim]
        out = out.transpose(1, 2).flatten(0, 1)
    return out.reshape(num_tokens, *out.shape[-2:])
