"""Open the course in JupyterLab, in a folder of your own. What you changed is never overwritten."""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

NAME = "lab"
HELP = "open the course in JupyterLab"
EXAMPLES = (
    "toyserve lab                       # ./toyserve-lab, made if it is not there",
    "toyserve lab ~/course --port 9000",
    "toyserve lab --no-browser -- --ServerApp.ip=0.0.0.0   # what follows -- is JupyterLab's",
)

# No look for updates, no plugin catalogue, and (``jupyter/labconfig``) no question about news: the
# course asks nothing of the network. In the terminal only warnings, below the address.
_QUIET = (
    "--LabApp.extension_manager=readonly",
    "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    "--LabApp.news_url=None",
    "--Application.log_level=WARN",
)
_CONFIG = Path(__file__).parent / "jupyter"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", nargs="?", default="toyserve-lab", metavar="DIR")
    parser.add_argument("--port", type=int, help="default: 8888, or the next that is free")
    parser.add_argument("--no-browser", action="store_true", help="only print the address")
    parser.add_argument("--prepare-only", action="store_true", help="bring the notebooks, no more")


def execute(options: argparse.Namespace) -> int:
    from toyserve.course.workspace import prepare_workspace

    report = prepare_workspace(options.folder)
    print(report, flush=True)
    if options.prepare_only:
        return 0
    if importlib.util.find_spec("jupyterlab") is None:
        raise ValueError("JupyterLab is not installed: pip install 'toyserve[lab]', or `make lab`")
    # Inside a virtual environment its own kernel comes before one of the same name elsewhere.
    environment = os.environ | {"JUPYTER_PREFER_ENV_PATH": "1"}
    paths = [str(_CONFIG), *filter(None, [os.environ.get("JUPYTER_CONFIG_PATH")])]
    environment["JUPYTER_CONFIG_PATH"] = os.pathsep.join(paths)
    return _become(lab_command(report.folder, report.start, options), environment)


def _become(command: list[str], environment: dict[str, str]) -> int:
    """JupyterLab takes this process's place, so that Ctrl-C and a kill reach it and only it."""
    sys.stdout.flush()
    if os.name == "posix":
        os.execve(command[0], command, environment)
    return subprocess.run(command, env=environment, check=False).returncode


def lab_command(folder: Path, start: str, options: argparse.Namespace) -> list[str]:
    """What starts JupyterLab on the notebook ``start``."""
    command = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={folder}", *_QUIET]
    if start:
        command.append(f"--LabApp.default_url=/lab/tree/{quote(start)}")
    if options.port is not None:
        command.append(f"--ServerApp.port={options.port}")
    if options.no_browser:
        command.append("--no-browser")
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")  # containers and classroom images run as root
    return [*command, *options.passed_on]
