"""Small random GPT-2s and the oracle: transformers' own ``generate`` on the same weights."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.utils import logging

from toyserve.models.weights import TOY_FOLDER

logging.set_verbosity_error()
logging.disable_progress_bar()

EOS = 63


def random_gpt2(folder: Path, *, n_head: int = 3, n_positions: int = 64, **config: object) -> Path:
    """A two-layer GPT-2 of vocabulary 64 in ``folder``, beside the bundled tokenizer's file."""
    torch.manual_seed(n_head)
    settings = {
        "n_layer": 2,
        "n_embd": 24,
        "vocab_size": 64,
        "bos_token_id": EOS,
        "eos_token_id": EOS,
        # Wide initial weights, so that the two most likely tokens are rarely close.
        "initializer_range": 0.3,
    } | config
    model = GPT2LMHeadModel(GPT2Config(n_head=n_head, n_positions=n_positions, **settings))
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes((TOY_FOLDER / "tokenizer.json").read_bytes())
    return folder


@cache
def oracle(folder: Path) -> GPT2LMHeadModel:
    return GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float32).eval()


_ANSWERS: dict[tuple[Path, tuple[int, ...], int, bool], list[int]] = {}


@torch.inference_mode()
def generate(
    folder: Path, prompt: list[int], max_tokens: int, *, ignore_eos: bool = False
) -> list[int]:
    """Greedy ids by transformers, for one prompt alone."""
    key = (folder, tuple(prompt), max_tokens, ignore_eos)
    if key not in _ANSWERS:
        model = oracle(folder)
        eos = None if ignore_eos else model.config.eos_token_id
        ids = torch.tensor([prompt])
        room = model.config.n_positions - len(prompt)
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=min(max_tokens, room),
            do_sample=False,
            eos_token_id=eos,
            pad_token_id=0,
        )
        _ANSWERS[key] = out[0, len(prompt) :].tolist()
    return _ANSWERS[key]
