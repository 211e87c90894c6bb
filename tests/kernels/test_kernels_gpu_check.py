"""The GPU check runs from end to end on a CPU, so that it does not break before it meets a GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from toyserve_kernels.backend import why_no_interpreter
from toyserve_kernels.gpu_engine import SMOKE, write_random_gpt2
from toyserve_kernels.gpu_shapes import Shape

REASON = why_no_interpreter()


def gpu_check(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "toyserve_kernels.gpu_check", *arguments],
        env={k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.skipif(REASON is not None, reason=str(REASON))
def test_the_check_runs_on_a_cpu_and_writes_its_table_as_json(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    ran = gpu_check("--smoke", "--sweep", "--json", str(path))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    report = json.loads(path.read_text())
    assert report["problems"] == []
    assert {"date", "torch", "triton", "card", "python", "seconds"} <= set(report["about"])
    rows = report["rows"]
    sections = {row["section"] for row in rows}
    assert {"ceiling", "correct", "decode", "prefill", "write", "sweep"} <= sections
    decoders = {row["what"] for row in rows if row["section"] == "decode"}
    assert {"toyserve decode", "toyserve ragged", "gather + SDPA"} <= decoders
    assert "engine" in sections or any("engine" in text for text in report["skipped"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to check")
def test_without_a_gpu_it_says_so() -> None:
    ran = gpu_check()
    assert ran.returncode == 2
    assert ran.stdout.startswith("cannot check: ")
    assert "--smoke runs without a GPU" in ran.stdout


def test_work_is_counted_as_the_papers_do() -> None:
    decode = Shape("", 12, 12, 64, 8, 1024)
    assert decode.kv_bytes(torch.float16) == 8 * 1024 * 2 * 12 * 64 * 2
    assert decode.flops == 4 * 8 * 12 * 64 * 1024
    prompt = Shape("", 12, 12, 64, 1, 100, 100)
    assert prompt.flops == 4 * 12 * 64 * sum(range(1, 101))


def test_the_random_checkpoint_is_a_gpt2(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    write_random_gpt2(tmp_path, SMOKE)
    model, loading = transformers.GPT2LMHeadModel.from_pretrained(
        tmp_path, output_loading_info=True
    )
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    assert model(torch.tensor([[1, 2, 3]])).logits.shape == (1, 3, SMOKE["vocab_size"])
