"""Where the Triton kernels can run, and in one sentence why not.

A process is in one of three modes, fixed by the moment Triton is first imported:

- "compiled": the kernels are compiled for the GPU that the tensors are on;
- "interpreter": `TRITON_INTERPRET=1` was set before; numpy runs the kernels on CPU tensors,
  about a thousand times slower than torch: for tests and for looking at one launch;
- "absent": Triton is not installed.
"""

import importlib.metadata
import importlib.util
import os
import sys
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

Mode = Literal["compiled", "interpreter", "absent"]
MIN_CAPABILITY = 75  # a T4
NOT_INSTALLED = "Triton is not installed: pip install 'toyserve[triton]' (Linux only)"
INTERPRETER = 0  # what `architecture` answers there

AMD = 1_000  # added to the capability that tiles are chosen for

# Set by `ahead_of_time.compiling_for`: the capability to compile for, although no GPU is here.
COMPILING_FOR: ContextVar[int | None] = ContextVar("COMPILING_FOR", default=None)


@dataclass(frozen=True)
class Support:
    """Whether the kernels can run somewhere; `reason` is None when they can."""

    mode: Mode
    reason: str | None

    @property
    def ok(self) -> bool:
        return self.reason is None


def triton_mode() -> Mode:
    """The mode of this process; imports neither triton nor torch."""
    language = sys.modules.get("triton.language")
    if hasattr(language, "sum"):  # imported already: how is decided for good
        interpreted = type(language.sum).__name__ == "InterpretedFunction"
        return "interpreter" if interpreted else "compiled"
    if importlib.util.find_spec("triton") is None:
        return "absent"
    return "interpreter" if interpreter_requested() else "compiled"


def interpreter_requested() -> bool:
    """Whether `TRITON_INTERPRET` asks for the interpreter, in Triton's own reading of it."""
    return os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "y", "yes", "true", "on")


def support(device: "torch.device | str", dtype: "torch.dtype | None" = None) -> Support:
    """Say whether the kernels can run on `device` with tensors of `dtype` (None: any of them).

    On a GPU the first answer takes a second or two, since a small kernel is built and launched.
    """
    import torch

    mode = triton_mode()
    if COMPILING_FOR.get() is not None:
        return Support(mode, _why_not_dtype(torch, mode, COMPILING_FOR.get(), dtype))
    return _support(torch.device(device), dtype, mode)


@lru_cache(maxsize=64)
def _support(device: "torch.device", dtype: "torch.dtype | None", mode: Mode) -> Support:
    import torch

    if mode == "absent":
        return Support(mode, NOT_INSTALLED)
    if mode == "interpreter":
        why = why_no_interpreter() or _why_not_dtype(torch, mode, INTERPRETER, dtype)
        return Support(mode, why)
    if device.type != "cuda":
        late = interpreter_requested()
        why = f"Triton compiles for GPUs, not for {device.type!r}; " + (
            "TRITON_INTERPRET was set after triton had been imported: restart the process"
            if late
            else "set TRITON_INTERPRET=1 before Python starts to step through the kernels slowly"
        )
        return Support(mode, why)
    if not torch.cuda.is_available():
        return Support(mode, "this torch sees no CUDA device")
    capability = _capability(device)
    if capability < MIN_CAPABILITY and torch.version.hip is None:
        why = f"the GPU's compute capability is {capability / 10}, the kernels need 7.5 or more"
        return Support(mode, why)
    why = _why_not_dtype(torch, mode, capability, dtype) or _why_no_launch(device)
    return Support(mode, why)


@lru_cache(maxsize=16)
def _why_no_launch(device: "torch.device") -> str | None:
    """Try it: Triton builds its launcher with the machine's C compiler and Python's headers."""
    import torch

    from .write_kv import write_kv_kernel

    try:
        with torch.cuda.device(device):
            one = torch.zeros(1, 1, 1, 16, device=device)
            skip = torch.full((1,), -1, device=device)
            sizes = {"NUM_KV_HEADS": 1, "HEADS_PAD": 1, "HEAD_DIM": 16, "DIM_PAD": 16}
            write_kv_kernel[(1,)](one, one, one, one, skip, *[16] * 7, **sizes, BLOCK_SIZE=1)
    except Exception as error:  # whatever a compiler, a linker or a driver has to say
        said = (str(error).splitlines() or [""])[0][:200]
        return f"Triton cannot build a kernel here: {type(error).__name__}: {said}"
    return None


def _why_not_dtype(torch, mode: Mode, capability: int, dtype: "torch.dtype | None") -> str | None:
    if dtype is None:
        return None
    if dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"the kernels know float32, float16 and bfloat16, not {dtype}"
    if dtype == torch.bfloat16 and mode == "interpreter":
        return "Triton's interpreter multiplies bfloat16 wrongly: use float32 or float16 there"
    if dtype == torch.bfloat16 and capability < 80:
        return f"compute capability {capability / 10} has no bfloat16: use float16"
    return None


def why_no_interpreter() -> str | None:
    """Why a process started with `TRITON_INTERPRET=1` could not run the kernels; None if it can."""
    if importlib.util.find_spec("triton") is None:
        return NOT_INSTALLED
    if _version("triton") < (3, 7) and _version("numpy") >= (2, 4):
        return "this Triton's interpreter cannot loop under numpy 2.4 or later: use numpy<2.4"
    return None


def _version(package: str) -> tuple[int, int]:
    try:
        parts = importlib.metadata.version(package).split(".")
    except importlib.metadata.PackageNotFoundError:  # an unusual build: assume the best
        return (99, 0)
    return int(parts[0]), int(parts[1])


def _capability(device: "torch.device") -> int:
    import torch

    major, minor = torch.cuda.get_device_capability(device)
    return major * 10 + minor


@lru_cache(maxsize=16)
def _device_architecture(device: "torch.device") -> int:
    import torch

    return AMD + 80 if torch.version.hip is not None else _capability(device)


def architecture(device: "torch.device") -> int:
    """Compute capability x 10 that tiles are chosen for, `AMD` + 80, or `INTERPRETER`."""
    if COMPILING_FOR.get() is not None:
        return COMPILING_FOR.get()
    return INTERPRETER if triton_mode() == "interpreter" else _device_architecture(device)


@lru_cache(maxsize=16)
def num_multiprocessors(device: "torch.device") -> int:
    """How many multiprocessors share a launch's programs; 1 away from a GPU."""
    import torch

    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count


def require(device: "torch.device", dtype: "torch.dtype") -> None:
    """Raise RuntimeError with the reason where the kernels cannot run."""
    here = support(device, dtype)
    if not here.ok:
        raise RuntimeError(f"the Triton kernels cannot run here: {here.reason}")
