"""Finding and checking a GPT-2 checkpoint: the bundled one, a folder, or a name on a hub."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from toyserve.models.gpt2 import GPT2Config

TOY_FOLDER = Path(__file__).parent / "toy"

# Buffers of old checkpoints: the causal mask and its fill value, not weights.
_BUFFERS = re.compile(r"^h\.\d+\.attn\.(bias|masked_bias)$")


def load_checkpoint(model: str | Path) -> tuple[GPT2Config, dict[str, Tensor], Path | str]:
    """Config, checked weights, and where the tokenizer lies, of ``toy``, a folder or a hub name.

    Raises ValueError in one sentence for a folder that is missing, incomplete or not a GPT-2.
    """
    if not isinstance(model, str | Path):
        raise ValueError(f"model is {model!r}: it must be 'toy', a folder or a hub name")
    if str(model) == "toy":
        model = TOY_FOLDER
    folder = Path(model)
    if folder.is_dir():
        config = GPT2Config.from_dict(_read_json(folder / "config.json"))
        return config, check_weights(config, _read_folder(folder)), folder
    if folder.exists() or str(model).startswith((".", "/", "~")) or str(model).count("/") > 1:
        raise ValueError(f"{model} is not a folder with a model in it")
    return _load_from_hub(str(model))


def _read_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise ValueError(f"{path.parent} is not a model folder: it has no {path.name}")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} does not hold a JSON object")
    return content


def _read_folder(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder, from one safetensors file, several with an index, or a .bin."""
    index = folder / "model.safetensors.index.json"
    names = ["model.safetensors"]
    if index.exists():
        names = sorted(set(_read_json(index).get("weight_map", {}).values()))
    files = [folder / name for name in names]
    if all(f.exists() for f in files):
        tensors: dict[str, Tensor] = {}
        for file in files:
            tensors |= _read_safetensors(file)
        return tensors
    old = folder / "pytorch_model.bin"
    if old.exists():
        try:
            return dict(torch.load(old, map_location="cpu", weights_only=True))
        except Exception as error:  # pickle raises whatever it likes
            raise ValueError(f"{old} cannot be read: {error}") from None
    missing = ", ".join(f.name for f in files if not f.exists())
    raise ValueError(f"{folder} is only half a model: {missing} is missing")


def _read_safetensors(file: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load, load_file

    try:
        try:
            return dict(load_file(file))
        except UnicodeEncodeError:  # a path that this locale cannot write as UTF-8
            return dict(load(file.read_bytes()))
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{file} is corrupt or cut short: {error}") from None


def _load_from_hub(name: str) -> tuple[GPT2Config, dict[str, Tensor], str]:
    try:
        from transformers import GPT2LMHeadModel
    except ImportError:
        raise ValueError(
            f"{name!r} is neither 'toy' nor a folder here, and loading it by name from a hub needs "
            f"transformers: pip install 'toyserve[hub]'"
        ) from None
    try:
        model = GPT2LMHeadModel.from_pretrained(name)
    except (OSError, ValueError) as error:
        first_line = str(error).strip().splitlines()[0]
        raise ValueError(
            f"{name!r} is neither 'toy' nor a folder here, and was not found as a hub's model: "
            f"{first_line}"
        ) from None
    config = GPT2Config.from_dict(model.config.to_dict())
    return config, check_weights(config, model.state_dict()), name


def expected_shapes(config: GPT2Config) -> dict[str, tuple[int, ...]]:
    """Every weight a GPT-2 of this size has, by name. Conv1D weights are [in, out]."""
    d, inner = config.n_embd, config.n_inner
    shapes: dict[str, tuple[int, ...]] = {
        "wte.weight": (config.vocab_size, d),
        "wpe.weight": (config.n_positions, d),
        "ln_f.weight": (d,),
        "ln_f.bias": (d,),
    }
    layer: dict[str, tuple[int, ...]] = {
        "ln_1.weight": (d,),
        "ln_1.bias": (d,),
        "attn.c_attn.weight": (d, 3 * d),
        "attn.c_attn.bias": (3 * d,),
        "attn.c_proj.weight": (d, d),
        "attn.c_proj.bias": (d,),
        "ln_2.weight": (d,),
        "ln_2.bias": (d,),
        "mlp.c_fc.weight": (d, inner),
        "mlp.c_fc.bias": (inner,),
        "mlp.c_proj.weight": (inner, d),
        "mlp.c_proj.bias": (d,),
    }
    for i in range(config.n_layer):
        shapes |= {f"h.{i}.{name}": shape for name, shape in layer.items()}
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, d)
    return shapes


def check_weights(config: GPT2Config, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Names without the ``transformer.`` prefix, without buffers, all of the right shape.

    Raises ValueError that names what is missing, what is left over, or what has another shape.
    """
    found = {name.removeprefix("transformer."): t for name, t in tensors.items()}
    found = {name: t for name, t in found.items() if not _BUFFERS.match(name)}
    head = found.get("lm_head.weight")
    if config.tie_word_embeddings and head is not None and "wte.weight" in found:
        if not torch.equal(head, found["wte.weight"]):
            raise ValueError(
                "the checkpoint has an lm_head.weight that differs from wte.weight, but its "
                "config ties them: set tie_word_embeddings to false if the head is its own"
            )
        del found["lm_head.weight"]
    expected = expected_shapes(config)
    missing = [name for name in expected if name not in found]
    unused = [name for name in found if name not in expected]
    if missing:
        raise ValueError(f"the checkpoint lacks {_some(missing)}")
    if unused:
        raise ValueError(f"the checkpoint has tensors that a GPT-2 does not use: {_some(unused)}")
    for name, shape in expected.items():
        if tuple(found[name].shape) != shape:
            raise ValueError(
                f"{name} has shape {tuple(found[name].shape)}; the config says {shape}"
            )
    return found


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
