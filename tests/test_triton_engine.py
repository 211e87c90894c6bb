"""The engine on the Triton kernels, in the interpreter: the same greedy ids as transformers."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from models_for_tests import random_gpt2

from toyserve import LLM

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed on this platform"
)

PROGRAM = """
import sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from models_for_tests import generate
from toyserve import LLM, SamplingParams
folder = Path(sys.argv[1])
prompts = [[1, 2, 3], [5] * 9, [7, 8] * 8, [4]]
params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
for options in (
    dict(token_budget=5, num_blocks=7),  # chunks, mixtures, preemption
    dict(token_budget=5, num_blocks=7, cuda_graphs=True),  # the graphs' padded decode batches
    dict(scheduler="static", num_blocks=30),  # prompt padding and finished rows
):
    llm = LLM(folder, attention="triton", block_size=4, max_running=3, check=True, **options)
    assert llm.attention == "triton"
    assert LLM(folder).attention == "torch", "auto does not pick the interpreter"
    for prompt, output in zip(prompts, llm.generate(prompts, params)):
        assert output.token_ids == generate(folder, prompt, 6, ignore_eos=True), options
    if "token_budget" in options:
        assert sum(r.num_preemptions for r in llm.recording.requests.values()) > 0
print("same ids")
"""


@needs_triton
def test_engine_in_the_interpreter_gives_transformers_ids(tmp_path: Path) -> None:
    folder = random_gpt2(tmp_path / "model", n_embd=48, n_head=3)
    environment = os.environ | {"TRITON_INTERPRET": "1", "OPENBLAS_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "same ids" in done.stdout


@needs_triton
def test_triton_where_it_cannot_run_says_why(tmp_path: Path) -> None:
    small_heads = random_gpt2(tmp_path / "small")
    with pytest.raises(ValueError, match="heads have 8 numbers"):
        LLM(small_heads, attention="triton")
    with pytest.raises(ValueError, match=r"attention is 'triton', but .*cpu"):
        LLM("toy", attention="triton", device="cpu")


def test_unknown_attention_and_graphs_without_kernels_are_refused() -> None:
    with pytest.raises(ValueError, match=r"attention is 'magic'.*triton"):
        LLM("toy", attention="magic")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="cuda_graphs"):
        LLM("toy", attention="torch", cuda_graphs=True)
