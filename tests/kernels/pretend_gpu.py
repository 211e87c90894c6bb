"""A GPU that is not there, for what only runs on one: it computes on the CPU and is as strict.

    with pretending(monkeypatch) as gpu:
        x = torch.zeros(3, device="cuda")       # a tensor that says it is on cuda:0
        x + torch.ones(3)                       # RuntimeError, as on a GPU
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):           # records operations; refuses what a capture may not
            y = x * 2
        graph.replay()                          # the same operations again, on the same memory

Refused in a capture: copies between host and GPU, and waiting for a value. Launches of interpreted
Triton kernels count as operations. `gpu.waits` counts the times that the host waited for a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map

aten = torch.ops.aten
CUDA = torch.device("cuda", 0)
BETWEEN = {aten._to_copy.default, aten.copy_.default}  # what may take tensors of both kinds
# Indices and single numbers may lie on the host; outside a capture torch moves them by itself.
HOST_INDEX = {
    aten.index.Tensor,
    aten.index_put_.default,
    torch.Tensor.__getitem__,
    torch.Tensor.__setitem__,
}
NUMBERS = {
    torch.Tensor.item: lambda x: x,
    torch.Tensor.__int__: int,
    torch.Tensor.__float__: float,
    torch.Tensor.__bool__: bool,
}


class OnGpu(torch.Tensor):
    """Says that it is on a GPU; its numbers are those of `host`, memory included."""

    host: torch.Tensor
    mode: PretendMode

    @staticmethod
    def __new__(cls, host: torch.Tensor, mode: PretendMode) -> OnGpu:
        tensor = torch.Tensor._make_wrapper_subclass(
            cls,
            host.shape,
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            dtype=host.dtype,
            device=CUDA,
        )
        tensor.host, tensor.mode = host, mode
        return tensor

    def tolist(self) -> Any:
        return self.cpu().tolist()  # torch's own is not for subclasses

    # Torch's own ask for a real device, in a torch without CUDA.
    def __getitem__(self, index: Any) -> Any:
        return self.mode.apply(torch.Tensor.__getitem__, (self, index), {})

    def __setitem__(self, index: Any, value: Any) -> None:
        self.mode.apply(torch.Tensor.__setitem__, (self, index, value), {})

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{func} on a pretended GPU outside of `pretending`")


def on_host(value: Any) -> Any:
    return value.host if isinstance(value, OnGpu) else value


@dataclass
class PretendedGpu:
    """What has happened on it."""

    waits: int = 0
    captures: int = 0
    replays: int = 0
    recording: list[Callable[[], None]] | None = None
    allocated: list[torch.Tensor] = field(default_factory=list)

    def refuse_in_capture(self, what: str) -> None:
        if self.recording is not None:
            raise RuntimeError(f"CUDA error: operation not permitted in a capture: {what}")


class PretendMode(TorchDispatchMode):
    def __init__(self, gpu: PretendedGpu) -> None:
        super().__init__()
        self.gpu = gpu

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is aten._fused_sdp_choice.default:
            return 0  # plain operations, which a CPU has too
        with self:  # in inference mode, operations made of others come here whole
            result = func.decompose(*args, **kwargs)
        return self.apply(func, args, dict(kwargs)) if result is NotImplemented else result

    def apply(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        leaves = tree_flatten((args, kwargs))[0]
        tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
        ours = [x for x in tensors if isinstance(x, OnGpu)]
        device = kwargs.get("device")
        to_gpu = device is not None and torch.device(device).type == "cuda"
        self._check(func, tensors, ours, to_gpu, device)
        if to_gpu:
            kwargs["device"] = torch.device("cpu")
        kwargs.pop("pin_memory", None)
        kwargs.pop("non_blocking", None)
        stays = to_gpu or (bool(ours) and device is None)
        if func is aten.copy_.default:
            stays = isinstance(args[0], OnGpu)
        host_args, host_kwargs = tree_map(on_host, args), tree_map(on_host, kwargs)
        with _disable_current_modes():
            result = func(*host_args, **host_kwargs)
        if self.gpu.recording is not None and stays:
            self._record(func, host_args, host_kwargs, result)
        if not stays:
            return result
        known = {id(x.host): x for x in ours}  # what an in-place operation returns is its argument
        return tree_map(
            lambda x: (
                known.get(id(x), x)
                if id(x) in known or not isinstance(x, torch.Tensor)
                else OnGpu(x, self)
            ),
            result,
        )

    def _check(self, func: Any, tensors: Any, ours: Any, to_gpu: bool, device: Any) -> None:
        crosses = func in BETWEEN and (
            (device is not None and to_gpu != bool(ours)) or 0 < len(ours) < len(tensors)
        )
        if crosses:
            self.gpu.refuse_in_capture(f"{func} between host and GPU")
            if func is aten._to_copy.default and not to_gpu:
                self.gpu.waits += 1
        if func is aten._local_scalar_dense.default and ours:
            self.gpu.refuse_in_capture("waiting for a number")
            self.gpu.waits += 1
        if func in (aten.nonzero.default, aten.masked_select.default) and ours:
            self.gpu.refuse_in_capture("waiting for a size")
            self.gpu.waits += 1
        theirs = [x for x in tensors if not isinstance(x, OnGpu) and x.dim() > 0]
        if ours and theirs and func not in BETWEEN:
            if func not in HOST_INDEX:
                raise RuntimeError(f"{func}: tensors on cuda:0 and on cpu")
            self.gpu.refuse_in_capture(f"{func} with indices on the host")

    def _record(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        self.gpu.allocated += [x for x in tree_flatten(result)[0] if isinstance(x, torch.Tensor)]

        def again() -> None:
            new = func(*args, **kwargs)
            for old, fresh in zip(tree_flatten(result)[0], tree_flatten(new)[0], strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != fresh.data_ptr():
                    old.copy_(fresh)

        self.gpu.recording.append(again)


class PretendTransfers(TorchFunctionMode):
    """Copies between host and GPU: torch's own ask for a real device, in a torch without CUDA."""

    def __init__(self, mode: PretendMode) -> None:
        super().__init__()
        self.mode = mode

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.copy_:
            return self.mode.apply(aten.copy_.default, args, kwargs)
        if func is torch.Tensor.to:
            return self._to(args[0], *torch._C._nn._parse_to(*args[1:], **kwargs)[:2])
        if func is torch.Tensor.cpu:
            return self._to(args[0], torch.device("cpu"), None)
        if func is torch.tensor:
            device = kwargs.pop("device", None)
            return self._to(func(*args, **kwargs), device and torch.device(device), None)
        if func is torch.Tensor.contiguous and not args[0].is_contiguous():
            return args[0].clone(memory_format=torch.contiguous_format)
        if func in NUMBERS and isinstance(args[0], OnGpu):
            number = self.mode.apply(aten._local_scalar_dense.default, args[:1], {})
            return NUMBERS[func](number)
        return func(*args, **kwargs)

    def _to(
        self, tensor: torch.Tensor, device: torch.device | None, dtype: torch.dtype | None
    ) -> torch.Tensor:
        device, dtype = device or tensor.device, dtype or tensor.dtype
        if (device.type, dtype) == (tensor.device.type, tensor.dtype):
            return tensor
        return self.mode.apply(aten._to_copy.default, (tensor,), {"device": device, "dtype": dtype})


class PretendGraph:
    gpu: PretendedGpu

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] | None = None

    def replay(self) -> None:
        assert self.calls is not None, "replayed before it was captured"
        self.gpu.refuse_in_capture("a replay")
        self.gpu.replays += 1
        with _disable_current_modes():
            for call in self.calls:
                call()


@contextmanager
def pretending(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int] = (9, 0)
) -> Iterator[PretendedGpu]:
    """Inside, `device="cuda"` works; to whoever asks, the card has 1 GB and this capability."""
    gpu = PretendedGpu()
    graph_class = type("CUDAGraph", (PretendGraph,), {"gpu": gpu})

    @contextmanager
    def capture(graph: PretendGraph, **options: Any) -> Iterator[None]:
        assert set(options) <= {"pool", "stream", "capture_error_mode"}
        gpu.refuse_in_capture("another capture")
        gpu.recording = graph.calls = []
        gpu.captures += 1
        try:
            yield
        finally:
            gpu.recording = None

    stream = SimpleNamespace(wait_stream=lambda other: gpu.refuse_in_capture("waiting"))
    replaced = {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "get_device_capability": lambda device=None: capability,
        "get_device_properties": lambda device=None: SimpleNamespace(
            name="pretended",
            major=capability[0],
            minor=capability[1],
            multi_processor_count=132,
            total_memory=10**9,
        ),
        "mem_get_info": lambda device=None: (10**9, 10**9),
        "memory_reserved": lambda device=None: 0,
        "memory_allocated": lambda device=None: 0,
        "empty_cache": lambda: gpu.refuse_in_capture("freeing memory"),
        "synchronize": lambda device=None: gpu.refuse_in_capture("waiting for everything"),
        "device_of": lambda tensor: nullcontext(),
        "device": lambda device: nullcontext(),
        "Stream": lambda device=None: stream,
        "stream": lambda stream: nullcontext(),
        "current_stream": lambda device=None: stream,
        "graph_pool_handle": lambda: (0, 1),
        "CUDAGraph": graph_class,
        "graph": capture,
    }
    for name, value in replaced.items():
        monkeypatch.setattr(torch.cuda, name, value)
    torch._C._ensureCUDADeviceGuardSet()
    mode = PretendMode(gpu)
    with mode, PretendTransfers(mode), _launches_on(gpu, monkeypatch):
        yield gpu


@contextmanager
def _launches_on(gpu: PretendedGpu, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Interpreted kernels take pretended tensors, all of them on the GPU."""
    from triton.runtime.interpreter import GridExecutor

    launch = GridExecutor.__call__

    def launch_pretended(self: Any, *args: Any, **kwargs: Any) -> None:
        tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)]
        if any(isinstance(x, OnGpu) for x in tensors):
            assert all(isinstance(x, OnGpu) for x in tensors), "a kernel got a host pointer"
        args, kwargs = tree_map(on_host, args), tree_map(on_host, kwargs)

        def again() -> None:
            with _disable_current_modes():
                launch(self, *args, **kwargs)

        again()
        if gpu.recording is not None:
            gpu.recording.append(again)

    with monkeypatch.context() as patch:
        patch.setattr(GridExecutor, "__call__", launch_pretended)
        yield
