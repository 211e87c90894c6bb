"""A right attention that looks nothing like ours: one program per token and head, two passes."""

import torch
import triton
import triton.language as tl


@triton.jit
def one_row_kernel(
    q, k, v, out, table, positions, owners, sq, sqh, so, soh, st, sb, ss, sh, scale,
    GROUP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, BS: tl.constexpr, MAX: tl.constexpr,
):  # fmt: skip
    t = tl.program_id(0)
    h = tl.program_id(1)
    dim = tl.arange(0, DP)
    in_head = dim < D
    row = tl.load(q + t * sq + h * sqh + dim, mask=in_head, other=0.0).to(tl.float32)
    last = tl.load(positions + t)
    n = tl.arange(0, MAX)
    block = tl.load(table + tl.load(owners + t) * st + n // BS, mask=n <= last, other=0)
    base = block.to(tl.int64) * sb + (n % BS) * ss + (h // GROUP) * sh
    mask = (n <= last)[:, None] & in_head[None, :]
    keys = tl.load(k + base[:, None] + dim[None, :], mask=mask, other=0.0).to(tl.float32)
    values = tl.load(v + base[:, None] + dim[None, :], mask=mask, other=0.0).to(tl.float32)
    scores = tl.where(n <= last, tl.sum(keys * row[None, :], axis=1) * scale, -1e30)
    weights = tl.where(n <= last, tl.exp(scores - tl.max(scores, axis=0)), 0.0)
    total = tl.maximum(tl.sum(weights, axis=0), 1e-30)
    answer = tl.sum(weights[:, None] * values, axis=0) / total
    tl.store(out + t * so + h * soh + dim, answer.to(out.dtype.element_ty), mask=in_head)


def one_row_attention(q, k_cache, v_cache, block_table, seq_lens, query_start_loc) -> torch.Tensor:
    num_tokens, num_heads, head_dim = q.shape
    new = query_start_loc.diff()
    owners = torch.repeat_interleave(torch.arange(len(new)), new).int()
    nth = torch.arange(num_tokens) - query_start_loc[owners]
    positions = (seq_lens[owners] - new[owners] + nth).int()
    out = torch.empty(q.shape, dtype=q.dtype)
    one_row_kernel[(num_tokens, num_heads)](
        q, k_cache, v_cache, out, block_table, positions, owners, *q.stride()[:2],
        *out.stride()[:2], block_table.stride(0), *k_cache.stride()[:3], head_dim**-0.5,
        GROUP=num_heads // k_cache.shape[2], D=head_dim, DP=triton.next_power_of_2(head_dim),
        BS=k_cache.shape[1], MAX=512,
    )  # fmt: skip
    return out
