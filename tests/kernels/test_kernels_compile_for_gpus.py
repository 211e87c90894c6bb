"""Compile what the launchers launch for GPUs that are not here, and read the binaries."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from toyserve_kernels.backend import NOT_INSTALLED, triton_mode

TARGETS = ["sm_75", "sm_80", "sm_90", "gfx942"]
KERNELS = {
    "write_kv_kernel",
    "ragged_attention_kernel",
    "decode_attention_kernel",
    "merge_splits_kernel",
}


@pytest.mark.slow
@pytest.mark.skipif(triton_mode() == "absent", reason=NOT_INSTALLED)
@pytest.mark.parametrize("target", TARGETS)
def test_every_launch_compiles_without_spilling(target: str, tmp_path: Path) -> None:
    """In a process of its own: the compiler and the interpreter cannot share one."""
    report = tmp_path / "report.json"
    child = subprocess.run(
        [sys.executable, "-m", "toyserve_kernels.ahead_of_time", target, "--json", str(report)],
        env={k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stdout[-4000:] + child.stderr[-4000:]
    binaries = json.loads(report.read_text())["binaries"][target]
    assert {b["kernel"] for b in binaries} == KERNELS
    dtypes = {"fp16", "fp32"} | ({"bf16"} if target != "sm_75" else set())
    attention = [b for b in binaries if "attention" in b["kernel"]]
    for kernel in ("ragged_attention_kernel", "decode_attention_kernel"):
        assert {b["dtype"] for b in attention if b["kernel"] == kernel} == dtypes
    # what `Binary.problems` has judged already, said once more where a reader looks
    assert all(b["spill_bytes"] == 0 for b in binaries)
    if target != "sm_75":
        assert all(b["matrix_ops"] and b["async_copies"] for b in attention if b["dtype"] != "fp32")
