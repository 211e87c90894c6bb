"""A linear layer on this machine: oneDNN with weights packed once on a CPU, else ``F.linear``.

On CPUs whose default BLAS is slow in fp32 the packed form is two to three times faster from four
rows up, and fuses GELU and the residual add. Its operators are private to torch, so they are used
only here, are compared with ``F.linear`` in the tests, and it takes over wherever they are missing.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

# Rows the packed layout is tuned for: good from 4 to a few hundred, which is what a step has.
_PACK_HINT_ROWS = 32


class Linear(Protocol):
    """``weight`` is [out, in]; x is [rows, in]."""

    def __call__(self, x: Tensor) -> Tensor:
        """x @ weight.T + bias -> [rows, out]."""
        ...

    def gelu(self, x: Tensor) -> Tensor:
        """GELU (tanh form) of the result."""
        ...

    def add_to(self, x: Tensor, residual: Tensor) -> Tensor:
        """residual + the result."""
        ...


class PlainLinear:
    """What every device has."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def gelu(self, x: Tensor) -> Tensor:
        return F.gelu(F.linear(x, self.weight, self.bias), approximate="tanh")

    def add_to(self, x: Tensor, residual: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias).add_(residual)


class PackedLinear:
    """oneDNN, weights reordered once; CPU and fp32 only."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _PACK_HINT_ROWS)
        self.bias = bias
        self.unary = torch.ops.mkldnn._linear_pointwise.default
        self.binary = torch.ops.mkldnn._linear_pointwise.binary

    def __call__(self, x: Tensor) -> Tensor:
        return self.unary(x, self.packed, self.bias, "none", [], "")

    def gelu(self, x: Tensor) -> Tensor:
        return self.unary(x, self.packed, self.bias, "gelu", [], "tanh")

    def add_to(self, x: Tensor, residual: Tensor) -> Tensor:
        return self.binary(x, residual, self.packed, self.bias, "add")


def packing_available() -> bool:
    """Whether this torch has the private operators and they work on this processor."""
    try:
        layer = PackedLinear(torch.ones(2, 2), torch.zeros(2))
        x = torch.ones(1, 2)
        return bool(torch.allclose(layer.add_to(x, layer(x)), torch.full((1, 2), 4.0)))
    except (AttributeError, RuntimeError, TypeError):
        return False


def make_linear(weight: Tensor, bias: Tensor | None, *, packed: bool) -> Linear:
    return PackedLinear(weight, bias) if packed else PlainLinear(weight, bias)
