"""The KV write in the interpreter."""

import pytest
import torch
from toyserve_kernels.checks import check_write_kv
from toyserve_kernels.write_kv import write_kv, write_kv_kernel, write_kv_reference


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_keys_and_values_reach_their_slots_and_nothing_else_changes(dtype: torch.dtype) -> None:
    assert check_write_kv(write_kv, dtype=dtype) == []


def test_any_strides_of_the_cache() -> None:
    def heads_first(cache: torch.Tensor) -> torch.Tensor:
        return cache.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3)

    def write(key, value, k_cache, v_cache, slots) -> None:
        k, v = heads_first(k_cache), heads_first(v_cache)
        write_kv(key, value, k, v, slots)
        k_cache.copy_(k)
        v_cache.copy_(v)

    assert check_write_kv(write) == []


def test_no_tokens_is_no_launch() -> None:
    key, cache = torch.zeros(0, 2, 16), torch.zeros(3, 4, 2, 16)
    write_kv(key, key, cache, cache.clone(), torch.zeros(0, dtype=torch.int64))


def test_a_wrong_write_fails() -> None:
    def torch_index(key, value, k_cache, v_cache, slots) -> None:  # -1 is the last slot to torch
        block_size = k_cache.shape[1]
        k_cache[slots // block_size, slots % block_size] = key
        v_cache[slots // block_size, slots % block_size] = value

    def swapped(key, value, k_cache, v_cache, slots) -> None:
        write_kv_reference(value, key, k_cache, v_cache, slots)

    def one_off(key, value, k_cache, v_cache, slots) -> None:
        write_kv_reference(key, value, k_cache, v_cache, torch.where(slots > 0, slots - 1, slots))

    def keys_only(key, value, k_cache, v_cache, slots) -> None:
        write_kv_reference(key, k_cache.flatten(0, 1)[slots], k_cache, k_cache.clone(), slots)

    def nothing(*tensors) -> None:
        pass

    for wrong in (torch_index, swapped, one_off, keys_only, nothing):
        assert check_write_kv(wrong) != [], wrong.__name__


def test_the_kernel_itself_is_what_runs() -> None:
    assert type(write_kv_kernel).__name__ == "InterpretedFunction"
