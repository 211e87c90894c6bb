"""The attention kernels against float64, in the interpreter, on what kernels get wrong."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from toyserve_kernels.checks import (
    CASES,
    DECODE_CASES,
    TOLERANCE,
    Case,
    check_attention,
    check_decode_attention,
)
from toyserve_kernels.decode_attention import (
    decode_attention,
    decode_attention_reference,
    make_partials,
)
from toyserve_kernels.problems import make_problem
from toyserve_kernels.ragged_attention import ragged_attention, ragged_attention_reference
from toyserve_kernels.reads import recording_reads
from toyserve_kernels.tuning import Tile

# the interpreter's own tile, small ones as on a GPU, and decode's two ways to multiply
RAGGED_TILES = {"default": None, "small": Tile(16, 16), "tall": Tile(64, 32)}
DECODE_TILES = {"default": None, "dot": Tile(16, 16), "multiply-add": Tile(4, 16, use_dot=False)}
DTYPES = {"fp32": torch.float32, "fp16": torch.float16}


def close(result: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype = torch.float32) -> bool:
    error = (result.double() - expected).norm() / expected.norm()
    return bool(error <= TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tile", RAGGED_TILES)
def test_ragged_attention_is_right_on_every_case(tile: str, dtype: str) -> None:
    def attention(*args: torch.Tensor) -> torch.Tensor:
        return ragged_attention(*args, tile=RAGGED_TILES[tile])

    assert check_attention(attention, dtype=DTYPES[dtype], wild=True) == []


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tile", "num_splits"), [*product(DECODE_TILES, (1, 3)), ("default", 16)])
def test_decode_attention_is_right_on_every_case(tile: str, num_splits: int, dtype: str) -> None:
    def attention(*args: torch.Tensor) -> torch.Tensor:
        return decode_attention(*args, num_splits=num_splits, tile=DECODE_TILES[tile])

    assert check_decode_attention(attention, dtype=DTYPES[dtype], wild=True) == []


@pytest.mark.parametrize("block_size", [1, 8, 16, 32])
@pytest.mark.parametrize("head_dim", [16, 24, 64, 80, 96, 128])
def test_around_every_block_boundary(block_size: int, head_dim: int) -> None:
    edges = {n * block_size + d for n, d in product((0, 1, 2, 3), (-1, 0, 1))}
    contexts = tuple(sorted(length for length in edges if length > 0))
    # a decode, the whole prompt, all but the first token, and so on
    queries = tuple((1, n, max(1, n - 1))[i % 3] for i, n in enumerate(contexts))
    for group in (1, 3, 4):
        shape = (group, 1, head_dim, block_size)
        mixture = Case(f"{group} heads per KV head", contexts, queries, *shape)
        assert check_attention(ragged_attention, cases=[mixture], wild=True) == []
        decodes = replace(mixture, query_lens=(1,) * len(contexts))
        assert check_decode_attention(decode_attention, cases=[decodes], wild=True) == []


def test_programs_read_only_their_own_sequence_and_only_what_was_written() -> None:
    case = Case("", (20, 0, 47, 64), (3, 1, 1, 17), num_heads=4, num_kv_heads=2)
    problem = case.problem(torch.float32, "cpu", wild=True)
    named = {n: getattr(problem, n) for n in ("k_cache", "v_cache", "block_table")}
    for tile in RAGGED_TILES.values():
        with recording_reads(**named) as reads:
            ragged_attention(*problem.ragged_args, tile=tile)
        entries = {tuple(at) for r in reads if r.tensor == "block_table" for at in r.index.tolist()}
        assert entries == {(0, 0), (0, 1)} | {(2, i) for i in range(3)} | {(3, i) for i in range(4)}
        for name in ("k_cache", "v_cache"):
            slots = {tuple(at[:2]) for r in reads if r.tensor == name for at in r.index.tolist()}
            assert len(slots) == 20 + 47 + 64
            assert not any(problem.k_cache[slot].isnan().any() for slot in slots)


def test_any_bound_on_the_query_length_gives_the_same_result() -> None:
    case = CASES[4]
    problem = case.problem(torch.float32, "cpu", wild=True)
    expected = ragged_attention_reference(*problem.ragged_args)
    for bound in (None, 1, 17, 5000):
        assert close(ragged_attention(*problem.ragged_args, max_query_len=bound), expected)


def test_a_scale_replaces_the_default() -> None:
    problem = CASES[4].problem(torch.float32, "cpu", wild=True)
    expected = ragged_attention_reference(*problem.ragged_args, scale=0.5)
    assert close(ragged_attention(*problem.ragged_args, scale=0.5), expected)
    problem = DECODE_CASES[0].problem(torch.float32, "cpu", wild=True)
    expected = decode_attention_reference(*problem.decode_args, scale=0.5)
    assert close(decode_attention(*problem.decode_args, scale=0.5, num_splits=2), expected)


def test_rows_no_sequence_owns_are_left_alone_and_padded_sequences_get_zeros() -> None:
    """What a captured launch with room to spare looks like."""
    problem = make_problem(
        [9, 21, 0, 0], [1, 1, 1, 1], num_heads=2, num_kv_heads=2, head_dim=16, block_size=8
    )
    right = decode_attention_reference(*problem.decode_args)
    out = torch.full(problem.q.shape, 7.0)
    partials = make_partials(6, 2, 16, num_splits=3)
    same = decode_attention(*problem.decode_args, out=out, partials=partials)
    assert same is out
    assert close(out[:2], right[:2])
    assert not out[2:].any()

    problem = replace(problem, query_start_loc=torch.tensor([0, 1, 2, 2, 2], dtype=torch.int32))
    out = torch.full(problem.q.shape, 7.0)
    ragged_attention(*problem.ragged_args, out=out)
    assert close(out[:2], right[:2])
    assert (out[2:] == 7).all()


def test_tokens_before_the_start_of_their_context_get_zeros() -> None:
    problem = make_problem([2], [5], num_heads=1, num_kv_heads=1, head_dim=16, block_size=8)
    out = ragged_attention(*problem.ragged_args)
    assert not out[:3].any()
    assert close(out, ragged_attention_reference(*problem.ragged_args))


def test_any_strides_of_cache_queries_and_output() -> None:
    problem = make_problem([20, 33], [3, 1], num_heads=4, num_kv_heads=2, head_dim=24, block_size=8)
    expected = ragged_attention_reference(*problem.ragged_args)
    heads_first = {
        name: getattr(problem, name).permute(2, 1, 0, 3).contiguous().permute(2, 1, 0, 3)
        for name in ("k_cache", "v_cache")
    }
    problem = replace(problem, **heads_first, q=problem.q.transpose(0, 1).clone().transpose(0, 1))
    out = torch.zeros(4, 4, 2, 24)[:, :, 1]
    ragged_attention(*problem.ragged_args, out=out)
    assert close(out, expected)
    last = problem.tail(1)
    out = torch.zeros(1, 8, 24)[:, ::2]
    decode_attention(*last.decode_args, out=out, num_splits=2)
    assert close(out, expected[-1:])


def test_nothing_to_do_is_no_launch() -> None:
    problem = make_problem([], [], num_heads=2, num_kv_heads=2, head_dim=16, block_size=8)
    assert ragged_attention(*problem.ragged_args).shape == (0, 2, 16)
    assert decode_attention(*problem.decode_args).shape == (0, 2, 16)


def test_bfloat16_is_refused_where_it_would_be_wrong() -> None:
    problem = CASES[0].problem(torch.bfloat16, "cpu", wild=False)
    with pytest.raises(RuntimeError, match="interpreter multiplies bfloat16 wrongly"):
        ragged_attention(*problem.ragged_args)
