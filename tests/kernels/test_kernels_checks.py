"""The checks that exercises are graded with: right answers pass, wrong ones fail, in words.

Plain torch, so these run without Triton; `interpreted/` does the same to the kernels themselves.
"""

import pytest
import torch
import torch.nn.functional as F
from toyserve_kernels.checks import check_attention, check_decode_attention, check_write_kv
from toyserve_kernels.decode_attention import decode_attention_reference
from toyserve_kernels.ragged_attention import ragged_attention_reference
from toyserve_kernels.write_kv import write_kv_reference


def attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
    *,
    fault: str = "",
) -> torch.Tensor:
    """SDPA on gathered keys, one sequence at a time, with a fault if asked for."""
    out = torch.zeros(q.shape, dtype=q.dtype)
    block_size = k_cache.shape[1]
    for s in range(len(seq_lens)):
        length, (a, b) = int(seq_lens[s]), query_start_loc[s : s + 2].tolist()
        if fault == "last block skipped":
            length = (length - 1) // block_size * block_size
        if length <= 0:
            continue
        n = torch.arange(length)
        blocks = block_table[0 if fault == "sequence index ignored" else s, n // block_size].long()
        k, v = (cache[blocks, n % block_size].transpose(0, 1)[None] for cache in (k_cache, v_cache))
        if fault == "wrong GQA head":
            k, v = (x.repeat(1, q.shape[1] // x.shape[1], 1, 1) for x in (k, v))
        position = torch.arange(a, b) - a + int(seq_lens[s]) - (b - a)
        visible = n <= position[:, None]
        if fault == "no mask":
            visible = torch.ones_like(visible)
        scale = 1.0 if fault == "scale left out" else None
        row = F.scaled_dot_product_attention(
            q[a:b].transpose(0, 1)[None], k, v, attn_mask=visible, scale=scale, enable_gqa=True
        )
        out[a:b] = row[0].transpose(0, 1)
    return out


def decode(*args: torch.Tensor, fault: str = "") -> torch.Tensor:
    starts = torch.arange(len(args[0]) + 1, dtype=torch.int32)
    return attention(*args, starts, fault=fault)


FAULTS = ("no mask", "sequence index ignored", "last block skipped", "scale left out")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_right_answers_pass_however_they_are_written(dtype: torch.dtype) -> None:
    for right in (attention, ragged_attention_reference):
        assert check_attention(right, dtype=dtype) == []
    for right in (decode, decode_attention_reference):
        assert check_decode_attention(right, dtype=dtype) == []
    assert check_write_kv(write_kv_reference, dtype=dtype) == []


@pytest.mark.parametrize("fault", [*FAULTS, "wrong GQA head"])
def test_wrong_answers_fail(fault: str) -> None:
    assert check_attention(lambda *args: attention(*args, fault=fault)) != []
    if fault != "no mask":  # one new token sees everything
        assert check_decode_attention(lambda *args: decode(*args, fault=fault)) != []


def test_a_problem_is_said_in_words() -> None:
    (said,) = check_attention(lambda *args: attention(*args, fault="wrong GQA head"))
    assert "3 heads share a KV head: sequence 0 (18 tokens of context in blocks of 16)" in said
    (said,) = check_decode_attention(lambda *args: torch.zeros(3))[:1]
    assert "returned [3] where [7, 2, 16] was expected" in said


def test_nothing_a_wrong_answer_does_escapes() -> None:
    def raises(*args: torch.Tensor) -> torch.Tensor:
        raise IndexError("index 7 is out of bounds")

    def changes_its_inputs(*args: torch.Tensor) -> torch.Tensor:
        out = attention(*args)
        args[0].mul_(2)
        return out

    def nan(*args: torch.Tensor) -> torch.Tensor:
        return torch.full(args[0].shape, torch.nan)

    assert all("raised IndexError" in said for said in check_attention(raises))
    assert all("changed its inputs" in said for said in check_attention(changes_its_inputs))
    assert len(check_attention(nan)) == len(check_attention(raises))
    assert check_attention(lambda *args: None)[0].endswith("was expected")
