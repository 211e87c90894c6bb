"""What may be given to ``LLM``, checked: the value, or one sentence with it and the limit."""

from __future__ import annotations

import os
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import torch

from toyserve.kv import KVManager
from toyserve.kv.swap import check_host_memory
from toyserve.models.gpt2 import GPT2Config
from toyserve.parts import unknown
from toyserve.sampling_params import is_int
from toyserve.schedulers import Scheduler

Prompt = str | list[int]


def pick_device(device: str | torch.device | None) -> torch.device:
    """CUDA where there is one, unless told otherwise."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        picked = torch.device(device)
    except (RuntimeError, TypeError):
        raise ValueError(f"device is {device!r}: it must be cpu, cuda or cuda:N") from None
    if picked.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device is {str(device)!r}, but this torch sees no CUDA GPU")
    return picked


def pick_dtype(dtype: str | torch.dtype | None, device: torch.device) -> torch.dtype:
    """fp16 on CUDA, fp32 on a CPU, unless told otherwise."""
    names = {
        "float32": torch.float32,
        "fp32": torch.float32,
        "float16": torch.float16,
        "fp16": torch.float16,
        "bfloat16": torch.bfloat16,
        "bf16": torch.bfloat16,
    }
    if dtype is None:
        return torch.float16 if device.type == "cuda" else torch.float32
    if isinstance(dtype, torch.dtype) and dtype in names.values():
        return dtype
    if dtype not in names:
        raise unknown("dtype", dtype, ("float32", "float16", "bfloat16"))
    return names[str(dtype)]


def check_max_model_len(max_model_len: int | None, n_positions: int) -> int:
    if max_model_len is None:
        return n_positions
    is_int = isinstance(max_model_len, Integral) and not isinstance(max_model_len, bool)
    if not is_int or not 2 <= max_model_len <= n_positions:
        raise ValueError(
            f"max_model_len is {max_model_len!r}: it must lie between 2 (a prompt token and an "
            f"answer token) and {n_positions}, the positions this model has"
        )
    return int(max_model_len)


def as_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str):
        return [prompts]
    prompts = _as_list(prompts)
    if not isinstance(prompts, Sequence):
        raise ValueError(
            f"prompts is {prompts!r}: give a text, a list of token ids, or a list of them"
        )
    if len(prompts) and all(isinstance(p, Integral) for p in prompts):
        return [list(prompts)]  # type: ignore[arg-type]
    as_list: list[Any] = [_as_list(prompt) for prompt in prompts]
    for prompt in as_list:
        if not isinstance(prompt, str | list):
            raise ValueError(f"a prompt is {prompt!r}: each must be a text or a list of token ids")
    return as_list


def _as_list(value: Any) -> Any:
    """An array of numpy or torch, or a tuple, as a list; anything else as it is."""
    if isinstance(value, tuple):
        return list(value)
    return value.tolist() if getattr(value, "ndim", None) else value


def one_each(name: str, value: Any, count: int) -> list[Any]:
    """One value for all, or exactly one for each prompt."""
    value = _as_list(value)
    if not isinstance(value, Sequence) or isinstance(value, str):
        return [value] * count
    if len(value) != count:
        raise ValueError(f"{name} has {len(value)} entries for {count} prompts")
    return list(value)


def check_seed(seed: object) -> None:
    if not is_int(seed):
        raise ValueError(f"seed is {seed!r}: it must be a whole number")


def check_memory(
    scheduler: Scheduler,
    kv: KVManager,
    config: GPT2Config,
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    """Raise ValueError when the KV pool cannot fit the device, or the swap space the host."""
    block_bytes = 2 * config.n_layer * config.n_embd * dtype.itemsize * kv.block_size
    host_bytes = None
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        host_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    device_bytes = _free_on_gpu(device) if device.type == "cuda" else host_bytes
    if device_bytes is not None and kv.num_blocks * block_bytes > device_bytes:
        raise ValueError(
            f"num_blocks is {kv.num_blocks}: at {block_bytes} bytes a block that is "
            f"{kv.num_blocks * block_bytes} bytes of KV, and {device} has {device_bytes}"
        )
    if host_bytes is not None:
        check_host_memory(host_blocks(scheduler), block_bytes, host_bytes)


def _free_on_gpu(device: torch.device) -> int:
    """What the driver has, and what torch keeps from it for tensors to come."""
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + kept


def host_blocks(scheduler: Scheduler) -> int:
    """The scheduler's swap space; a learner's own may have none."""
    return getattr(scheduler, "num_host_blocks", 0)
