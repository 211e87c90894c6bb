"""The GPU check's last section: the engine end to end, by attention and by CUDA graphs.

The model has GPT-2's 124M shape and random weights, written to a folder as a checkpoint would
be. Tokens are greedy, so every way to run must say the same, but for rounding that flips a near
tie between two logits of a random model in 16 bits.
"""

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from .bench import Bench, Report, Row

GPT2_124M = {"vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12}
SMOKE = {"vocab_size": 97, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 2}


def write_random_gpt2(folder: Path, shape: dict[str, int], seed: int = 0) -> None:
    """A checkpoint folder in Hugging Face's GPT-2 layout, with a tokenizer of two tokens."""
    from safetensors.torch import save_file

    rng = torch.Generator().manual_seed(seed)
    width, inner = shape["n_embd"], 4 * shape["n_embd"]

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=rng) * 0.05

    weights = {"wte.weight": normal(shape["vocab_size"], width)}
    weights["wpe.weight"] = normal(shape["n_positions"], width)
    norms = ["ln_f"]
    for layer in range(shape["n_layer"]):
        at = f"h.{layer}"
        norms += [f"{at}.ln_1", f"{at}.ln_2"]
        for name, rows, columns in (
            ("attn.c_attn", width, 3 * width),
            ("attn.c_proj", width, width),
            ("mlp.c_fc", width, inner),
            ("mlp.c_proj", inner, width),
        ):
            weights[f"{at}.{name}.weight"] = normal(rows, columns)
            weights[f"{at}.{name}.bias"] = torch.zeros(columns)
    for name in norms:
        weights[f"{name}.weight"] = torch.ones(width)
        weights[f"{name}.bias"] = torch.zeros(width)
    save_file(weights, folder / "model.safetensors")
    config = shape | {"model_type": "gpt2", "activation_function": "gelu_new", "eos_token_id": 0}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "vocab.json").write_text(json.dumps({"<|endoftext|>": 0, "a": 1}))
    (folder / "merges.txt").write_text("#version: 0.2\n")


def measure_engine(report: Report, bench: Bench) -> None:
    """Output tokens per second for torch and Triton attention, without and with CUDA graphs."""
    try:
        from toyserve import LLM, SamplingParams
    except ImportError as error:
        report.skip(f"engine: toyserve.LLM cannot be imported: {error}")
        return
    shape = SMOKE if bench.smoke else GPT2_124M
    num_prompts, prompt_len, max_tokens = (2, 9, 3) if bench.smoke else (32, 128, 128)
    shown = f"{num_prompts} prompts of {prompt_len}, {max_tokens} new"
    rng = torch.Generator().manual_seed(1)
    prompts = torch.randint(1, shape["vocab_size"], (num_prompts, prompt_len), generator=rng)
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    options: dict[str, Any] = {
        "device": bench.device.type,
        "dtype": "float32" if bench.smoke else "float16",
        "max_running": num_prompts,
        "num_blocks": num_prompts * (-(-(prompt_len + max_tokens) // 16) + 1),
    }
    ways = [("torch", False), ("triton", False)]
    if not bench.smoke:
        ways.append(("triton", True))  # only the kernels' launches can be captured
    expected = None
    with tempfile.TemporaryDirectory() as name:
        write_random_gpt2(Path(name), shape)
        for attention, cuda_graphs in ways:
            what = attention + (" + graphs" if cuda_graphs else "")
            if bench.seconds_left < 15:
                report.skip(f"engine {what}: too little time is left")
                continue
            try:
                llm = LLM(name, attention=attention, cuda_graphs=cuda_graphs, **options)
                ids, seconds = _serve(llm, prompts.tolist(), params)
            except Exception as error:  # the other sections' numbers must survive this
                report.problem(f"engine {what}: {type(error).__name__}: {error}")
                continue
            expected = expected or ids
            same = sum(a == b for a, b in zip(ids, expected, strict=True)) / num_prompts
            rate = sum(map(len, ids)) / seconds
            note = f"{100 * same:.0f} % of the answers equal the first way's"
            if bench.smoke and same < 1:
                report.problem(f"engine {what}: {note}")
            report.add(Row("engine", shown, what, seconds, rate, "tokens/s", None, note))


def _serve(llm: Any, prompts: list[list[int]], params: Any) -> tuple[list[list[int]], float]:
    """The answers' token ids and the seconds of a second serving; the first one warms up."""
    llm.generate(prompts, params)
    begin = time.perf_counter()
    outputs = llm.generate(prompts, params)
    return [output.token_ids for output in outputs], time.perf_counter() - begin
