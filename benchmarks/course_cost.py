"""What the course costs: every notebook from top to bottom, with its time and its peak memory.

    python benchmarks/course_cost.py [NOTEBOOK.ipynb …] [--limit 60] [--json FILE]

Without names: lessons/*.ipynb and solutions/*.ipynb (which hold every exercise with its checks).
Each runs in a process and a kernel of its own, in a scratch folder; nothing is written back. Exit
code 1 if one raises, or takes longer than the limit.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

# Runs one notebook in a fresh interpreter and tells the kernel's peak memory: a child of that
# interpreter, so that getrusage speaks of it alone.
_RUN = """
import json, resource, sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], as_version=4)
cells = sum(cell.cell_type == "code" for cell in notebook.cells)
NotebookClient(notebook, timeout=int(sys.argv[2]), kernel_name="python3").execute()
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
print(json.dumps({"code_cells": cells, "peak_memory_mb": peak / 1e3}))
"""


def measure(notebook: Path, limit: int) -> dict[str, Any]:
    """Wall and CPU seconds and peak memory of one notebook, or the last line of its error."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        done = subprocess.run(
            [sys.executable, "-c", _RUN, str(notebook), str(limit)],
            capture_output=True,
            text=True,
            cwd=scratch,
        )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    facts: dict[str, Any] = {
        "notebook": str(notebook),
        "seconds": time.perf_counter() - started,
        "cpu_seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
    }
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        return facts | {"error": lines[-1] if lines else f"exit code {done.returncode}"}
    return facts | json.loads(done.stdout.splitlines()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebooks", nargs="*", type=Path)
    parser.add_argument("--limit", type=int, default=60, help="seconds for a notebook (60)")
    parser.add_argument("--json", type=Path, help="write the numbers there too")
    options = parser.parse_args()
    notebooks = options.notebooks or [
        *sorted(ROOT.glob("lessons/*.ipynb")),
        *sorted(ROOT.glob("solutions/*.ipynb")),
    ]
    results, failed = [], False
    for notebook in notebooks:
        facts = measure(notebook.resolve(), 5 * options.limit)
        results.append(facts)
        error = facts.get("error")
        late = facts["seconds"] > options.limit
        failed |= bool(error) or late
        memory = "" if error else f"{facts['peak_memory_mb']:6.0f} MB"
        note = error or (f"longer than {options.limit} s" if late else "")
        print(
            f"{facts['seconds']:6.1f} s  {facts['cpu_seconds']:6.1f} CPU s  {memory:>9}  "
            f"{notebook.parent.name}/{notebook.name}  {note}",
            flush=True,
        )
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(f"{sum(r['seconds'] for r in results):6.1f} s  in all, {len(results)} notebooks")
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
