"""What a cost model has to know of a language model: its shape, not its weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from toyserve.hardware import dtype_bytes


@dataclass(frozen=True)
class ModelSpec:
    """The shape of a decoder. Counts are per model; ``intermediate`` is per expert.

    gated_mlp: three matrices (gate, up, down) instead of two. tied_head: the output matrix is the
    embedding table. num_positions: rows of a learned position table, 0 with rotary positions.
    num_kv_heads: with grouped-query attention (GQA) fewer than num_heads, as several query heads
    share one set of keys and values.
    num_experts, experts_per_token: a mixture of experts (MoE) has many MLPs per layer, of which a
    token goes through a few; 1 and 1 for a dense model.
    sliding_window: a token attends to at most so many tokens, itself included, in every layer; None
    for full attention.
    """

    name: str
    num_layers: int
    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    max_model_len: int
    gated_mlp: bool = True
    tied_head: bool = False
    num_positions: int = 0
    num_experts: int = 1
    experts_per_token: int = 1
    sliding_window: int | None = None
    weight_dtype: str = "bf16"
    kv_dtype: str = "bf16"

    def __post_init__(self) -> None:
        for name in ("weight_dtype", "kv_dtype"):
            dtype_bytes(getattr(self, name))
        counts = [f.name for f in dataclasses.fields(self) if f.type == "int"]
        for name in (*counts, "sliding_window"):
            value, least = getattr(self, name), 0 if name == "num_positions" else 1
            if value is None and name == "sliding_window":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(
                    f"model {self.name}: {name} is {value!r}: it must be a whole number, "
                    f"at least {least}"
                )
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"model {self.name}: {self.num_heads} heads cannot share {self.num_kv_heads} "
                f"KV heads evenly"
            )
        if self.experts_per_token > self.num_experts:
            raise ValueError(
                f"model {self.name}: a token uses {self.experts_per_token} experts and there are "
                f"{self.num_experts}"
            )

    # -- parameters: matrices only; norms and biases are about a thousandth -----------------------

    @property
    def attention_params(self) -> int:
        """Of one layer: the Q and output matrices, and the (smaller, with GQA) K and V."""
        return 2 * self.hidden * self.head_dim * (self.num_heads + self.num_kv_heads)

    @property
    def expert_params(self) -> int:
        """Of one layer: one MLP."""
        return (3 if self.gated_mlp else 2) * self.hidden * self.intermediate

    @property
    def router_params(self) -> int:
        return self.hidden * self.num_experts if self.num_experts > 1 else 0

    @property
    def head_params(self) -> int:
        return self.vocab * self.hidden

    @property
    def total_params(self) -> int:
        """All that must be held in memory."""
        layer = self.attention_params + self.num_experts * self.expert_params + self.router_params
        tables = self.head_params * (1 if self.tied_head else 2) + self.num_positions * self.hidden
        return self.num_layers * layer + tables

    @property
    def active_params(self) -> int:
        """Weights that one token meets: all of them unless the model has experts."""
        idle = (self.num_experts - self.experts_per_token) * self.expert_params
        return self.total_params - self.num_layers * idle

    # -- bytes ----------------------------------------------------------------------------------

    @property
    def weight_bytes(self) -> float:
        return self.total_params * dtype_bytes(self.weight_dtype)

    @property
    def kv_bytes_per_token(self) -> float:
        """2 (K and V) x layers x KV heads x head dimension x bytes per number."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * dtype_bytes(self.kv_dtype)

    def with_dtypes(self, weight: str | None = None, kv: str | None = None) -> ModelSpec:
        """Quantisation: the same model, weights or KV cache stored in another (smaller) type."""
        return dataclasses.replace(
            self, weight_dtype=weight or self.weight_dtype, kv_dtype=kv or self.kv_dtype
        )

    @classmethod
    def from_gpt2_config(
        cls, config: Mapping[str, Any], name: str = "gpt2", dtype: str = "fp32"
    ) -> ModelSpec:
        """From the ``config.json`` of a GPT-2 checkpoint. Raises ValueError on a missing entry."""
        try:
            hidden, num_heads = int(config["n_embd"]), int(config["n_head"])
            num_layers, vocab = int(config["n_layer"]), int(config["vocab_size"])
            max_model_len = int(config["n_positions"])
        except KeyError as error:
            raise ValueError(f"the GPT-2 configuration of {name} has no entry {error}") from None
        if num_heads < 1 or hidden % num_heads:
            raise ValueError(f"model {name}: {num_heads} heads cannot share {hidden} dimensions")
        return cls(
            name,
            num_layers,
            hidden,
            num_heads,
            num_heads,
            hidden // num_heads,
            int(config.get("n_inner") or 4 * hidden),  # null means four times the width
            vocab,
            max_model_len,
            gated_mlp=False,
            tied_head=bool(config.get("tie_word_embeddings", True)),
            num_positions=max_model_len,
            weight_dtype=dtype,
            kv_dtype=dtype,
        )


def _gpt2(name: str, num_layers: int, hidden: int, num_heads: int, vocab: int) -> ModelSpec:
    config = {
        "n_layer": num_layers,
        "n_embd": hidden,
        "n_head": num_heads,
        "vocab_size": vocab,
        "n_positions": 1024,
    }
    return ModelSpec.from_gpt2_config(config, name, dtype="fp16")


MODELS: Mapping[str, ModelSpec] = MappingProxyType(
    {
        # the course's own GPT-2
        "toy": _gpt2("toy", 6, 256, 4, 2048),
        # config.json of openai-community/gpt2 and of its three larger sisters
        "gpt2": _gpt2("gpt2", 12, 768, 12, 50257),
        "gpt2-medium": _gpt2("gpt2-medium", 24, 1024, 16, 50257),
        "gpt2-large": _gpt2("gpt2-large", 36, 1280, 20, 50257),
        "gpt2-xl": _gpt2("gpt2-xl", 48, 1600, 25, 50257),
        # config.json of meta-llama/Meta-Llama-3-8B and -70B
        "llama-3-8b": ModelSpec("llama-3-8b", 32, 4096, 32, 8, 128, 14336, 128256, 8192),
        "llama-3-70b": ModelSpec("llama-3-70b", 80, 8192, 64, 8, 128, 28672, 128256, 8192),
        # config.json of meta-llama/Llama-3.1-8B: the same shape, a longer context
        "llama-3.1-8b": ModelSpec("llama-3.1-8b", 32, 4096, 32, 8, 128, 14336, 128256, 131072),
        # config.json of mistralai/Mistral-7B-v0.1: 8 KV heads and a window of 4096 tokens
        "mistral-7b": ModelSpec(
            "mistral-7b", 32, 4096, 32, 8, 128, 14336, 32000, 32768, sliding_window=4096
        ),
        # config.json of mistralai/Mixtral-8x7B-v0.1: 2 of 8 experts per token
        "mixtral-8x7b": ModelSpec(
            "mixtral-8x7b",
            32,
            4096,
            32,
            8,
            128,
            14336,
            32000,
            32768,
            num_experts=8,
            experts_per_token=2,
        ),
    }
)


def get_model(name: str | ModelSpec) -> ModelSpec:
    """By name, in any case. Raises ValueError that names the known ones."""
    if isinstance(name, ModelSpec):
        return name
    key = str(name).strip().lower()
    if key not in MODELS:
        raise ValueError(f"unknown model {name!r}: the known ones are {', '.join(MODELS)}")
    return MODELS[key]
