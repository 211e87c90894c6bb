"""Compile what the launchers launch, for GPUs this machine does not have.

    python -m toyserve_kernels.ahead_of_time sm_75 sm_80 sm_90 [--json FILE]

Triton brings NVIDIA's assembler and AMD's linker along, so a kernel can be compiled, and its
registers, shared memory and instructions read, without a GPU. A stub stands in for the driver;
the launchers then run as usual on small CPU tensors, and each launch stops after compiling.

Needs a process without `TRITON_INTERPRET`. Compiled code goes to a fresh cache folder.
"""

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from . import backend
from .decode_attention import decode_attention
from .problems import make_problem
from .ragged_attention import ragged_attention
from .write_kv import write_kv

# Bytes of shared memory one program may use (CUDA programming guide, compute capabilities)
SHARED_MEMORY = {
    "sm_75": 65_536,
    "sm_80": 166_912,
    "sm_86": 101_376,
    "sm_89": 101_376,
    "sm_90": 232_448,
    "sm_100": 232_448,
    "gfx942": 65_536,
}


@dataclass(frozen=True)
class Binary:
    """One compiled kernel, as the tools of its maker describe it."""

    kernel: str
    dtype: str
    constants: str  # the compile-time arguments
    shared_bytes: int
    registers: int  # per thread
    spill_bytes: int  # per thread, in slow local memory
    matrix_ops: bool  # whether it uses the tensor cores (NVIDIA) or matrix cores (AMD)
    async_copies: bool  # whether global memory is fetched ahead of use

    def problems(self, target: str) -> list[str]:
        """What would fail or crawl on `target`, one sentence each."""
        found = []
        name = f"{self.kernel} ({self.dtype}, {self.constants}) on {target}"
        if self.spill_bytes:
            found.append(f"{name} spills {self.spill_bytes} bytes of registers per thread")
        if self.shared_bytes > SHARED_MEMORY[target]:
            limit = SHARED_MEMORY[target]
            found.append(f"{name} needs {self.shared_bytes} bytes of shared memory of {limit}")
        dots = "attention" in self.kernel and self.dtype in ("fp16", "bf16")
        if dots and target != "sm_75" and not self.matrix_ops:
            found.append(f"{name} multiplies 16-bit matrices without the tensor cores")
        return found


class StubDriver:
    """All that compiling asks of a GPU driver."""

    def __init__(self, target: Any, number: int) -> None:
        self.target, self.number = target, number

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> int:
        return self.number

    def get_current_stream(self, device: int) -> int:
        return 0


@contextlib.contextmanager
def compiling_for(name: str) -> Iterator[list[tuple[str, Any]]]:
    """Inside, a launch on CPU tensors compiles for `name` and runs nothing.

    Yields the list that fills with (kernel name, compiled kernel). Raises ValueError for an
    unknown target and RuntimeError in a process that interprets.
    """
    if name not in SHARED_MEMORY:
        raise ValueError(f"target {name!r} is not one of {', '.join(SHARED_MEMORY)}")
    if backend.triton_mode() != "compiled":
        raise RuntimeError(f"cannot compile here: Triton is in mode {backend.triton_mode()!r}")
    from triton.backends.compiler import GPUTarget
    from triton.runtime.driver import driver
    from triton.runtime.jit import JITFunction

    if name.startswith("gfx"):
        capability, target = backend.AMD + 80, GPUTarget("hip", name, 64)
    else:
        capability = int(name[3:])
        target = GPUTarget("cuda", capability, 32)
    compiled: list[tuple[str, Any]] = []
    run = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        kernel = run(self, *args, grid=grid, warmup=True, **kwargs)
        compiled.append((self.fn.__name__, kernel))
        return kernel

    token = backend.COMPILING_FOR.set(capability)
    driver.set_active(StubDriver(target, list(SHARED_MEMORY).index(name)))
    JITFunction.run = compile_only
    try:
        yield compiled
    finally:
        JITFunction.run = run
        driver._active = None  # reset_active() would look for a real GPU
        backend.COMPILING_FOR.reset(token)


# dtype, head size, query heads, KV heads: each dtype with and without GQA and padding
SHAPES = (
    (torch.float16, 64, 6, 6),
    (torch.float16, 64, 8, 2),
    (torch.float16, 80, 6, 6),
    (torch.float16, 128, 8, 2),
    (torch.bfloat16, 64, 6, 6),
    (torch.bfloat16, 128, 8, 2),
    (torch.float32, 64, 6, 6),
    (torch.float32, 80, 8, 2),
)


def launch_everything() -> None:
    """Every kernel as the engine launches it, for each of `SHAPES` that the target can run."""
    for dtype, head_dim, num_heads, num_kv_heads in SHAPES:
        if backend.support("cpu", dtype).ok:
            launch_shape(dtype, head_dim, num_heads, num_kv_heads)


def launch_shape(dtype: torch.dtype, head_dim: int, num_heads: int, num_kv_heads: int) -> None:
    """The launches of one model shape: KV write, chunks, a mixture of decodes, split decode."""
    problem = make_problem(
        [40, 300],
        [1, 1],
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        block_size=16,
        dtype=dtype,
    )
    key = problem.q[:, :num_kv_heads]
    write_kv(key, key, problem.k_cache, problem.v_cache, torch.zeros(2, dtype=torch.int64))
    for max_query_len in (1, 256):
        ragged_attention(*problem.ragged_args, max_query_len=max_query_len)
    for num_splits in (1, 8):
        decode_attention(*problem.decode_args, num_splits=num_splits)


def describe(name: str, kernel: Any) -> Binary:
    """Read a compiled kernel's resources with its maker's tools."""
    types = {str(kind).lstrip("*") for kind in kernel.src.signature.values()}
    dtype = next((kind for kind in ("fp16", "bf16", "fp32") if kind in types), "?")
    if "fp16" not in types and "bf16" not in types:
        dtype = "fp32"
    names = kernel.src.fn.arg_names
    constants = {names[at[0]]: value for at, value in kernel.src.constants.items()}
    shown = " ".join(f"{k}={v}" for k, v in constants.items() if k.isupper())
    read = _read_amd if kernel.metadata.target.backend == "hip" else _read_nvidia
    return Binary(name, dtype, shown, kernel.metadata.shared, *read(kernel))


def _read_amd(kernel: Any) -> tuple[int, int, bool, bool]:
    text = kernel.asm["amdgcn"]
    registers = int(re.search(r"\.vgpr_count:\s+(\d+)", text)[1])
    spilled = int(re.search(r"\.vgpr_spill_count:\s+(\d+)", text)[1]) * 4
    return registers, spilled, "v_mfma" in text, "buffer_load" in text


def _read_nvidia(kernel: Any) -> tuple[int, int, bool, bool]:
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(kernel.asm["cubin"])
        usage, code = (
            subprocess.run([tool, flag, path], capture_output=True, text=True, check=True).stdout
            for flag in ("--dump-resource-usage", "-sass")
        )
    registers = int(re.search(r"REG:(\d+)", usage)[1])
    stack = int(re.search(r"STACK:(\d+)", usage)[1])
    matrix = re.search(r"\bHG?MMA\.", code)  # HFMA2.MMA is a plain multiply-add
    return registers, stack, matrix is not None, "LDGSTS" in code


def inspect_target(target: str) -> list[Binary]:
    """Compile every launch for `target`; each distinct binary once."""
    with compiling_for(target) as compiled:
        launch_everything()
    return list({kernel.hash: describe(name, kernel) for name, kernel in compiled}.values())


def main(argv: list[str] | None = None) -> int:
    """Print a table of the binaries; exit status 1 if any has a problem."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="*", default=["sm_75", "sm_80", "sm_90"])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp(prefix="toyserve-kernels-")
    report, problems = {}, []
    for target in options.targets:
        binaries = inspect_target(target)
        report[target] = [asdict(binary) for binary in binaries]
        for b in binaries:
            marks = " ".join(["matrix"] * b.matrix_ops + ["prefetch"] * b.async_copies)
            print(
                f"{target:7} {b.kernel:24} {b.dtype:5} {b.registers:4} registers "
                f"{b.shared_bytes:6} B shared {b.spill_bytes:5} B spilled {marks:16} {b.constants}"
            )
            problems += b.problems(target)
    if options.json:
        options.json.write_text(json.dumps({"binaries": report, "problems": problems}, indent=1))
    print("\n".join(problems) or "no problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
