"""Record what each program of a kernel reads, while Triton's interpreter runs it.

The interpreter runs the programs of a launch one after the other in this process, so watching
its load operation tells, for each program, which elements of which tensor it touched. Works for
any kernel, a learner's too; only in a process whose Triton interprets.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from . import backend


@dataclass(frozen=True)
class Read:
    """One load of one program: the elements that its mask let through, at least one."""

    program: tuple[int, int, int]
    tensor: str  # the name it was given to `recording_reads`; "" for memory of none of them
    index: np.ndarray  # [num_elements, num_dims]; for "" the addresses, [num_elements, 1]


@contextmanager
def recording_reads(**tensors: torch.Tensor) -> Iterator[list[Read]]:
    """Inside, every load of an interpreted kernel is appended to the list that this yields.

    Raises RuntimeError where Triton does not interpret.
    """
    if backend.triton_mode() != "interpreter":
        raise RuntimeError("reads can be recorded only with TRITON_INTERPRET=1")
    from triton.runtime.interpreter import InterpreterBuilder

    reads: list[Read] = []
    load = InterpreterBuilder.create_masked_load  # plain loads end there too

    def load_and_record(self: Any, ptrs: Any, mask: Any, *rest: Any) -> Any:
        addresses = np.broadcast_to(ptrs.data, np.shape(mask.data))[np.asarray(mask.data, bool)]
        if addresses.size:
            reads.append(_read(tuple(self.grid_idx), addresses.astype(np.int64), tensors))
        return load(self, ptrs, mask, *rest)

    InterpreterBuilder.create_masked_load = load_and_record
    try:
        yield reads
    finally:
        InterpreterBuilder.create_masked_load = load


def _read(
    program: tuple[int, int, int], addresses: np.ndarray, tensors: dict[str, torch.Tensor]
) -> Read:
    for name, tensor in tensors.items():
        index = _index_in(tensor, addresses)
        if index is not None:
            return Read(program, name, index)
    return Read(program, "", addresses[:, None])


def _index_in(tensor: torch.Tensor, addresses: np.ndarray) -> np.ndarray | None:
    """The index of each address in a strided tensor; None if any lies outside it."""
    offset, rest = np.divmod(addresses - tensor.data_ptr(), tensor.element_size())
    if offset.min() < 0 or rest.any():
        return None
    index = np.zeros((len(offset), tensor.dim()), np.int64)
    for axis in sorted(range(tensor.dim()), key=tensor.stride, reverse=True):
        if tensor.shape[axis] > 1:
            index[:, axis], offset = np.divmod(offset, tensor.stride(axis))
    inside = not offset.any() and (index < np.array(tensor.shape)).all()
    return index if inside else None
