"""Run the tests of `interpreted/` in processes that interpret the kernels, one for each file."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from toyserve_kernels.backend import why_no_interpreter

FILES = sorted((Path(__file__).parent / "interpreted").glob("test_*.py"))
REASON = why_no_interpreter()


@pytest.mark.slow
@pytest.mark.skipif(REASON is not None, reason=str(REASON))
@pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="interpreted/ is collected directly"
)
@pytest.mark.timeout(1500)  # minutes on an old processor that does something else too
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem.removeprefix("test_"))
def test_the_kernels_in_the_interpreter(file: Path) -> None:
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # two are slower on 16x64
    child = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--tb=short", str(file)],
        env=os.environ | {"TRITON_INTERPRET": "1"} | threads,
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stdout[-6000:] + child.stderr[-2000:]
