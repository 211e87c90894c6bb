"""GPT-2 (Radford et al., 2019) over one ragged row of tokens: no batch dimension, no padding.

The tokens of all requests in a step, prompts and decodes alike, lie one after another. Everything
but attention treats them as rows of one matrix; attention alone knows whose is whose.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from toyserve.models.linear import make_linear, packing_available


@dataclass(frozen=True)
class GPT2Config:
    """The fields of a Hugging Face ``config.json`` that change the computation."""

    vocab_size: int
    n_positions: int
    n_embd: int
    n_layer: int
    n_head: int
    n_inner: int
    layer_norm_epsilon: float = 1e-5
    eos_token_id: int | None = None
    tie_word_embeddings: bool = True

    @property
    def head_dim(self) -> int:
        return self.n_embd // self.n_head

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> GPT2Config:
        """Raises ValueError, naming the field, for what is missing or not computed here."""
        if config.get("model_type", "gpt2") != "gpt2":
            raise ValueError(f"model_type is {config['model_type']!r}: only 'gpt2' is supported")
        names = ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head")
        bad = [n for n in names if not isinstance(config.get(n), int) or config[n] < 1]
        if bad:
            raise ValueError(f"the model's config has no usable {', '.join(bad)}")
        activation = config.get("activation_function", "gelu_new")
        if activation not in ("gelu_new", "gelu_pytorch_tanh"):
            raise ValueError(f"activation_function is {activation!r}: only 'gelu_new' is supported")
        for flag in ("scale_attn_by_inverse_layer_idx", "add_cross_attention"):
            if config.get(flag):
                raise ValueError(f"the model's config sets {flag}, which is not supported")
        if not config.get("scale_attn_weights", True):
            raise ValueError("the model's config sets scale_attn_weights to false: not supported")
        if config["n_embd"] % config["n_head"]:
            raise ValueError(
                f"n_embd {config['n_embd']} is not a multiple of n_head {config['n_head']}"
            )
        eos = config.get("eos_token_id")
        return cls(
            **{n: config[n] for n in names},
            n_inner=config.get("n_inner") or 4 * config["n_embd"],
            layer_norm_epsilon=config.get("layer_norm_epsilon", 1e-5),
            eos_token_id=eos if isinstance(eos, int) and eos < config["vocab_size"] else None,
            tie_word_embeddings=config.get("tie_word_embeddings", True),
        )


class Attention(Protocol):
    """Writes this step's keys and values to the cache, then attends; one call per layer."""

    def __call__(self, layer: int, qkv: Tensor) -> Tensor:
        """qkv [num_tokens, 3 * n_embd] -> [num_tokens, n_embd]."""
        ...


class Block:
    """One transformer layer: x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, index: int, config: GPT2Config, w: dict[str, Tensor], packed: bool) -> None:
        def linear(name: str) -> Any:
            # Conv1D stores [in, out]; a linear layer wants [out, in].
            weight = w[f"h.{index}.{name}.weight"].t().contiguous()
            return make_linear(weight, w[f"h.{index}.{name}.bias"], packed=packed)

        def norm(name: str) -> tuple[Tensor, Tensor]:
            return w[f"h.{index}.{name}.weight"], w[f"h.{index}.{name}.bias"]

        self.index, self.shape, self.eps = index, (config.n_embd,), config.layer_norm_epsilon
        self.ln_1, self.ln_2 = norm("ln_1"), norm("ln_2")
        self.c_attn, self.c_proj = linear("attn.c_attn"), linear("attn.c_proj")
        self.c_fc, self.mlp_proj = linear("mlp.c_fc"), linear("mlp.c_proj")

    def __call__(self, x: Tensor, attention: Attention) -> Tensor:
        h = F.layer_norm(x, self.shape, *self.ln_1, self.eps)
        attended = attention(self.index, self.c_attn(h))  # [num_tokens, n_embd]
        x = self.c_proj.add_to(attended, x)
        h = F.layer_norm(x, self.shape, *self.ln_2, self.eps)
        return self.mlp_proj.add_to(self.c_fc.gelu(h), x)


class GPT2:
    """weights: tensors under GPT-2's names without the ``transformer.`` prefix (see weights.py)."""

    def __init__(
        self,
        config: GPT2Config,
        weights: dict[str, Tensor],
        device: torch.device,
        dtype: torch.dtype,
        *,
        packed: bool | None = None,
    ) -> None:
        w = {name: t.to(device=device, dtype=dtype) for name, t in weights.items()}
        self.config, self.device, self.dtype = config, device, dtype
        if packed is None:
            packed = device.type == "cpu" and dtype is torch.float32 and packing_available()
        self.packed = packed
        self.wte, self.wpe = w["wte.weight"], w["wpe.weight"]
        self.blocks = [Block(i, config, w, packed) for i in range(config.n_layer)]
        self.ln_f = (w["ln_f.weight"], w["ln_f.bias"])
        self.head = make_linear(w.get("lm_head.weight", self.wte), None, packed=packed)

    def forward(
        self,
        token_ids: Tensor,  # [num_tokens]
        positions: Tensor,  # [num_tokens]
        attention: Attention,
        logits_rows: Tensor,  # [num_rows]: the rows whose next token is wanted
    ) -> Tensor:
        """Next-token logits, float32 [num_rows, vocab_size]."""
        x = self.wte.index_select(0, token_ids) + self.wpe.index_select(0, positions)
        for block in self.blocks:
            x = block(x, attention)
        x = x.index_select(0, logits_rows)  # the head is the widest layer: only where it is needed
        x = F.layer_norm(x, (self.config.n_embd,), *self.ln_f, self.config.layer_norm_epsilon)
        return self.head(x).float()
