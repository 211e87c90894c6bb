"""What this machine has for the course: one sentence each, with advice where it helps."""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

State = Literal["ok", "optional", "missing"]
LEAST_PYTHON = (3, 11)
MODEL_FILES = ("config.json", "model.safetensors", "tokenizer.json")
_LINUX_TRITON = ("x86_64", "aarch64")


@dataclass(frozen=True)
class Finding:
    """state: ok, optional (the course runs without it), or missing (it does not)."""

    what: str
    state: State
    found: str
    advice: str = ""


def examine(*, quick: bool = False) -> list[Finding]:
    """Everything, in the order in which a person would ask. quick: load neither torch nor model."""
    checks: list[Callable[[], Finding]] = [python, machine, torch_package]
    if not quick:
        checks.append(gpu)
    checks += [triton, jupyterlab, widgets, model_files]
    if not quick:
        checks.append(model_answers)
    checks += [lessons, hub, browser]
    return [_safely(check) for check in checks]


def _safely(check: Callable[[], Finding]) -> Finding:
    """A check that fails is itself a finding: an installation can be broken in any way."""
    try:
        return check()
    except Exception as error:
        what = (check.__doc__ or check.__name__).strip().rstrip(".")
        return Finding(what, "missing", f"{type(error).__name__}: {' '.join(str(error).split())}")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def python() -> Finding:
    """Python."""
    found = f"{platform.python_version()} at {sys.executable}"
    if sys.version_info >= LEAST_PYTHON:
        return Finding("Python", "ok", found)
    return Finding("Python", "missing", found, "toyserve needs Python 3.11 or newer")


def machine() -> Finding:
    """Machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    found = f"{platform.system()} on {platform.machine()}, {cores} CPU cores"
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        found += f", {size / 1e9:.0f} GB of memory"
    return Finding("machine", "ok", found)


def torch_package() -> Finding:
    """Torch."""
    version = _version("torch")
    if version is None:
        advice = "pip install -c constraints.txt -e . (README, Without make)"
        return Finding("torch", "missing", "not installed: no model can run", advice)
    return Finding("torch", "ok", version)


def gpu() -> Finding:
    """GPU."""
    torch = importlib.import_module("torch")
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        size = f"{properties.total_memory / 1e9:.0f} GB"
        capability = f"compute capability {properties.major}.{properties.minor}"
        return Finding("GPU", "ok", f"{properties.name}, {size}, {capability}: used by default")
    found = "none that torch can use: everything runs on the CPU, which is enough for the course"
    if shutil.which("nvidia-smi") and torch.version.cuda is None:
        advice = "there is an NVIDIA driver, but this torch is a CPU build: install a CUDA build"
        return Finding("GPU", "optional", found, advice)
    return Finding("GPU", "optional", found)


def triton() -> Finding:
    """Triton."""
    version = _version("triton")
    if version is None:
        if sys.platform != "linux" or platform.machine() not in _LINUX_TRITON:
            found = "absent: it exists only for Linux; the engine uses its torch attention"
            return Finding("Triton", "optional", found)
        found = "absent: the engine uses its torch attention, and lesson 08 has no kernel to run"
        return Finding("Triton", "optional", found, "pip install 'toyserve[triton]', or make lab")
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return Finding("Triton", "ok", f"{version}, compiled for the GPU")
    how = "interpreter only (no GPU): kernels run step by step in lesson 08, slowly"
    return Finding("Triton", "ok", f"{version}, {how}")


def jupyterlab() -> Finding:
    """JupyterLab."""
    version, kernel = _version("jupyterlab"), _version("ipykernel")
    if version and kernel:
        return Finding("JupyterLab", "ok", version)
    found = "not installed" if not version else "without ipykernel, so it has no Python"
    advice = "pip install 'toyserve[lab]', or make lab; toyserve demo and run work without"
    return Finding("JupyterLab", "optional", found, advice)


def widgets() -> Finding:
    """Widgets."""
    versions = {name: _version(name) for name in ("ipywidgets", "anywidget")}
    absent = [name for name, version in versions.items() if version is None]
    if absent:
        found = f"{' and '.join(absent)} not installed: pictures stand still, sliders are missing"
        return Finding("widgets", "optional", found, "pip install 'toyserve[lab]', or make lab")
    return Finding("widgets", "ok", ", ".join(f"{k} {v}" for k, v in versions.items()))


def model_files() -> Finding:
    """Model files."""
    folder = Path(__file__).parent / "models" / "toy"
    absent = [name for name in MODEL_FILES if not (folder / name).is_file()]
    if absent:
        found = f"{', '.join(absent)} missing in {folder}"
        return Finding("bundled model", "missing", found, "get the repository's files again")
    size = (folder / "model.safetensors").stat().st_size
    if size < 1000:
        found = f"model.safetensors in {folder} has {size} bytes: a pointer, not the weights"
        return Finding("bundled model", "missing", found, "git lfs pull, or clone anew")
    return Finding("bundled model", "ok", f"{size / 1e6:.1f} MB in {folder}")


def model_answers() -> Finding:
    """Try the model."""
    from toyserve.llm import LLM
    from toyserve.request import SamplingParams

    start = time.perf_counter()
    llm = LLM("toy", num_blocks=16)
    loaded = time.perf_counter()
    output = llm.generate(["ROMEO:\n"], SamplingParams(temperature=0, max_tokens=24))[0]
    seconds = time.perf_counter() - loaded
    words = " ".join(output.text.split())
    return Finding(
        "try it",
        "ok",
        f"loaded in {loaded - start:.1f} s, {len(output.token_ids)} tokens in {seconds:.2f} s: "
        f"ROMEO says {words!r}",
    )


def lessons() -> Finding:
    """Lessons."""
    from toyserve.course.workspace import find_course_folders

    try:
        folders = find_course_folders()
    except Exception as error:
        return Finding("lessons", "optional", " ".join(str(error).split()))
    count = sum(1 for _ in folders["lessons"].glob("[0-9]*.ipynb"))
    return Finding("lessons", "ok", f"{count} in {folders['lessons']}")


def hub() -> Finding:
    """Models from a hub."""
    version = _version("transformers")
    if version is None:
        found = "transformers not installed: only the bundled model and folders can be loaded"
        return Finding("hub models", "optional", found, "pip install 'toyserve[hub]'")
    return Finding("hub models", "ok", f"transformers {version}: --model gpt2 and its like")


def browser() -> Finding:
    """Browser for tests."""
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found:
        return Finding("browser for tests", "ok", found)
    return Finding(
        "browser for tests",
        "optional",
        "no Chromium: only the browser tests of toyserve itself need it, and are skipped",
    )
