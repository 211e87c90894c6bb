"""The models to measure: the bundled one, random ones of a known shape, or a folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from toyserve.models.gpt2 import GPT2Config
from toyserve.models.weights import expected_shapes, load_checkpoint

# Wider than the usual 0.02: random weights then rarely leave the two likeliest tokens nearly tied,
# which two correct programs may decide differently.
_INITIALIZER_RANGE = 0.08


def _shape(layers: int, heads: int, wide: int, vocab: int, positions: int = 1024) -> GPT2Config:
    return GPT2Config(vocab, positions, wide, layers, heads, 4 * wide, eos_token_id=vocab - 1)


SHAPES: Mapping[str, GPT2Config] = MappingProxyType(
    {
        "micro": _shape(2, 2, 32, 128, 512),  # for tests of the benchmark itself
        "tiny": _shape(6, 6, 384, 2048),
        "gpt2-shape": _shape(12, 12, 768, 50257),
    }
)


@dataclass(frozen=True)
class Weights:
    """A model that several engines will be built on."""

    name: str
    config: GPT2Config
    tensors: dict[str, Tensor]

    @property
    def num_params(self) -> int:
        return sum(t.numel() for t in self.tensors.values())


def get_weights(name: str) -> Weights:
    """Of a shape's name (random), "toy", a folder or a hub name. Raises ValueError otherwise."""
    if name in SHAPES:
        return Weights(name, SHAPES[name], _random_tensors(SHAPES[name]))
    config, tensors, _ = load_checkpoint(name)
    return Weights(name, config, {n: t.float() for n, t in tensors.items()})


def _random_tensors(config: GPT2Config, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in expected_shapes(config).items():
        if "ln_" in name:
            tensors[name] = torch.ones(shape) if name.endswith("weight") else torch.zeros(shape)
        elif name.endswith("bias"):
            tensors[name] = torch.zeros(shape)
        else:
            tensors[name] = torch.randn(shape, generator=generator) * _INITIALIZER_RANGE
    return tensors
