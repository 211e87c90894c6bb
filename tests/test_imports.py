"""Scheduling, memory, costs and numbers load without torch; each in a process of its own."""

import subprocess
import sys

import pytest

TORCH_FREE = [
    "toyserve",
    "toyserve.request",
    "toyserve.engine",
    "toyserve.schedulers",
    "toyserve.kv",
    "toyserve.policies",
    "toyserve.clock",
    "toyserve.runners",
    "toyserve.runners.simulated",
    "toyserve.costs",
    "toyserve.capacity",
    "toyserve.metrics",
    "toyserve.utilization",
    "toyserve.workload",
    "toyserve.recording",
    "toyserve.replay",
    "toyserve.perfetto",
]
HEAVY = ["torch", "transformers", "matplotlib", "triton", "tokenizers", "safetensors"]


def loaded_by(statement: str) -> set[str]:
    """Names of the top-level modules in memory after ``statement`` in a fresh process."""
    code = f"{statement}\nimport sys\nprint(*sorted({{m.split('.')[0] for m in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize("module", ["toyserve", "toyserve.engine", "toyserve.costs"])
def test_a_module_alone_loads_nothing_heavy(module):
    assert not loaded_by(f"import {module}") & set(HEAVY)


def test_all_torch_free_modules_together_load_nothing_heavy():
    statement = f"import {', '.join(TORCH_FREE)}"
    assert not loaded_by(statement) & set(HEAVY)


@pytest.mark.parametrize("module", TORCH_FREE)
def test_each_can_be_the_first_one_imported(module):
    """No import cycle that happens to work in one order only (checked with a cheap interpreter)."""
    code = (
        "import sys\n"
        f"sys.modules.update(dict.fromkeys({HEAVY!r}))\n"  # None: importing it raises ImportError
        f"import {module}\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_the_package_itself_does_not_even_load_numpy():
    assert "numpy" not in loaded_by("import toyserve")
