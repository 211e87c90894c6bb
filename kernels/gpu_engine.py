"""The GPU check's engine: the same answers by every attention, and how fast each serves.

Models have random weights, written to a folder as a checkpoint would be. Tokens are greedy, so in
fp32 every way to run must say the same; in 16 bits, rounding may flip a near tie between two
logits, and how many answers stayed the same is only told.
"""

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from .bench import Bench, Report, Row

GPT2_124M = {"vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12}
SMALL = {"vocab_size": 997, "n_positions": 256, "n_embd": 256, "n_layer": 4, "n_head": 4}
SMOKE = {"vocab_size": 97, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 2}

CHECKED = (12, 40, 70)  # prompts, most new tokens, longest prompt
SERVED = (32, 128, 128)  # prompts, their length, new tokens


def write_random_gpt2(folder: Path, shape: dict[str, int], scale: float = 0.05) -> None:
    """A checkpoint folder in Hugging Face's GPT-2 layout, with a tokenizer of two tokens.

    The wider its weights, of which `scale` is the deviation, the rarer a near tie of two tokens.
    """
    from safetensors.torch import save_file

    rng = torch.Generator().manual_seed(0)
    width, inner = shape["n_embd"], 4 * shape["n_embd"]

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=rng) * scale

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


def ways(bench: Bench) -> list[tuple[str, dict[str, Any]]]:
    """Names and options of the engines that are compared, the one that judges first."""
    graphs = "triton + padded" if bench.smoke else "triton + graphs"
    return [
        ("torch", {"attention": "torch"}),
        ("triton", {"attention": "triton", "cuda_graphs": False}),
        (graphs, {"attention": "triton", "cuda_graphs": True}),
    ]


def check_engine(report: Report, bench: Bench) -> None:
    """The same ids in fp32: chunks and decodes mixed, batches of many sizes, preemption."""
    from toyserve import LLM, SamplingParams

    shape = SMOKE if bench.smoke else SMALL
    count, most, longest = (3, 4, 9) if bench.smoke else CHECKED
    rng = torch.Generator().manual_seed(2)
    lens = torch.randint(1, longest, (count,), generator=rng).tolist()
    prompts = [torch.randint(1, shape["vocab_size"], (n,), generator=rng).tolist() for n in lens]
    params = [
        SamplingParams(temperature=0.0, max_tokens=most - 2 * i % most, ignore_eos=True)
        for i in range(count)
    ]
    blocks = max(-(-(longest + most) // 8) + 1, sum(lens) // 8)  # too few for all at once
    options: dict[str, Any] = {"dtype": "float32", "block_size": 8, "num_blocks": blocks}
    with tempfile.TemporaryDirectory() as name:
        write_random_gpt2(Path(name), shape, scale=0.2)
        expected = None
        for what, way in ways(bench):
            llm = LLM(name, device=bench.device.type, token_budget=32, **options, **way)
            ids = [output.token_ids for output in llm.generate(prompts, params)]
            expected = expected or ids
            wrong = [i for i, (a, b) in enumerate(zip(ids, expected, strict=True)) if a != b]
            if wrong:
                report.problem(f"engine {what}: other ids in fp32 for requests {wrong}")
            preempted = sum(r.num_preemptions for r in llm.recording.requests.values())
            note = f"{sum(map(len, ids))} tokens in {count} answers, {preempted} preemptions"
            verdict = f"{what}: {'wrong' if wrong else 'right'}"
            report.add(Row("correct", "engine, float32", verdict, note=note))


def measure_engine(report: Report, bench: Bench) -> None:
    """Output tokens per second for torch and Triton attention, without and with CUDA graphs."""
    from toyserve import LLM, SamplingParams

    shape = SMOKE if bench.smoke else GPT2_124M
    num_prompts, prompt_len, max_tokens = (2, 9, 3) if bench.smoke else SERVED
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
    expected = None
    with tempfile.TemporaryDirectory() as name:
        write_random_gpt2(Path(name), shape)
        for what, way in ways(bench):
            if bench.seconds_left < 15:
                report.skip(f"engine {what}: too little time is left")
                continue
            try:
                ids, seconds = _serve(LLM(name, **options, **way), prompts.tolist(), params)
            except Exception as error:  # the other ways' numbers must survive this
                report.problem(f"engine {what}: {type(error).__name__}: {error}")
                continue
            expected = expected or ids
            same = sum(a == b for a, b in zip(ids, expected, strict=True)) / num_prompts
            note = f"{100 * same:.0f} % of the answers equal the first way's"
            rate = None if bench.smoke else sum(map(len, ids)) / seconds
            took = None if bench.smoke else seconds
            report.add(Row("engine", shown, what, took, rate, "tokens/s", None, note))


def _serve(llm: Any, prompts: list[list[int]], params: Any) -> tuple[list[list[int]], float]:
    """The answers' token ids and the seconds of a second serving; the first one warms up."""
    llm.generate(prompts, params)
    begin = time.perf_counter()
    outputs = llm.generate(prompts, params)
    return [output.token_ids for output in outputs], time.perf_counter() - begin
